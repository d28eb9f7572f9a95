"""Tables are whole in a pipe, and data is no markup."""

from __future__ import annotations

import pytest
from rich.table import Table

from dcinterp.cli._screen import cell, print_table


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a :key: b", "a :key: b"),
        ("C:\\[x] [bold]", "C:\\[x] [bold]"),
        ("\n  x", "\\n  x"),
        (" the", " the"),
        (0.123456, "0.1235"),
    ],
)
def test_a_cell_is_what_it_says(capsys, value, shown):
    table = Table("name", box=None)
    table.add_row(cell(value))
    print_table(table)
    assert capsys.readouterr().out.splitlines()[1][1:].rstrip() == shown


def test_no_column_is_cut_in_a_pipe(capsys):
    table = Table(box=None)
    for number in range(4):
        table.add_column(str(number), no_wrap=True)
    table.add_row("x" * 70, "y" * 70, "z" * 70, "1.234")
    print_table(table)
    assert "1.234" in capsys.readouterr().out
