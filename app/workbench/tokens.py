"""The prompt as tokens: point at one to see what a head attends to from there, click it to follow it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

CSS = """
.tokens {
  display: flex; flex-wrap: wrap; gap: 0.2rem; outline: none; padding: 3px; border-radius: 0.4rem;
  max-height: 32vh; overflow-y: auto; align-content: flex-start; position: relative;
}
/* The outline is seen where the system sets the colours, and shadows are not. */
.tokens:focus-visible { box-shadow: 0 0 0 2px var(--st-primary-color); outline: 2px solid transparent; }
.tokens span {
  border: 1px solid var(--st-border-color); border-radius: 0.35rem; padding: 0.1rem 0.4rem; cursor: default;
  font-family: var(--st-code-font); font-size: 0.88rem; color: var(--st-text-color); white-space: pre;
}
.tokens.active span { cursor: pointer; }
.tokens span.source { border-color: #a03fa8; box-shadow: inset 0 -3px #a03fa8; }
.tokens span.answer { border-color: #228b4e; box-shadow: inset 0 -3px #228b4e; }
.note {
  min-height: 1.4em; font-size: 0.85rem; color: var(--st-text-color); opacity: 0.75; font-family: var(--st-font);
}
"""

_component = st.components.v2.component(
    "dcinterp_tokens",
    html="""<div class="tokens"></div>
<div class="note" aria-live="polite"></div>""",
    css=CSS,
    js=(Path(__file__).parent / "tokens.js").read_text(encoding="utf-8"),
)


def tokens(
    words: Sequence[str],
    *,
    key: str,
    weights: Any = None,
    chosen: int | None = None,
    marks: Mapping[int, str] | None = None,
    verb: str = "attends to",
    on_pick: Callable[[int], None] | None = None,
    dark: bool = False,
) -> None:
    """Draw the tokens of a prompt.

    Args:
        words: the tokens.
        key: of the element.
        weights: attention [query, key] of one head, to colour by; NaN counts as none.
        chosen: the position that is followed.
        marks: "source" or "answer" by position.
        verb: how the note joins a token with the tokens before it.
        on_pick: called with the position that was chosen.
        dark: whether the ground is dark.
    """

    def picked() -> None:
        position = st.session_state[key]["token"]
        if position is not None and on_pick is not None:
            on_pick(int(position))

    matrix = None if weights is None else np.nan_to_num(np.asarray(weights, dtype=np.float32))
    _component(
        key=key,
        data={
            "tokens": list(words),
            "weights": None if matrix is None else base64.b64encode(matrix.tobytes()).decode(),
            "verb": verb,
            "chosen": chosen,
            "marks": {str(position): mark for position, mark in (marks or {}).items()},
            "active": on_pick is not None,
            "label": f"The prompt, {len(words)} tokens",
            "positive": "#b3500b",
            "negative": "#1f5fa8",
            "outline": "#ffffff" if dark else "#111111",
        },
        on_token_change=picked,
    )
