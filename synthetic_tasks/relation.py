"""What a relation is: the transformation R from an item to a value, and the words a question names it by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Relation:
    """A transformation of items.

    values: item word -> accepted values, never empty; where there are several the official one is a free draw
    domains: the domains it is defined on
    phrase: the words before the value ("a kind of"); may hold `{unit}`
    many_to_one: several items share a value, so that sampling goes by groups (docs/tasks.md)
    """

    name: str
    values: Callable[[str], tuple[str, ...]]
    domains: tuple[str, ...]
    phrase: str = ""
    many_to_one: bool = False


def inverted(groups: Mapping[str, tuple[str, ...]]) -> Callable[[str], tuple[str, ...]]:
    """The function member -> (group,) of a table group -> members."""
    return {member: (group,) for group, members in groups.items() for member in members}.__getitem__
