"""Figures that were drawn lately: going back to a cell, or changing one figure of a page, draws nothing again."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any, NamedTuple

KEPT = 128
FONT = "Source Sans, sans-serif"


class Drawing(NamedTuple):
    """A figure and what it says in words."""

    figure: Any
    words: Any


_kept: OrderedDict[tuple[Any, ...], tuple[weakref.ref[Any], Drawing]] = OrderedDict()
_lock = threading.Lock()


def drawn(result: Any, kind: str, look: str, options: dict[str, Any]) -> Drawing:
    """The figure of a result; of the last `KEPT` that were asked for, the one that was made then.

    Args:
        result: what an analysis returned; results are frozen, so the object stands for its numbers.
        kind, options: as in `dcinterp.figures.plot`.
        look: "light" or "dark".
    """
    key = (id(result), kind, look, *sorted(options.items()))
    try:
        hash(key)
    except TypeError:
        return _draw(result, kind, look, options)
    with _lock:
        if key in _kept:
            # The number of an object is given to another one once it is gone.
            whose, drawing = _kept[key]
            if whose() is result:
                _kept.move_to_end(key)
                return drawing
    drawing = _draw(result, kind, look, options)
    with _lock:
        _kept[key] = (weakref.ref(result), drawing)
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return drawing


def _draw(result: Any, kind: str, look: str, options: dict[str, Any]) -> Drawing:
    from dcinterp import figures
    from dcinterp.figures.base.describe import describe

    figure = figures.plot(result, kind=kind, theme=look, **options)
    figure.update_layout(font_family=FONT)
    return Drawing(figure, describe(figure))
