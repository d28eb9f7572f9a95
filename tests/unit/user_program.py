"""A user's program, for mypy, which `make types` runs over it: the public names have their types, and no other option.

What mypy reads of `import dcinterp` is dcinterp/__init__.pyi. Were a type lost there, `assert_type` would fail; were a
call no longer checked, its `type: ignore` would be needless, which pyproject.toml makes an error for this file.
"""

from __future__ import annotations

from typing import assert_type

from torch import Tensor

import dcinterp
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution


def program() -> None:
    bridge = dcinterp.load("dcformer++")
    scores = dcinterp.attribute_heads(bridge, "a prompt", "target", steps=8)
    assert_type(scores, HeadAttribution)
    assert_type(scores.scores, Tensor)
    dcinterp.attribute_heads(bridge, "a prompt", "target", stepz=8)  # type: ignore[call-arg]
