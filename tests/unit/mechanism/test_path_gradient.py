"""Sums over panels: exact to what they say they miss, and fine where the metric bends."""

from __future__ import annotations

import torch

from dcinterp.mechanism.path_gradient import Integration, Move, Paths, measured_by, remedy


class Bend:
    """Stands for a model whose metric of x is steep at one place of the path and flat elsewhere."""

    places = None

    def __init__(self, at: float, width: float) -> None:
        self.at, self.width = at, width

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh((x - self.at) / self.width).sum((1, 2))


def integral(bend: Bend, rule: Integration, scale: float = 0.0, monkeypatch=None, dtype=torch.float64):
    import dcinterp.mechanism.path_gradient as module

    def metric_of(stream, metric, rows, hooks):
        ((_, put),) = hooks
        return bend.value(put(torch.zeros(rows, 1, 1, dtype=dtype), None))

    monkeypatch.setattr(module, "metric_of", metric_of)
    end = torch.ones(1, 1, 1, dtype=dtype)
    return Paths(None, None, rule.batch_size).integrals([Move({"x": end})], rule, scale)[0]


def test_a_bend_is_cut_out_and_not_paid_for_everywhere(monkeypatch):
    found = integral(Bend(0.1, 0.005), Integration(16, 512, 0.001), monkeypatch=monkeypatch)
    assert abs(found.gap) <= 0.001 * abs(found.actual - found.at_baseline)
    assert abs(float(found.average["x"]) + found.gap - (found.actual - found.at_baseline)) < 1e-12
    assert found.steps <= 128, "doubling the points of the whole path takes 512 here"


def test_a_smooth_path_takes_the_first_points_alone(monkeypatch):
    assert integral(Bend(0.5, 1.0), Integration(16, 512, 0.01), monkeypatch=monkeypatch).steps == 16


def test_a_path_that_hardly_matters_is_measured_by_the_largest(monkeypatch):
    bend, rule = Bend(0.1, 0.01), Integration(16, 512, 0.01)
    own, among = (integral(bend, rule, scale, monkeypatch).steps for scale in (0.0, 1e6))
    assert own > among == 16


def test_the_bound_on_points_holds(monkeypatch):
    found = integral(Bend(0.1, 1e-4), Integration(16, 40, 1e-6), monkeypatch=monkeypatch)
    assert found.steps <= 40


def test_gaps_are_shares_of_the_own_difference_or_of_a_tenth_of_the_largest():
    assert measured_by(torch.tensor([10.0, -5.0, 0.01])).tolist() == [10.0, 5.0, 1.0]


def test_what_half_precision_cannot_tell_takes_no_more_points(monkeypatch):
    rule = Integration(16, 512, 0.001)
    exact, coarse = (
        integral(Bend(0.5, 0.2), rule, monkeypatch=monkeypatch, dtype=t) for t in (torch.float64, torch.bfloat16)
    )
    assert coarse.steps == 16
    assert abs(coarse.gap) > 0.001 * abs(coarse.actual - coarse.at_baseline), "more points would have been taken"
    assert abs(exact.gap) <= 0.001 * abs(exact.actual - exact.at_baseline)


def test_the_remedy_is_one_that_the_method_takes():
    assert "max_steps" in remedy("ig")
    assert "max_steps" not in remedy("gradient")
