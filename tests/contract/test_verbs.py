"""What every verb of the command line keeps: help with an example, and bad input refused in one sentence."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from dcinterp.cli import main, verbs
from dcinterp.cli._help import examples

pytestmark = pytest.mark.usefixtures("commands_once")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands below a group, by what one types."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(typer.main.get_command(verbs)))
VERBS = pytest.mark.parametrize("path", COMMANDS, ids=" ".join)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_verbs_are_found():
    found = {path[0] for path in COMMANDS}
    assert found >= {"app", "analyze", "bench", "complexity", "convert", "hooks", "load", "presets", "replay", "tasks"}
    assert found >= {"compose", "train", "verify"}


@VERBS
def test_help_has_an_example_of_the_verb(capsys, path):
    code, out, err = run(capsys, *path, "--help")
    assert (code, err) == (0, "")
    ours = [line for line in examples(COMMANDS[path].help) if line.startswith(f"dcinterp {' '.join(path)}")]
    assert ours
    for line in COMMANDS[path].help.splitlines():  # as it is written, so that it can be copied
        assert not line.startswith("    ") or line in out.splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_help_fits_the_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    for path in [(), ("tasks",), *COMMANDS]:
        _, out, _ = run(capsys, *path, "--help")
        prose = [line for line in out.splitlines() if not re.match(r" {4,}\S", line)]
        assert max(map(len, prose)) <= width, path
        assert max(map(len, out.splitlines())) <= 80 or width > 80, path


@VERBS
def test_every_option_is_explained(path):
    unexplained = [parameter.name for parameter in COMMANDS[path].params if not getattr(parameter, "help", "")]
    assert not unexplained


@VERBS
def test_examples_can_be_parsed(path):
    for line in examples(COMMANDS[path].help):
        words = shlex.split(line)
        if words[0] != "dcinterp":  # a launcher
            words = ["dcinterp", *words[words.index("dcinterp") + 1 :]]
        verb = max((known for known in COMMANDS if tuple(words[1 : 1 + len(known)]) == known), key=len)
        if "--help" not in words:
            COMMANDS[verb].make_context(" ".join(verb), words[1 + len(verb) :])


@VERBS
def test_a_wrong_option_is_refused_in_one_sentence(capsys, path):
    if path == ("lm-eval",):
        pytest.skip("it passes its options on to lm_eval")
    refuses(capsys, *path, "--no-such-option", says="No such option: --no-such-option")


def refuses(capsys: pytest.CaptureFixture[str], *arguments: str, says: str, code: int = 2) -> None:
    got, _, err = run(capsys, *arguments)
    assert got == code
    assert err.startswith("dcinterp: ")
    assert says in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err


# One piece of bad input for each verb that takes any.
BAD = [
    (("nosuch",), "No such command 'nosuch'"),
    (("app", "."), "has no config.json"),
    (("analyze", "head-attribution", "dcformer++"), "There is no analysis"),
    (("analyze", "predct", "dcformer++"), "There is no analysis 'predct'; did you mean predict?"),
    (("analyze", "predict", "./nosuch", "--prompt", "x"), "There is no folder ./nosuch"),
    (("analyze", "predict", "dcformer++", "--prompt", "xyzzy"), "'xyzzy'"),
    (("analyze", "predict", "dcformer++", "--prompt", "[1.5]"), "not a whole number"),
    (("analyze", "predict", "dcformer++", "--prompt", f"[{10**30}]"), "numbers is too large"),
    (("analyze", "scaling-fit", "--runs", "/dev/null"), "There is no table at /dev/null"),
    (("bench", "attention", "--rounds", "none"), "--rounds"),
    (("bench", "load", "--preset", "dcformer-406m"), "dcformer-405m"),
    (("complexity", "dcformer-406m"), "dcformer-405m"),
    (("compose", "dcformer++", "--output", "target"), "composes its heads already"),
    (("compose", "transformer++", "--output", "target", "--compose", "gated"), "cannot start at the identity"),
    (("compose", "transformer++", "--output", "target", "--set", "rank"), "has no '='"),
    (("train", "--from", "transformer++", "--preset", "tiny-dcformer"), "Give --from or --preset"),
    (("convert", "nosuch", "target"), "There is no folder nosuch and no shipped model of that name"),
    (("hooks", "dcformer++", "--match", "hook_zz"), "No hook of this model matches 'hook_zz'"),
    (("hooks", "dcformer++", "--layer", "99"), "There is no layer 99"),
    (("load", "./nosuch"), "There is no folder ./nosuch"),
    (("load", "nosuch", "--files-only"), "There is no folder nosuch"),
    (("presets", "dcformer-406m"), "dcformer-405m"),
    (("replay", "nosuch"), "There is no result at nosuch"),
    (("tasks", "list", "--tasks", "task99"), "task99"),
    (("complexity", "dcformer++-405m", "--keys", str(10**30)), "numbers is too large"),
    (("tasks", "list", "--tasks", "60-56"), "the range 60-56 is empty; write it as 56-60"),
    (("tasks", "solve"), "give lines to solve"),
    (("tasks", "evaluate", "./nosuch"), "There is no folder ./nosuch"),
    (("tasks", "evaluate", "dcformer++", "--by", "colour"), "'colour' is not one of 'all', 'task'"),
    (("analyze", "predict", "dcformer++", "--prompt", "x", "--k", "0"), "k is 0; it must be at least 1"),
    (("analyze", "predict", "dcformer++", "--prompt", "[5, 7"), "is not a valid JSON list"),
    (("bench", "attention", "--output", "nosuch/x.json"), "There is no folder nosuch"),
    (("complexity", "transformer++-405m"), "composes no heads"),
    (("complexity", "dcformer++-405m", "--keys", "-5"), "it must be at least 1"),
    (("load", ""), "The name of the model is empty"),
    (("load", "dcformer++", "--device", "warp"), "There is no device 'warp'"),
    (("tasks", "generate", "nosuch/x.jsonl"), "There is no folder nosuch"),
    (("tasks", "solve", "--file", "/"), "is a folder"),
    (("verify", "dcformer++", "--tolerance", "nan"), "must be at least 0"),
    (("train", "missing.yaml"), "There is no training config at missing.yaml"),
    (("verify", "nosuch"), "There is no folder nosuch and no shipped model of that name"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_refused_in_one_sentence(capsys, monkeypatch, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    refuses(capsys, *arguments, says=says)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_not_text_is_named(capsys, tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"\xff\xfe\x00")
    refuses(capsys, "scaling", str(file), says=f"{file} is not a valid table")
    refuses(capsys, "tasks", "evaluate", "dcformer++", "--data", str(file), says=f"{file} is not a text file")


def test_what_does_not_fit_into_the_memory_is_said_so(capsys, monkeypatch):
    import torch

    def full(*args: object, **kwargs: object) -> None:
        torch.empty(2**60)

    monkeypatch.setattr("dcinterp.bridge.hook_catalogue.list_hooks", full)
    refuses(capsys, "hooks", says="does not fit into the memory")


def test_a_missing_argument_names_the_help(capsys):
    refuses(capsys, "load", says="Missing argument 'model'; see dcinterp load --help.")


def test_a_group_without_a_verb_shows_its_help_once(capsys):
    code, out, err = run(capsys, "tasks")
    assert (code, err) == (2, "")
    assert out.count("Usage:") == 1


def test_a_failed_check_is_1_and_an_interrupt_130(capsys, monkeypatch):
    assert run(capsys, "tasks", "solve", "no facts")[0] == 1

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dcinterp.bridge.hook_catalogue.list_hooks", interrupted)
    code, _, err = run(capsys, "hooks")
    assert (code, err.strip()) == (130, "dcinterp: stopped")


def test_what_goes_wrong_inside_is_not_hidden(capsys, monkeypatch):
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("dcinterp.bridge.hook_catalogue.list_hooks", broken)
    monkeypatch.delenv("DCINTERP_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["hooks"])
    said = capsys.readouterr().err
    assert ended.value.code == 70
    assert "RuntimeError: a bug" in said
    assert "Traceback" not in said
    monkeypatch.setenv("DCINTERP_DEBUG", "1")
    with pytest.raises(RuntimeError, match="a bug"):
        main(["hooks"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("presets", "tiny-dcformer++"),
        ("presets",),
        ("complexity", "tiny-dcformer"),
        ("hooks", "dcformer++", "--layer", "0"),
        ("load", "dcformer++"),
        ("load", "dcformer++", "--files-only"),
        ("tasks", "list", "--tasks", "56"),
        ("tasks", "solve", "no facts"),
        ("tasks", "counterfactuals", "There are tea, meat, meat. Which is not meat? The"),
        ("planted", "list"),
        ("planted", "show", "gate-by-qg"),
        ("verify", "dcformer++", "--length", "4"),
    ],
    ids=" ".join,
)
def test_data_comes_as_json_and_nothing_else(capsys, arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (arguments[-1] == "no facts", "")
    assert json.loads(out)


def test_the_former_verb_works_hidden_and_says_what_it_is_called_now(capsys):
    line = "There are tea, meat, meat. Which is not meat? The"
    assert "twins" not in run(capsys, "tasks", "--help")[1]
    assert ("tasks", "twins") not in COMMANDS
    code, out, err = run(capsys, "tasks", "twins", line, "--json")
    assert (code, out) == run(capsys, "tasks", "counterfactuals", line, "--json")[:2]
    assert "`tasks twins` is called `tasks counterfactuals` now; the old name goes in version 0.3." in err
    assert code == 0


def test_the_version(capsys):
    from dcinterp import __version__

    assert run(capsys, "--version")[:2] == (0, f"dcinterp {__version__}\n")
