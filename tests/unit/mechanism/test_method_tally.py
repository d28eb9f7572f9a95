"""The bookkeeping of method scores, on numbers made up by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dcinterp.analysis.circuits.method_benchmark import _collect
from dcinterp.mechanism.method_tally import Answer, Case, Tally

LABELS = torch.tensor([True, True, False, False, False, False])
MEASURED = torch.tensor([4.0, -2.0, 0.0, 0.0, 0.0, 0.01])


def tally(*answers: torch.Tensor) -> Tally:
    made = Tally()
    for each in answers:
        made.add([(Answer(each.abs(), each), Case(LABELS, MEASURED))], torch.Generator().manual_seed(0))
    return made


def test_the_measured_effects_predict_themselves():
    numbers = tally(MEASURED).numbers()
    assert (numbers["auroc"], numbers["precision"], numbers["sign_agreement"]) == (1, 1, 1)
    assert numbers["calibration_error"] == 0
    assert numbers["effects"] == 2, "0.01 logits have no sign worth agreeing with"


def test_a_wrong_sign_and_a_wrong_size_cost_what_they_should():
    numbers = tally(torch.tensor([4.0, 1.0, 0.0, 0.0, 3.0, 0.01])).numbers()
    assert numbers["sign_agreement"] == 0.5
    assert numbers["precision"] == 0.5
    assert numbers["auroc"] == pytest.approx(7 / 8)
    assert numbers["calibration_error"] == pytest.approx((3 + 3) / 6.01)


def test_traces_below_a_hundredth_of_the_largest_are_ties():
    """The second positive is found only by a trace of a thousandth: that is chance."""
    numbers = tally(torch.tensor([1.0, 1e-3, 0.0, 0.0, 0.0, 0.0])).numbers()
    assert numbers["auroc"] == pytest.approx(0.75)


def test_numbers_are_means_over_models_and_the_table_shows_them():
    made = tally(MEASURED, -MEASURED.flip(0))
    result = _collect(["here"], [{("some method", "edges"): made}], [0.5], seeds=2, examples=1)
    assert float(result.auroc) == pytest.approx((1 + made.aurocs[1]) / 2)
    assert float(result.auroc_low) <= float(result.auroc) <= float(result.auroc_high)
    table = result.markdown("edges", "precision").splitlines()
    assert table[0] == "| planted | answers right | some method |"
    assert table[2].startswith("| here | 50% | ")
    assert any("answer only 50%" in sentence for sentence in result.warnings())
    assert any("fewer than 5" in sentence for sentence in result.warnings())
    assert list(result.to_dataframe()["score_label"]) == ["some method: edges"]


def test_without_a_notable_effect_no_sign_agrees():
    made = Tally()
    small = Case(LABELS, MEASURED / 1000)
    made.add([(Answer(MEASURED.abs(), MEASURED), small)], torch.Generator().manual_seed(0))
    assert math.isnan(made.numbers()["sign_agreement"])
    assert made.numbers()["effects"] == 0
