"""All heads at once: a small attention matrix of each, before and after composition."""

from __future__ import annotations

import base64
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import streamlit as st

CSS = """
.thumbnails { position: relative; overflow: auto hidden; color: var(--st-text-color); font-family: var(--st-font); }
.pictures { display: grid; gap: 4px 6px; align-items: center; font-size: 12px; width: max-content; padding: 3px; }
.pictures .column { text-align: center; opacity: 0.8; }
.pictures .row { opacity: 0.8; text-align: right; padding-right: 4px; }
canvas { display: block; cursor: pointer; image-rendering: pixelated; outline: 1px solid var(--st-border-color); }
canvas:hover, canvas:focus-visible { outline: 2px solid var(--st-primary-color); }
canvas.chosen { outline: 3px solid var(--st-primary-color); }
canvas:focus-visible { box-shadow: 0 0 0 5px var(--st-text-color); }
.tip { position: absolute; z-index: 5; pointer-events: none; padding: 0.15rem 0.5rem; font-size: 13px;
  white-space: pre; color: var(--st-text-color); background: var(--st-background-color);
  border: 1px solid var(--st-border-color); border-radius: 0.3rem; }
"""

_component = st.components.v2.component(
    "dcinterp_thumbnails",
    html='<div class="thumbnails"><div class="pictures"></div><div class="tip" hidden></div></div>',
    css=CSS,
    js=(Path(__file__).parent / "thumbnails.js").read_text(encoding="utf-8"),
)


def thumbnails(
    result: Any,
    *,
    key: str,
    look: str,
    chosen: tuple[int, int],
    on_pick: Callable[[int, int, int | None, int | None], None],
) -> None:
    """Draw a small matrix of every head.

    Args:
        result: an `AttentionThumbnails`.
        key: of the element.
        look: "light" or "dark".
        chosen: (layer, head) that is looked at.
        on_pick: called with layer, head and the positions of the query and the key (None by keyboard).
    """

    def picked() -> None:
        if cell := st.session_state[key]["head"]:
            at = [
                None if cell[side] is None else result.first + int(cell[side]) * result.block
                for side in ("query", "key")
            ]
            on_pick(int(cell["layer"]), int(cell["head"]), *at)

    _component(
        key=key,
        data=payload(result, look) | {"chosen": f"{chosen[0]} {chosen[1]}", "id": f"{id(result)} {look}"},
        on_head_change=picked,
    )


def payload(result: Any, look: str) -> dict[str, Any]:
    """What the browser needs: by layer, before and after, the matrices of all heads as whole numbers of `unit`."""
    from dcinterp.figures.base.style import diverging, visible

    kinds = {"weights": "before", "composed": "after"} if result.composes else {"composed": ""}
    # Composed weights can be above 1: colours end there, numbers do not.
    unit = max(1.0, *(float(getattr(result, kind).abs().max()) for kind in ("weights", "composed"))) / 32767
    rows = []
    for layer in range(len(result.composed)):
        for kind, word in kinds.items():
            numbers = (getattr(result, kind)[layer] / unit).round().numpy().astype("<i2")
            rows.append(
                {
                    "layer": layer,
                    "name": f"layer {layer} {word}".strip(),
                    "words": f" {word} composition" if word else "",
                    "values": base64.b64encode(numbers.tobytes()).decode(),
                }
            )
    return {
        "rows": rows,
        "unit": unit,
        "heads": result.composed.shape[1],
        "size": result.composed.shape[2],
        "names": [unescape(visible(name)) for name in result.cell_names()],
        "colours": [[float(at), [int(str(c)[i : i + 2], 16) for i in (1, 3, 5)]] for at, c in diverging(look)],
    }
