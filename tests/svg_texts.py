"""Where the texts of a picture by matplotlib stand: its SVG file, letters as paths, is read."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
MOVE = re.compile(r"(translate|rotate|scale)\(([^)]*)\)")


def matrix(transform):
    """(3, 3): what SVG's words for moving, turning and scaling do together."""
    whole = np.eye(3)
    for word, numbers in MOVE.findall(transform or ""):
        given = [float(one) for one in numbers.replace(",", " ").split()]
        step = np.eye(3)
        if word == "translate":
            step[:2, 2] = (*given, 0.0)[:2]
        elif word == "scale":
            step[0, 0], step[1, 1] = given[0], given[-1]
        else:
            turn = np.radians(given[0])
            step[:2, :2] = [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]
        whole = whole @ step
    return whole


def corners(path):
    """(3, N): the points of a path before it is moved, as columns x, y, 1; each command of small
    letters begins where the last one ended.
    """
    at = start = np.zeros(2)
    points = [np.zeros((0, 2))]
    for letter, numbers in re.findall(r"([mlqcz])([^a-z]*)", path.get("d") or "", re.IGNORECASE):
        given = np.array(re.findall(r"-?[\d.]+", numbers), float).reshape(-1, 2)
        points.append(given + at * letter.islower())
        at = points[-1][-1] if len(given) else start
        start = at if letter in "mM" else start
    points = np.concatenate(points)
    return np.vstack([points.T, np.ones(len(points))])


def inked(element, place, glyphs):
    """The points of everything that an element draws, each (3, N)."""
    place = place @ matrix(element.get("transform"))
    if element.tag == f"{SVG}use":
        letter, moved = glyphs[element.get(LINK)[1:]], np.eye(3)
        moved[:2, 2] = [float(element.get(axis) or 0) for axis in "xy"]
        yield place @ moved @ matrix(letter.get("transform")) @ corners(letter)
    elif element.tag == f"{SVG}path":
        yield place @ corners(element)
    elif element.tag != f"{SVG}defs":
        for child in element:
            yield from inked(child, place, glyphs)


def text_boxes(picture: Path):
    """(width, height) of the canvas and text → list of (left, top, right, bottom), in points."""
    builder = ElementTree.TreeBuilder(insert_comments=True)
    root = ElementTree.parse(picture, ElementTree.XMLParser(target=builder)).getroot()
    glyphs = {path.get("id"): path for path in root.iter(f"{SVG}path") if path.get("id")}
    boxes = []
    for group in root.iter(f"{SVG}g"):
        if not (group.get("id") or "").startswith("text_"):
            continue
        said = next((one.text.strip() for one in group.iter(ElementTree.Comment)), group.get("id"))
        drawn = [points for points in inked(group, np.eye(3), glyphs) if points.size]
        if drawn:
            points = np.hstack(drawn)[:2]
            boxes.append((said, (*points.min(1), *points.max(1))))
    return tuple(float(one) for one in root.get("viewBox").split()[2:]), boxes


def problems_of(picture: Path):
    """Texts beyond the canvas or over one another, in words; [] where there are none."""
    (width, height), boxes = text_boxes(picture)
    found = [
        f"{text!r} reaches beyond the canvas"
        for text, (left, top, right, bottom) in boxes
        if left < 0 or top < 0 or right > width or bottom > height
    ]
    for place, (text, one) in enumerate(boxes):
        for other_text, other in boxes[place + 1 :]:
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                found.append(f"{text!r} and {other_text!r} lie over one another")
    return found
