"""Arguments that nobody means: one sentence of at most 300 characters, whatever a library below would say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from dcinterp.checkpoints.names import SHIPPED
from dcinterp.cli import main
from dcinterp.support.errors import UserError
from dcinterp.support.paths import path_of
from dcinterp.support.yaml_text import read_yaml
from dcinterp.train.config.recipe import apply_override, read_tree

ENDLESS = "[" * 200_000


def ended(capsys, *arguments: str) -> tuple[int, str]:
    """(exit code, the sentence)."""
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    sentence = capsys.readouterr().err.strip()
    assert len(sentence.splitlines()) == 1
    assert len(sentence) <= 300 + len("dcinterp: ")
    return int(done.value.code or 0), sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("load", "~nobody-here/model"), "no folder|user who is not on this machine"),
        (("load", "a" * 5000), "cannot be a path"),
        (("load", "a\0b"), "cannot be a path"),
        (("load", "\udcff"), "not valid UTF-8"),
        (("tasks", "solve", "\udcff"), "not valid UTF-8"),
        (("load", "planted:share-by-kp,heads=100000000"), "heads"),
        (("train", "x" * 400 + ".yaml"), "no training config|too long"),
        (("analyze", "x" * 400), "no analysis"),
        (("analyze", "predict", "dcformer++", "--prompt", "[null]"), "token id"),
        (("analyze", "predict", "dcformer++", "--prompt", "[1, 2"), "not a valid JSON list"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, said):
    import re

    code, sentence = ended(capsys, *arguments)
    assert code == 2
    assert re.search(said, sentence)


def test_a_mistake_of_ours_is_one_sentence_too(capsys, monkeypatch):
    import dcinterp.checkpoints.describe as place

    def broken(*given: object, **options: object) -> None:
        raise AttributeError("no\nsuch thing " + "x" * 5000)

    monkeypatch.setattr(place, "describe", broken)
    monkeypatch.setattr("dcinterp.checkpoints.load.load", broken)
    code, sentence = ended(capsys, "load", "dcformer++")
    assert code == 70
    assert "went wrong inside dcinterp: AttributeError" in sentence
    assert "DCINTERP_DEBUG=1" in sentence


def test_a_closed_output_is_no_traceback():
    line = f"{sys.executable} -m dcinterp presets >&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.usefixtures("warm_python")
def test_a_full_output_is_no_traceback():
    command = [sys.executable, "-m", "dcinterp", "presets"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["[", "{", "*a", "&a [*a]", "2001-99-99", "x: y: z", "!!python/object:os.system []", ENDLESS]
)
def test_an_override_that_is_no_yaml_is_refused(text):
    with pytest.raises(UserError) as refused:
        apply_override({}, f"output={text}")
    assert "output" in str(refused.value)
    assert len(str(refused.value)) <= 300


def test_a_few_lines_of_aliases_are_no_billion_values():
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)]
    with pytest.raises(UserError, match="more than 100,000 values"):
        read_yaml("\n".join(lines), "it")
    assert read_yaml("a: &a {b: 1}\nc: {<<: *a, d: 2}", "it")["c"] == {"b": 1, "d": 2}


@pytest.mark.parametrize("kind", ["pipe", "device", "bytes"])
def test_a_config_is_a_plain_file(tmp_path, kind):
    path = tmp_path / "x.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"x\.yaml"):
        read_tree(path)


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of("~/x") == tmp_path / "x"
    assert path_of("nowhere/x").name == "x"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[\n  {"task_id": "task56"}\n]\n', "record 1: not in the released format"),
        (b' {"task_id": "taks56", "texts": "x"}\n', "did you mean 'task56'"),
        ("Straße\n".encode("latin-1"), "is not a text file"),
    ],
)
def test_a_file_to_solve_that_is_no_lines_is_refused(capsys, tmp_path, content, said):
    file = tmp_path / "lines.txt"
    file.write_bytes(content)
    code, sentence = ended(capsys, "tasks", "solve", "--file", str(file))
    assert code == 2
    assert said in sentence


@pytest.mark.parametrize("closed", [True, False])
def test_standard_input_is_read_as_a_file_is(closed):
    line = "There are tea, meat, meat. Which is not meat? The"
    command = f"{sys.executable} -m dcinterp tasks solve --file -" + (" <&-" if closed else "")
    given = None if closed else f"\ufeff{line}\r\n".encode()
    done = subprocess.run(["sh", "-c", command], input=given, capture_output=True, check=False)
    if closed:
        assert done.returncode == 2
        assert b"has no lines" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"tea")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("analyze", "predict", "dcformer++", "--prompt", "[true, false]"), "A prompt is text or a list of token ids"),
        (("compose", "transformer++", "--rank", "2", "--set", "compose_rank=3", "--output", "c"), "given twice"),
        (("complexity", "dcformer++-405m", "--markdown", "--json"), "leaves --markdown without a meaning"),
    ],
)
def test_what_nobody_means_is_refused(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, sentence = ended(capsys, *arguments)
    assert code == 2
    assert said in sentence
    assert not list(tmp_path.iterdir())


def test_a_cell_that_is_no_number_is_named(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("name,family,flops,loss\na,base,1e9,2.0\nb,base,1e9,abc\n")
    code, sentence = ended(capsys, "scaling", str(table))
    assert code == 2
    assert "t.csv has 'abc' in line 3, column 'loss'; it must be a number." in sentence


def test_a_folder_whose_weights_do_not_fit_is_not_described(capsys, tmp_path):
    shutil.copytree(SHIPPED / "dcformer++", tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'))
    for more in ((), ("--files-only",)):
        code, _ = ended(capsys, "load", str(tmp_path / "m"), *more)
        assert code == 2
