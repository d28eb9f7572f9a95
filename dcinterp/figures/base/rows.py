"""What a figure shows, as a table of its own: one row a cell, bar, point or band.

rows(figures.plot(patterns, head=3))      # query, key, weight: 40 rows and not those of all heads
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from dcinterp.figures.base.grid import tick_names, written
from dcinterp.figures.base.style import without_tags

if TYPE_CHECKING:
    from pandas import DataFrame


def rows(figure: go.Figure) -> DataFrame:
    """The table of a figure: columns are named as its axes are, with a column of the series where it has several.

    Args:
        figure: any figure of `dcinterp.figures.plot`.
    """
    import pandas as pd

    # What nobody can point at only joins or marks what stands there already.
    drawn = [trace for trace in figure.data if trace.type == "heatmap" or trace.hoverinfo != "skip"]
    pairs = [(trace, table) for trace in drawn if (table := _of_trace(trace, figure)) is not None]
    if not pairs:
        return pd.DataFrame()
    several = len(pairs) > 1
    tables = [table.assign(series=_plain(trace.name)) if several and trace.name else table for trace, table in pairs]
    joined = pd.concat(tables, ignore_index=True)
    return joined[[*(["series"] if "series" in joined else []), *(name for name in joined if name != "series")]]


def _of_trace(trace: Any, figure: go.Figure) -> DataFrame | None:
    import pandas as pd

    if trace.type == "heatmap":
        return _cells(trace, figure)
    if trace.type == "sankey":
        names = np.asarray([_plain(str(name)) for name in trace.node.label], dtype=object)
        nodes = {"from": names[list(trace.link.source)], "to": names[list(trace.link.target)]}
        signed = trace.link.label
        return pd.DataFrame({**nodes, "size": trace.link.value, **({} if signed is None else {"label": signed})})
    if getattr(trace, "x", None) is None or getattr(trace, "y", None) is None:
        return None
    x, y = (_axis(trace, figure, letter) for letter in "xy")
    columns: dict[str, Any] = {_title(x, "x"): _named(x, trace.x), _title(y, "y") or "value": _named(y, trace.y)}
    if len(columns) < 2:
        columns = {"x": _named(x, trace.x), "y": _named(y, trace.y)}
    if called := _names(trace, {str(value) for values in columns.values() for value in values}):
        columns = {"name": called, **columns}
    errors = {letter: getattr(trace, f"error_{letter}", None) for letter in "xy"}
    errors = {letter: error for letter, error in errors.items() if error is not None and error.array is not None}
    for letter, error in errors.items():
        along = f" {letter}" if len(errors) > 1 else ""
        ends: dict[str, Any] = {"below": error.arrayminus, "above": error.array}
        if ends["below"] is None:
            ends["below"] = error.array
        columns |= {f"{name}{along}": np.asarray(values, dtype=float) for name, values in ends.items()}
    if getattr(trace, "base", None) is not None:  # a span, and not a bar from zero
        base = np.asarray(trace.base, dtype=float)
        length = _title(x, "x") if trace.orientation == "h" else _title(y, "y") or "value"
        columns |= {"from": base, "to": base + np.asarray(columns.pop(length), dtype=float)}
    return pd.DataFrame(columns)


def _names(trace: Any, said: set[str]) -> list[str] | None:
    """What each point or bar is called, where a figure says it by pointing or beside it, and not along an axis."""
    for given in (getattr(trace, "hovertext", None), trace.text):
        if isinstance(given, list | tuple | np.ndarray) and len(given) == len(trace.x) and all(given):
            names = [_plain(str(name)) for name in given]
            return None if set(names) <= said else names
    return None


def _cells(trace: Any, figure: go.Figure) -> DataFrame:
    """One row a cell; empty cells, such as those of later tokens, are left out."""
    import pandas as pd

    z = np.asarray(trace.z, dtype=float)
    across, down = _axis(trace, figure, "x"), _axis(trace, figure, "y")
    row, column = (place.ravel() for place in np.indices(z.shape))
    values = {
        _title(down, "row"): _along(tick_names(down, z.shape[0]), trace.y, row),
        _title(across, "column"): _along(tick_names(across, z.shape[1]), trace.x, column),
    }
    if trace.meta:  # small matrices side by side: which one, and where in it
        step, sides = trace.meta["step"], ((down, "row", "y", row), (across, "column", "x", column))
        values = {_title(of, kind): np.asarray(of.ticktext, dtype=object)[at // step] for of, kind, _, at in sides}
        values |= {trace.meta[letter]: at % step for *_, letter, at in sides}
    values |= {
        _plain(trace.colorbar.title.text) or "value": z.ravel(),
    }
    words = written(trace)
    text = None if words is None else [_plain(str(each or "")) for each in words.flat]
    table = pd.DataFrame(values | ({} if text is None or not any(text) else {"text": text}))
    return table[np.isfinite(z.ravel())].reset_index(drop=True)


def _along(ticks: list[str] | None, given: Any, places: np.ndarray) -> np.ndarray:
    """The names of rows or columns; where two have the same, as tokens may, their number stands before it."""
    if ticks is None and given is None:
        return places
    names = [_plain(str(name)) for name in (given if ticks is None else ticks)]
    if len(set(names)) < len(names):
        names = [f"{number}: {name}" for number, name in enumerate(names)]
    return np.asarray(names, dtype=object)[places]


def _named(axis: Any, values: Any) -> list[Any]:
    """Values along an axis, by the names that it gives them."""
    names = dict(zip(axis.tickvals, axis.ticktext, strict=False)) if axis.ticktext is not None and axis.tickvals else {}
    return [_plain(str(names[value])) if value in names else value for value in values]


def _axis(trace: Any, figure: go.Figure, letter: str) -> Any:
    own = figure.layout[f"{letter}axis{(getattr(trace, f'{letter}axis', None) or letter)[1:]}"]
    return figure.layout[f"{letter}axis{own.matches[1:]}"] if own.matches and not own.title.text else own


def _title(axis: Any, otherwise: str) -> str:
    return _plain(axis.title.text) or otherwise


def _plain(text: str | None) -> str:
    return without_tags(text or "")
