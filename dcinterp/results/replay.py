"""Make a saved result again from its own record, and compare.

    report = dcinterp.replay("saved/scores")
    report.same                 # every tensor within the tolerance, every other field equal
    report.differences          # per tensor: the largest difference, as a share of its largest entry

A result remembers the analysis, its arguments and where the model came from; weights that are no longer those are
named, because then other numbers are to be expected. Ends of intervals are compared only where both were made by the
same method (dcinterp.results.result.INTERVALS): earlier ones were too narrow in places, and what was saved stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcinterp.checkpoints.fingerprint import fingerprint
from dcinterp.results.call import Call, from_plain
from dcinterp.results.registry import ANALYSES
from dcinterp.results.result import INTERVALS, RECORD, Result, load_result
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Progress, silent

INTERVAL_END = re.compile(r"(^|_)(low|high)$|^mean_lag(_right)?$")
"""What the fields are called that hold the ends of an interval."""


@dataclass(frozen=True)
class Replay:
    """A saved result beside the one made now.

    differences: per tensor, the largest difference as a share of the tensor's largest entry; infinite where shapes
        differ. changed: the other fields that differ. weights_changed: the model is not the one that was used.
    intervals_changed: the saved result has intervals of an earlier method, which were not compared.
    """

    saved: Result
    again: Result
    differences: Mapping[str, float]
    changed: tuple[str, ...]
    weights_changed: bool
    tolerance: float
    intervals_changed: bool = False

    @property
    def same(self) -> bool:
        """Whether every tensor agrees within the tolerance and every other field exactly."""
        return not self.changed and all(difference <= self.tolerance for difference in self.differences.values())


def replay(folder: str | Path, *, tolerance: float = 1e-4, progress: Progress = silent) -> Replay:
    """Make the result in `folder` again and compare the two.

    Args:
        folder: what `Result.save` wrote.
        tolerance: largest difference of a tensor, as a share of its largest entry, that counts as the same. Other
            numbers of threads and other versions of torch differ by rounding.
        progress: called as the analysis proceeds, where it takes one.

    Cost: that of the analysis, and of loading the model.

    Raises:
        UserError: there is no result, or it cannot be made again (the message says why), or its model is gone.
    """
    saved = load_result(folder)
    call = saved.call
    if call is None:
        raise UserError(f"The result in {folder} does not say how it was made, so it cannot be made again.")
    if call.obstacle:
        raise UserError(call.obstacle.replace("by a snippet", "from its record"))
    bridge, again = _run(call, progress)
    earlier = json.loads((Path(folder) / RECORD).read_text(encoding="utf-8")).get("intervals", 1) != INTERVALS
    differences, changed = _compare(saved, again, "", Path(folder), earlier=earlier)
    return Replay(
        saved=saved,
        again=again,
        differences=differences,
        changed=changed,
        weights_changed=bridge is not None and fingerprint(bridge) != call.fingerprint,
        tolerance=tolerance,
        intervals_changed=earlier and any(INTERVAL_END.search(f.name) for f in fields(saved)),
    )


def _run(call: Call, progress: Progress) -> tuple[Any, Result]:
    from dcinterp.checkpoints.hub import not_typed

    with not_typed():
        return _run_here(call, progress)


def _run_here(call: Call, progress: Progress) -> tuple[Any, Result]:
    from dcinterp.checkpoints.load import load

    entry = ANALYSES[call.analysis]
    given = entry.arguments_now(call.arguments)
    if obstacle := entry.unknown_argument(given):
        raise UserError(obstacle)
    arguments = {name: from_plain(value) for name, value in given.items()}
    if "progress" in entry.signature.parameters:
        arguments["progress"] = progress
    if not entry.takes_model:
        return None, entry.function(**arguments)
    dtype = getattr(torch, call.dtype) if call.dtype is not None else None
    bridge = load(str(call.model), dtype=dtype, tokenizer=call.tokenizer)
    return bridge, entry.function(bridge, **arguments)


def _compare(
    saved: Result, again: Result, prefix: str, folder: Path, *, earlier: bool
) -> tuple[dict[str, float], tuple[str, ...]]:
    """(relative differences of the tensors, names of the other fields that differ); parts are compared in turn.

    earlier: the saved result is of a version with other intervals, and without fields that came later.
    """
    differences: dict[str, float] = {}
    changed: list[str] = []
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    names = record.get("names")
    for name, default in [(f.name, f.default) for f in fields(saved) if f.name not in ("call", *saved.PROSE)]:
        mine, theirs = getattr(saved, name), getattr(again, name, None)
        # Ends of intervals were drawn otherwise, and what is None the version that saved the result did not measure.
        if names is not None:
            later = name not in names
        else:  # what a version that named no fields did not have, or left empty
            absent = name not in record["fields"] and not isinstance(mine, Tensor | Result) and mine == default
            later = absent or (mine is None and default is None)
        if (earlier and INTERVAL_END.search(name)) or later or (mine is None and earlier):
            continue
        if isinstance(mine, Result) and isinstance(theirs, Result):
            inner, others = _compare(mine, theirs, f"{prefix}{name}.", folder / name, earlier=earlier)
            differences |= inner
            changed += others
        elif isinstance(mine, Tensor) and isinstance(theirs, Tensor):
            differences[prefix + name] = _difference(mine, theirs)
        elif not _close(mine, theirs):
            changed.append(prefix + name)
    return differences, tuple(changed)


def _difference(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    same = (a == b) | (a.isnan() & b.isnan())  # also where both are infinite
    apart = (a.double() - b.double()).abs().masked_fill(same, 0)
    if not apart.numel() or not apart.any():
        return 0.0
    return float(apart.max() / a.double().nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1e-12))


def _close(a: Any, b: Any) -> bool:
    """Equal, or numbers that agree to rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-4 * max(abs(a), abs(b), 1e-6) or (a != a and b != b)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(_close, a, b))
    return bool(a == b)
