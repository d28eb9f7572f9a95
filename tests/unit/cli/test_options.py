"""What a command ignores it refuses, and what it says can be copied."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dcinterp
import synthetic_tasks
from dcinterp.cli import main
from dcinterp.cli._models import model_names
from dcinterp.cli._outputs import require_different

ROOT = Path(__file__).parents[3]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit, match="2"):
        main(list(arguments))
    return capsys.readouterr().err


def ran(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert not ended.value.code


@pytest.mark.parametrize(
    ("arguments", "option", "other"),
    [
        (("load", "dcformer++", "--files-only", "--device", "cpu"), "--files-only", "--device"),
        (("tasks", "evaluate", "dcformer++", "--data", "x", "--rows", "3"), "--data", "--rows"),
        (("bench", "attention", "--short", "--long"), "--short", "--long"),
        (("bench", "load", "--folder", "x", "--preset", "tiny-dcformer"), "--folder", "--preset"),
        (("planted", "bench", "rows.jsonl", "--short", "--seeds", "2"), "--short", "--seeds"),
        (("sweep", "x.yaml", "--table", "--jobs", "2"), "--table", "--jobs"),
    ],
)
def test_an_option_without_a_meaning_is_refused(capsys, arguments, option, other):
    assert f"{option} leaves {other} without a meaning" in refused(capsys, *arguments)


def test_places_that_nobody_meant_are_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "the folder that you are in" in refused(capsys, "compose", "transformer++", "--output", ".")
    assert "the shell did not replace" in refused(capsys, "convert", "transformer++", "~/out")
    assert ".html, .png or .svg" in refused(capsys, "scaling", "runs.csv", "--figure", "f.jpg")
    assert not list(tmp_path.iterdir())


def test_the_device_is_an_option(capsys):
    said = refused(capsys, "analyze", "predict", "dcformer++", "--prompt", "The", "--device", "nowhere")
    assert "nowhere" in said
    assert "No such option" not in said


def test_names_are_completed_as_they_were_begun(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_names("./r") == ["./runs"]
    assert model_names("r") == ["runs"]


@pytest.mark.usefixtures("warm_python")
def test_a_stream_that_cannot_spell_a_letter_writes_it_out():
    ran = subprocess.run(
        [sys.executable, "-m", "dcinterp", "presets", "--mechanisms"],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "cp1252", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        cwd=Path(__file__).parents[3],
    )
    assert ran.returncode == 0, ran.stderr
    assert rb"\u03bb" in ran.stdout


def test_a_call_names_its_function_and_the_nearest_argument(shipped):
    with pytest.raises(TypeError, match=r"case_study has no argument 'target'; it has bridge, example, answer"):
        dcinterp.case_study(shipped, "The", target="food")
    with pytest.raises(TypeError, match=r"attribute_heads: missing a required argument: 'target'"):
        dcinterp.attribute_heads(shipped, "The")


def test_a_misspelt_pattern_is_one_that_is_near(shipped):
    with pytest.raises(ValueError, match="'same-persn', and no pattern or relation; did you mean same-person"):
        dcinterp.attribute_heads_over(shipped, "same-persn n=4")


def test_the_strongest_heads_have_names(shipped, prompt):
    scores = dcinterp.attribute_heads(shipped, prompt, "food", "drink", method="gradient")
    first, second = scores.top(2)
    assert abs(first.score) >= abs(second.score)
    assert float(scores.scores[first.layer, first.head]) == first.score
    assert first.label == f"L{first.layer}H{first.head}"


def test_edges_into_a_head_that_is_not_there_are_refused(shipped, prompt):
    edges = dcinterp.attribute_edges(shipped, prompt, "food", "drink", method="gradient")
    assert edges.top(3, head_to=(-1, 0)) == edges.top(3, head_to=(shipped.cfg.n_layers - 1, 0))
    for head, said in (((2, 99), "no head 99"), ((9, 0), "Layer 9 was not scored"), (7, r"give \(layer, head\)")):
        with pytest.raises(dcinterp.UserError, match=said):
            edges.top(1, head_to=head)


def test_a_file_of_lines_may_be_of_one_task(capsys, tmp_path):
    row = synthetic_tasks.generate("task0", 1, 0)[0]
    (tmp_path / "lines.txt").write_text(row.examples[0].prompt + "\n")
    ran("tasks", "solve", "--file", str(tmp_path / "lines.txt"), "--task", "task0", "--json")
    assert '"task": "task0"' in capsys.readouterr().out
    synthetic_tasks.write_jsonl([row], tmp_path / "rows.jsonl")
    said = refused(capsys, "tasks", "solve", "--file", str(tmp_path / "rows.jsonl"), "--task", "task0")
    assert "says the task of every record" in said


def test_one_output_does_not_take_the_place_of_another(capsys, tmp_path):
    same, rows = str(tmp_path / "same.html"), str(tmp_path / "rows.jsonl")
    prompt = ("analyze", "predict", "dcformer++", "--prompt", "< Ruth has")
    assert "Two outputs go to" in refused(capsys, *prompt, "--csv", same, "--figure", same)
    assert "lies inside" in refused(capsys, *prompt, "--save", same, "--csv", f"{same}/table.csv")
    assert "Two outputs go to" in refused(capsys, "planted", "bench", rows, "--short", "--page", rows)
    require_different(Path("/dev/null"), Path("/dev/null"))
    for name in ("circuits.csv", "results.csv", "protocol.md"):
        place = ROOT / "experiments" / "birth"
        assert "Two outputs go to" in refused(capsys, "experiment", "circuits", str(place), "--to", str(place / name))
    assert not list(tmp_path.iterdir())


def test_mechanisms_are_json_where_it_is_asked_for(capsys):
    ran("presets", "--mechanisms", "--json")
    found = json.loads(capsys.readouterr().out)
    assert {"dynamic", "static"} <= {each["compose"] for each in found}
    assert "leave the name out" in refused(capsys, "presets", "nowhere", "--mechanisms")


def test_a_benchmark_reads_no_file_that_there_is_not(capsys, tmp_path):
    assert "There is no file" in refused(capsys, "bench", "circuits", str(tmp_path / "no.jsonl"), "--seconds", "0")
