"""One word twice and another one: read the item that occurs once. Naming the repeated word adds nothing new."""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.sampling import nobody, twice_and_other

PATTERN = Pattern(
    name="different-in-set",
    by="item",
    negated=True,
    answer="value",
    questions={
        "which-is-not": "Which is not {asked}? {Phrase}",
        "which-is-different": "Which is different? {Phrase}",
    },
    persons=nobody,
    items=twice_and_other,
)
