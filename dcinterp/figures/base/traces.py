"""How Matplotlib draws each kind of trace of a Plotly figure: the same data in the same colours, for `export`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from dcinterp.figures.base.style import without_tags

WRITTEN = 2000
"""Cells of a heatmap up to which words that fit them are written; other texts are up to 400."""


class Stack:
    """What traces of one pair of axes share: the names on a categorical axis and where stacked bars have got to."""

    def __init__(self, traces: list[Any], barmode: str | None, orders: dict[str, list[str]]) -> None:
        """`orders`: the names on an axis ("x", "y") that come in a fixed order."""
        self.stacked = barmode in ("relative", "stack")
        self.bars = [t for t in traces if t.type == "bar"]
        self.beside = [t for t in traces if t.type == "scatter" and t.offsetgroup]
        """Points that stand beside each other (Plotly's scattermode "group")."""
        self.tops: dict[tuple[float, bool], float] = {}
        self.categories = {letter: list(orders.get(letter, [])) for letter in "xy"}
        self.bare = False
        taken = [str(place) for bar in self.bars for place in (bar.y if bar.orientation == "h" else bar.x)]
        self.side_by_side = barmode in (None, "group") and len(set(taken)) < len(taken)

    def places(self, values: Any, letter: str) -> np.ndarray:
        """Numbers along an axis; words get numbers in the order in which they come."""
        items = [] if values is None else list(values)
        if not any(isinstance(v, str) for v in items):
            return np.asarray(items, dtype=float)
        known = self.categories[letter]
        known += [v for v in dict.fromkeys(map(str, items)) if v not in known]
        return np.asarray([known.index(str(v)) for v in items], dtype=float)


def _heatmap(canvas: Any, axes: Any, trace: Any, state: Stack) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    z = np.asarray(trace.z, dtype=float)
    stops = [(float(at), _colour(colour)) for at, colour in trace.colorscale]
    colours = LinearSegmentedColormap.from_list("figure", stops)
    gaps = {"edgecolors": "white", "linewidth": 0.7} if trace.xgap and z.size <= 2000 else {"edgecolors": "none"}
    mesh = axes.pcolormesh(z, cmap=colours, vmin=trace.zmin, vmax=trace.zmax, rasterized=z.size > 5000, **gaps)
    # Cells are centred on whole numbers, as in the figure.
    mesh.set_transform(_shifted(axes))
    axes.set_xlim(-0.5, z.shape[1] - 0.5)
    axes.set_ylim(z.shape[0] - 0.5, -0.5)
    cut = trace.customdata is not None  # words that fit their cells
    if (trace.texttemplate or trace.text is not None) and z.size <= (WRITTEN if cut else 400):
        points = canvas.get_figwidth() * 72 * 0.7 / z.shape[1]
        longest = max((len(str(word)) for row in trace.text for word in row), default=1) if cut else 1
        size = min(7.0, points / (0.62 * max(longest, 1))) if cut else 7.0
        text = np.asarray(trace.text, dtype=object) if trace.text is not None else None
        for (row, column), value in np.ndenumerate(z):
            if np.isfinite(value):
                shown = str(text[row, column]) if text is not None else f"{value:z.2f}"
                red, green, blue, _ = mesh.cmap(mesh.norm(value))
                colour = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.44 else "white"
                axes.text(column, row, plain(shown), ha="center", va="center", fontsize=size, color=colour)
    if trace.showscale is not False:
        bar = canvas.colorbar(mesh, ax=axes, shrink=0.95, pad=0.02)
        bar.outline.set_visible(False)
        if trace.colorbar.title.text:
            # The label stands along the bar; where it is longer than that it takes a second line.
            room = int(canvas.get_figheight() * 0.7 * 72 / 4.6)
            bar.set_label(textwrap.fill(plain(trace.colorbar.title.text), max(room, 12)), fontsize=9)
            bar.ax.tick_params(labelsize=8)


def _shifted(axes: Any) -> Any:
    from matplotlib.transforms import Affine2D

    return Affine2D().translate(-0.5, -0.5) + axes.transData


def _bar(canvas: Any, axes: Any, trace: Any, state: Stack) -> None:
    across = trace.orientation == "h"
    at, size = (trace.y, trace.x) if across else (trace.x, trace.y)
    places, values = state.places(at, "y" if across else "x"), np.asarray(size, dtype=float)
    width = 0.75
    if state.side_by_side:
        width /= len(state.bars)
        places = places + width * (state.bars.index(trace) - (len(state.bars) - 1) / 2)
    starts = np.zeros_like(values) if trace.base is None else np.asarray(trace.base, dtype=float)
    if state.stacked:
        for i, (place, value) in enumerate(zip(places, values, strict=True)):
            starts[i] = state.tops.get((place, value >= 0), 0.0)
            state.tops[place, value >= 0] = starts[i] + value
    colours = _colours(trace.marker.color, len(values))
    error = _errors(trace.error_x if across else trace.error_y)
    options = {"color": colours, "alpha": trace.opacity, "label": plain(trace.name) if trace.name else None}
    options["error_kw"] = {"ecolor": _colour((trace.error_x if across else trace.error_y).color, "#333333"), "lw": 1}
    if across:
        axes.barh(places, values, width, left=starts, xerr=error, **options)
    else:
        axes.bar(places, values, width, bottom=starts, yerr=error, **options)
    for i, text in enumerate(trace.text if isinstance(trace.text, tuple | list | np.ndarray) else ()):
        if across:
            axes.text(values[i], places[i], f" {text}", va="center", fontsize=8)
        else:
            axes.text(places[i], values[i], str(text), ha="center", va="bottom", fontsize=8)


def _scatter(canvas: Any, axes: Any, trace: Any, state: Stack) -> None:
    invisible = trace.marker.color == "rgba(0,0,0,0)"
    if trace.mode == "markers" and invisible:
        return
    x, y = state.places(trace.x, "x"), state.places(trace.y, "y")
    if trace in state.beside:
        shift = 0.3 * (state.beside.index(trace) - (len(state.beside) - 1) / 2)
        x, y = (x, y + shift) if trace.orientation == "h" else (x + shift, y)
    mode, label = trace.mode or "lines", plain(trace.name) if trace.name and trace.showlegend is not False else None
    if trace.fill in ("toself", "tonexty") and trace.fillcolor:
        axes.fill(x, y, color=_colour(trace.fillcolor), linewidth=0, label=label)
        return
    if "lines" in mode:
        dashes = _DASHES.get(trace.line.dash or "", "-")
        look = {"color": _colour(trace.line.color), "linewidth": 0.7 * (trace.line.width or 2), "alpha": trace.opacity}
        axes.plot(x, y, dashes, label=label, **look)
        label = None
    if "markers" in mode:
        symbols = _each(trace.marker.symbol or "circle", len(x))
        sizes = np.asarray(_each(6 if trace.marker.size is None else trace.marker.size, len(x)), dtype=float)
        values = trace.marker.color if not isinstance(trace.marker.color, str) else None
        colour = _colours(trace.marker.color, len(x)) if values is None or _named(values) else np.asarray(values, float)
        look = {"zorder": 3, "alpha": trace.opacity}
        for number, kind in enumerate(dict.fromkeys(symbols)):
            mine = [place for place, other in enumerate(symbols) if other == kind]
            form, _, opened = str(kind).partition("-")
            symbol = _SYMBOLS.get(form, "o")
            # A diamond is a square on its corner: as wide as a circle of the same size, it would look larger.
            areas = (0.8 * sizes[mine] * (0.8 if symbol == "D" else 1)) ** 2
            look["s"] = areas if np.ptp(areas) else areas[0]  # of one size, a file holds the mark once
            shown = colour[mine] if isinstance(colour, np.ndarray) else [colour[place] for place in mine]
            paint = {"edgecolors": shown, "facecolors": "none"} if opened == "open" else {"c": shown}
            axes.scatter(x[mine], y[mine], marker=symbol, label=None if number else label, **look, **paint)
    for which, error in (("xerr", trace.error_x), ("yerr", trace.error_y)):
        if (bars := _errors(error)) is not None:
            given = error.color or (trace.marker.color if isinstance(trace.marker.color, str) else None)
            axes.errorbar(x, y, fmt="none", **{which: bars}, ecolor=_colour(given, "#888888"), elinewidth=1)
    if "text" in mode and trace.text is not None:
        texts = [trace.text] * len(x) if isinstance(trace.text, str) else trace.text
        places = trace.textposition if isinstance(trace.textposition, tuple | list | np.ndarray) else None
        for i, (a, b, text) in enumerate(zip(x, y, texts, strict=False)):
            away, side = _SIDES.get(str(places[i] if places is not None else trace.textposition), _SIDES["right"])
            look = {"fontsize": 7, "ha": side, "va": "center", "xytext": away, "textcoords": "offset points"}
            axes.annotate(plain(str(text)), (a, b), **look)


_DASHES = {"dash": "--", "dot": ":", "dashdot": "-."}
_SYMBOLS = {"diamond": "D", "square": "s", "x": "x", "cross": "+"}


def _each(given: Any, count: int) -> list[Any]:
    """One value a mark, from one for all or a list of them."""
    return list(given) if isinstance(given, tuple | list | np.ndarray) else [given] * count


_SIDES = {
    "top center": ((0, 8), "center"),
    "bottom center": ((0, -8), "center"),
    "middle right": ((7, 0), "left"),
    "middle left": ((-7, 0), "right"),
    "right": ((4, 6), "left"),
}


def _histogram(canvas: Any, axes: Any, trace: Any, state: Stack) -> None:
    axes.hist(np.asarray(trace.x, float), bins=trace.nbinsx or 30, color=_colour(trace.marker.color), label=trace.name)


def _sankey(canvas: Any, axes: Any, trace: Any, state: Stack) -> None:
    """Nodes in columns by their distance from a source, links as bands as wide as their value."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    state.bare = True
    if not len(trace.link.value):
        return
    source, target, value = (np.asarray(v) for v in (trace.link.source, trace.link.target, trace.link.value))
    labels = list(trace.node.label)
    column = np.zeros(len(labels), dtype=int)
    for _ in labels:
        for a, b in zip(source, target, strict=True):
            column[b] = max(column[b], column[a] + 1) if column[a] < len(labels) else column[b]
    out, into = (np.zeros(len(labels)) for _ in range(2))
    np.add.at(out, source, value)
    np.add.at(into, target, value)
    size = np.maximum(np.maximum(out, into), 1e-9)
    gap = 0.04 * max(size[column == c].sum() for c in set(column))
    bottom, ends = np.zeros(len(labels)), {c: 0.0 for c in set(column)}
    for node in range(len(labels)):
        bottom[node] = ends[column[node]] - size[node]
        ends[column[node]] = bottom[node] - gap
    used_out, used_in = bottom + size, bottom + size
    colours = _colours(trace.link.color, len(value), "#bbbbbb")
    for a, b, width, colour in zip(source, target, value, colours, strict=True):
        x0, x1 = column[a] + 0.06, float(column[b])
        y0, y1 = used_out[a], used_in[b]
        used_out[a] -= width
        used_in[b] -= width
        middle = (x0 + x1) / 2
        points = [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
        points += [(x1, y1 - width), (middle, y1 - width), (middle, y0 - width), (x0, y0 - width)]
        codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3]
        axes.add_patch(PathPatch(Path(points, codes), facecolor=colour, linewidth=0))
    node_colours = _colours(trace.node.color, len(labels), "#555555")
    for node, label in enumerate(labels):
        axes.add_patch(_rectangle(column[node], bottom[node], 0.06, size[node], node_colours[node]))
        axes.text(column[node] + 0.08, bottom[node] + size[node] / 2, plain(label), va="center", fontsize=8)
    axes.set_xlim(-0.05, column.max() + 0.6)
    axes.set_ylim(min(ends.values()), gap)


def _rectangle(x: float, y: float, width: float, height: float, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, linewidth=0)


DRAWN: dict[str, Callable[[Any, Any, Any, Stack], None]] = {
    "heatmap": _heatmap,
    "bar": _bar,
    "scatter": _scatter,
    "scattergl": _scatter,
    "histogram": _histogram,
    "sankey": _sankey,
}
"""How each kind of trace is drawn: a new one is one function and one line here."""


def draw_shape(axes: Any, shape: Any, state: Stack) -> None:
    """A line or a rectangle on one panel."""
    x, y = (state.places([getattr(shape, f"{c}0"), getattr(shape, f"{c}1")], c) for c in "xy")
    colour, width = _colour(shape.line.color), 0.7 * (shape.line.width if shape.line.width is not None else 2)
    whole_x, whole_y = (_is_whole(reference) for reference in (shape.xref, shape.yref))
    if shape.type == "line":
        look = {"color": colour, "linewidth": width, "linestyle": _DASHES.get(shape.line.dash or "", "-")}
        if whole_x:
            axes.axhline(y[0], **look)
        elif whole_y:
            axes.axvline(x[0], **look)
        else:
            axes.plot(x, y, **look)
    elif shape.type == "rect":
        face = _colour(shape.fillcolor) if shape.fillcolor else "none"
        opacity = shape.opacity if shape.opacity is not None else 1
        if whole_y:
            axes.axvspan(x[0], x[1], facecolor=face, alpha=opacity, linewidth=0, zorder=0)
        elif whole_x:
            axes.axhspan(y[0], y[1], facecolor=face, alpha=opacity, linewidth=0, zorder=0)
        else:
            corner, size = (min(x), min(y)), (abs(x[1] - x[0]), abs(y[1] - y[0]))
            patch = _rectangle(*corner, *size, face)
            patch.set(edgecolor=colour if width else "none", linewidth=width, zorder=4)
            axes.add_patch(patch)


def _is_whole(reference: str | None) -> bool:
    """Whether a shape goes from one end of its panel, or of the figure, to the other."""
    return reference == "paper" or "domain" in (reference or "")


def _errors(error: Any) -> np.ndarray | None:
    if error is None or error.array is None:
        return None
    above = np.asarray(error.array, dtype=float)
    below = above if error.arrayminus is None else np.asarray(error.arrayminus, dtype=float)
    return np.nan_to_num(np.stack([below, above])).clip(min=0)


def _named(colours: Any) -> bool:
    return any(isinstance(c, str) for c in colours)


def _colours(given: Any, count: int, default: str = "#4477aa") -> list[Any]:
    """One colour a mark, from one colour for all, a list of them, or nothing."""
    if given is None or isinstance(given, str):
        return [_colour(given, default)] * count
    return [_colour(c, default) if isinstance(c, str) else default for c in given]


def _colour(colour: str | None, default: str = "#4477aa") -> Any:
    """A Plotly colour as Matplotlib takes it: names and #rrggbb as they are, rgb(a) as numbers."""
    if not colour:
        return default
    if not colour.startswith("rgb"):
        return colour
    parts = [float(p) for p in colour[colour.index("(") + 1 : -1].split(",")]
    return (*(p / 255 for p in parts[:3]), parts[3] if len(parts) > 3 else 1.0)


def plain(text: str) -> str:
    """Text without HTML tags, and with dollar signs that Matplotlib would read as mathematics escaped."""
    return without_tags(text).replace("$", r"\$")
