"""Colours and layout that all figures share: colour-blind safe, the same branch in the same colour everywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from dcinterp.mechanism.branches import BRANCHES
from dcinterp.support.text import SEEN, interval_name

_COLOURS = {"skip": "#8f8f8f", "qp": "#228b4e", "qg": "#7cc492", "kp": "#a03fa8", "kg": "#d59ad6"}

BRANCH_COLOURS = {branch.hook: _COLOURS[branch.name] for branch in BRANCHES.values()}
"""By hook. Grey is the head's own attention; green comes from the query, purple from the key; projections are dark,
gates light. Blue and orange are kept for the sign of a number, which stands on the same pages."""

BRANCH_NAMES = {branch.hook: branch.label for branch in BRANCHES.values()}
"""By hook."""
OF_ALL_TOKENS = "map of all tokens"
"""What the base is called where it leads from one head to another, which no head's own attention does."""


def edge_branch_name(branch: str, head_from: int, head_to: int) -> str:
    """What the branch of an edge is called."""
    return OF_ALL_TOKENS if branch == "skip" and head_from != head_to else BRANCHES[branch].label


CONTROLS = {"heads": "control (heads exchanged)", "labels": "control (labels permuted)"}
"""What figures call the controls of an attribution over a dataset."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
"""Okabe and Ito's colours for lines, in an order that keeps neighbours apart."""

BEYOND_COLOURS = {"light": "#5b4a1f", "dark": "#c9a227"}
"""By theme, of what a head takes from other pairs of tokens or from the previous layer."""


def visible(token: str) -> str:
    """A token as a label: line breaks, tabs and bare spaces so that they can be seen.

    What looks like a tag, as <unk> does, or names a character, as &lt; does, is written so that Plotly shows it: it
    would follow a tag it knows, leave out any other, and draw the character that is named. Whoever draws without Plotly
    takes it back by `html.unescape`.
    """
    if token and not token.strip(" "):
        return "␣" * len(token)
    named = re.sub(r"&(?=#?\w)", "&amp;", token.translate(SEEN))
    return re.sub(r"<(?=[^<>]*>)", "&lt;", named) or "(empty)"


def without_tags(text: str) -> str:
    """A label of Plotly as plain text."""
    return unescape(re.sub(r"<[a-z/][^>]*>", " ", text))


def cut(text: str, room: int) -> str:
    """A text of at most so many signs, the last of them … where it is cut."""
    return text if len(text) <= room else f"{text[: room - 1]}…"


def bare(token: str) -> str:
    """A token as a label without the spaces around it; one of nothing but spaces keeps them."""
    return visible(token.strip(" ") or token)


def visible_apart(tokens: Sequence[str]) -> list[str]:
    """Tokens as labels of one list: spaces are shown where two tokens differ only in them (" left" and "left")."""
    bare = Counter(token.strip(" ") for token in tokens)
    ends = re.compile(r"^ +| +$")
    return [
        visible(ends.sub(lambda spaces: "␣" * len(spaces[0]), token) if bare[token.strip(" ")] > 1 else token)
        for token in tokens
    ]


def edge_name(unit: str) -> str:
    """The label of an edge such as "edge 1.post.kp.6>1": L1H6 → L1H1 (kp), before the softmax (pre kp).

    Another unit keeps its own name.
    """
    parts = unit.removeprefix("edge ").split(".")
    if len(parts) != 4 or ">" not in parts[3]:
        return unit
    layer, stage, branch, heads = parts
    head_from, head_to = heads.split(">")
    return f"L{layer}H{head_from} → L{layer}H{head_to} ({'pre ' * (stage == 'pre')}{branch})"


class EdgeKind(NamedTuple):
    """What edges of one branch are called, and their colour."""

    name: str
    colour: str


def edge_kind(unit: str) -> EdgeKind:
    """The kind of an edge such as "edge 1.post.kp.6>1"; a head, where nothing is composed, is its own only edge."""
    parts = unit.removeprefix("edge ").split(" ")[0].split(".")
    if len(parts) != 4 or ">" not in parts[3]:
        return EdgeKind(BRANCHES["skip"].label, BRANCH_COLOURS[BRANCHES["skip"].hook])
    branch, (head_from, head_to) = parts[2], map(int, parts[3].split(">"))
    if branch not in BRANCHES:
        return EdgeKind(branch, SERIES[0])
    return EdgeKind(edge_branch_name(branch, head_from, head_to), BRANCH_COLOURS[BRANCHES[branch].hook])


@dataclass(frozen=True)
class Theme:
    """The colours that depend on the background."""

    text: str
    muted: str
    middle: str
    selected: str


