"""How a replay compares what it made again with what was saved."""

import torch

from dcinterp.results.replay import _difference


def test_entries_that_are_equal_do_not_differ_also_where_they_are_infinite():
    saved = torch.tensor([1.0, float("inf"), float("nan")])
    assert _difference(saved, saved.clone()) == 0
    assert _difference(saved, torch.tensor([2.0, float("inf"), float("nan")])) == 1
    assert _difference(saved, torch.tensor([1.0, 2.0, float("nan")])) == float("inf")
    assert _difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5
