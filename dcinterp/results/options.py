"""Arguments of an analysis from the text that a person types on the command line.

    parse(parameter, "-1")       # by the parameter's annotation: a number, a word, a list, an example of the tasks

Texts are taken as they are. A token id is written #12, so that 2017 stays a word; ids of a prompt are [5, 7, 9]. A text
that looks like such data is written as JSON: "[5, 7]", with the quotes.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dcinterp.results.call import QUOTED, TOKEN_ARGUMENTS, from_plain
from dcinterp.support.errors import UserError, nearest, reason
from dcinterp.support.json_files import parse_json
from dcinterp.support.text import shown


def parameter_types(function: Callable[..., Any], *, ranges: bool = False) -> dict[str, Any]:
    """The types of a function's parameters; those that only a type checker knows are looked up in the tasks.

    ranges: with the ranges of numbers (see dcinterp.support.ranges).
    """
    import synthetic_tasks

    plain = inspect.unwrap(function)
    tasks = {name: what for name, what in vars(synthetic_tasks).items() if name not in plain.__globals__}
    return get_type_hints(plain, localns=tasks, include_extras=ranges)


def members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(each for arg in get_args(annotation) for each in members(arg))
    return (annotation,)


def parse(name: str, annotation: Any, text: str) -> Any:
    """The value that `text` stands for.

    Args:
        name: the parameter's name, for the message and for token ids.
        annotation: its type.
        text: what was typed.

    Raises:
        UserError: the text is not a value of that type.
    """
    types_, option = members(annotation), name.replace("_", "-")
    if str in types_ and text.startswith(QUOTED):
        with suppress(ValueError, RecursionError):
            return str(json.loads(text))
    if name in TOKEN_ARGUMENTS and int in types_ and text.startswith("#") and text[1:].isdecimal():
        return int(text[1:])
    if text[:1] in ("[", "{") and any(_is_data(each) for each in types_):
        try:
            found = parse_json(text)
        except ValueError as error:
            # A text may begin with a bracket, but one of digits and commas alone is meant as ids.
            if str not in types_ or re.fullmatch(r"[\[\]\s\d.,-]+", text):
                raise UserError(
                    f"--{option} is not a valid JSON list ({reason(error)}); write it like [1, 2]."
                ) from error
        else:
            return from_plain(found)
    for each in types_:
        if get_origin(each) is Literal:
            choices = get_args(each)
            if text not in choices:
                raise UserError(f"--{option} cannot be {shown(text)}; {nearest(text[:60], map(str, choices))}")
            return text
    if str in types_:
        return text
    for kind in (int, float):
        if kind in types_:
            try:
                return kind(text)
            except ValueError:
                continue
    for each in filter(_is_data, types_):
        return [_part(option, members(next(iter(get_args(each)), Any)), part.strip()) for part in text.split(",")]
    raise UserError(f"--{option} cannot be {shown(text)}; it takes {_described(types_)}.")


def _is_data(annotation: Any) -> bool:
    """Whether a value of this type is written as JSON: lists, examples, tensors of ids."""
    origin = get_origin(annotation) or annotation
    return isinstance(origin, type) and (
        (issubclass(origin, Collection) and not issubclass(origin, str))
        or origin is Sequence
        or origin.__name__ in ("Example", "Tensor")
    )


def _part(option: str, types_: tuple[Any, ...], text: str) -> int | float | str:
    """One entry of a list: as a prompt's words, an id is written #12 where an entry may be a word too."""
    if str in types_:
        return int(text[1:]) if int in types_ and text[:1] == "#" and text[1:].isdecimal() else text
    number = _number(text)
    if types_ == (int,) and not isinstance(number, int):
        raise UserError(f"--{option} takes whole numbers, separated by commas, not {shown(text)}.")
    return number


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _described(types_: tuple[Any, ...]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return " or ".join(
        words.get(each, getattr(each, "__name__", str(each))) for each in types_ if each is not type(None)
    )
