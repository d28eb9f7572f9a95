"""A script of an experiment ends with a sentence where a person can mend what is wrong."""

import sys
from pathlib import Path

import pytest

from dcinterp.evidence.script import run_script
from dcinterp.support.errors import UserError

ROOT = Path(__file__).parents[3]
SCRIPTS = [
    file for file in sorted((ROOT / "experiments").glob("*/*.py")) if "__main__" in file.read_text(encoding="utf-8")
]


def refused(jobs: int = 1) -> None:
    raise UserError(f"There are no models for {jobs} jobs.")


def test_its_options_are_read_and_what_can_be_mended_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["experiments/e/circuits.py", "--jobs", "3"])
    with pytest.raises(SystemExit) as ended:
        run_script(refused)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "circuits.py: There are no models for 3 jobs.\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_script_is_run_so(script):
    assert script.read_text(encoding="utf-8").endswith('\n\nif __name__ == "__main__":\n    run_script(main)\n')
