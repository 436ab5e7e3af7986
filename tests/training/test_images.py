"""The module `images`: pixels that are right, changes that depend on seed, epoch and row alone,
and bad images named.
"""

import io
import random

import numpy as np
import pytest
import tiny
import torch
from PIL import Image as Pillow

from compatkit.training.images import (
    ImageFiles,
    ImageRows,
    Preparation,
    StoredImages,
    augmentation_draws,
    channel_statistics,
    channels_of,
    crops,
    decode_image,
    flips,
    pixel_code,
    random_part,
    read_images,
    scaled_part,
    store_images,
)

NAMES = [f"train-{n}" for n in range(40)]


def grey(count=12, height=6, width=8, seed=0):
    """Random grey images (N, 1, H, W)."""
    return torch.from_numpy(
        np.random.default_rng(seed).integers(0, 256, (count, 1, height, width), dtype=np.uint8)
    )


def encoded(pixels, kind="PNG"):
    """(C, H, W) as the bytes of an image file."""
    array = pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    Pillow.fromarray(array).save(file, kind)
    return file.getvalue()


def rows_of(images, **preparation):
    return ImageRows(
        NAMES[: len(images)],
        list(range(len(images))),
        images,
        Preparation(**({"channels": 1} | preparation)),
    )


def batch(rows, epoch=0, order=None):
    rows.set_epoch(epoch)
    return rows.collate([rows[n] for n in (range(len(rows)) if order is None else order)])[
        "pixel_values"
    ]


# --- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_what_was_encoded_comes_back(kind):
    colour = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, 5, 7), dtype=np.uint8))
    file = io.BytesIO()
    Pillow.fromarray(colour.permute(1, 2, 0).numpy()).save(
        file, kind, **({"lossless": True} if kind == "WEBP" else {})
    )
    assert torch.equal(decode_image(file.getvalue(), 3), colour)


def test_a_path_and_its_bytes_are_the_same_image(tmp_path):
    image = grey(1)[0]
    (tmp_path / "a.png").write_bytes(encoded(image))
    assert torch.equal(decode_image(str(tmp_path / "a.png"), 1), decode_image(encoded(image), 1))
    assert torch.equal(decode_image(encoded(image), 3), image.expand(3, -1, -1))


def test_palettes_transparency_and_upright_photographs_are_understood():
    picture = Pillow.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    wanted = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    for mode in ("P", "RGBA"):
        file = io.BytesIO()
        (picture.convert(mode) if mode == "RGBA" else picture.quantize(16)).save(file, "PNG")
        assert (decode_image(file.getvalue(), 3).int() - wanted.int()).abs().max() <= 8
    file, turned = io.BytesIO(), Pillow.Exif()
    turned[0x0112] = 6  # the camera was held upright
    Pillow.fromarray(np.zeros((4, 9), np.uint8)).save(file, "JPEG", exif=turned)
    assert decode_image(file.getvalue(), 1).shape == (1, 9, 4)


@pytest.mark.parametrize(
    "height, width, side", [(10, 20, 5), (20, 10, 5), (7, 7, 14), (3, 50, 4), (5, 5, 5), (9, 10, 8)]
)
def test_a_side_gives_the_middle_square(height, width, side):
    shades = torch.linspace(0, 255, width).to(torch.uint8).expand(1, height, width).contiguous()
    square = decode_image(encoded(shades), 1, side)
    assert square.shape == (1, side, side)
    column = 255 / (width * max(side / height, side / width))
    assert abs(square.float().mean() - 127.5) < 0.6 * column + 2, "the middle, not a corner"


def test_a_photograph_is_scaled_not_sampled():
    """A board of black and white pixels becomes grey."""
    board = torch.from_numpy((np.indices((16, 16)).sum(0) % 2 * 255).astype(np.uint8))[None]
    assert (decode_image(encoded(board), 1, 4).float() - 127.5).abs().max() < 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file[:60],
        lambda file: b"",
        lambda file: b"<html>not found</html>",
        lambda file: file[:-30] + b"x" * 30,
    ],
)
def test_a_broken_image_is_named(damage):
    file = damage(encoded(grey(1, 30, 30)[0]))
    with pytest.raises(ValueError, match="image train-7 cannot be read"):
        decode_image(file, 1, name="train-7")
    with pytest.raises(ValueError, match="image train-1 cannot be read"):
        read_images([encoded(grey(1, 30, 30)[0]), file], NAMES, 1)
    with pytest.raises(ValueError, match="image train-0 cannot be read"):
        channels_of([file[:30]], NAMES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="train-3.*FileNotFoundError"):
        decode_image(str(tmp_path / "gone.jpg"), name="train-3")
    with pytest.raises(ValueError, match="gone.jpg"):
        decode_image(str(tmp_path / "gone.jpg"))


