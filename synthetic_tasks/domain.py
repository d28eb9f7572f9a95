"""What a domain is: the items facts are about, how they are grouped, and how they are put into words."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from synthetic_tasks.lexicon import Item, Predicate


@dataclass(frozen=True)
class Scope:
    """Items that may meet in one example, in groups; two items of one group never count as different.

    `unit` is the word the question uses for them ("year"); empty where there is only one scope.
    """

    groups: tuple[tuple[Item, ...], ...]
    unit: str = ""

    @cached_property
    def items(self) -> tuple[Item, ...]:
        return tuple(item for group in self.groups for item in group)

    @cached_property
    def group_of(self) -> dict[str, int]:
        return {item.word: number for number, group in enumerate(self.groups) for item in group}

    def outside(self, group: int) -> tuple[Item, ...]:
        """The items of all other groups."""
        return self._outside[group]

    @cached_property
    def _outside(self) -> tuple[tuple[Item, ...], ...]:
        group_of = self.group_of
        return tuple(
            tuple(item for item in self.items if group_of[item.word] != group) for group in range(len(self.groups))
        )

    def keep(self, wanted: Callable[[str], bool]) -> "Scope":
        """This scope with only the wanted items."""
        groups = (tuple(item for item in group if wanted(item.word)) for group in self.groups)
        return Scope(tuple(group for group in groups if group), self.unit)

    def groups_of_at_least(self, size: int) -> tuple[int, ...]:
        """The numbers of the groups with `size` items or more."""
        return tuple(number for number, group in enumerate(self.groups) if len(group) >= size)


@dataclass(frozen=True)
class Domain:
    """A table of items with their sentence forms.

    facts: surface -> template of one fact, with the fields `person` and `item` (an Item, so `item.stated` works)
    predicates: paraphrases used in questions about persons; a row keeps one
    person_scopes / set_scopes: items used with persons / in sets (they differ where docs/tasks.md says so)
    copied_in_set: the word before a copied item in a set answer ("The" for nouns)
    """

    name: str
    facts: Mapping[str, str]
    person_scopes: tuple[Scope, ...]
    set_scopes: tuple[Scope, ...]
    predicates: tuple[Predicate, ...] = ()
    copied_in_set: str = ""

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """Every item by its bare word, in table order."""
        scopes = self.person_scopes + self.set_scopes
        return {item.word: item for scope in scopes for item in scope.items}

    @cached_property
    def unit_of(self) -> Mapping[str, str]:
        scopes = self.person_scopes + self.set_scopes
        return {item.word: scope.unit for scope in scopes for item in scope.items}


def grouped(items: Mapping[str, Item], groups: Mapping[str, Iterable[str]], unit: str = "") -> Scope:
    """One scope whose groups are those of a table of words."""
    return Scope(tuple(tuple(items[word] for word in members) for members in groups.values()), unit)


def ungrouped(items: Iterable[Item], unit: str = "") -> Scope:
    """One scope in which every item is a group of its own."""
    return Scope(tuple((item,) for item in items), unit)
