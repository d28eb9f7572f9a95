"""Points in time on five scales without wrap-around (docs/tasks.md).

A person's item must have a next point, an item of a set both a next and a previous one.
"""

from synthetic_tasks.domain import Domain, ungrouped
from synthetic_tasks.lexicon import Item, Predicate

# unit -> (preposition, points in order)
SCALES: dict[str, tuple[str, tuple[str, ...]]] = {
    "year": ("in", tuple(str(year) for year in range(2010, 2020))),
    "time": ("at", tuple(f"{hour} o'clock" for hour in range(1, 13))),
    "day": ("on", ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")),
    "month": (
        "in",
        tuple("January February March April May June July August September October November December".split()),
    ),
    "season": ("in", ("spring", "summer", "autumn", "winter")),
}


def point(word: str, preposition: str) -> Item:
    return Item(word, stated=f"{preposition} {word}", opening=f"{preposition.capitalize()} {word}", listed=word)


POINTS = {unit: tuple(point(word, preposition) for word in words) for unit, (preposition, words) in SCALES.items()}

DOMAIN = Domain(
    name="ordinal",
    facts={"person-first": "{person} arrived {item.stated}", "item-first": "{item.opening} arrived {person}"},
    person_scopes=tuple(ungrouped(points[:-1], unit) for unit, points in POINTS.items()),
    set_scopes=tuple(ungrouped(points[1:-1], unit) for unit, points in POINTS.items()),
    predicates=(
        Predicate("arrived", "did not arrive", 6, 7),
        Predicate("appeared", "did not appear", 10, 6),
        Predicate("showed up", "did not show up", 8, 11),
    ),
)
