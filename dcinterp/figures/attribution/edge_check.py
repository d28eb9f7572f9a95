"""Attribution scores of the strongest edges against the effects of ablating them."""

from __future__ import annotations

import plotly.graph_objects as go

from dcinterp.analysis.attribution.attribute_edges import EdgeAttribution
from dcinterp.figures.base.style import THEMES, axis, common_layout, edge_kind, edge_name, zero_line
from dcinterp.mechanism.objective import UNITS

RESULT = "EdgeAttribution"
KIND = "check"


def plot(result: EdgeAttribution, *, theme: str = "light") -> go.Figure:
    """One point per edge, in the colour of its branch; on the dashed line attribution and ablation agree.

    Thin lines mark zero: in the upper left and the lower right quarter the two differ in sign. A name is written where
    there is room for it, those farthest from zero first; the others are read by pointing at them.

    Args:
        result: the scores, with the edges that were ablated.
        theme: "light" or "dark".
    """
    predicted, measured = result.predicted.tolist(), result.measured.tolist()
    across, up = _range(predicted), _range(measured)
    ends = [min(across[0], up[0]), max(across[1], up[1])]
    line = go.Scatter(
        x=ends,
        y=ends,
        mode="lines",
        name="agreement",
        line={"dash": "dash", "color": THEMES[theme].muted, "width": 1},
        hoverinfo="skip",
    )
    kinds = [edge_kind(unit) for unit in result.checked]
    names = [edge_name(unit) for unit in result.checked]
    places = list(zip(_shares(predicted, across), _shares(measured, up), strict=True))
    sides = _label_sides(places, [max(abs(p), abs(m)) for p, m in zip(predicted, measured, strict=True)], names)
    points, unit = [], UNITS[result.objective]
    for kind in dict.fromkeys(kinds):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        points.append(
            go.Scatter(
                x=[predicted[i] for i in mine],
                y=[measured[i] for i in mine],
                mode="markers+text",
                text=[names[i] if sides[i] else "" for i in mine],
                hovertext=[names[i] for i in mine],
                textposition=[sides[i] or "middle right" for i in mine],
                cliponaxis=False,
                name=kind.name,
                marker={"size": 10, "color": kind.colour},
                hovertemplate="%{hovertext}<br>predicted %{x:.3f}, measured %{y:.3f}<extra></extra>",
            )
        )
    layout = common_layout(theme, 420) | {
        "xaxis": axis(f"predicted by attribution ({unit})", range=across),
        "yaxis": axis(f"measured by ablation ({unit})", range=up),
        "shapes": [zero_line(theme), zero_line(theme, upright=True)],
    }
    return go.Figure([line, *points], layout)


def _range(values: list[float]) -> list[float]:
    """From the least to the largest value and zero, with room for points and names at the border."""
    low, high = min([0.0, *values]), max([0.0, *values])
    room = 0.15 * (high - low) or 1e-6
    return [low - room, high + room]


def _shares(values: list[float], ends: list[float]) -> list[float]:
    """Places along an axis, from -1 at its one end to 1 at the other."""
    return [2 * (value - ends[0]) / (ends[1] - ends[0]) - 1 for value in values]


SIDES = {
    "middle right": (0.06, 0.0),
    "middle left": (-0.06, 0.0),
    "top center": (0.0, 0.09),
    "bottom center": (0.0, -0.09),
}
"""Where a name can stand, and how far from its point, in halves of the figure."""


CROWDED = 0.05
"""Share of a name that others may cover before it is left out."""


def _label_sides(points: list[tuple[float, float]], sizes: list[float], names: list[str]) -> list[str]:
    """For each name the side of its point on which it covers least of points, names and the border; "" for no room.

    Args:
        points: where they are, from -1 to 1 along both axes.
        sizes: how far from zero the numbers are; the largest choose first.
        names: of the points.
    """
    taken = [(1.0, -1.0, 9.0, 1.0)] + [(x - 0.02, y - 0.03, x + 0.02, y + 0.03) for x, y in points]
    sides = [""] * len(points)
    for i in sorted(range(len(points)), key=lambda i: -sizes[i]):
        boxes = _boxes(points[i], names[i])
        covered = {side: sum(_overlap(box, other) for other in taken) for side, box in boxes.items()}
        best = min(covered, key=covered.__getitem__)
        left, low, right, high = boxes[best]
        if covered[best] <= CROWDED * (right - left) * (high - low):
            sides[i] = best
            taken.append(boxes[best])
    return sides


def _boxes(point: tuple[float, float], name: str) -> dict[str, tuple[float, float, float, float]]:
    """What a name takes up on each side of its point: (left, low, right, high)."""
    # A letter is about a hundredth of the figure's width, a line a twenty-fifth of its height.
    (x, y), width, height = point, 0.02 * len(name), 0.08
    boxes = {}
    for side, (right, up) in SIDES.items():
        left = x + right - width * (right < 0) - width / 2 * (right == 0)
        low = y + up - height / 2
        boxes[side] = (left, low, left + width, low + height)
    return boxes


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    """The area that two boxes (left, low, right, high) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
