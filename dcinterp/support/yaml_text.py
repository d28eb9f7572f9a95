"""YAML that a person wrote: its value, or one sentence that says where it came from."""

from __future__ import annotations

from typing import Any

import yaml

from dcinterp.support.errors import UserError, reason

LARGEST = 100_000
"""Values, with what aliases repeat: a few lines of them can stand for billions."""

DEEPEST = 200
"""Brackets within brackets."""


def read_yaml(text: str, where: str) -> Any:
    """The value of a text.

    Args:
        text: YAML.
        where: the file, or the option; for the message.

    Raises:
        UserError: it is not valid YAML, or its aliases make it very large or endless.
    """
    try:
        if _depth(text) > DEEPEST:  # the parser would take seconds to say so
            raise RecursionError(f"its brackets are nested more than {DEEPEST} deep")
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML: {_reason(error)}.") from error
    count, rest = 0, [value]
    while rest:
        each = rest.pop()
        count += 1
        if isinstance(each, dict | list):
            rest.extend(each.values() if isinstance(each, dict) else each)
        if count > LARGEST:
            raise UserError(f"{where} holds more than {LARGEST:,} values, or an alias of itself; write it out.")
    return value


def _reason(error: Exception) -> str:
    """What is wrong, and in which line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return reason(error)
    return f"{reason(ValueError(error.problem))} (line {error.problem_mark.line + 1})"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping; PyYAML would drop the first without a word."""

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > LARGEST:  # before the next one takes this one several times
            raise ValueError(f"its merges (<<) come to more than {LARGEST:,} values")

    def compose_mapping_node(self, anchor: Any) -> Any:
        # Here, before `<<` is written out, after which keys may well stand there twice.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (named := (key.tag, key.value)) in seen:
                raise ValueError(f"the key {key.value!r} stands there twice (line {key.start_mark.line + 1})")
            if isinstance(key, yaml.ScalarNode):
                seen.add(named)
        return node


def _depth(text: str) -> int:
    """How deep brackets are nested, at most; those in quotes are counted too."""
    depth = deepest = 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        deepest = max(deepest, depth)
    return deepest
