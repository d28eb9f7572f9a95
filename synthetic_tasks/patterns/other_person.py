"""The question names a person and says `not`: read the item of the other person, who has one fact."""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.patterns.same_person import QUESTION
from synthetic_tasks.sampling import different_items, one_against_the_rest

PATTERN = Pattern(
    name="the-other-person",
    by="person",
    negated=True,
    answer="value",
    questions={"person-first": QUESTION, "item-first": QUESTION, "so": QUESTION},
    persons=one_against_the_rest,
    items=different_items,
)
