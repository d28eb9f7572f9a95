"""The statistics against scikit-learn, against sums done by hand, and against what chance gives."""

from __future__ import annotations

from math import comb

import pytest
import torch
from sklearn.metrics import roc_auc_score

from dcinterp.mechanism.statistics import (
    auroc,
    bootstrap_interval,
    calibration_error,
    exchanged_extremes,
    few_examples,
    random_control,
    shuffled_control,
    sign_test,
    top_precision,
)
from dcinterp.support.errors import UserError


@pytest.fixture
def random():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_scikit_learns(random, ties):
    for _ in range(20):
        scores = torch.randn(50, generator=random)
        labels = torch.rand(50, generator=random) < 0.3
        scores = (scores + labels).round(decimals=0) if ties else scores + labels
        assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auroc_by_hand():
    assert auroc([3.0, 2.0, 1.0], [1, 0, 0]) == 1
    assert auroc([3.0, 2.0, 1.0], [0, 0, 1]) == 0
    assert auroc([1.0, 1.0, 1.0], [0, 1, 0]) == 0.5
    assert auroc([[2.0, 1.0], [2.0, 0.0]], [[1, 0], [0, 0]]) == pytest.approx(2.5 / 3)


def test_top_precision_by_hand():
    assert top_precision([3.0, 2.0, 1.0, 0.0], [1, 0, 1, 0]) == 0.5
    assert top_precision([3.0, 2.0, 1.0, 0.0], [1, 1, 0, 0]) == 1
    # One sure hit, and the second place shared by three of which one is positive.
    assert top_precision([3.0, 0.0, 0.0, 0.0], [1, 1, 0, 0]) == pytest.approx((1 + 1 / 3) / 2)
    assert top_precision([0.0] * 4, [1, 0, 0, 0]) == 0.25


def test_interval_keeps_the_axes_behind_the_examples_apart(random):
    values = torch.randn(40, 2, 3, generator=random) + torch.arange(6.0).reshape(2, 3) * 10
    low, high = bootstrap_interval(values)
    assert low.shape == high.shape == (2, 3)
    mean = values.double().mean(0)
    assert bool(((low < mean) & (mean < high)).all())
    alone = bootstrap_interval(values[:, 1, 2])
    assert float(alone[0]) == pytest.approx(float(low[1, 2]))


def test_sign_test_by_hand():
    result = sign_test([1.0, 2.0, -3.0, 0.0, -1.0], [0.5, 1.0, -1.0, 7.0, 2.0])
    assert (result.n, result.agree) == (4, 3)
    assert result.p_value == pytest.approx((comb(4, 3) + comb(4, 4)) / 2**4)
    many = sign_test(torch.ones(3000), torch.ones(3000))
    assert many.share == 1
    assert many.p_value < 1e-300
    assert sign_test([0.0], [1.0]).p_value == 1


def test_calibration_error_by_hand():
    assert calibration_error([1.0, -2.0], [1.0, -2.0]) == 0
    assert calibration_error([0.0, 0.0], [1.0, -2.0]) == 1
    assert calibration_error([2.0, -2.0], [1.0, -2.0]) == pytest.approx(1 / 3)


def test_shuffled_labels_score_at_chance_and_real_ones_do_not(random):
    labels = torch.arange(40) < 8
    control = shuffled_control(auroc, labels + 0.3 * torch.randn(40, generator=random), labels, shuffles=300)
    assert control.value > 0.95
    assert control.mean == pytest.approx(0.5, abs=0.03)
    assert control.low < 0.5 < control.high
    assert control.p_value == pytest.approx(1 / 301)
    noise = shuffled_control(auroc, torch.randn(40, generator=random), labels, shuffles=300)
    assert noise.p_value > 0.05


