"""The warning that scores differ in size from the effects."""

from __future__ import annotations

import pytest
import torch

from dcinterp.mechanism.magnitude_check import magnitude_warnings

NAMES = ["head 1.2", "head 0.1", "head 2.3"]


def test_names_the_worst_of_the_strongest_with_both_numbers():
    said = magnitude_warnings(NAMES, [5.72, 3.0, 0.1], [0.2, 2.5, 0.0], method="ig")
    assert len(said) == 1
    assert said[0].startswith("Attribution gives head 1.2 5.72 logits, but its measured effect is 0.20; 1 of the 2 ")
    assert "trust the ablation" in said[0]


def test_an_effect_that_the_score_misses_is_named_too():
    (said,) = magnitude_warnings(NAMES, [1.0, 0.1, 0.2], [1.1, 4.0, 0.2], method="gradient", unit="nats")
    assert "head 0.1 0.10 nats, but its measured effect is 4.00" in said
    assert "small changes" in said


@pytest.mark.parametrize(
    ("scores", "effects"),
    [
        ([2.0, 1.0, 0.5], [1.0, 2.0, 0.5]),  # within three times
        ([5.0, 0.9, 0.2], [5.0, 0.01, 0.0]),  # only weak ones differ
        ([5.0, 1.0, 0.0], [-5.0, 0.5, 0.0]),  # the sign has a warning of its own
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    ],
)
def test_nothing_is_said_where_they_agree(scores, effects):
    assert magnitude_warnings(NAMES, scores, effects, method="ig") == []


def test_nothing_compared_is_nothing_said():
    assert magnitude_warnings([], torch.zeros(0), torch.zeros(0), method="ig") == []


def test_no_effect_at_all_is_infinitely_apart():
    assert "effect is 0.00" in magnitude_warnings(NAMES, [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], method="ig")[0]


def test_a_joint_path_is_not_said_to_divide_a_layer():
    (said,) = magnitude_warnings(["head 1.2"], [5.7], [0.2], method="joint")
    assert "on the joint path no head answers another" in said
