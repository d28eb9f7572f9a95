"""The question names a person: read the item of that person's fact."""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.sampling import different_items, different_names

QUESTION = "{asked} {predicate} {phrase}"

PATTERN = Pattern(
    name="same-person",
    by="person",
    negated=False,
    answer="value",
    questions={"person-first": QUESTION, "item-first": QUESTION, "so": QUESTION},
    persons=different_names,
    items=different_items,
)