def test_chosen_heads_against_random_ones():
    effects = torch.zeros(4, 5)
    effects[2, 3], effects[1, 1] = 3.0, 2.0
    control = random_control(effects, chosen=[13, 6])
    assert control.value == 5
    assert control.mean == pytest.approx(2 * 5 / 20, abs=0.15)
    assert control.p_value < 0.02
    assert random_control(effects, chosen=[0, 2]).p_value > 0.5


def test_examples_that_repeat_each_other_change_places_together():
    """Twice the same examples say no more than once: the extremes are those of once."""
    scores, draw = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.Generator
    once = exchanged_extremes(scores, draw().manual_seed(0))
    twice = exchanged_extremes(scores.repeat(2, 1), draw().manual_seed(0), repeats=[*range(8), *range(8)])
    for mine, theirs in zip(twice, once, strict=True):
        torch.testing.assert_close(mine, theirs)
    narrower = exchanged_extremes(scores.repeat(2, 1), draw().manual_seed(0))
    assert float(narrower[1]) < float(once[1])


def test_sums_that_differ_by_their_order_alone_are_ties():
    effects = torch.randn(12, generator=torch.Generator().manual_seed(4))
    assert random_control(effects, chosen=range(12)).p_value == 1
    alike = random_control([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], chosen=range(1, 6), draws=600)
    assert alike.p_value == pytest.approx(1 / 6, abs=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([1.0, 2.0], [1, 1]), "positives and negatives"),
        (lambda: auroc([1.0, float("nan")], [1, 0]), "NaN"),
        (lambda: auroc([1.0, 2.0], [1, 0, 1]), "shapes"),
        (lambda: top_precision([1.0, 2.0], [0, 0]), "nothing to find"),
        (lambda: bootstrap_interval([]), "at least one example"),
        (lambda: bootstrap_interval([1.0], level=95), "level 95"),
        (lambda: calibration_error([1.0], [0.0]), "Every measured effect is zero"),
        (lambda: random_control([1.0, 2.0], []), "Choose between"),
        (lambda: random_control([1.0, 2.0], [5]), "Choose between"),
        (lambda: random_control([1.0, float("nan")], [0]), "NaN"),
        (lambda: sign_test([1.0, float("nan")], [1.0, 2.0]), "NaN"),
    ],
)
def test_refuses_with_a_sentence(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_few_sets_of_facts_are_few_examples():
    assert few_examples(40) == few_examples(40, distinct=20) == []
    assert few_examples(40, distinct=3) == [
        "The 40 examples hold 3 sets of facts, each of which counts once, so the intervals are rough."
    ]
    assert "share their facts and count as one" in few_examples(4, distinct=1)[0]
    assert few_examples(8, distinct=8) == few_examples(8) == ["There are only 8 examples, so the intervals are rough."]


def test_counts_and_lengths_that_make_no_number_are_named():
    with pytest.raises(UserError, match="2 groups of 3 examples"):
        bootstrap_interval([1.0, 2.0, 3.0], groups=["a", "b"])
    with pytest.raises(UserError, match="shuffles is 0"):
        shuffled_control(auroc, [1.0, 2.0], [0, 1], shuffles=0)
    with pytest.raises(UserError, match="draws is 0"):
        random_control([1.0, 2.0], [0], draws=0)
    with pytest.raises(UserError, match="draws is 20; give a multiple of 50"):
        exchanged_extremes(torch.zeros(2, 3), torch.Generator(), draws=20)
    with pytest.raises(UserError, match="NaN"):
        calibration_error([float("nan"), 1.0], [1.0, 1.0])


def test_groups_of_unlike_size_at_a_bound_count_as_fewer():
    from synthetic_tasks.intervals import share_interval

    groups = [0] * 30 + [1, 2, 3, 4]
    low, high = bootstrap_interval(torch.ones(34), bounds=(0, 1), groups=groups)
    sizes = [30, 1, 1, 1, 1]
    assert float(low) == pytest.approx(float(share_interval(sizes, sizes)[0]))
    assert float(low) < 0.2
    assert float(high) == 1
