"""The list that help and completion read is that of the registry."""

from __future__ import annotations

from dcinterp.results.catalogue import titles
from dcinterp.results.registry import ANALYSES


def test_the_list_is_the_registry():
    assert titles() == {name: entry.title for name, entry in ANALYSES.items()}
