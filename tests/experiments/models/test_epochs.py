"""Epoch by epoch: the answers of kept weights, and what is counted of them."""

import numpy as np
import pytest
import tiny

from compatkit.experiments.models.epochs import epoch_once, epoch_picture, over_epochs
from compatkit.experiments.models.trainings import train_once
from compatkit.metrics import FlipCounts
from compatkit.support.pictures import text_problems


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPATKIT_HOME", str(tmp_path))
    return train_once(tiny.task(), tiny.RECIPE, 0, keep_epochs=(1, 2))


def test_after_the_last_epoch_the_answers_are_the_runs_own(trained):
    first, last = (epoch_once(tiny.task(), tiny.RECIPE, trained, 0, epoch) for epoch in (1, 2))
    whole = trained.predictions("test").logits
    assert np.allclose(last.predictions("test").logits, whole, atol=1e-6)
    assert not np.allclose(first.predictions("test").logits, whole, atol=1e-3)
    assert first.configuration == {"kind": "epoch", "parents": [trained.id], "epoch": 1}


def test_an_epoch_whose_weights_were_not_kept_is_named(trained):
    with pytest.raises(FileNotFoundError, match="epoch-3.safetensors"):
        epoch_once(tiny.task(), tiny.RECIPE, trained, 0, 3)


def test_error_and_relative_nfr_have_a_row_an_epoch_and_a_column_a_seed(trained):
    kept = [[epoch_once(tiny.task(), tiny.RECIPE, trained, 0, epoch)] * 2 for epoch in (1, 2)]
    error, relative = over_epochs([trained, trained], kept)
    assert error.shape == relative.shape == (2, 2)
    counts = FlipCounts.between(trained.predictions("test"), kept[0][0].predictions("test"))
    assert error[0, 0] == 1 - counts.accuracy_new and relative[1, 0] in (0.0, pytest.approx(0.0))
    figure = epoch_picture({"one": (error, relative), "other": (error, relative)})
    assert text_problems(figure) == []
    axes = figure.axes
    labels = [place.get_ylabel() for place in axes]
    assert labels == ["(← better)  error, %", "(← better)  relative NFR, %"]
    assert axes[0].lines[0].get_ydata().tolist() == pytest.approx((100 * error.mean(1)).tolist())
