"""A composition map averaged over a dataset as a head x head heatmap."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.composition.mean_composition_map import MeanCompositionMap
from dcinterp.figures.base.grid import grid
from dcinterp.support.errors import UserError

RESULT = "MeanCompositionMap"
KIND = ""

QUANTITIES = {"added": "mean weight added", "spread": "spread over pairs", "shared": "attention shared per query"}


def plot(
    result: MeanCompositionMap, *, theme: str = "light", show: str = "added", selected: tuple[int, int] | None = None
) -> go.Figure:
    """Rows are heads that share their attention, columns heads that borrow it; the skip is left out.

    Args:
        result: the map.
        theme: "light" or "dark".
        show: "added" for the mean, "spread" for its change from pair to pair, "shared" for the attention shared.
        selected: (head_from, head_to) to outline.
    """
    if show not in QUANTITIES:
        raise UserError(f"A mean map has no {show!r} to show; choose 'added', 'spread' or 'shared'.")
    if show == "shared" and result.stage == "pre":
        raise UserError(
            "Scores, before the softmax, are no amounts to share; show 'added' or 'spread', or map stage post."
        )
    heads = [str(head) for head in range(len(result.total))]
    return grid(
        getattr(result, show).numpy(),
        x=heads,
        y=heads,
        x_title="to head",
        y_title="from head",
        quantity=f"{QUANTITIES[show]}, n = {result.n}",
        theme=theme,
        signed=show != "spread",
        selected=selected,
        numbers=len(heads) <= 12,
    )
