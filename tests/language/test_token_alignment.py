"""Spans that two tokenizers share: hand-counted cases and what holds for any text."""

import numpy as np
import pytest

from compatkit.language.models import byte_pairs
from compatkit.language.token_alignment import (
    Span,
    align_tokens,
    coverage,
    row_offsets,
    shared_spans,
    shared_vocabulary,
)

TEXTS = [
    f"the {size} {animal} slept under {count} tables; naïve 猫"
    for size in ("small", "unhappy")
    for animal in ("dogs", "catfish")
    for count in range(20)
]


@pytest.fixture(scope="module")
def pair():
    return byte_pairs(TEXTS, 280), byte_pairs(TEXTS, 330)


def aligned(text, old, new, **options):
    tokens = [[*one(text)["input_ids"], one.eos_token_id] for one in (old, new)]
    offsets = [row_offsets(row, text, one) for row, one in zip(tokens, (old, new))]
    return align_tokens(
        tokens[0], offsets[0], tokens[1], offsets[1], shared_vocabulary(old, new), **options
    )


def test_hand_counted():
    # ab|cd|e against a|bcd|e: cuts at 4 and 5 are shared
    assert shared_spans([(0, 2), (2, 4), (4, 5)], [(0, 1), (1, 4), (4, 5)]) == [
        Span((0, 2), (0, 2)),
        Span((2, 3), (2, 3)),
    ]
    # blanks before or behind a word: the ends decide
    assert shared_spans([(0, 3), (4, 7)], [(0, 3), (3, 7)]) == [
        Span((0, 1), (0, 1)),
        Span((1, 2), (1, 2)),
    ]
    # special tokens in front and behind have no place
    assert shared_spans([(0, 0), (0, 3), (0, 0)], [(0, 3)]) == [Span((1, 2), (0, 1))]
    # nothing in common but the end
    assert shared_spans([(0, 1), (1, 3), (3, 4)], [(0, 2), (2, 4)]) == [Span((0, 3), (0, 2))]
    assert shared_spans([(0, 2)], [(0, 3)]) == [] == shared_spans([], [])


def test_several_tokens_of_one_letter_end_with_the_last():
    # a letter of three bytes as three tokens, all with the letter's place
    assert shared_spans([(0, 1)] * 3 + [(1, 2)], [(0, 1), (1, 2)]) == [
        Span((0, 3), (0, 1)),
        Span((3, 4), (1, 2)),
    ]


def test_offsets_of_no_text_are_refused():
    with pytest.raises(ValueError, match="1 ends.*2"):
        shared_spans([(0, 4), (0, 2)], [(0, 4)])


def random_offsets(generator, length):
    ends = np.unique(
        np.append(generator.integers(1, length + 1, generator.integers(1, length + 1)), length)
    ).tolist()
    return list(zip([0, *ends], ends))


@pytest.mark.parametrize("seed", range(20))
def test_spans_follow_each_other_and_cover_both(seed):
    generator = np.random.default_rng(seed)
    old, new = random_offsets(generator, 30), random_offsets(generator, 30)
    spans = shared_spans(old, new)
    for side, offsets in enumerate((old, new)):
        assert [span[side][0] for span in spans] == [0, *(span[side][1] for span in spans[:-1])]
        assert spans[-1][side][1] == len(offsets)
    for span in spans:  # a span ends at one character, and inside it the two share no cut
        assert old[span.old[1] - 1][1] == new[span.new[1] - 1][1]
        assert not {end for _, end in old[slice(*span.old)][:-1]} & {
            end for _, end in new[slice(*span.new)][:-1]
        }
    assert [Span(span.new, span.old) for span in spans] == shared_spans(new, old)


def test_equal_tokenizers_match_token_by_token(pair):
    for text in TEXTS:
        one = aligned(text, pair[0], pair[0])
        assert one.single.all() and one.unit.tolist() == [-1, *range(len(one.unit) - 1)]
        assert one.old.tolist() == [[n, n + 1] for n in range(1, len(one.unit))]
    assert coverage([aligned(text, pair[0], pair[0]) for text in TEXTS]).covered == 1


def test_coverage_is_counted(pair):
    found = [aligned(text, *pair) for text in TEXTS]
    measured = coverage(found)
    assert measured.tokens == sum(
        len(pair[1](text)["input_ids"]) for text in TEXTS
    )  # the end's token for the first one
    assert measured.spans == sum(len(one.single) for one in found)
    assert 0 < measured.one_to_one < 1 and 0 < measured.together < 1 and measured.covered <= 1
    narrow = coverage([aligned(text, *pair, longest=1) for text in TEXTS])
    assert narrow.together == 0 and narrow.one_to_one == measured.one_to_one
    assert "one to one" in str(measured)


def test_words_are_shared_by_spelling(pair):
    shared = shared_vocabulary(*pair, size=400)
    old, new = (one.get_vocab() for one in pair)
    assert len(shared) == 400 and (shared[max(old.values()) + 1 :] == -1).all()
    for spelling, number in old.items():
        assert shared[number] == new.get(spelling, -1)
    assert len(set(shared[shared >= 0])) == (shared >= 0).sum()


def test_tokens_of_another_text_are_refused(pair):
    tokens = pair[0](TEXTS[0])["input_ids"]
    assert len(row_offsets(tokens, TEXTS[0], pair[0])) == len(tokens)
    assert (
        row_offsets(tokens[5:], TEXTS[0], pair[0]) == row_offsets(tokens, TEXTS[0], pair[0])[5:]
    ), "cut on the left"
    for wrong in (tokens[:-1], [], pair[1](TEXTS[0])["input_ids"]):
        with pytest.raises(ValueError, match="'the small dogs"):
            row_offsets(wrong, TEXTS[0], pair[0])


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(ValueError, match="no character offsets"):
        row_offsets([1], "a", Slow())
