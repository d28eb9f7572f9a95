"""The released file format: one JSON object a line, `{"task_id": ..., "texts": ...}`, ASCII-escaped.

`texts` is `Row.text`. Reading gives back full examples (facts, source, accepted answers), because every line is
solved; writing what was read gives the same bytes.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from synthetic_tasks.catalogue import find
from synthetic_tasks.example import Row
from synthetic_tasks.solve import solve


def read_jsonl(path: str | Path) -> list[Row]:
    """Read a file of the released format. ValueError names the line that cannot be read, and why."""
    rows = []
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    rows.append(parse_record(line.decode("utf-8-sig" if number == 1 else "utf-8")))
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path} is not a text file: line {number} is not UTF-8") from error
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def write_jsonl(rows: Iterable[Row], path: str | Path) -> None:
    """Write rows in the released format."""
    with Path(path).open("w", encoding="ascii", newline="\n") as file:
        file.writelines(format_record(row) + "\n" for row in rows)


def format_record(row: Row) -> str:
    return json.dumps({"task_id": row.task_id, "texts": row.text})


def parse_record(record: str) -> Row:
    return parse_row(*parse_texts(record))


def parse_texts(record: str) -> tuple[str, str]:
    """(task id, texts) of a line, unread; ValueError where it is not in the released format."""
    try:
        fields = json.loads(record)
    except RecursionError as error:
        raise ValueError("not JSON (nested too deep)") from error
    except ValueError as error:
        raise ValueError(f"not JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(fields, dict) or not {"task_id", "texts"} <= fields.keys():
        raise ValueError("needs an object with the keys task_id and texts")
    for name in ("task_id", "texts"):
        if not isinstance(fields[name], str):
            raise ValueError(f"{name} must be text")
    return fields["task_id"], fields["texts"]


def parse_row(task_id: str, text: str) -> Row:
    """Solve every line of a row; the row must render back to exactly this text."""
    examples = []
    for line in text.strip("\n").split("\n"):
        solution = solve(line, task_id)
        if solution.given is None or not solution.correct:
            expected = " or ".join(solution.accepted)
            raise ValueError(f"{line!r} should be answered with {expected!r}")
        examples.append(solution.example())
    row = Row(find(task_id).id, tuple(examples))
    if row.text != text:
        raise ValueError(
            "the row is not in the released layout (newlines around it, `[ answer ]` from the third example on): "
            f"{text!r}"
        )
    return row
