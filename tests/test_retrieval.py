"""Search by embeddings: exact at every border, judged as scikit-learn judges, refused by name."""

import sys
import types

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from compatkit import retrieval
from compatkit.retrieval import (
    Embeddings,
    Searches,
    answerable,
    average_precision,
    mean_average_precision,
    recall_at,
    recall_at_1,
    retrieve,
    search,
    update_gain,
)


def made(name, number, seed=0, width=8, classes=4):
    """Random embeddings whose class moves them a little."""
    draw = np.random.default_rng(seed)
    label = draw.integers(classes, size=number)
    vector = draw.normal(size=(number, width)).astype("float32")
    vector[:, 0] += label
    return Embeddings([f"{name}{row}" for row in range(number)], vector, label)


QUERIES, INDEX = made("q", 23, 1), made("d", 57, 2)
EVERY = QUERIES.direction @ INDEX.direction.T


@pytest.mark.parametrize("k", [1, 2, 5, 56, 57])
@pytest.mark.parametrize("blocks", [(1, 1), (7, 10), (512, 8192)])
def test_search_is_exact_whatever_the_blocks(monkeypatch, k, blocks):
    monkeypatch.setattr(retrieval, "_QUERIES", blocks[0])
    monkeypatch.setattr(retrieval, "_ENTRIES", blocks[1])
    found = search(QUERIES, INDEX, k, engine="numpy")
    order = np.argsort(-EVERY, axis=1, kind="stable")[:, :k]
    assert found.row.shape == (23, k)
    assert np.allclose(found.similarity, np.take_along_axis(EVERY, order, 1), atol=1e-6)
    assert (found.row == order).all()


@pytest.mark.parametrize("k", [1, 3, 6])
def test_of_equal_entries_the_first_comes_first(monkeypatch, k):
    monkeypatch.setattr(retrieval, "_ENTRIES", 2)
    index = Embeddings(list("abcdef"), np.eye(2)[[0, 1, 0, 1, 0, 0]])
    queries = Embeddings(["q"], [[1.0, 0.0]])
    assert search(queries, index, k, engine="numpy").row.tolist() == [[0, 2, 4, 5, 1, 3][:k]]


def test_faiss_is_asked_where_it_is_installed(monkeypatch):
    asked = {}

    class Flat:
        def __init__(self, width):
            asked["width"] = width

        def add(self, vectors):
            asked["added"] = vectors

        def search(self, queries, k):
            return np.zeros((len(queries), k), "float32"), np.ones((len(queries), k), int)

    monkeypatch.setitem(sys.modules, "faiss", types.SimpleNamespace(IndexFlatIP=Flat))
    found = search(QUERIES, INDEX, 2, engine="faiss")
    assert asked["width"] == 8 and np.allclose(asked["added"], INDEX.direction)
    assert (found.row == 1).all() and found.row.shape == (23, 2)


def test_wrong_searches_are_refused():
    with pytest.raises(ValueError, match="8 .*3.*learn a map"):
        search(QUERIES, made("x", 4, width=3))
    with pytest.raises(ValueError, match="58.*1.*57"):
        search(QUERIES, INDEX, 58)
    with pytest.raises(ValueError, match="'annoy'"):
        search(QUERIES, INDEX, engine="annoy")


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        (["a"], [[np.inf, 1.0]], "'a' are not finite"),
        (["a"], [[0.0, 0.0]], "'a' are zero"),
        (["a", "a"], np.ones((2, 2)), "repeated ids 'a'"),
        (["a"], np.ones((2, 2)), "2 embeddings have 1 ids"),
        (["a"], [1.0], "have the shape"),
        ([], np.ones((0, 2)), "at least one of each"),
    ],
)
def test_embeddings_that_cannot_be_searched_are_named(ids, vectors, message):
    with pytest.raises(ValueError, match=message):
        Embeddings(ids, vectors)


