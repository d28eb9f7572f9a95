"""What every analysis returns: a frozen record of tensors, labels and the inputs that made them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from html import escape
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dcinterp.results.call import Call
from dcinterp.results.catalogue import import_added, import_all, own_kinds
from dcinterp.results.stored import check_fields, check_record, check_words
from dcinterp.support.errors import UserError, nearest, reason
from dcinterp.support.extensions import Unfit
from dcinterp.support.file_modes import open_like
from dcinterp.support.former_names import renamed, warn_of
from dcinterp.support.json_files import read_json_object, require_plain_file
from dcinterp.support.whole_files import UNFINISHED, whole

HOUSE = __name__.partition(".")[0]
TENSORS, RECORD = "tensors.safetensors", "result.json"
INTERVALS = 5
"""The methods behind intervals, counted up when one changes: 2 early in version 0.2, 3 for groups of unequal size, 4
for accuracies over clusters of unequal size, 5 for shares near a bound. A saved result names those of its fields `low`,
`high`, `..._low` and `..._high`; without a number they are those of 0.1."""
CALLS_NOW: list[Callable[[Any], Any]] = []
"""What the registry makes of a recorded call, so that code which is written from it means the same in this version."""
TYPES_NOW: list[Callable[[str], dict[str, Any]]] = []
"""What the registry knows of the types of the parameters of an analysis, by its name."""
TOKENS = "top_tokens"
"""The field with the texts of the most likely tokens, where a result has them."""
SHOWN_ROWS = 8
"""Of the table, where a notebook shows a result."""


@dataclass(frozen=True)
class Result:
    """Base of all results. Tensors are detached and on the CPU; everything else is plain JSON data.

    A subclass is a frozen dataclass that lists its fields and says in `AXES` which axes each tensor has; by that
    `to_dataframe` builds the long table and the contract test checks the labels. A field may be another result.
    `call` says how the result was made (see dcinterp.results.call); None for one that was put together by hand.

    Two results are equal when they are of one kind and all their fields but `call` are, tensors entry by entry.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {}
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Of fields that are lists, or lists of lists, beside the tensors: the axes that they go along."""
    FORMER: ClassVar[dict[str, str]] = {}
    """What fields and their words were called in earlier versions (see dcinterp.support.former_names): saved results
    still open, and whoever reads a field by its old name is told the new one."""
    PROSE: ClassVar[tuple[str, ...]] = ()
    """Fields that say in sentences what the others hold; a later version may word them differently."""
    kinds: ClassVar[dict[str, type[Result]]] = {}

    call: Call | None = field(default=None, kw_only=True, compare=False, repr=False)

    def __init_subclass__(cls, *, shared: bool = False, **kwargs: Any) -> None:
        """`shared`: a base of several kinds, which is no kind of result itself."""
        super().__init_subclass__(**kwargs)
        if not shared:
            other = Result.kinds.get(cls.__name__, cls)
            # A dataclass with slots makes its class twice, and a cell of a notebook is run again.
            ours = not cls.__module__.startswith(f"{HOUSE}.") and cls.__name__ in own_kinds()
            if ours or (cls.__module__, cls.__qualname__) != (other.__module__, other.__qualname__):
                raise TypeError(
                    f"{HOUSE if ours else other.__module__} has a kind of result {cls.__name__} already; name this one "
                    "else, or load its file under one name only."
                )
            Result.kinds[cls.__name__] = cls
        # A dataclass would write its own, which print every number and cannot compare tensors, but keeps what is there.
        for name in ("__repr__", "__eq__", "__hash__"):
            if name not in vars(cls):
                setattr(cls, name, getattr(Result, name))

    if not TYPE_CHECKING:  # for a type checker only the fields of now exist

        def __getattr__(self, name: str) -> Any:
            """A field by its former name, for one version; called for what is not found otherwise."""
            if name not in type(self).FORMER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            now = type(self).FORMER[name]
            warn_of(f"{type(self).__name__}.{name}", now)
            return getattr(self, now)

    def __repr__(self) -> str:
        """Kind, shapes, call, the head of the table and the sentence: a few lines, however large the result."""
        alike: dict[str, list[str]] = {}
        for name, axes in self.AXES.items():
            if getattr(self, name) is None:  # an earlier version did not have it
                continue
            pairs = zip(axes, getattr(self, name).shape, strict=True)
            alike.setdefault(" ".join(f"{axis}={size}" for axis, size in pairs), []).append(name)
        shapes = "; ".join(f"{', '.join(names)} [{sizes}]" for sizes, names in alike.items())
        lines = [f"{type(self).__name__}: {shapes}"]
        if self.call is not None:
            command = "" if self.call.obstacle or (line := self.call.command()).startswith("#") else line
            # On one line a command of several would be another one.
            how = ": see call.command()" if "\n" in command else f": {_short(command)}" if command else ""
            home = "dcinterp" if self.call.public else self.call.home
            lines.append(f"made by {home}.{self.call.analysis}{how}")
            lines += [f"! {self.call.obstacle}"] if self.call.obstacle else []
        if type(self).table is not Result.table and len(frame := self.table()):
            first = ", ".join(_named(str(name), _short(value)) for name, value in frame.iloc[0].items())
            lines.append(f"first of {len(frame)} rows of table(): {_short(first)}")
        said = self.sentences()
        lines += said[:2]
        lines += [f"and {len(said) - 2} more in sentences()"] if len(said) > 2 else []
        warnings = self.warnings()
        lines += [f"! {_short(sentence)}" for sentence in warnings[:2]]
        lines += [f"! and {len(warnings) - 2} more in warnings()"] if len(warnings) > 2 else []
        return "\n  ".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows: warnings, the sentence and the first rows of the table."""
        frame = self.table()
        obstacle = [self.call.obstacle] if self.call is not None and self.call.obstacle else []
        above = "".join(f"<p>! {escape(sentence)}</p>" for sentence in [*self.warnings(), *obstacle])
        above += f"<p>{escape(sentence)}</p>" if (sentence := self.sentence()) else ""
        rows = frame.head(SHOWN_ROWS).to_html(index=False, float_format="{:.3g}".format)
        return (
            f"<p><b>{type(self).__name__}</b></p>{above}{rows}"
            f"<p>{min(SHOWN_ROWS, len(frame))} of {len(frame)} rows of <code>table()</code></p>"
        )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.compare)

    def __hash__(self) -> int:
        # Of what equal results have in common for certain: 0.0 and -0.0 are equal, and NaN is here.
        plain = [v for f in fields(self) if f.compare and isinstance(v := getattr(self, f.name), str)]
        return hash((type(self).__name__, *plain, *(tuple(t.shape) for t in self.tensors().values())))

    def tensors(self) -> dict[str, Tensor]:
        """The tensor fields by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def labels(self, axis: str) -> list[Any] | None:
        """Names along an axis, where numbers would not do (tokens along `pos`, say)."""
        return None

    def sentence(self) -> str:
        """The finding in words; empty for a kind of result that says nothing without its table."""
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        """The finding, a thing at a time; a kind of result writes this or `sentence`, and has both."""
        own = self.sentence() if type(self).sentence is not Result.sentence else ""
        return [own] if own else []

    def warnings(self) -> list[str]:
        """What to know before trusting the numbers, one sentence each; empty if there is nothing to warn of."""
        return []

    def banners(self) -> list[str]:
        """The former name of `warnings`."""
        warn_of("banners", "warnings")
        return self.warnings()

    def with_call(self, call: Call) -> Self:
        """The same result, which remembers how it was made."""
        return replace(self, call=call)

    def to_dataframe(self, of: str | None = None) -> pd.DataFrame:
        """One row per entry, one column per axis and one per tensor; of the most likely tokens their text, too.

        Args:
            of: the name of a tensor: a row per entry of that one, with the others that have the same axes. Without it,
                a row per entry of the tensor with most axes, on which those with fewer axes repeat their numbers.

        Raises:
            UserError: the result has no such tensor.
        """
        if of is not None and (of not in self.AXES or getattr(self, of) is None):
            raise UserError(f"There is no tensor {of!r} in this {type(self).__name__}; {nearest(of, self.tensors())}")
        if not self.tensors():
            return pd.DataFrame([{each.name: getattr(self, each.name) for each in fields(self) if each.name != "call"}])
        shared = max(self.AXES.values(), key=len) if of is None else self.AXES[of]
        columns: dict[str, Any] = {}
        shape = next(getattr(self, name).shape for name, axes in self.AXES.items() if axes == shared)
        index = pd.MultiIndex.from_product([range(size) for size in shape], names=list(shared))
        for name, axes in self.AXES.items():
            tensor = getattr(self, name)
            if isinstance(tensor, Tensor) and (set(axes) <= set(shared) if of is None else axes == shared):
                view = tensor.reshape([tensor.shape[axes.index(a)] if a in axes else 1 for a in shared])
                columns[name] = view.expand(shape).flatten().tolist()
        if shared == self.LISTS.get(TOKENS):
            columns["token"] = _leaves(getattr(self, TOKENS), len(shared))
        frame = pd.DataFrame(columns, index=index).reset_index()
        for axis in shared:
            if (names := self.labels(axis)) is not None:
                frame.insert(frame.columns.get_loc(axis) + 1, f"{axis}_label", [names[i] for i in frame[axis]])
                if axis == "layer":  # its place among those scored would be taken for its number
                    frame[axis] = frame[f"{axis}_label"]
        return frame

    def table(self) -> pd.DataFrame:
        """The short table that the command line shows; `to_dataframe` unless a kind of result has a better one."""
        return self.to_dataframe()

    def save(self, folder: str | Path) -> Path:
        """Write the result as a folder of result.json and tensors.safetensors; returns the folder.

        A folder that holds a result of the same kind is written anew, so that a cell can be run again.

        Raises:
            UserError: the folder holds another kind of result or other files, or is a file.
        """
        folder = Path(folder)
        require_own(folder, type(self).__name__)
        tensors = self.tensors()
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*tensors, "call")}
        parts = {name: plain.pop(name) for name, value in list(plain.items()) if isinstance(value, Result)}
        record = {
            "kind": type(self).__name__,
            "fields": plain,
            "parts": list(parts),
            "call": self.call.record() if self.call else None,
            "intervals": INTERVALS,
            "names": [f.name for f in fields(self)],
        }
        text = json.dumps(record, indent=1)  # what JSON cannot hold is found before anything is touched
        if folder.exists():
            gone = set(_parts_of(folder / RECORD)) & {each.name for each in fields(self)} - parts.keys()
            _write(folder, text, tensors, parts)
            for name in gone:  # parts of the earlier result alone
                rmtree(folder / name, ignore_errors=True)
        else:
            with whole(folder) as place:
                _write(place, text, tensors, parts)
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


def _write(folder: Path, text: str, tensors: Mapping[str, Tensor], parts: Mapping[str, Result]) -> None:
    """The files of a result; what lay there stays until both new ones are whole."""
    folder.mkdir(exist_ok=True)
    for left in folder.glob(UNFINISHED):
        rmtree(left) if left.is_dir() else left.unlink()
    for name, part in parts.items():
        part.save(folder / name)
    with whole(folder / RECORD) as place:
        place.write_text(text, encoding="utf-8")
        with whole(folder / TENSORS) as beside:
            save_file({name: t.contiguous().clone() for name, t in tensors.items()}, beside)
    open_like(folder / RECORD)


def require_own(folder: Path, kind: str) -> None:
    """Refuse to write a result of this kind over anything but an earlier one of the same kind.

    Raises:
        UserError: the folder holds another kind of result or other files, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give the name of a folder to write.")
    if not folder.is_dir() or all(fnmatch(path.name, UNFINISHED) for path in folder.iterdir()):
        return
    found = _written_kind(folder / RECORD)
    if found is None:
        raise UserError(f"{folder} holds other files; give another folder, or empty it first.")
    if found not in (kind, ""):
        raise UserError(f"{folder} holds a {found}, not a {kind}; give another folder.")