# --- many images ----------------------------------------------------------------------------------


def test_memory_decides_between_a_tensor_and_files():
    images = grey(5)
    files = [encoded(one) for one in images]
    assert torch.equal(read_images(files, NAMES, 1, memory=5 * 48), images)
    kept = read_images(files, NAMES, 1, memory=5 * 48 - 1)
    assert (
        isinstance(kept, ImageFiles)
        and len(kept) == 5
        and torch.equal(torch.stack([kept[n] for n in range(5)]), images)
    )


def test_images_of_different_sizes_need_a_side():
    files = [encoded(grey(1)[0]), encoded(grey(1)[0]), encoded(grey(1, 9, 9)[0])]
    with pytest.raises(ValueError, match="0.*8.*6 pixels"):
        read_images(files, NAMES, 1)
    assert read_images(files, NAMES, 1, side=4).shape == (3, 1, 4, 4)
    kept = rows_of(read_images(files, NAMES, 1, memory=0))
    assert batch(kept, order=[0, 1]).shape == (2, 1, 6, 8)
    with pytest.raises(ValueError, match="train-1.*train-2.*give a side"):
        batch(kept, order=[1, 2])
    with pytest.raises(ValueError, match="no images"):
        read_images([], [])


def test_a_set_is_grey_only_if_all_are():
    colour = encoded(torch.zeros(3, 4, 4, dtype=torch.uint8))
    assert channels_of([encoded(grey(1)[0])] * 3, NAMES) == 1
    assert channels_of([encoded(grey(1)[0])] * 3 + [colour], NAMES) == 3


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_are_those_of_all_pixels(channels):
    pixels = torch.from_numpy(
        np.random.default_rng(3).integers(0, 200, (7, channels, 5, 4), dtype=np.uint8)
    )
    mean, std = channel_statistics(pixels)
    flat = pixels.numpy().transpose(1, 0, 2, 3).reshape(channels, -1) / 255
    assert np.allclose(mean, flat.mean(1), atol=1e-4) and np.allclose(std, flat.std(1), atol=1e-4)
    kept = read_images([encoded(one) for one in pixels], NAMES, channels, memory=0)
    assert channel_statistics(kept) == (mean, std)
    assert channel_statistics(torch.zeros(2, channels, 3, 3, dtype=torch.uint8))[1][0] > 0, (
        "a black set can still be divided by"
    )


# --- preparation ----------------------------------------------------------------------------------


def test_prepared_pixels_have_mean_0_and_deviation_1():
    pixels = grey(30)
    mean, std = channel_statistics(pixels)
    values = Preparation(channels=1, mean=mean, std=std).finished(pixels)
    assert (
        abs(values.mean()) < 1e-3 and abs(values.std() - 1) < 1e-3 and values.dtype == torch.float32
    )


@pytest.mark.parametrize("times", [1, 2, 4])
def test_enlarging_repeats_pixels(times):
    given = Preparation(channels=1, enlarge=times, mean=(0.0,), std=(1.0,))
    pixels = grey(3)
    assert torch.allclose(
        given.finished(pixels),
        torch.from_numpy(np.kron(pixels.numpy() / 255, np.ones((times, times)))).float(),
        atol=1e-6,
    )


def test_one_scale_becomes_another():
    one, other = (
        Preparation(mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.3)),
        Preparation(mean=(0.3, 0.3, 0.3), std=(0.2, 0.2, 0.2)),
    )
    pixels = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), dtype=np.uint8)
    )
    assert torch.allclose(
        one.converted(one.finished(pixels), other), other.finished(pixels), atol=1e-5
    )
    values = one.finished(pixels)
    assert one.converted(values, one) is values
    with pytest.raises(ValueError, match="different pixels .side, enlarge."):
        one.converted(values, Preparation(side=8, enlarge=2, mean=one.mean, std=one.std))


