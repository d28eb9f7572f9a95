"""The workbench as it is started in a terminal: what it says, and how it ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import urllib.request

import pytest


@pytest.fixture
def terminal():
    """(our end, the program's end) of a terminal."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.usefixtures("warm_python")
def test_it_says_where_it_is_and_ends_by_ctrl_c(terminal, tmp_path):
    ours, theirs = terminal
    program = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        # Where the tests run in the background, the signal is ignored, and a child inherits that.
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dcinterp.cli import main; main(['app', '--no-browser', '--port', '0'])"
    )
    command = [sys.executable, "-c", program]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, start_new_session=True)
    try:
        said = ""
        while "Ctrl-C ends it" not in said:
            said += os.read(ours, 4096).decode()
        address = said.split("The workbench is at ")[1].split()[0]
        assert urllib.request.urlopen(f"{address}/_stcore/health", timeout=30).status == 200
        os.write(ours, b"\x03")
        assert child.wait(timeout=60) == 130
        while "stopped" not in said:
            said += os.read(ours, 4096).decode()
        assert "Traceback" not in said
        assert "Streamlit" not in said
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
