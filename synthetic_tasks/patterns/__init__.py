"""The QK patterns, one file each; `PATTERNS` finds them."""

from collections.abc import Mapping

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.registry import collect

PATTERNS: Mapping[str, Pattern] = collect(__name__, "PATTERN")
