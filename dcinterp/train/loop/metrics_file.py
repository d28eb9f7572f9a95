"""Files of a run with a JSON object on each line (metrics.jsonl, history.jsonl), which may be growing while read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dcinterp.support.errors import UserError

MADE_WITH = ("data_digest", "torch", "device", "commit")
"""What a table of runs has of each, besides its settings and measurements (`made_with`)."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every measurement of a run, in order; a last line that is being written is left for the next time.

    Raises:
        UserError: there is no such file, or a line is not a measurement.
    """
    if not path.is_file():
        raise UserError(f"There is no {path}; give the output folder of a training run or a shipped model.")
    records, wrong = read_records(path, needed=("step", "tokens"))
    if wrong:
        raise UserError(f"Line {wrong[0]} of {path} is not a measurement of a run; remove that line, or mend it.")
    return records


def by_step(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One record a step, in the order of steps, with everything that was measured there; the later of two counts."""
    lines: dict[int, dict[str, Any]] = {}
    for record in records:
        lines.setdefault(record["step"], {}).update(record)
    return [lines[step] for step in sorted(lines)]


def read_records(path: Path, *, needed: tuple[str, ...] = ("step",)) -> tuple[list[dict[str, Any]], list[int]]:
    """(records, numbers of the lines that are not records, from 1) of a file; nothing where there is no file.

    A last line that is cut short, or still being written, is in neither.

    Args:
        path: the file.
        needed: fields that every record must have, as numbers.
    """
    if not path.is_file():
        return [], []
    # Not splitlines(): what is split there stands inside strings here.
    *lines, last = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records, wrong = [], []
    for number, line in enumerate(lines, start=1):
        if (record := parse_record(line, needed)) is not None:
            records.append(record)
        else:
            wrong.append(number)
    if (record := parse_record(last, needed)) is not None:
        records.append(record)
    return records, wrong


def is_measured(path: Path, step: int) -> bool:
    """Whether a run was measured on what is held out at a step."""
    here = (record for record in read_records(path, needed=("step", "tokens"))[0] if record["step"] == step)
    return any({"accuracy", "validation_loss"} & record.keys() for record in here)


def trained_steps(folder: Path) -> int | None:
    """The steps of the model in the folder of a run, which has fewer than its config while it is lengthened.

    None where there is no such number, as of a run of an early version.
    """
    with suppress(OSError, ValueError, AttributeError):
        steps = json.loads((folder / "timings.json").read_text(encoding="utf-8")).get("steps")
        return steps if isinstance(steps, int) else None
    return None


def accuracy_column(examples: int | str, part: str) -> str:
    """What a table of runs calls the accuracy on a part of what is held out, in rows of so many examples."""
    return f"accuracy {examples} {part}"


def data_digest(starts: Sequence[dict[str, Any]]) -> str:
    """The hash of the data that a run read when it was last started, by its history; empty for what is generated."""
    return str(starts[-1].get("material", "")) if starts else ""  # a key that is older than the name


def made_with(starts: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What a run read and was trained with, by its history: digest of the data, PyTorch, device, commit of the code.

    Of starts that differ, as of a run that went on elsewhere, each is named, in order. Without what one of them does
    not say, as of a run that began with an earlier version. Starts before the last at step 0 are in no model.
    """
    found = {"data_digest": data_digest(starts)}
    anew = max((at for at, start in enumerate(starts) if start["step"] == 0), default=0)
    starts = starts[anew:]
    # Of runs that were made side by side in one model the device says so, as engines are named.
    starts = [start | {"device": f"stacked:{start.get('device')}"} if "stacked" in start else start for start in starts]
    for key in MADE_WITH[1:]:
        said = [str(start.get(key) or "") for start in starts]
        found[key] = " ".join(dict.fromkeys(said)) if all(said) else ""
    return {key: said for key, said in found.items() if said}


def parse_record(line: str, needed: tuple[str, ...]) -> dict[str, Any] | None:
    """The record that a line holds, if it holds one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(_is_count(record.get(name)) for name in needed):
        return None
    measured = [record[name] for name in ("loss", "validation_loss") if name in record]
    if not all(map(_is_number, measured)) or not _is_accuracy(record.get("accuracy", {})):
        return None
    return record


def _is_count(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_accuracy(value: Any) -> bool:
    """{length of rows: {pattern: share}}."""
    return isinstance(value, dict) and all(
        length.isdecimal() and isinstance(row, dict) and all(map(_is_number, row.values()))
        for length, row in value.items()
    )
