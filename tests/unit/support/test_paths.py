"""Patterns for files, those that are none among them."""

from __future__ import annotations

import pytest

from dcinterp.support.errors import UserError
from dcinterp.support.paths import matching


def test_files_are_found_in_order_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a.txt", ".c.txt", "in/d.txt", ".in/e.txt", "f.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.name for path in matching(tmp_path, "**/*.txt")] == ["a.txt", "b.txt", "d.txt"]
    assert matching(tmp_path, "*.md") == []


@pytest.mark.parametrize("pattern", ["", "/etc/*", "**a", "."])
def test_what_is_no_pattern_is_a_sentence(tmp_path, pattern):
    with pytest.raises(UserError, match=r"is no pattern for files \(.*\); write one such as"):
        matching(tmp_path, pattern)
