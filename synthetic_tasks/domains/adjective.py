"""Adjectives with their opposites (docs/tasks.md). Three of them have two opposites; the inverse is a function."""

from synthetic_tasks.domain import Domain, grouped, ungrouped
from synthetic_tasks.lexicon import Item, Predicate

PAIRS = """
active passive|bad good|beautiful ugly|brave cowardly|careful careless|clean dirty|comfortable uncomfortable
correct incorrect|dangerous safe|honest dishonest|loyal disloyal|fast slow|friendly unfriendly|generous stingy
ignorant knowledgeable|rational irrational|responsible irresponsible|lucky unlucky|optimistic pessimistic|poor rich
popular unpopular|reliable unreliable|right wrong|short tall|strong weak|successful unsuccessful
happy sad unhappy|healthy sick unhealthy|interesting uninteresting boring
"""
# Each cluster is a word followed by its opposite(s).
CLUSTERS = tuple(tuple(cluster.split()) for line in PAIRS.strip().splitlines() for cluster in line.split("|"))

OPPOSITES: dict[str, tuple[str, ...]] = {}
for first, *others in CLUSTERS:
    OPPOSITES[first] = tuple(others)
    OPPOSITES.update({other: (first,) for other in others})

# These occur in sets, questions and answers, but no released person has them.
NEVER_OF_A_PERSON = frozenset({"unhappy", "unhealthy", "uninteresting"})


def adjective(word: str) -> Item:
    return Item(word, stated=word, opening=word.capitalize(), listed=word)


ITEMS = {word: adjective(word) for word in sorted(OPPOSITES)}

DOMAIN = Domain(
    name="adjective",
    facts={"person-first": "{person} is {item.stated}", "item-first": "{item.opening} {person}"},
    # Antonyms may meet in person facts, but not in a set: only there they share a group.
    person_scopes=(ungrouped(item for word, item in ITEMS.items() if word not in NEVER_OF_A_PERSON),),
    set_scopes=(grouped(ITEMS, {cluster[0]: cluster for cluster in CLUSTERS}),),
    predicates=(Predicate("is", "is not"),),
)
