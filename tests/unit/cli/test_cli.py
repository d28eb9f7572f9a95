"""The command line as a person uses it: help with examples, one-sentence errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest

from dcinterp.cli import verbs
from dcinterp.support.progress import console


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dcinterp", *arguments], capture_output=True, text=True, timeout=120)


def test_every_verb_is_found_and_has_an_example():
    names = {c.name for c in verbs.registered_commands} | {g.name for g in verbs.registered_groups}
    assert {"app", "train", "tasks", "presets", "bench"} <= names
    for command in verbs.registered_commands:
        assert f"dcinterp {command.name}" in command.callback.__doc__, command.name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "missing.yaml"), "There is no training config at missing.yaml"),
        (("app", str(Path(__file__).parent)), "has no config.json"),
        (("tasks", "generate", "out.jsonl", "--tasks", "task99"), "task99"),
    ],
)
@pytest.mark.usefixtures("warm_python")
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_config_is_said_before_the_libraries_are_imported():
    script = (
        "import sys; from dcinterp.cli import main\n"
        "try: main(['train', 'missing.yaml'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr


def test_presets_are_listed_and_the_end_searches_no_libraries_for_garbage():
    # What is registered first is run last.
    program = (
        "import atexit, gc; atexit.register(lambda: print('left alone:', gc.get_freeze_count())); "
        "from dcinterp.cli import main; main(['presets'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "tiny-dcformer++" in done.stdout
    assert int(done.stdout.rsplit("left alone:", 1)[1]) > 10_000


def test_the_help_of_an_analysis_imports_it_alone():
    script = (
        "import sys; from dcinterp.cli import main\n"
        "heavy = ('transformers.modeling_utils', 'dcinterp.analysis.case_study')\n"
        "try: main(['analyze', 'predict', '--help'])\n"
        "except SystemExit: print(*(name in sys.modules for name in heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False False", done.stderr
    assert "dcinterp analyze predict dcformer++" in done.stdout


def test_a_reader_that_has_enough_is_no_failed_check():
    line = f"{sys.executable} -m dcinterp tasks generate - --tasks 56 --rows 500 | head -1 > /dev/null"
    script = line + "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_a_bar_stands_there_before_the_work_and_its_estimate_is_of_the_work(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    now = [time.time()]  # a clock of its own: the machine may stand still for a second
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with console("predict") as progress:
        progress(0, 0, "loading dcformer++")
        assert "predict: 0it" in terminal.getvalue()
        assert "loading dcformer++" in terminal.getvalue()
        now[0] += 1.1
        progress(0, 0)
        progress(1, 4, "first")
        now[0] += 0.2
        progress(2, 4, "second")
    last = terminal.getvalue().rstrip().split("\r")[-1]
    assert "2/4 [00:00<00:00" in last, last


class Terminal(StringIO):
    """A terminal that keeps what it shows."""

    def isatty(self) -> bool:
        return True