def test_embeddings_survive_a_file_without_pickles(tmp_path):
    QUERIES.save(tmp_path / "q.npz")
    again = Embeddings.load(tmp_path / "q.npz")
    assert (again.id == QUERIES.id).all() and (again.vector == QUERIES.vector).all()
    assert (again.label == QUERIES.label).all()
    Embeddings(["a"], [[1.0]]).save(tmp_path / "a.npz")
    assert Embeddings.load(tmp_path / "a.npz").label is None


@pytest.mark.parametrize("size", [10, 200_000_000])
def test_answers_are_first_hits_and_average_precisions(monkeypatch, size):
    monkeypatch.setattr(retrieval, "_BYTES", size)  # one query at a time, or all
    found = retrieve(QUERIES, INDEX)
    assert (found.prediction == INDEX.label[EVERY.argmax(1)]).all()
    wanted = [
        average_precision_score(INDEX.label == label, row)
        for label, row in zip(QUERIES.label, EVERY)
    ]
    assert np.allclose(found.score, wanted, atol=1e-6)
    assert recall_at_1(found) == np.mean(found.prediction == QUERIES.label)
    assert mean_average_precision(found) == pytest.approx(np.mean(wanted))


def test_searches_that_cannot_be_judged_are_refused():
    without = Embeddings(INDEX.id, INDEX.vector)
    with pytest.raises(ValueError, match="need labels"):
        retrieve(QUERIES, without)
    with pytest.raises(ValueError, match="'q0'.*would find themselves"):
        retrieve(QUERIES, Embeddings(["q0"], INDEX.vector[:1], INDEX.label[:1]))
    some = INDEX.select(INDEX.id[INDEX.label != 2].tolist())
    with pytest.raises(ValueError, match="nothing of the class 2"):
        retrieve(QUERIES, some)
    left = answerable(QUERIES, some)
    assert set(left.label.tolist()) == {0, 1, 3} and len(retrieve(left, some)) == len(left)
    with pytest.raises(ValueError, match="no class of any query"):
        answerable(QUERIES, Embeddings(["a"], np.ones((1, 8)), [9]))


def test_rankings_are_judged_as_embeddings_are():
    ranked = [INDEX.id[np.argsort(-row, kind="stable")].tolist() for row in EVERY]
    relevant = [INDEX.id[INDEX.label == label].tolist() for label in QUERIES.label]
    found = retrieve(QUERIES, INDEX)
    assert np.allclose(list(map(average_precision, ranked, relevant)), found.score)
    assert [recall_at(*both) for both in zip(ranked, relevant)] == found.correct.astype(
        float
    ).tolist()
    with pytest.raises(ValueError, match="no relevant ids"):
        average_precision(["a"], [])
    with pytest.raises(ValueError, match="holds 'a' twice"):
        average_precision(["a", "a"], ["a"])


def test_the_update_gain_and_the_flips_of_first_hits():
    old = retrieve(QUERIES, INDEX)
    right = old.replace(prediction=old.label)
    wrong = old.replace(prediction=np.where(old.correct, -1, old.label))
    searches = Searches(old, right, wrong)
    assert searches.flips("new in new").negative == 0
    assert searches.flips().negative == int(old.correct.sum())
    assert searches.gain() == update_gain(recall_at_1(wrong), recall_at_1(old), 1.0)
    assert searches.compatible == (recall_at_1(wrong) > recall_at_1(old))
    assert [name for name, _ in searches.each()] == ["old in old", "new in new", "new in old"]
    assert update_gain(0.7, 0.6, 0.8) == pytest.approx(0.5) and np.isnan(update_gain(0.7, 0.6, 0.6))


def test_memory_is_that_of_a_block(monkeypatch):
    import tracemalloc

    monkeypatch.setattr(retrieval, "_QUERIES", 64)
    monkeypatch.setattr(retrieval, "_ENTRIES", 512)
    queries, index = made("q", 1500, 3, width=4), made("d", 6000, 4, width=4)
    assert queries.direction.size and index.direction.size  # made before the count begins
    tracemalloc.start()
    search(queries, index, 3, engine="numpy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000 < 4 * 1500 * 6000  # all similarities alone are 36 MB
