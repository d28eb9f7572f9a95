"""Every analysis from the command line: the example of its help runs, writes what it is asked for, and comes out again.

A prompt of any characters survives the way through a shell.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import dcinterp
from dcinterp.cli import main
from dcinterp.cli._help import examples
from dcinterp.cli.analyze import figure_kinds, help_text
from dcinterp.results.call import Call
from dcinterp.results.catalogue import titles
from dcinterp.results.options import parameter_types, parse
from dcinterp.results.registry import ANALYSES

pytestmark = pytest.mark.usefixtures("commands_once", "loaded_once")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("name", titles())
def test_the_example_runs_is_written_and_comes_out_again(capsys, monkeypatch, runs, name):
    monkeypatch.chdir(runs)
    (line,) = examples(help_text(ANALYSES[name]))
    drawn = bool(figure_kinds(ANALYSES[name]))
    outputs = ["--save", f"saved/{name}", "--table-to", f"{name}-table.csv", "--csv", f"{name}.csv", "--json"]
    outputs += ["--figure", f"{name}.html"] if drawn else []
    code, out, err = run(capsys, *shlex.split(line)[1:], *outputs)
    assert code == 0, err
    assert json.loads(out)["call"]["analysis"] == name
    assert "NaN" not in out
    assert not err
    assert not drawn or "plotly" in (runs / f"{name}.html").read_text(encoding="utf-8").lower()
    saved = dcinterp.load_result(runs / "saved" / name)
    assert len(pd.read_csv(runs / f"{name}.csv")) == len(saved.to_dataframe())
    assert list(pd.read_csv(runs / f"{name}-table.csv").columns) == [str(each) for each in saved.table().columns]
    code, out, err = run(capsys, "replay", f"saved/{name}", "--json")
    assert (code, json.loads(out)["same"]) == (0, True), err


def test_replay_says_what_it_lists(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (
        run(capsys, "analyze", "predict", "dcformer++", "--prompt", "Which is not tea? The", "--save", "said")[0] == 0
    )
    code, out, err = run(capsys, "replay", "said")
    assert code == 0, err
    before, _, after = out.partition("The largest difference of each tensor, as a share of its largest entry:\n")
    assert before.startswith("dcinterp analyze predict")
    assert re.match(r"top_ids: \d\.\de[-+]\d\d\n", after), out


def test_a_result_that_says_several_things_says_them_above_its_table(capsys):
    code, out, err = run(
        capsys, "analyze", "text-loss", "dcformer++-code", "--text", "python", "--files", "1", "--tokens", "64"
    )
    assert code == 0, err
    assert "bits a byte) on" in out


@pytest.mark.parametrize("name", titles())
def test_the_help_does_not_send_the_reader_to_a_module(capsys, name):
    code, out, err = run(capsys, "analyze", name.replace("_", "-"), "--help")
    assert code == 0, err
    assert "this module" not in " ".join(out.split())


@pytest.mark.parametrize("objective", ["logit", "log-probability"])
@pytest.mark.parametrize("foil", [["--foil", "meat"], []])
def test_an_intervention_says_its_effect(capsys, objective, foil):
    (line,) = examples(help_text(ANALYSES["intervene"]))
    words = [*shlex.split(line)[1:], "--target", "tea", *foil, "--objective", objective]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    text = " ".join(out.split())
    found = re.search(r"is (\S+) before and (\S+) after, so the effect is (\S+): the change (\w+)", text)
    assert found, out
    before, after, effect = map(float, found.groups()[:3])
    assert before - after == pytest.approx(effect, abs=0.011)
    assert found[4] == ("moves" if not effect else "speaks" if foil else "lowers" if effect > 0 else "raises")
    if foil and effect:
        assert f'speaks {"against" if effect > 0 else "for"} "tea"' in text
    assert f'The {objective} of "tea"' in text
    assert ('minus that of "meat"' in text) == bool(foil)


PROMPTS = [
    "a \"b\" 'c' $HOME `x` !y \\ z",
    "two\nlines",
    "[ lime ]",
    "[5, 7]",
    '"[5]"',
    '{"a": 1}',
    "-x",
    "#12",
    "ü 日",
]


@pytest.mark.parametrize("prompt", PROMPTS, ids=str)
def test_the_printed_command_survives_the_shell(prompt):
    call = Call(
        "predict", "", "dcformer++", None, None, None, {"prompt": prompt, "answer": "#12"}, ("prompt", "answer")
    )
    script = f"set -- {call.command()}; printf '%s\\0' \"$@\""
    words = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
    given: dict[str, str] = {}
    for word in words[4:]:
        if word.startswith("--"):
            option, _, value = word.removeprefix("--").partition("=")
            given[option] = value
        else:
            given[option] = word
    types = parameter_types(ANALYSES["predict"].function)
    assert {name: parse(name, types[name], text) for name, text in given.items()} == call.arguments


def test_outputs_are_refused_before_the_work(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("keep")
    (tmp_path / "mine/result.json").write_text("{}")
    for option, says in (
        (["--save", "mine"], "mine holds other files"),
        (["--save", "mine/notes.txt"], "is a file"),
        (["--csv", "mine"], "mine is a folder"),
        (["--csv", "nosuch/table.csv"], "There is no folder nosuch"),
        (["--figure", "figure.pdf"], ".html, .png or .svg"),
        (["--figure", "figure.html", "--figure-kind", "bogus"], "There is no figure 'bogus'"),
        (["--figure-kind", "bogus"], "give that too"),
    ):
        code, _, err = run(capsys, "analyze", "predict", "dcformer++", "--prompt", "x", *option)
        assert (code, len(err.splitlines())) == (2, 1)
        assert says in err
    assert (tmp_path / "mine/notes.txt").read_text() == "keep"


def test_what_fails_leaves_nothing_half_written(tmp_path):
    from dcinterp.cli._outputs import whole

    (tmp_path / "old").write_text("old")

    def write_half(path: Path, *, folder: bool) -> None:
        with whole(path) as place:
            if folder:
                place.mkdir()
            (place / "half" if folder else place).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "old", folder=False)
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "folder", folder=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"
    with whole(tmp_path / "old") as place:
        place.write_text("new")
    assert (tmp_path / "old").read_text() == "new"


def test_former_options_and_words_still_work_and_say_what_they_are_called_now(capsys):
    words = ("analyze", "attribute-heads-over", "dcformer++", "--examples", "task2 n=1", "--method", "gradient")
    now = run(capsys, *words, "--baseline", "counterfactual", "--counterfactual", "question", "--json")
    assert (now[0], now[2]) == (0, "")
    code, out, err = run(capsys, *words, "--baseline", "twin", "--twin", "asked", "--json")
    assert code == 0, err
    assert json.loads(out)["mean"] == json.loads(now[1])["mean"]
    assert err.splitlines() == [
        "dcinterp: note: --twin is called --counterfactual now; the old name goes in version 0.3.",
        "dcinterp: note: --baseline twin is called counterfactual now; the old name goes in version 0.3.",
        "dcinterp: note: --counterfactual asked is called question now; the old name goes in version 0.3.",
    ]
    assert "--twin" not in run(capsys, "analyze", "attribute-heads-over", "--help")[1]


def test_json_has_the_warnings_also_under_their_former_name(capsys):
    (line,) = examples(help_text(ANALYSES["attribute_heads_over"]))
    code, out, err = run(capsys, *shlex.split(line)[1:], "--json")
    assert code == 0, err
    data = json.loads(out)
    assert any("The 2 examples share their facts" in said for said in data["warnings"])
    assert data["banners"] == data["warnings"]
