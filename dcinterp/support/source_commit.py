"""Which commit of this repository the running code is of."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

SOURCES = ("dcinterp", "synthetic_tasks")
CHANGED = "+"
"""Stands behind a commit whose sources were changed since."""
SECONDS = 10


@cache
def source_commit(root: Path = Path(__file__).parents[2]) -> str:
    """The commit of the checkout that the package is imported from, in 12 digits, with `+` where its sources differ.

    Empty where it was installed without its history, or there is no git.

    Args:
        root: the folder that holds the package.
    """
    # A package installed inside another project's folder is none of that project's files.
    if _git(root, "ls-files", "--error-unmatch", *SOURCES) is None:
        return ""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return ""
    # New files too: some folders are scanned for what lies in them.
    status = _git(root, "--no-optional-locks", "status", "--porcelain", "--", *SOURCES)
    return commit + CHANGED * (status != "")


def _git(root: Path, *command: str) -> str | None:
    """What git prints, without the line end; None where it fails."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(root), *command], capture_output=True, text=True, check=True, timeout=SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