@pytest.mark.parametrize(
    "wrong",
    [
        {"channels": 4},
        {"enlarge": 0},
        {"side": -1},
        {"side": 8, "crop": 9},
        {"std": (0.0,)},
        {"mean": (0.1, 0.2)},
        {"std": (0.1,) * 3, "channels": 1},
    ],
)
def test_a_preparation_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Preparation(**wrong)


# --- crops and flips ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_crops_are_those_of_a_loop(seed):
    generator = np.random.default_rng(seed)
    channels, height, width = generator.integers(1, 4), *generator.integers(4, 12, 2)
    pixels = torch.from_numpy(
        generator.integers(0, 256, (6, channels, height, width), dtype=np.uint8)
    )
    tall, wide = int(generator.integers(1, height + 1)), int(generator.integers(1, width + 1))
    top, left = (
        torch.from_numpy(generator.integers(0, most + 1, 6))
        for most in (height - tall, width - wide)
    )
    wanted = torch.stack(
        [pixels[n, :, top[n] : top[n] + tall, left[n] : left[n] + wide] for n in range(6)]
    )
    assert torch.equal(crops(pixels, top, left, tall, wide), wanted)


def test_flips_are_their_own_inverse_and_leave_the_others_alone():
    pixels, which = grey(12), torch.arange(12) % 3 == 0
    flipped = flips(pixels, which)
    assert torch.equal(flips(flipped, which), pixels) and torch.equal(
        flipped[~which], pixels[~which]
    )
    assert torch.equal(flipped[which], pixels[which].flip(3))


# --- rows -----------------------------------------------------------------------------------------


def test_plain_rows_are_the_images():
    pixels = grey(4)
    rows = rows_of(pixels, mean=(0.0,), std=(1.0,))
    assert torch.allclose(batch(rows), pixels / 255.0, atol=1e-6) and torch.equal(
        batch(rows, 0), batch(rows, 9)
    )
    assert rows.lengths is None and len(rows) == 4 and rows[2] == {"row": 2, "label": 2}
    middle = batch(rows_of(pixels, crop=4, mean=(0.0,), std=(1.0,)))
    assert torch.allclose(middle, pixels[:, :, 1:5, 2:6] / 255.0, atol=1e-6)


def test_what_is_drawn_hangs_on_seed_epoch_and_row_alone():
    rows = rows_of(grey(30)).augmented(5, padding=2)
    whole = batch(rows, 3)
    random.seed(1), torch.manual_seed(9), np.random.seed(4)
    order = np.random.default_rng(0).permutation(30)
    assert torch.equal(batch(rows, 3, order), whole[order.tolist()])
    assert torch.equal(torch.cat([batch(rows, 3, [n]) for n in range(30)]), whole)
    for other in (batch(rows, 4), batch(rows_of(grey(30)).augmented(6, padding=2), 3)):
        assert not torch.equal(other, whole)