def _parts_of(record: Path) -> list[str]:
    """The names of the parts that a result was saved with; none where nothing says so."""
    try:
        parts = json.loads(record.read_text(encoding="utf-8"))["parts"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [each for each in parts if isinstance(each, str)] if isinstance(parts, list) else []


def _written_kind(record: Path) -> str | None:
    """The kind of the result whose record this is: "" for one that was cut off, None for what no result wrote."""
    text = record.read_text(encoding="utf-8", errors="replace") if record.is_file() else None
    if text is None:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        begun = re.match(r'\{\s*"kind": "(\w+)",', text)
        return begun[1] if begun else "" if '{\n "kind": "'.startswith(text) else None
    return str(data["kind"])[:60] if isinstance(data, dict) and data.keys() >= {"kind", "fields"} else None


def load_result(folder: str | Path) -> Result:
    """Any saved result.

    Raises:
        UserError: the folder is missing or damaged, or was written by another version.
    """
    folder = Path(folder)
    path = folder / RECORD
    if not (path.exists() or path.is_symlink()):
        raise UserError(f"There is no result at {folder}; give a folder that `save` wrote.")
    way = "compute and save it again"
    record = read_json_object(path, what="a result", way=way, ours=True)
    # Kinds are known once their modules are; here, so that a broken module is not taken for a broken result.
    import_all()
    try:
        check_record(record)
        if record["kind"] not in Result.kinds:
            import_added()
        call = Call.from_record(record["call"]) if record.get("call") else None
        if record["kind"] not in Result.kinds and call is not None and not call.public:
            way_in = "define it again" if call.home == "__main__" else f"install that package, or import {call.home}"
            raise UserError(f"{folder} holds a {record['kind'][:60]} of {call.home}; {way_in} first, and then load it.")
        kind = _kind(record["kind"])
        for change in CALLS_NOW if call is not None else ():
            call = change(call)
        plain = {name: _tuples(value) for name, value in record["fields"].items()}
        parts = {name: load_result(folder / name) for name in record.get("parts", ())}
        found = renamed(plain | parts | _read_tensors(folder / TENSORS), kind.FORMER)
        check_fields(kind, found)
        for types_of in TYPES_NOW if call is not None else ():
            check_words(found, types_of(call.analysis), kind)
        result = kind(**found, call=call)
        _check_words(result)
        return result
    except Unfit:  # of a package, and no fault of the file
        raise
    except (UserError, ValueError, TypeError, KeyError, RecursionError) as error:
        said = str(error) if str(folder) in str(error) else f"{path} does not hold a result ({reason(error)}); {way}."
        raise UserError(said) from error


def _check_words(result: Result) -> None:
    """Refuse a result whose labels are not as many as its entries, or that cannot say what it holds.

    Raises:
        UserError: as said.
    """
    for name, axes in result.AXES.items():
        tensor = getattr(result, name)
        for axis, size in zip(axes, tensor.shape if tensor is not None else (), strict=tensor is not None):
            names = result.labels(axis)
            if names is not None and len(names) != size:
                raise UserError(f"{name} has {size} along {axis}, and there are {len(names)} labels for it")
    try:
        result.sentence()
        result.warnings()
    except Exception as error:  # whatever wrong words lead to
        raise UserError(f"its fields do not belong together: {type(error).__name__} {reason(error, 60)}") from error


def _leaves(nested: Any, depth: int) -> list[Any]:
    """What stands in lists of lists, one after another."""
    return [leaf for each in nested for leaf in _leaves(each, depth - 1)] if depth else [nested]


def _kind(name: str) -> type[Result]:
    """The kind of result of this name.

    Raises:
        UserError: there is none.
    """
    if name not in Result.kinds:
        raise UserError(f"there is no kind of result {name[:60]!r}; {nearest(name[:60], Result.kinds)}")
    return Result.kinds[name]


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        require_plain_file(path)
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); compute and save it again.") from error


def _same(mine: Any, theirs: Any) -> bool:
    """Equal in value, through tensors, tuples and results; NaN equals NaN."""
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return False
        return bool(((mine == theirs) | (mine.isnan() & theirs.isnan())).all())
    if isinstance(mine, tuple | list) and isinstance(theirs, tuple | list):
        return len(mine) == len(theirs) and all(map(_same, mine, theirs))
    return bool(mine == theirs or (mine != mine and theirs != theirs))


def _short(value: Any, length: int = 150) -> str:
    """A number in four digits, a text in one short line."""
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _named(name: str, value: str) -> str:
    """The value behind its name, unless it says that itself, as in "edge 1.post.kp.6>1"."""
    return value if value.startswith(f"{name} ") else f"{name} {value}"


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples that frozen results hold."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
