"""What a result.json says, held against the kind of result that it names: people copy, edit and send these files."""

from __future__ import annotations

import inspect
import keyword
import operator
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import reduce
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import Tensor

from dcinterp.support.arguments import alternatives, require_fitting
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.text import shown

RECORD_TYPES: Mapping[str, Any] = {"kind": str, "fields": dict[str, Any], "call": dict[str, Any] | None}
CALL_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("analysis", "home", "obstacle"), str),
    **dict.fromkeys(("model", "dtype", "revision", "fingerprint", "tokenizer"), str | None),
    "arguments": dict[str, Any],
    "shown": list[str] | tuple[str, ...],
    "public": bool,
}
NEEDED = ("analysis", "home", "model", "arguments", "shown")


def check_record(record: Mapping[str, Any]) -> None:
    """Refuse a record that lacks its parts, or has others in their place.

    Raises:
        UserError: the message names the field.
    """
    for name in ("kind", "fields"):
        if name not in record:
            raise UserError(f"there is no field {name!r}")
    for name, annotation in RECORD_TYPES.items():
        require_fitting(name, record.get(name), annotation)
    parts = record.get("parts", [])
    if not isinstance(parts, list) or not all(map(_is_name, parts)):
        raise UserError(f"parts is {shown(parts)}; it must be a list of names of fields")


def check_call(record: Mapping[str, Any]) -> None:
    """Refuse the record of a call that no analysis wrote: code is made of its words.

    Raises:
        UserError: the message names the field.
    """
    for name in NEEDED:
        if name not in record:
            raise UserError(f"call has no field {name!r}")
    for name, annotation in CALL_TYPES.items():
        if name in record:
            require_fitting(f"call.{name}", record[name], annotation)
    if not _is_name(record["analysis"]):
        raise UserError(f"call.analysis is {shown(record['analysis'])}, not the name of an analysis")
    if not all(map(_is_name, record["home"].split("."))):
        raise UserError(f"call.home is {shown(record['home'])}, not the name of a module")
    if (record["model"] or "").startswith("-"):
        raise UserError(f"call.model is {shown(record['model'])}, not the name of a model")
    if not record.get("obstacle", "").isprintable():
        raise UserError(f"call.obstacle is {shown(record['obstacle'], 40)}, not a sentence")
    dtype = record.get("dtype")
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise UserError(f"call.dtype is {shown(dtype)}, not a type of numbers")
    for name in record["arguments"]:
        if not _is_name(name):
            raise UserError(f"call.arguments has {shown(name)}, which is not the name of an argument")
    unknown = [name for name in record["shown"] if name not in record["arguments"]]
    if unknown:
        raise UserError(f"call.shown has {shown(unknown[0])}, which is not one of its arguments")


def check_fields(kind: Any, given: Mapping[str, Any]) -> None:
    """Refuse fields that a kind of result does not have, or has otherwise.

    Args:
        kind: a subclass of `Result`.
        given: its fields, tensors and parts included.

    Raises:
        UserError: a field is missing, unknown or mistyped, or tensors do not agree on the size of an axis.
    """
    known = {f.name: f for f in fields(kind) if f.name != "call"}
    for name in given:
        if name not in known:
            raise UserError(f"a {kind.__name__} has no field {shown(name, 40)}")
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"a {kind.__name__} needs the field {name!r}")
    types = _types(kind)
    for name, value in given.items():
        if name not in kind.AXES and not (value is None and known[name].default is None):
            require_fitting(name, value, _plain_type(types.get(name, Any)))
    for name in kind.AXES:
        _check_numbers(name, given.get(name), types.get(name))
    _check_axes(kind, given)


def check_words(given: Mapping[str, Any], parameters: Mapping[str, Any], kind: Any = None) -> None:
    """Refuse a field that repeats an argument of the analysis, and holds a word that the argument cannot be.

    Args:
        given: the fields of a result.
        parameters: the types of the parameters of the analysis that made it.
        kind: of result; a field with words of its own may hold these.

    Raises:
        UserError: the message names the field.
    """
    own = {name for name, each in (_types(kind) if kind is not None else {}).items() if _has_words(each)}
    for name in (given.keys() & parameters.keys()) - own:  # those were held against their own words
        allowed = alternatives(parameters[name])
        words = [get_args(each)[0] for each in allowed if get_origin(each) is Literal]
        if words and str not in allowed and isinstance(given[name], str):
            # A field may say in brackets what the word meant there: "counterfactual (source)".
            require_known(name, given[name].split(" (")[0], [word for word in words if isinstance(word, str)])


def _check_numbers(name: str, value: Any, annotation: Any) -> None:
    """Refuse a tensor of other numbers than its field is annotated with: whole ones where a mean is taken, say."""
    if not isinstance(value, Tensor):
        return
    kind = str(value.dtype).removeprefix("torch.")
    if kind not in getattr(annotation, "dtypes", (kind,)):
        raise UserError(f"{name} holds numbers of type {kind}, which it cannot")


def _check_axes(kind: Any, given: Mapping[str, Any]) -> None:
    sizes: dict[str, tuple[int, str]] = {}
    for name, axes in kind.AXES.items():
        value = given.get(name)
        if value is None:
            continue
        if not isinstance(value, Tensor) or value.dim() != len(axes):
            what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shown(value, 40)
            raise UserError(f"{name} is {what}; it must be a tensor with the axes {', '.join(axes) or 'of a number'}")
        for axis, size in zip(axes, value.shape, strict=True):
            first, other = sizes.setdefault(axis, (size, name))
            if first != size:
                raise UserError(f"{name} has {size} along {axis}, and {other} has {first}")
    for name, axes in kind.LISTS.items():
        _check_list(name, given.get(name), [(axis, sizes.get(axis)) for axis in axes])


def _check_list(name: str, value: Any, axes: Sequence[tuple[str, tuple[int, str] | None]]) -> None:
    if not axes or value is None:
        return
    (axis, known), *rest = axes
    if not isinstance(value, list | tuple) or (known is not None and len(value) != known[0]):
        found = len(value) if isinstance(value, list | tuple) else "no"
        raise UserError(
            f"{name} has {found} entries along {axis}" + (f", and {known[1]} has {known[0]}" if known else "")
        )
    for each in value:
        _check_list(name, each, rest)


def _types(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        try:
            found |= inspect.get_annotations(each, eval_str=True)
        except NameError:  # types that only a type checker knows are not judged
            continue
    return found


def _plain_type(annotation: Any) -> Any:
    """The type that a field has in JSON: objects, which the kind of result makes itself, are lists or tables there."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return reduce(operator.or_, map(_plain_type, args))
    if origin in (tuple, list, Sequence):
        return list | tuple if any(map(_is_object, args)) else annotation
    return annotation | list | tuple | dict if _is_object(annotation) else annotation


def _is_object(annotation: Any) -> bool:
    plain = (int, float, str, bool, NoneType)
    return isinstance(annotation, type) and get_origin(annotation) is None and annotation not in plain


def _has_words(annotation: Any) -> bool:
    return any(get_origin(each) is Literal for each in alternatives(annotation))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
