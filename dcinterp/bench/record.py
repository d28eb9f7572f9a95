"""All measurements on one machine with what it is, kept in a file; docs/kernel.md's tables are made of such a file."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dcinterp.bench import attention, models
from dcinterp.bench.timing import Measurement, Timing
from dcinterp.support.errors import UserError
from dcinterp.support.json_files import read_json_object
from dcinterp.support.progress import Progress, silent
from dcinterp.support.text import markdown_table
from dcinterp.support.whole_files import whole

KINDS = ("attention", "training step", "prefill", "decoding")
"""What is measured, in the order of the tables."""

MARKS = re.compile(r"(<!-- bench: [^\n]*-->\n)(.*?)(<!-- end -->)", re.S)
"""What stands around the tables in a page."""


def measure_all(
    file: Path | None = None,
    *,
    rounds: int = 7,
    threads: Sequence[int] | None = None,
    only: Sequence[str] = KINDS,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure what `file` lacks, and write it there after every measurement, so that nothing is lost by stopping.

    Args:
        file: where the numbers are kept; None for nowhere.
        rounds: repeats of every candidate.
        threads: numbers of threads to measure with, one after another; None for what torch has.
        only: kinds to measure, of `KINDS`.
        progress: told of every measurement.

    Returns:
        The machine, the rounds, and a record of every measurement: its kind, what `Measurement` holds, and the load of
        the machine (in the minute before it).

    Raises:
        UserError: the file was written on another machine, or with other rounds.
    """
    record: dict[str, Any] = {"machine": machine(), "rounds": rounds, "measurements": []}
    if file is not None and file.exists():
        record = read_record(file)
        if record["machine"] != machine() or record["rounds"] != rounds:
            raise UserError(f"{file} was measured on another machine or by other rounds; give another file.")
    counts = threads or (torch.get_num_threads(),)
    todo = [(count, job) for count in counts for job in _jobs(rounds) if job.kind in only]
    # Names of models' jobs once ended in a comma.
    made = {(each["threads"], each["job"].removesuffix(", ")) for each in record["measurements"]}
    before = torch.get_num_threads()
    try:
        for number, (count, (kind, name, measure)) in enumerate(todo):
            progress(number, len(todo), name)
            if (count, name) in made:
                continue
            torch.set_num_threads(count)
            load = round(os.getloadavg()[0], 2)
            record["measurements"].append({"kind": kind, "job": name, "load": load, **measure().record()})
            if file is not None:
                _write(file, record)
    finally:
        torch.set_num_threads(before)
    return record


def read_record(file: Path) -> dict[str, Any]:
    """What `measure_all` has written.

    Raises:
        UserError: it is not there, or something else.
    """
    record: dict[str, Any] = read_json_object(file, what="measurements of `dcinterp bench all`", way="measure again")
    whole_record = _has(record, {"machine", "rounds"}) and _has(record["machine"], machine())
    measured = record.get("measurements")
    if not (whole_record and isinstance(measured, list) and measured and all(map(_is_measured, measured))):
        raise UserError(f"{file} holds no measurements of `dcinterp bench all`; measure again, into another file.")
    return record


def _has(item: Any, names: Iterable[str]) -> bool:
    return isinstance(item, dict) and set(names) <= item.keys()


def _is_measured(item: Any) -> bool:
    own = ("kind", "job", "load", *(field.name for field in fields(Measurement)))
    if not _has(item, own) or not isinstance(item["timings"], list) or not item["timings"]:
        return False
    return all(_has(timing, [field.name for field in fields(Timing)]) for timing in item["timings"])


def read_page(page: Path) -> str:
    """A page that tables can be written into.

    Raises:
        UserError: it has no marks to write them between.
    """
    text = page.read_text(encoding="utf-8", errors="replace") if page.is_file() else ""
    if "\ufffd" in text:
        raise UserError(f"{page} is not UTF-8 text; convert it, or give another page.")
    if MARKS.search(text) is None:
        raise UserError(
            f"{page} has no lines `<!-- bench: ... -->` and `<!-- end -->` to write tables between; add them."
        )
    return text


def write_page(page: Path, record: Mapping[str, Any]) -> None:
    """Put the tables between the marks of a page.

    Raises:
        UserError: as of `read_page`.
    """
    text = read_page(page)
    page.write_text(MARKS.sub(lambda found: f"{found[1]}{page_tables(record)}\n{found[3]}", text), encoding="utf-8")


def _write(file: Path, record: Mapping[str, Any]) -> None:
    """Write the record anew; the file is the old one until the new one is whole."""
    with whole(file) as place:
        place.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


class Job(NamedTuple):
    """A measurement to make; its name is the same in every run."""

    kind: str
    name: str
    measure: Callable[[], Measurement]


def _jobs(rounds: int) -> Iterator[Job]:
    """Everything that is measured, by kind."""
    for shape in (*attention.SHAPES, attention.LONG):
        for backward in (False, True):
            measure = partial(attention.measure, shape, backward=backward, rounds=rounds)
            yield Job("attention", f"attention: {shape}, {backward}", measure)
    for kind in KINDS[1:]:
        for job in models.jobs(kind, rounds=rounds, slow=False):
            yield Job(kind, f"{kind}: {', '.join(map(str, job.args))}", job)


def machine() -> dict[str, Any]:
    """What the times depend on: processor, cores, the width of its vectors, and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _processor() -> str:
    """The model as the system calls it; its architecture where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return " ".join((named or [platform.processor() or platform.machine()])[0].split())


def page_tables(record: Mapping[str, Any]) -> str:
    """The part of docs/kernel.md that a run of `dcinterp bench all` makes, in Markdown."""
    about, loads = record["machine"], [each["load"] for each in record["measurements"]]
    names = "processor", "vectors", "system", "python", "torch"
    processor, vectors, system, python, torch_version = (about[name] for name in names)
    parts = [
        f"{processor}, {about['cores']} cores, {vectors}; {system}, Python {python}, torch {torch_version}. "
        f"The load in the minute before a measurement was {min(loads)} to {max(loads)}. "
        f"Medians of {record['rounds']} rounds in which the candidates take turns, as multiples of the first one's."
    ]
    for threads in sorted({each["threads"] for each in record["measurements"]}):
        counted = "one thread" if threads == 1 else f"{threads} threads"
        for kind in KINDS:
            some = [each for each in record["measurements"] if each["kind"] == kind and each["threads"] == threads]
            if some:
                parts += [f"### {kind.capitalize()}, {counted}", _table(kind, some)]
    return "\n\n".join(parts)


def _table(kind: str, measured: Sequence[Mapping[str, Any]]) -> str:
    """Every candidate's time as a multiple of the first one's, with the first one's milliseconds."""
    names = list(dict.fromkeys(timing["name"] for each in measured for timing in each["timings"]))
    lines = []
    for each in measured:
        by = {timing["name"]: timing for timing in each["timings"]}
        what = each["label"] if kind != KINDS[0] else f"{each['label']}, {each['what']}"
        cells = [f"{by[names[0]]['seconds'] * 1e3:.1f}"]
        cells += [f"{by[name]['ratio']:.2f}" if name in by else "" for name in names[1:]]
        lines.append([what, *cells])
    return markdown_table(["", f"{names[0]}: ms", *(f"{name}: x" for name in names[1:])], lines)
