"""What attribution predicts for the strongest edges, against what their ablation does."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.edge_attribution import EdgeAttribution
from dcinterp.figures.style import BRANCH_COLOURS, BRANCH_NAMES, SERIES, THEMES, axis, common_layout

RESULT = "EdgeAttribution"
KIND = "check"


def plot(result: EdgeAttribution, *, theme: str = "light") -> go.Figure:
    """A point an edge, in the colour of its branch; on the dashed line attribution and ablation agree.

    Args:
        result: the scores, with the edges that were ablated.
        theme: "light" or "dark".
    """
    predicted, measured = result.predicted.tolist(), result.measured.tolist()
    reach = max(map(abs, [*predicted, *measured, 1e-6])) * 1.1
    line = go.Scatter(
        x=[-reach, reach],
        y=[-reach, reach],
        mode="lines",
        name="agreement",
        line={"dash": "dash", "color": THEMES[theme].muted, "width": 1},
        hoverinfo="skip",
    )
    parts = [name.removeprefix("edge ").removesuffix(" zero").split(".") for name in result.checked]
    branches = [branch for _, _, branch, _ in parts]
    names = [f"{layer}.{branch} {heads.replace('>', ' → ')}" for layer, _, branch, heads in parts]
    sides = _label_sides(list(zip(predicted, measured, strict=True)), names, reach)
    points = []
    for branch in dict.fromkeys(branches):
        tap = "o_b" if branch == "skip" else f"o_{branch}"
        mine = [i for i, other in enumerate(branches) if other == branch]
        points.append(
            go.Scatter(
                x=[predicted[i] for i in mine],
                y=[measured[i] for i in mine],
                mode="markers+text",
                text=[names[i] for i in mine],
                textposition=[sides[i] for i in mine],
                cliponaxis=False,
                name=BRANCH_NAMES.get(tap, branch),
                marker={"size": 10, "color": BRANCH_COLOURS.get(tap, SERIES[0])},
                hovertemplate="%{text}<br>predicted %{x:.3f}, measured %{y:.3f}<extra></extra>",
            )
        )
    layout = common_layout(theme, 420) | {
        "xaxis": axis("predicted by attribution (logits)", range=[-reach, reach]),
        "yaxis": axis("measured by ablation (logits)", range=[-reach, reach]),
    }
    return go.Figure([line, *points], layout)


SIDES = {
    "middle right": (0.06, 0.0),
    "middle left": (-0.06, 0.0),
    "top center": (0.0, 0.09),
    "bottom center": (0.0, -0.09),
}
"""Where a name can stand, and how far from its point, in shares of the reach."""


def _label_sides(points: list[tuple[float, float]], names: list[str], reach: float) -> list[str]:
    """For each name the first side of its point on which it covers least of other points, names and the border."""
    taken = [(x - 0.02 * reach, y - 0.03 * reach, x + 0.02 * reach, y + 0.03 * reach) for x, y in points]
    sides = []
    for (x, y), name in zip(points, names, strict=True):
        # A letter is about a hundredth of the figure's width, a line a twenty-fifth of its height.
        width, height = 0.02 * len(name) * reach, 0.08 * reach
        boxes = {}
        for side, (right, up) in SIDES.items():
            left = x + right * reach - width * (right < 0) - width / 2 * (right == 0)
            low = y + up * reach - height / 2
            boxes[side] = (left, low, left + width, low + height)
        border = (reach, -reach, 9 * reach, reach)
        sides.append(min(SIDES, key=lambda side: sum(_overlap(boxes[side], other) for other in [border, *taken])))
        taken.append(boxes[sides[-1]])
    return sides


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    """The area that two boxes (left, low, right, high) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
