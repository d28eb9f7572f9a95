"""How a replay compares what it made again with what was saved."""

import json
import shutil

import pytest
import torch

import dcinterp
from dcinterp.results.replay import _difference


def test_entries_that_are_equal_do_not_differ_also_where_they_are_infinite():
    saved = torch.tensor([1.0, float("inf"), float("nan")])
    assert _difference(saved, saved.clone()) == 0
    assert _difference(saved, torch.tensor([2.0, float("inf"), float("nan")])) == 1
    assert _difference(saved, torch.tensor([1.0, 2.0, float("nan")])) == float("inf")
    assert _difference(torch.tensor([1, 2]), torch.tensor([1, 3])) == 0.5


@pytest.mark.parametrize(("gone", "changed"), [(("scales",), ()), ((), ("scales",))])
def test_a_field_that_came_later_is_no_difference(tmp_path, gone, changed):
    bridge = dcinterp.load("dcformer++")
    found = dcinterp.direct_logit_attribution(bridge, "Thomas has a violin. Thomas has a kind of", "instrument")
    found.save(tmp_path / "r")
    file = tmp_path / "r" / "result.json"
    record = json.loads(file.read_text())
    assert record["names"]
    if gone:  # as an earlier version wrote it
        record["fields"].pop("scales")
        record["intervals"] = 4
        record.pop("names")
    else:  # as nobody did
        record["fields"]["scales"] = []
    file.write_text(json.dumps(record))
    assert dcinterp.replay(tmp_path / "r").changed == changed


def test_a_field_that_was_taken_out_is_a_difference(tmp_path):
    bridge = dcinterp.load("dcformer++")
    found = dcinterp.branch_ablation(bridge, tasks="56", rows=1)
    found.save(tmp_path / "r")
    shutil.rmtree(tmp_path / "r" / "zero")
    file = tmp_path / "r" / "result.json"
    record = json.loads(file.read_text())
    record["parts"].remove("zero")
    file.write_text(json.dumps(record))
    assert dcinterp.replay(tmp_path / "r").changed == ("zero",)
