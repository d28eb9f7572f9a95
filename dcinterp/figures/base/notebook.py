"""Results and their figures as a Jupyter notebook that makes them again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def notebook(title: str, shown: Sequence[tuple[Any, Mapping[str, Any], str]]) -> bytes:
    """A notebook of several figures: each result is computed once, each model is loaded once.

    Args:
        title: its heading.
        shown: (result, options of `dcinterp.figures.plot`, what is seen) in their order.
    """
    names: dict[str, str] = {}
    cells, loaded = [_cell("markdown", f"# {title}")], ""
    for result, options, caption in shown:
        call = getattr(result, "call", None)
        if call is None:
            continue
        code = call.python()
        if call.reproducible:
            name = names.get(code)
            if name is None:
                name = names[code] = f"result_{len(names) + 1}"
                made = code.replace("\nresult = ", f"\n{name} = ")
                lines = made.split("\n")  # a text may hold other ends of lines
                load = next((line for line in lines if line.startswith("bridge = ")), "")
                made = "\n".join(line for line in lines if line != load or load != loaded).strip()
                loaded = load or loaded
                cells.append(_cell("code", made))
            given = "".join(f", {key}={value!r}" for key, value in options.items() if value not in (None, ""))
            cells.append(_cell("code", f"dcinterp.figures.plot({name}{given})"))
        else:
            cells.append(_cell("code", code))
        if caption:
            cells.append(_cell("markdown", caption))
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return json.dumps(whole, indent=1, ensure_ascii=False).encode()


def _cell(kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
