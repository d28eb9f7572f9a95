"""Starts over seeds: the mean lag is over the seeds whose curves are steps, and what is missing is refused."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import dcinterp
from dcinterp.mechanism.statistics import bootstrap_interval
from dcinterp.support.errors import UserError

EDGES = ("0.pre.qp.0>1", "1.post.qp.1>0")
STEPS = (40, 80, 120)


def write(folder, lags=(40, 40, 0, -40), explained=(0.9, 0.9, 0.8, 0.3)):
    """An experiment whose seeds have these lags; main edges start at step 80."""
    curves = [
        {"seed": seed, "step": step, "loss": 2.0 - step / 100, "right": step / 120}
        | {EDGES[0]: 0.1 * place, EDGES[1]: 0.5 * place + seed}
        for seed in range(len(lags))
        for place, step in enumerate(STEPS)
    ]
    starts = [
        {"seed": seed, "main": EDGES[1], "loss_start": 80 + lag, "loss_explained": share, "right_start": 120}
        | {"right_explained": 0.9, "main_start": 80, "main_explained": 0.7, "main_low": 40, "main_high": 120}
        | {"main_right_start": 80, "main_right_explained": 0.9, "edges_that_matter": 2}
        for seed, (lag, share) in enumerate(zip(lags, explained, strict=True))
    ]
    folder.mkdir()
    pd.DataFrame(curves).to_csv(folder / "curves.csv", index=False)
    pd.DataFrame(starts).to_csv(folder / "starts.csv", index=False)
    return str(folder)


def test_the_mean_lag_is_over_the_seeds_that_have_starts(tmp_path):
    found = dcinterp.edge_starts(write(tmp_path / "e"))
    assert found.lag.tolist() == [40, 40, 0, -40]
    low, high = bootstrap_interval(torch.tensor([40.0, 40.0, 0.0]))
    assert found.mean_lag == pytest.approx((80 / 3, float(low), float(high)))
    assert found.mean_lag_right[0] == 40
    assert found.warnings() == ["A curve of seed 3 is no step that goes its way, so it has no start and no lag."]
    assert "splits 27 steps before the loss, on average" in found.sentences()[0]
    assert found.sentences()[0].endswith("which comes first is open.")
    assert found.sentences()[1].endswith(" is +40 in all 4 seeds, so that there is no interval.")
    assert "`post.qp` in 4 of 4 seeds" in found.sentences()[2]


def test_an_interval_around_zero_leaves_it_open(tmp_path):
    found = dcinterp.edge_starts(write(tmp_path / "e", lags=(40, -40, 0), explained=(0.9, 0.9, 0.9)))
    assert "which comes first is open" in found.sentences()[0]


def test_curves_are_those_of_the_seed(tmp_path):
    found = dcinterp.edge_starts(write(tmp_path / "e"))
    assert found.effect[2, :, 1].tolist() == pytest.approx([2.0, 2.5, 3.0])
    assert found.strongest(2) == [1, 0]
    figure = dcinterp.figures.plot(found, seed=2, edges=1, checkpoint=0)
    assert [trace.name for trace in figure.data] == [
        "loss",
        "start of loss",
        "L1H1 → L1H0 (qp)",
        "start of L1H1 → L1H0 (qp)",
    ]
    assert list(figure.data[2].y) == pytest.approx([2.0, 2.5, 3.0])
    with pytest.raises(UserError, match="There is no seed 7"):
        dcinterp.figures.plot(found, seed=7)
    found.save(tmp_path / "saved")
    assert type(found).load(tmp_path / "saved") == found


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no curves"):
        dcinterp.edge_starts(str(tmp_path))
    folder = write(tmp_path / "e")
    pd.read_csv(tmp_path / "e" / "curves.csv").iloc[:-1].to_csv(tmp_path / "e" / "curves.csv", index=False)
    with pytest.raises(UserError, match="are not of the same seeds"):
        dcinterp.edge_starts(folder)
    (tmp_path / "e" / "starts.csv").write_text("seed\n1\n")
    with pytest.raises(UserError, match="has no column 'main'"):
        dcinterp.edge_starts(folder)
