"""The question names a value and says `not`: who has the item of another value?"""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.patterns.same_object import QUESTION
from synthetic_tasks.sampling import different_names, same_value_and_other

PATTERN = Pattern(
    name="the-other-object",
    by="value",
    negated=True,
    answer="person",
    questions={"person-first": QUESTION, "item-first": QUESTION},
    persons=different_names,
    items=same_value_and_other,
)
