"""The benchmark of edge scores: rows are made once, and their numbers are those of the definitions."""

from __future__ import annotations

import pytest
import torch

from dcinterp.bench.edges import FAMILIES, measure, planted_cases, statistics_of, summarise
from dcinterp.bench.row_file import read_rows, resume_rows, write_rows
from dcinterp.cli import main
from dcinterp.mechanism import edge_benchmark
from dcinterp.mechanism.edge_scores import METHODS, PREDICTOR
from dcinterp.support.errors import UserError


def test_rows_are_made_once(tmp_path):
    file = tmp_path / "rows.jsonl"
    assert measure(planted_cases("share-by-kp", seeds=1, examples=1), file, slow=0, until=None) == 5
    assert measure(planted_cases("share-by-kp", seeds=1, examples=1), file, slow=0) == 0
    found = summarise(read_rows(file))
    assert set(found) == {"share-by-kp post", "all planted post"}
    rules = found["all planted post"]["rules"]
    assert rules["screened"]["all"]["correlation"] > 0.99
    assert rules["screened"]["all"]["found"] == 1
    assert rules["gradient"]["all"]["correlation"] < 0.9, "blind where the softmax is saturated"


def test_a_row_that_was_cut_off_is_made_again_and_other_text_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_rows(file, [{"key": "a"}, {"key": "b"}])
    file.write_text(file.read_text()[:-4])
    assert read_rows(file) == [{"key": "a"}]
    assert resume_rows(file) == [{"key": "a"}]
    assert file.read_text() == '{"key": "a"}\n'
    for text in (
        '{"key": "a"}\nnotes\n{"key": "b"}\n',
        '{"key": "a"}\nmy notes',
        '{"key": "a"}\n{"key": "b{"key": "c"}\n',
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=r"Line 2 of .*rows.jsonl is no row"):
            resume_rows(file)
        assert file.read_text() == text


def test_numbers_of_the_package_are_not_replaced_by_none(tmp_path, monkeypatch, capsys):
    numbers = tmp_path / "numbers.json"
    numbers.write_text("{}")
    monkeypatch.setattr(edge_benchmark, "FILE", numbers)
    for arguments, said in ((["--write"], "There are no measurements in"), (["no-such-family"], "no family")):
        with pytest.raises(SystemExit, match="2"):
            main(["bench", "edges", str(tmp_path / "typo.jsonl"), "--seconds", "0", *arguments])
        assert said in capsys.readouterr().err
    assert numbers.read_text() == "{}"


def test_statistics_by_hand():
    measured = torch.tensor([1.0, -2.0, 0.001, 4.0]).double()
    predicted = torch.tensor([1.5, -1.0, 0.5, 4.0]).double()
    own = torch.tensor([False, False, False, True])
    found = statistics_of(predicted, measured, own, torch.tensor([True, False, False, False]))
    assert abs(found["all"]["error"] - (0.5 + 1 + 0.499) / 7.001) < 1e-9
    assert found["all"]["median"] == 0.5  # the small one is not notable
    assert not found["all"]["found"]
    assert abs(found["all"]["rank"] - 1) < 1e-9
    assert not found["shared"]["found"], "the strongest between two heads is the second"
    assert statistics_of(predicted, measured * 0, own, own) == {}


def test_the_default_is_what_the_benchmark_says():
    """Of the rules of one pass the predictor is the best on trained models, in each stage; and all are described."""
    quick = ("recomputed", "gradient", "halfway", "relp")
    for stage in ("pre", "post"):
        of = edge_benchmark.summary()[f"{edge_benchmark.TRAINED} {stage}"]["rules"]
        errors = {rule: of[rule]["shared"]["error"] for rule in quick}
        assert errors[PREDICTOR] == min(errors.values())
        assert of["screened"]["all"]["error"] < of[PREDICTOR]["all"]["error"]
        for method in METHODS:
            assert edge_benchmark.describe(method, stage).endswith(".")
        for family in FAMILIES:
            assert f"| {family} | `screened` |" in edge_benchmark.table(stage)
    assert edge_benchmark.describe("magic", "post") == ""


def test_rows_of_another_measurement_are_left_alone(tmp_path):
    file = tmp_path / "rows.jsonl"
    write_rows(file, [{"key": "a", "setting": "b"}])
    with pytest.raises(UserError, match=r"Line 1 of .*rows\.jsonl is no row of this measurement"):
        measure([], file)
