"""The edges of one layer as a head x head heatmap, of one branch or of all that composition adds."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution
from dcinterp.figures.base.grid import grid
from dcinterp.figures.base.style import OF_ALL_TOKENS
from dcinterp.mechanism.branches import ADDED, BRANCHES, NAMES
from dcinterp.mechanism.objective import UNITS
from dcinterp.support.errors import UserError, nearest

RESULT = "EdgeAttribution"
KIND = "map"

LABELS = {branch.name: branch.label for branch in BRANCHES.values()} | {
    "added": "sum of projections and gates",
    "all": "sum of all branches",
}


def plot(
    result: EdgeAttribution,
    *,
    theme: str = "light",
    layer: int | None = None,
    branch: str = "added",
    selected: tuple[int, int] | None = None,
) -> go.Figure:
    """Rows are heads that share their attention, columns heads that use it with their values.

    Args:
        result: the scores.
        theme: "light" or "dark".
        layer: the layer, negative from the last that was scored; the one with the strongest edge when None.
        branch: "skip", "qp", "kp", "qg", "kg", "added" (their sum without the skip) or "all".
        selected: (head_from, head_to) to outline.
    """
    choices = {"added": ADDED, "all": NAMES} | {name: (name,) for name in NAMES}
    if branch not in choices:
        raise UserError(f"There is no branch {branch!r}; {nearest(branch, choices)}")
    chosen = result.scores[:, [NAMES.index(name) for name in choices[branch]]].sum(1)
    if layer is None:
        layer = result.layers[int(chosen.abs().amax((1, 2)).argmax())]
    if layer < 0 and -layer <= len(result.layers):
        layer = result.layers[layer]
    if layer not in result.layers:
        raise UserError(f"Layer {layer} was not scored; choose from {', '.join(map(str, result.layers))}.")
    between = result.scores[result.layers.index(layer), NAMES.index("skip")].clone().fill_diagonal_(0)
    label = f"{LABELS[branch]} and {OF_ALL_TOKENS}" if branch == "skip" and bool(between.any()) else LABELS[branch]
    heads = [str(head) for head in range(result.scores.shape[-1])]
    return grid(
        chosen[result.layers.index(layer)].numpy(),
        x=heads,
        y=heads,
        x_title="to head",
        y_title="from head",
        quantity=f"contribution ({UNITS[result.objective]})",
        theme=theme,
        selected=selected,
        numbers=len(heads) <= 12,
        title=f"Layer {layer}, {result.stage}: {label}",
    )
