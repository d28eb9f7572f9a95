"""The processes that tests start with `warm_python` are as those of a fresh interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs orphans to be handed to an ancestor")

TOLD = """import os, signal, sys
print(sorted(os.environ.items()) == sorted(eval(sys.stdin.read()).items()), os.getcwd(), sys.argv, __name__)
print(os.getppid(), os.getsid(0) == os.getpid(), os.isatty(1), signal.getsignal(signal.SIGTERM), __file__)
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE), sys.path[0], sys.path[1])
print("an error", file=sys.stderr)
raise SystemExit(7)"""


def told(command: list[str], folder: Path) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": "/nowhere", "ONE_MORE": "1"}
    options = {"input": repr(environment), "env": environment, "cwd": folder, "start_new_session": True}
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.parametrize("kind", ["file", "module"])
def test_what_a_program_sees_of_itself_is_the_same(tmp_path, kind, request):
    (tmp_path / "told.py").write_text(TOLD)
    command = ["-W", "ignore", *(["-m", "told"] if kind == "module" else [str(tmp_path / "told.py")]), "a word"]
    fresh = told(command, tmp_path)
    request.getfixturevalue("warm_python")
    assert told(command, tmp_path) == fresh
    assert fresh[0] == 7


@pytest.mark.usefixtures("warm_python")
def test_ends_are_those_of_a_fresh_interpreter():
    program = "import sys, time; assert 'torch' in sys.modules; print('here', flush=True); time.sleep(600)"
    # Other tests of the session may have set what libraries read.
    options = {"stdout": subprocess.PIPE, "text": True, "env": warm_python.BEGAN_WITH}
    child = subprocess.Popen([sys.executable, "-c", program], **options)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n", "a fork"
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(60) == -signal.SIGTERM
    child.stdout.close()
    wrong = subprocess.run([sys.executable, "-c", "1 / 0"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert wrong.stderr.strip().endswith("ZeroDivisionError: division by zero")


@pytest.mark.usefixtures("warm_python")
def test_what_cannot_be_had_so_is_a_fresh_interpreter(monkeypatch):
    program = "import sys; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-I", "-c", program], text=True) == "False\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"
    assert subprocess.check_output(["echo", "words"], text=True) == "words\n"


def test_without_the_fixture_it_is_a_fresh_interpreter():
    assert subprocess.check_output([sys.executable, "-c", "import sys; print('torch' in sys.modules)"]) == b"False\n"
