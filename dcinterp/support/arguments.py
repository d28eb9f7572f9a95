"""Whether an argument is what its parameter's type says: one check at the border, for every analysis.

require_fitting("layer", 1.5, int | None)              # UserError: layer is 1.5; it must be a whole number or None.
require_fitting("at", "x", Literal["q", "k"])          # UserError: There is no at 'x'; choose from k, q.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from contextlib import suppress
from numbers import Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from dcinterp.support.errors import UserError, nearest, require_known
from dcinterp.support.ranges import require_in_range
from dcinterp.support.text import shown

_IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "True or False", NoneType: "None"}
_SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}
_LISTS = (Sequence, list, tuple)
_NO_LIST = (str, bytes, bytearray, Mapping)


def require_fitting(name: str, value: Any, annotation: Any) -> None:
    """Refuse an argument of another type than its parameter's, of words that are not its own, or out of its range.

    Types that hold other things than numbers, words, lists and classes (a callable, the shape of a tensor, a protocol
    unless it is runtime-checkable) are not judged; what a list holds is judged where it is numbers or text.

    Raises:
        UserError: it does not fit; the message names the parameter, the value and what it may be.
    """
    allowed = alternatives(annotation)
    if not any(_fits(value, each) for each in allowed):
        words = [word for each in allowed if get_origin(each) is Literal for word in get_args(each)]
        if isinstance(value, str) and all(isinstance(word, str) for word in words) and words:
            require_known(name, value, words)
        _require_known_items(name, value, allowed)
        raise UserError(f"{name} is {shown(value)}; it must be {_listed(_words(allowed, _in_words))}.")
    require_in_range(name, value, annotation)


def _require_known_items(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuse the first text of a list that is not one of the words the list may hold, where these are all it may."""
    held = [each for kind in allowed if get_origin(kind) in _LISTS for each in _items(kind)]
    words = [get_args(each)[0] for each in held if get_origin(each) is Literal]
    if words and len(words) == len(held) and _is_list(value):
        for item in value:
            if isinstance(item, str) and item not in words:
                raise UserError(f"{name} has {shown(item)}; {nearest(item, words)}")


def alternatives(annotation: Any) -> list[Any]:
    """The types that a union allows; each word of a Literal counts by itself."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return alternatives(args[0])
    if origin in (Union, UnionType):
        return [each for arg in args for each in alternatives(arg)]
    if origin is Literal:
        return [Literal[word] for word in args]
    return [NoneType if annotation is None else annotation]


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return type(value) is type(get_args(kind)[0]) and value == get_args(kind)[0]
    if kind is bool:
        return (isinstance(value, int) and value in (0, 1)) or type(value).__name__ in ("bool", "bool_")  # numpy's
    if kind is int:
        return not isinstance(value, bool) and _whole(value)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _countable(value)
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        places = get_args(kind)
        return _is_list(value) and len(value) == len(places) and all(map(_place_fits, value, places))
    if get_origin(kind) in _LISTS:
        return _is_list(value) and all(_item_fits(item, kind) for item in value)
    if get_origin(kind) in (dict, Mapping):
        return isinstance(value, Mapping)
    known = not getattr(kind, "_is_protocol", False) or getattr(kind, "_is_runtime_protocol", False)
    if isinstance(kind, type) and known:
        # Lists of numbers become tensors where a tensor is allowed; their shape is the function's to judge.
        return isinstance(value, kind) or (kind.__name__ == "Tensor" and isinstance(value, list | tuple))
    return True


def _whole(value: Any) -> bool:
    """Whole numbers are also those of NumPy, and tensors that hold one."""
    with suppress(TypeError, RuntimeError, ValueError):
        operator.index(value)
        return True
    return False


def _countable(value: Real) -> bool:
    """JSON and Python know whole numbers that no number of a computation holds, of four hundred digits say."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_list(value: Any) -> bool:
    several = isinstance(value, Iterable) and isinstance(value, Sized) and not isinstance(value, _NO_LIST)
    return several and getattr(value, "ndim", 1) > 0


def _item_fits(item: Any, kind: Any) -> bool:
    return any(_fits(item, each) for each in _items(kind))


def _items(kind: Any) -> list[Any]:
    """The types that the items of a list may have."""
    return [each for arg in get_args(kind) if arg is not Ellipsis for each in alternatives(arg)]


def _place_fits(item: Any, annotation: Any) -> bool:
    return any(_fits(item, each) for each in alternatives(annotation))


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return repr(get_args(kind)[0])
    if get_origin(kind) in (*_LISTS, Set):
        held = [each for arg in get_args(kind)[:1] for each in alternatives(arg)]
        named = _words(
            [each for each in held if each is not Any], lambda each: _SEVERAL.get(each) or _item_in_words(each)
        )
        return f"a list of {_listed(named)}" if named else "a list"
    if get_origin(kind) in (dict, Mapping):
        return "a table of names and values"
    return _IN_WORDS.get(kind) or f"{_article(_name(kind))} {_name(kind)}"


def _item_in_words(kind: Any) -> str:
    return _in_words(kind) if get_origin(kind) is Literal or kind is NoneType else _name(kind)


def _words(kinds: Sequence[Any], words: Callable[[Any], str]) -> list[str]:
    """Each once: a tuple and a list have the same."""
    return list(dict.fromkeys(map(words, kinds)))


def _name(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _article(word: str) -> str:
    return "an" if word[:1] in "AEIOaeio" else "a"


def _listed(wanted: Sequence[str]) -> str:
    return wanted[0] if len(wanted) == 1 else f"{', '.join(wanted[:-1])} or {wanted[-1]}"
