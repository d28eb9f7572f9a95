"""Units of work and what is told of them, wherever they are made."""

from collections.abc import Callable
from functools import partial
from typing import Any

from dcinterp.support.progress import all_once

UNITS = [(f"unit {n}", partial(int, n)) for n in range(3)]


class Keeping:
    """A callback that has seen some of the work before."""

    def __init__(self, known: dict[str, int]) -> None:
        self.known = known
        self.told: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int, message: str = "") -> None:
        self.told.append((done, total))

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        return self.known[name] if name in self.known else make()


class Elsewhere:
    """A callback that has them made by others."""

    def __call__(self, done: int, total: int, message: str = "") -> None:
        raise AssertionError("nothing is made here")

    def keep_all(self, units: Any, before: int, later: int) -> list[Any]:
        return [(name, before, later) for name, _ in units]


def test_what_was_found_comes_in_order_and_one_by_one() -> None:
    told: list[Any] = []
    seen: list[int] = []
    found = all_once(lambda *call: told.append(call), UNITS, after=lambda some: seen.append(len(some)))
    assert found == [0, 1, 2]
    assert told == [(1, 3, "unit 0"), (2, 3, "unit 1"), (3, 3, "unit 2")]
    assert seen == [1, 2, 3]


def test_units_of_two_calls_are_counted_together() -> None:
    told: list[Any] = []
    for before in (0, 3):
        all_once(lambda *call: told.append(call[:2]), UNITS, before=before, later=3 - before)
    assert told == [(done, 6) for done in range(1, 7)]


def test_a_callback_decides_where_a_unit_comes_from() -> None:
    keeping = Keeping({"unit 1": 10})
    assert all_once(keeping, UNITS) == [0, 10, 2]
    assert keeping.told == [(1, 3), (2, 3), (3, 3)]
    assert all_once(Elsewhere(), UNITS, before=4, later=5) == [(f"unit {n}", 4, 5) for n in range(3)]


def test_units_may_tell_themselves() -> None:
    told: list[Any] = []
    assert all_once(lambda *call: told.append(call), UNITS, report=False) == [0, 1, 2]
    assert not told