def test_drawing_leaves_every_random_state_alone():
    rows = rows_of(grey(8)).augmented(1, padding=1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    batch(rows)
    assert (
        torch.equal(torch.get_rng_state(), before[0])
        and np.array_equal(np.random.get_state()[1], before[1])
        and random.getstate() == before[2]
    )


def test_every_window_and_both_sides_come_up():
    """One bright pixel in the middle: where it is seen tells the window; the corner pixel tells
    the side.
    """
    pixels = torch.zeros(2000, 1, 5, 5, dtype=torch.uint8)
    pixels[:, 0, 2, 2] = 255
    rows = ImageRows(
        [str(n) for n in range(2000)], [0] * 2000, pixels, Preparation(channels=1)
    ).augmented(0, mirrored=False, padding=2)
    counts = (batch(rows) > 0).float().sum(0)[0]
    assert (counts > 40).all() and counts.sum() == 2000, counts  # 25 places, 80 expected in each
    half = torch.zeros(2000, 1, 1, 2, dtype=torch.uint8)
    half[..., 0] = 255
    seen = batch(
        ImageRows(
            [str(n) for n in range(2000)], [0] * 2000, half, Preparation(channels=1)
        ).augmented(0)
    )
    assert 900 < (seen[:, 0, 0, 0] < 0).sum() < 1100
    draws = augmentation_draws(0, 0, 2000)
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.1, (
        "flip, row and column are drawn apart"
    )


def test_a_crop_of_the_side_needs_no_padding():
    rows = rows_of(grey(20, 8, 8), side=8, crop=5).augmented(0, mirrored=False)
    plain = rows_of(grey(20, 8, 8), side=8)
    windows = (
        plain.preparation.finished(rows.images)
        .unfold(2, 5, 1)
        .unfold(3, 5, 1)
        .reshape(20, 16, 5, 5)
    )
    for one, possible in zip(batch(rows), windows):
        assert any(torch.equal(one[0], window) for window in possible)


def test_changed_rows_share_the_images_and_leave_the_plain_ones_plain():
    plain = rows_of(grey(6))
    before = batch(plain)
    changed = plain.augmented(0, padding=2)
    assert (
        changed.images is plain.images
        and not torch.equal(batch(changed), before)
        and torch.equal(batch(plain), before)
    )


def test_workers_give_the_same_batches():
    files = [encoded(one) for one in grey(13)]
    in_memory = rows_of(read_images(files, NAMES, 1)).augmented(2, padding=1)
    kept = rows_of(read_images(files, NAMES, 1, memory=0)).augmented(2, padding=1)
    assert kept.lazy and not in_memory.lazy
    for epoch in (0, 1):
        kept.set_epoch(epoch)
        loader = torch.utils.data.DataLoader(
            kept, batch_size=4, collate_fn=kept.collate, num_workers=2
        )
        assert torch.equal(
            torch.cat([one["pixel_values"] for one in loader]), batch(in_memory, epoch)
        )


def photographs(count=6, seed=0):
    """Colour pictures of different sizes, as files."""
    sizes = np.random.default_rng(seed).integers(20, 40, (count, 2))
    return [encoded(grey(3, *size, seed=n)[:, 0]) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("whole, processes", ((False, 1), (True, 2)))
def test_a_store_holds_what_decoding_gives_and_is_made_once(tmp_path, whole, processes):
    files = photographs()
    kept = ImageFiles(files, NAMES, 3, 16, whole)
    stored = store_images(kept, tmp_path / "store", processes)
    assert len(stored) == 6 and all(torch.equal(stored[row], kept[row]) for row in range(6))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()}
    again = store_images(ImageFiles([b"broken"], NAMES, 3), tmp_path / "store")
    assert torch.equal(again[5], kept[5])
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "store").iterdir()}
    assert channel_statistics(stored) == channel_statistics(kept)


def test_a_store_that_was_not_finished_is_made_anew(tmp_path):
    (tmp_path / "store.unfinished").mkdir()
    (tmp_path / "store.unfinished" / "images.arrow").write_bytes(b"half of it")
    stored = store_images(ImageFiles(photographs(2), NAMES, 3, 16), tmp_path / "store")
    assert len(stored) == 2 and not (tmp_path / "store.unfinished").exists()


@pytest.mark.parametrize("processes", (1, 2))
def test_a_broken_image_leaves_no_store_and_is_named(tmp_path, processes):
    files = [*photographs(3), b"broken"]
    with pytest.raises(ValueError, match="train-3 cannot be read"):
        store_images(ImageFiles(files, NAMES, 3, 16), tmp_path / "store", processes)
    assert [path.name for path in tmp_path.iterdir()] == ["store.lock"]


def test_a_disk_that_is_too_small_for_a_store_is_named(tmp_path, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=100))
    with pytest.raises(OSError, match="COMPATKIT_HOME"):
        store_images(ImageFiles(photographs(2), NAMES, 3, 16), tmp_path / "store")


