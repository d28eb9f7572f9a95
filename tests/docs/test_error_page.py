"""The errors that docs/errors.md explains are the errors that users get; `...` stands for anything."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from dcinterp.cli import main
from dcinterp.support.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"^```console\n\$ dcinterp (.*?)\n(.*?)\n```", PAGE, flags=re.M | re.S)
SESSION = "\n".join(re.findall(r"^```pycon\n(.*?)^```", PAGE, flags=re.M | re.S))


def like(expected: str, got: str) -> bool:
    """Whether `got` is `expected`, in which three dots stand for anything."""
    pattern = ".*".join(map(re.escape, expected.strip().split("...")))
    return re.fullmatch(pattern, got.strip()) is not None


@pytest.mark.parametrize(("command", "expected"), CONSOLE, ids=[command for command, _ in CONSOLE])
def test_commands(capsys, monkeypatch, tmp_path, command, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert like(expected, said), said


def test_python():
    namespace: dict[str, Any] = {}
    refused = 0
    for statement, expected in re.findall(r"^>>> (.*)\n(?:(UserError: .*)\n)?", SESSION, flags=re.M):
        if not expected:
            exec(statement, namespace)
            continue
        with pytest.raises(UserError) as caught:
            exec(statement, namespace)
        assert like(expected.removeprefix("UserError: "), str(caught.value)), str(caught.value)
        refused += 1
    assert refused == SESSION.count("UserError") >= 8


def test_dots_stand_for_anything_and_nothing_else():
    assert like("There is no layer 9; this model has layers 0...", "There is no layer 9; this model has layers 0..2.")
    assert not like("There is no layer 9", "There is no layer 9.")
