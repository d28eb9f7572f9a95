"""The commit of a checkout: only of its own, and marked where its sources differ."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dcinterp.support.source_commit import SOURCES, source_commit


def git(root: Path, *command: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(["git", "-C", root, *who, *command], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in SOURCES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "notes.md").write_text("a")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "notes.md")
    git(tmp_path, "commit", "--quiet", "--message", "another project")
    return tmp_path


def test_the_commit_is_named_and_marked_where_the_code_was_changed(checkout):
    assert source_commit.__wrapped__(checkout) == "", "a package inside another project"
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    commit = git(checkout, "rev-parse", "HEAD").strip()[:12]
    assert source_commit.__wrapped__(checkout) == commit
    (checkout / "notes.md").write_text("b")  # a table that grows, say
    assert source_commit.__wrapped__(checkout) == commit
    (checkout / "dcinterp" / "__init__.py").write_text("changed = True")
    assert source_commit.__wrapped__(checkout) == f"{commit}+"
    (checkout / "dcinterp" / "__init__.py").write_text("")
    assert source_commit.__wrapped__(checkout) == commit
    (checkout / "dcinterp" / "puzzle.py").write_text("")
    assert source_commit.__wrapped__(checkout) == f"{commit}+", "a scan would find it"


def test_without_history_or_git_there_is_none(tmp_path, checkout, monkeypatch):
    assert source_commit.__wrapped__(tmp_path / "nothing") == ""
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message", "first")
    assert source_commit.__wrapped__(checkout)
    monkeypatch.setenv("PATH", "")
    assert source_commit.__wrapped__(checkout) == ""
