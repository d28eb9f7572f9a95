"""Tables on a terminal, and whole in a file or a pipe, which has no width of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 160
"""Of what is no terminal, in characters; a table that needs more has more there."""


def screen() -> Console:
    """Standard output, where nothing that is said is taken for a name of an emoji."""
    from rich.console import Console

    console = Console(emoji=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    return console


def print_table(table: Table) -> None:
    """A table, cut to the width of a terminal and to nothing else: one that folds cannot be searched."""
    from rich.measure import Measurement

    console = screen()
    wanted = Measurement.get(console, console.options.update(max_width=100_000), table).maximum
    if not console.is_terminal:
        console.width = max(console.width, wanted)
    elif wanted > console.width and table.columns:
        table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"  # by which a row is named
        print(f"dcinterp: note: columns are cut; the table takes {wanted} characters, or a pipe.", file=sys.stderr)
    console.print(table)


def cell(value: Any) -> Text:
    """A value as it stands in a table: no markup, and signs that nobody can see written out."""
    from rich.text import Text

    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return Text(text if text.isprintable() else repr(text)[1:-1])
