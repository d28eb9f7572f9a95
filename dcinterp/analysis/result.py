"""What every analysis returns: a frozen record of tensors, labels and the inputs that made them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dcinterp.analysis.call import Call
from dcinterp.errors import UserError, nearest

TENSORS, RECORD = "tensors.safetensors", "result.json"


@dataclass(frozen=True)
class Result:
    """Base of all results. Tensors are detached and on the CPU; everything else is plain JSON data.

    A subclass is a frozen dataclass that lists its fields and says in `AXES` which axes each tensor has; by that
    `to_dataframe` builds the long table and the contract test checks the labels. A field may be another result.
    `call` says how the result was made (see dcinterp.analysis.call); None for one that was put together by hand.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {}
    kinds: ClassVar[dict[str, type[Result]]] = {}

    call: Call | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Result.kinds[cls.__name__] = cls

    def tensors(self) -> dict[str, Tensor]:
        """The tensor fields by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def labels(self, axis: str) -> list[Any] | None:
        """Names along an axis, where numbers would not do (tokens along `pos`, say)."""
        return None

    def banners(self) -> list[str]:
        """What a reader must know before believing the numbers, one sentence each; empty when nothing is amiss."""
        return []

    def with_call(self, call: Call) -> Self:
        """The same result, which remembers how it was made."""
        return replace(self, call=call)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per entry, one column per axis and one per tensor that has all the axes."""
        shared = max(self.AXES.values(), key=len)
        columns: dict[str, Any] = {}
        shape = next(getattr(self, name).shape for name, axes in self.AXES.items() if axes == shared)
        index = pd.MultiIndex.from_product([range(size) for size in shape], names=list(shared))
        for name, axes in self.AXES.items():
            tensor = getattr(self, name)
            if isinstance(tensor, Tensor) and set(axes) <= set(shared):
                view = tensor.reshape([tensor.shape[axes.index(a)] if a in axes else 1 for a in shared])
                columns[name] = view.expand(shape).flatten().tolist()
        frame = pd.DataFrame(columns, index=index).reset_index()
        for axis in shared:
            if (names := self.labels(axis)) is not None:
                frame.insert(frame.columns.get_loc(axis) + 1, f"{axis}_label", [names[i] for i in frame[axis]])
        return frame

    def table(self) -> pd.DataFrame:
        """The short table that the command line shows; `to_dataframe` unless a kind of result has a better one."""
        return self.to_dataframe()

    def save(self, folder: str | Path) -> Path:
        """Write the result as a folder of result.json and tensors.safetensors; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self.tensors()
        save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / TENSORS)
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*tensors, "call")}
        parts = [name for name, value in plain.items() if isinstance(value, Result)]
        for name in parts:
            plain.pop(name).save(folder / name)
        record = {
            "kind": type(self).__name__,
            "fields": plain,
            "parts": parts,
            "call": self.call.record() if self.call else None,
        }
        (folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read back what `save` wrote.

        Raises:
            UserError: the folder is missing or damaged, or holds another kind of result.
        """
        result = load_result(folder)
        if not isinstance(result, cls):
            raise UserError(f"{folder} holds a {type(result).__name__}, not a {cls.__name__}.")
        return result


def load_result(folder: str | Path) -> Result:
    """Any saved result.

    Raises:
        UserError: the folder is missing or damaged, or was written by another version.
    """
    folder = Path(folder)
    if not (folder / RECORD).is_file():
        raise UserError(f"There is no result at {folder}; give a folder that `save` wrote.")
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS)
    except (json.JSONDecodeError, SafetensorError, OSError) as error:
        raise UserError(f"The result in {folder} is damaged ({error}); compute and save it again.") from error
    if record["kind"] not in Result.kinds:
        # Kinds are known once their modules are: look at all of them.
        len(import_module("dcinterp.analysis.registry").ANALYSES)
    kind = Result.kinds.get(record["kind"])
    if kind is None:
        raise UserError(
            f"{folder} holds a result of unknown kind {record['kind']!r}; {nearest(record['kind'], Result.kinds)}"
        )
    restored = {name: _tuples(value) for name, value in record["fields"].items()}
    parts = {name: load_result(folder / name) for name in record.get("parts", ())}
    call = Call.from_record(record["call"]) if record.get("call") else None
    return kind(**restored, **parts, **tensors, call=call)


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that frozen results hold."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
