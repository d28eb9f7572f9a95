"""What a QK pattern is: which fact the question selects, and by what (docs/tasks.md).

A pattern is data; the rule that finds the source is one function for all of them, `select`, and reads
only the facts and what is asked, never how the example was drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from synthetic_tasks.sampling import DrawItems, DrawPersons

# What a question compares facts by: the person, the bare item, or the value R(item).
By = Literal["person", "item", "value"]
# What is answered: R(item) of the source (R applied after selection), or its person or bare item (R before).
Answer = Literal["value", "person", "item"]


@dataclass(frozen=True)
class Pattern:
    """A way to select one fact.

    by: what facts are compared by
    negated: the source is the fact that does not match (the question says `not` or `different`)
    questions: surface -> question template with fields `asked`, `predicate`, `phrase`, `Phrase`;
        a template without `asked` selects the odd one out
    needs_shared_values: the pattern makes sense only where several items share a value
    """

    name: str
    by: By
    negated: bool
    answer: Answer
    questions: Mapping[str, str]
    persons: DrawPersons
    items: DrawItems
    needs_shared_values: bool = False


def select(keys: Sequence[Sequence[str]], asked: str | None, negated: bool) -> tuple[int, ...]:
    """Places of the facts a question selects, given what each fact is compared by (several keys where R is free).

    asked None: the facts that share no key with another one.
    """
    if asked is not None:
        return tuple(place for place, key in enumerate(keys) if (asked in key) != negated)
    return tuple(
        place
        for place, key in enumerate(keys)
        if not any(set(key) & set(other) for elsewhere, other in enumerate(keys) if elsewhere != place)
    )
