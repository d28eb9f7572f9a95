"""The surfaces: how the facts of an example are laid out (docs/tasks.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Surface:
    """opening + facts joined by `joiner` + closing, and then the question.

    fact: the key of `Domain.facts`, or None for a set, which lists bare items
    size: number of facts
    """

    name: str
    fact: str | None
    opening: str
    joiner: str
    closing: str
    size: int = 3


ALL = (
    Surface("person-first", "person-first", "< ", ". ", ". >. "),
    Surface("item-first", "item-first", "< ", ". ", ". >. "),
    Surface("which-is-not", None, "There are ", ", ", ". "),
    Surface("which-is-different", None, "There are ", ", ", ". "),
    Surface("so", "person-first", "", ". ", ". So ", size=2),  # the two-fact example of the paper's text
)
SURFACES: Mapping[str, Surface] = MappingProxyType({surface.name: surface for surface in ALL})
