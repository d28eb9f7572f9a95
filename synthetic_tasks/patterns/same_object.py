"""The question names a value: who has the item of that value?"""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.sampling import different_items, different_names

QUESTION = "Who {predicate} {phrase} {asked}?"

PATTERN = Pattern(
    name="same-object",
    by="value",
    negated=False,
    answer="person",
    questions={"person-first": QUESTION, "item-first": QUESTION},
    persons=different_names,
    items=different_items,
)