THEMES = {
    "light": Theme(text="#1f2430", muted="#6b7280", middle="#f5f5f5", selected="#111111"),
    "dark": Theme(text="#e8eaf0", muted="#9aa3b2", middle="#23262f", selected="#ffffff"),
}


def diverging(theme: str) -> list[list[float | str]]:
    """Blue for negative, the background for zero, orange for positive; what is strongest stands off most from it."""
    middle = THEMES[theme].middle
    if theme == "dark":
        return [[0.0, "#9ccdf8"], [0.25, "#3f76ad"], [0.5, middle], [0.75, "#b0601f"], [1.0, "#ffb876"]]
    return [[0.0, "#1f5fa8"], [0.25, "#6fa3d2"], [0.5, middle], [0.75, "#e39b57"], [1.0, "#b3500b"]]


def sequential(theme: str) -> list[list[float | str]]:
    """The background for zero, darker (or brighter) orange for more: the positive half of `diverging`."""
    if theme == "dark":
        return [[0.0, THEMES[theme].middle], [0.5, "#b0601f"], [1.0, "#ffb876"]]
    return [[0.0, THEMES[theme].middle], [0.5, "#e39b57"], [1.0, "#8a3a06"]]


def finish(figure: go.Figure, theme: str, *, height: int, title: str = "") -> go.Figure:
    """The common layout: transparent ground, quiet axes, room for the labels."""
    names = {"xaxis", "yaxis", *(key for key in figure.layout if key.startswith(("xaxis", "yaxis")))}
    # One update: each costs Plotly several milliseconds, and pages draw six figures at a click.
    return figure.update_layout(common_layout(theme, height, title) | {name: QUIET_AXIS for name in names})


TITLE = {"standoff": 10, "font": {"size": 13}}
"""Of an axis: as large as its labels, and clear of them."""

QUIET_AXIS = {"automargin": True, "showgrid": False, "zeroline": False, "title": TITLE}


def common_layout(theme: str, height: int, title: str = "") -> dict[str, Any]:
    """The part of the layout that all figures share, for a figure that is built in one step."""
    colours = THEMES[theme]
    return {
        "height": height,
        "title": {"text": title, "font": {"size": 14}, "x": 0, "xanchor": "left"} if title else None,
        "margin": {"l": 8, "r": 8, "t": 36 if title else 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": colours.text, "size": 13},
        "hoverlabel": {"font": {"size": 13}},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
    }


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """A quiet axis for a figure that is built in one step."""
    return QUIET_AXIS | {"title": TITLE | {"text": title}} | options


def interval_note(low: ArrayLike, level: float) -> str:
    """What stands behind the name of values with intervals, ", 95% interval"; empty where none has one."""
    return f", {interval_name(level)}" if np.isfinite(np.asarray(low, dtype=float)).any() else ""


def interval_bars(values: ArrayLike, low: ArrayLike, high: ArrayLike, **look: Any) -> dict[str, Any] | None:
    """Bars from `low` to `high`, for error_x or error_y of a trace; None where no value has an interval.

    Args:
        values: where the marks stand; one whose ends are NaN gets no bar.
        low, high: the ends of the intervals.
        look: colour and the like.
    """
    value, lower, upper = (np.asarray(each, dtype=float) for each in (values, low, high))
    if not np.isfinite(upper - lower).any():
        return None
    # A mean may lie outside of an interval of the bootstrap, and a bar goes no way back.
    sides = {"array": np.maximum(upper - value, 0).tolist(), "arrayminus": np.maximum(value - lower, 0).tolist()}
    return {"type": "data", "symmetric": False} | sides | look


def see_through(colour: str, opacity: float = 0.6) -> str:
    """A colour #rrggbb through which crossing bands and the names on them stay legible."""
    parts = ",".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))
    return f"rgba({parts},{opacity})"


def zero_line(theme: str, *, upright: bool = False) -> dict[str, Any]:
    """A thin line at zero, across the whole figure, or `upright` from its foot to its top."""
    ends = {"x0": 0, "x1": 1, "xref": "x domain", "y0": 0, "y1": 0}
    if upright:
        ends = {"y0": 0, "y1": 1, "yref": "y domain", "x0": 0, "x1": 0}
    return {"type": "line", "line": {"width": 1, "color": THEMES[theme].muted}} | ends


def column_band(number: int, theme: str) -> dict[str, Any]:
    """A band behind category `number` of a bar chart, to mark it."""
    ends = {"x0": number - 0.47, "x1": number + 0.47, "y0": 0, "y1": 1, "yref": "y domain"}
    look = {"fillcolor": THEMES[theme].muted, "opacity": 0.18, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect"} | look | ends
