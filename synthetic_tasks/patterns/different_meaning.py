"""The paper's synonym sets: `big, unhealthy, ill. Which is different?` Two words of one meaning, one of another."""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.sampling import nobody, two_of_a_group_and_other

PATTERN = Pattern(
    name="different-meaning",
    by="value",
    negated=True,
    answer="value",
    questions={"which-is-different": "Which is different? {Phrase}"},
    persons=nobody,
    items=two_of_a_group_and_other,
    needs_shared_values=True,
)
