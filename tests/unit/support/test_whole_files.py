"""What is written whole: beside what is there, with its mode, and in place where it is a device."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dcinterp.support.whole_files import whole


def test_a_file_keeps_its_mode_and_a_link_its_end(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    with whole(link) as place:
        place.write_text("new")
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_in_place():
    code = (
        "from pathlib import Path\nfrom dcinterp.support.whole_files import whole\n"
        "with whole(Path('/dev/stdout')) as place:\n    place.write_text('read')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("read", 0), ran.stderr


def test_two_threads_may_write_one_file(tmp_path):
    file, both = tmp_path / "file", threading.Barrier(2)

    def write(text: str) -> None:
        with whole(file) as place:
            place.write_text(text)
            both.wait(10)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["one", "two"]))
    assert file.read_text() in ("one", "two")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_that_may_not_be_written_stays(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to every file
    with pytest.raises(PermissionError), whole(file) as place:
        place.write_text("new")
    assert file.read_text() == "old"
