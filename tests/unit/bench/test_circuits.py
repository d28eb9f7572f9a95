"""The benchmark of circuits: rows are made once, and what is printed is counted from them."""

from __future__ import annotations

import json
import time

import pytest

from dcinterp.bench.circuits import is_contrast, measure_planted, measure_tasks, planted_auroc, summarise, task_row
from dcinterp.bench.row_file import read_rows
from dcinterp.mechanism.faithfulness import FRACTIONS, cmd, cpr
from dcinterp.planted import read_plant
from dcinterp.support.errors import UserError


def test_a_row_has_every_ranking_and_its_areas(shipped):
    row = task_row(shipped, "task0", ["eap"], pairs=4)
    assert list(row["rankings"]) == ["eap", "eap, signed", "nodes", "random"]
    assert row["none"] < 0 < row["whole"]
    assert row["edges"] == 1774
    for name, of in row["rankings"].items():
        assert of["f"][-1] == pytest.approx(1), name
        assert of["cmd"] == pytest.approx(cmd(FRACTIONS, of["f"]), abs=2e-4)
        assert of["cpr"] == pytest.approx(cpr(FRACTIONS, of["f"]), abs=2e-4)


def test_rows_that_are_there_are_not_made_again_and_are_counted(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"key": f"dcformer++ task{i}", "model": "dcformer++", "rankings": {"gates": {"cmd": value, "cpr": 1 - value}}}
        for i, value in enumerate((0.01, 0.05, 0.3))
    ]
    rows += [{"key": "planted a seed=0", "planted": "a", "auroc": {"eap": 0.5}}]
    rows += [{"key": "planted a seed=1", "planted": "a", "auroc": {"eap": 1.0}}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"file": file, "until": time.monotonic() + 60}
    assert measure_tasks(["dcformer++"], ["task0", "task1", "task2"], methods=["gates"], **given) == 0
    for methods in (["gates", "eap"], ["eap"]):
        with pytest.raises(UserError, match=r"rows of other methods, such as 'dcformer\+\+ task0' \(gates\)"):
            measure_tasks(["dcformer++"], ["task0"], methods=methods, **given)
    with pytest.raises(UserError, match=r"rows of other methods, such as 'planted a seed=0' \(eap\)"):
        measure_planted(["a"], methods=["exact"], **given)
    found = summarise(read_rows(file))
    assert found["dcformer++"]["gates"] == {"tasks": 3, "faithful": 2, "cmd": 0.05, "cpr": 0.88}
    assert found["a"]["eap"] == {"models": 2, "auroc": 0.75}


def test_scores_find_the_edges_of_a_planted_circuit():
    found = planted_auroc("share-by-kp", 0, ["eap"], examples=2)
    assert found["eap"] > 0.95
    planted = read_plant("share-by-kp")
    one, *others = planted.examples(20)
    assert not is_contrast(one, one)
    for other in (each for each in others if is_contrast(one, each)):
        assert (one.question, one.target) != (other.question, other.target)
        assert one.question == other.question
