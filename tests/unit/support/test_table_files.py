"""A table is whole, whoever writes it and whatever stops the writing."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pytest

from dcinterp.support.table_files import write_table


def write_often(path: str, value: int) -> None:
    for _ in range(60):
        write_table(pd.DataFrame({"a": [value] * 500}), Path(path))


def test_two_writers_leave_the_table_of_one_of_them(tmp_path):
    table = tmp_path / "results.csv"
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        list(pool.map(write_often, [str(table)] * 2, [1, 2]))
    assert set(pd.read_csv(table)["a"]) in ({1}, {2})
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]


def test_what_was_there_stays_when_the_writing_fails(tmp_path):
    table = tmp_path / "results.csv"
    write_table(pd.DataFrame({"a": [1]}), table)

    class Full(pd.DataFrame):
        def to_csv(self, path, **_):
            Path(path).write_text("a\n")
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_table(Full({"a": [2]}), table)
    assert table.read_text() == "a\n1\n"
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]
