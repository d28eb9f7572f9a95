"""How persons and items are drawn (docs/tasks.md).

All draws go through `Random.random()`, whose stream is the same on every platform; the helpers of `random`
(`choice`, `sample`, `shuffle`) have changed between Python versions and are not used.
"""

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from synthetic_tasks.domain import Scope
from synthetic_tasks.lexicon import FEMALE_NAMES, MALE_NAMES, NAMES, Item

Value = TypeVar("Value")


class DrawPersons(Protocol):
    def __call__(self, rng: Random, source: int, size: int) -> list[str]: ...


class DrawItems(Protocol):
    def __call__(self, rng: Random, scope: Scope, by_group: bool, source: int, size: int) -> list[Item]: ...


def choose(rng: Random, values: Sequence[Value]) -> Value:
    """One value, uniformly."""
    return values[int(rng.random() * len(values))]


def choose_weighted(rng: Random, values: Sequence[Value], weights: Sequence[float]) -> Value:
    """One value with probability proportional to its weight."""
    mark = rng.random() * sum(weights)
    for value, weight in zip(values, weights, strict=True):
        mark -= weight
        if mark < 0:
            return value
    return values[-1]


def distinct(rng: Random, values: Sequence[Value], count: int) -> list[Value]:
    """`count` values at different places of `values`, uniformly and in random order, in a fixed number of draws."""
    taken: list[int] = []
    for _ in range(count):
        place = int(rng.random() * (len(values) - len(taken)))
        for other in sorted(taken):
            if place >= other:
                place += 1
        taken.append(place)
    return [values[place] for place in taken]


def shuffled(rng: Random, values: Sequence[Value]) -> list[Value]:
    return distinct(rng, values, len(values))


def different_names(rng: Random, source: int, size: int) -> list[str]:
    """A different person in every fact; gender is free."""
    return distinct(rng, NAMES, size)


def one_against_the_rest(rng: Random, source: int, size: int) -> list[str]:
    """One person holds the source fact and one of the other gender all the others: ABB, BAB, BBA."""
    genders = (MALE_NAMES, FEMALE_NAMES) if rng.random() < 0.5 else (FEMALE_NAMES, MALE_NAMES)
    alone, asked = choose(rng, genders[0]), choose(rng, genders[1])
    return [alone if place == source else asked for place in range(size)]


def nobody(rng: Random, source: int, size: int) -> list[str]:
    """Sets have no persons."""
    return [""] * size


def different_items(rng: Random, scope: Scope, by_group: bool, source: int, size: int) -> list[Item]:
    """Different words; `by_group`: a group uniformly, one of its words as source, and distractors of other groups."""
    if not by_group:
        return distinct(rng, scope.items, size)
    group = int(rng.random() * len(scope.groups))
    items = distinct(rng, scope.outside(group), size - 1)
    items.insert(source, choose(rng, scope.groups[group]))
    return items


def twice_and_other(rng: Random, scope: Scope, by_group: bool, source: int, size: int) -> list[Item]:
    """One word, uniform over words, in every fact but the source; there a word of another group."""
    repeated = choose(rng, scope.items)
    other = choose(rng, scope.outside(scope.group_of[repeated.word]))
    return [other if place == source else repeated for place in range(size)]


def two_of_a_group_and_other(rng: Random, scope: Scope, by_group: bool, source: int, size: int) -> list[Item]:
    """Different words of one group, uniform over groups, in every fact but the source; there one of another group."""
    candidates = scope.groups_of_at_least(size - 1)
    group = choose(rng, candidates)
    items = distinct(rng, scope.groups[group], size - 1)
    items.insert(source, choose(rng, scope.outside(group)))
    return items


def same_value_and_other(rng: Random, scope: Scope, by_group: bool, source: int, size: int) -> list[Item]:
    """Distractors that share their value: two words of a group, or one word twice where groups do not share values."""
    draw = two_of_a_group_and_other if by_group else twice_and_other
    return draw(rng, scope, by_group, source, size)


def source_positions(rng: Random, examples: int, size: int) -> list[int]:
    """Balanced source positions for a row of `examples` with `size` facts each, in random order.

    Every position holds examples // size; the remainder goes to different positions, or, in 199 of 441 released
    rows of eight, to one position twice (docs/tasks.md: patterns 3,3,2 and 4,2,2).
    """
    positions = list(range(size)) * (examples // size)
    rest = examples % size
    if rest == 2 and rng.random() < 199 / 441:
        positions += [int(rng.random() * size)] * 2
    else:
        positions += distinct(rng, range(size), rest)
    return shuffled(rng, positions)