def test_random_parts_are_the_same_from_memory_from_a_store_and_in_workers(tmp_path):
    files = [encoded(one) for one in grey(7, 24, 24)]
    given = {"crop": 12}
    in_memory = rows_of(read_images(files, NAMES, 1), **given).augmented(3, smallest=0.1)
    options = {"memory": 0, "store": tmp_path / "store"}
    stored = rows_of(read_images(files, NAMES, 1, **options), **given).augmented(3, smallest=0.1)
    assert isinstance(stored.images, StoredImages) and stored.lazy
    first = batch(in_memory, 0)
    assert first.shape == (7, 1, 12, 12) and not torch.equal(first, batch(in_memory, 1))
    assert torch.equal(batch(in_memory, 0, [4, 2]), first[[4, 2]])
    stored.set_epoch(0)
    loaded = torch.utils.data.DataLoader(
        stored, batch_size=4, collate_fn=stored.collate, num_workers=2
    )
    assert torch.equal(torch.cat([one["pixel_values"] for one in loaded]), first)


def test_pictures_of_different_sizes_are_cut_to_one(tmp_path):
    kept = read_images(photographs(), NAMES, 3, 16, whole=True, store=tmp_path / "store")
    assert len({kept[row].shape for row in range(6)}) > 1
    preparation = Preparation(side=16, crop=12)
    rows = ImageRows(NAMES[:6], [0] * 6, kept, preparation)
    squares = ImageRows(NAMES[:6], [0] * 6, ImageFiles(photographs(), NAMES, 3, 16), preparation)
    assert batch(rows).shape == batch(rows.augmented(0, smallest=0.08)).shape == (6, 3, 12, 12)
    for whole, square in zip(batch(rows), batch(squares)):  # rounding may shift it by a pixel
        shifted = [square.roll(move, axis) for move in (-1, 0, 1) for axis in (1, 2)]
        inner = [(one - whole)[:, 1:-1, 1:-1].abs().max() for one in shifted]
        assert min(inner) == 0


@pytest.mark.parametrize("height, width", ((30, 50), (50, 30), (8, 90)))
def test_a_random_part_lies_in_the_picture_and_has_its_area_and_aspect(height, width):
    draw = np.random.default_rng(0)
    for _ in range(200):
        top, left, high, wide = random_part(draw, height, width, 0.2)
        assert 0 <= top <= top + high <= height and 0 <= left <= left + wide <= width
        assert 0.68 < wide / high < 1.45
        # of a picture that is too long for ten draws it is the middle
        assert (height, width) == (8, 90) or 0.15 < high * wide / (height * width) <= 1
    with pytest.raises(ValueError, match="share.*is 0"):
        random_part(draw, height, width, 0)


def test_a_scaled_part_is_the_part():
    pixels = grey(1, 12, 12)[0]
    assert torch.equal(scaled_part(pixels, (2, 3, 6, 6), 6), pixels[:, 2:8, 3:9])
    small = scaled_part(pixels, (0, 0, 12, 12), 4).float().mean()
    assert small == pytest.approx(pixels.float().mean().item(), abs=4)


def test_a_broken_image_in_a_worker_is_named():
    kept = rows_of(ImageFiles([encoded(grey(1)[0])] * 3 + [b"broken"], NAMES, 1))
    with pytest.raises(ValueError, match="train-3 cannot be read"):
        list(
            torch.utils.data.DataLoader(kept, batch_size=2, collate_fn=kept.collate, num_workers=1)
        )


def test_rows_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="4 images"):
        ImageRows(["a", "b", "c"], [0, 1, 2], grey(4), Preparation(channels=1))
    with pytest.raises(ValueError, match="padding is -1"):
        rows_of(grey(4)).augmented(0, padding=-1)
    with pytest.raises(ValueError, match="7 pixels.*8.*6"):
        rows_of(grey(4), crop=7)


def test_a_task_of_pictures_is_read(tmp_path):
    from compatkit.training.tasks import image_files

    split = tiny.image_task().train
    files = image_files(split, "image")
    assert files[3].startswith(b"P5") and read_images(files, split["id"][:], 1).shape == (
        32,
        1,
        8,
        8,
    )
    assert image_files(split.select([3, 1]), "image") == [files[3], files[1]]


def test_the_code_of_the_pixels_is_all_of_it():
    names = {one.__name__ for one in pixel_code()}
    assert {
        "decode_image",
        "ImageRows",
        "Preparation",
        "crops",
        "flips",
        "augmentation_draws",
        "read_images",
    } <= names
