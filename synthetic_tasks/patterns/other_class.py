"""The paper's the-other-class: `a sweater, an elephant, a shirt. Which is not clothing? The elephant`.

Two words of one value and one of another; the question names the value, so the relation is applied before the
selection and the item itself is the answer.
"""

from synthetic_tasks.pattern import Pattern
from synthetic_tasks.sampling import nobody, two_of_a_group_and_other

PATTERN = Pattern(
    name="the-other-class",
    by="value",
    negated=True,
    answer="item",
    questions={"which-is-not": "Which is not {asked}? {Phrase}"},
    persons=nobody,
    items=two_of_a_group_and_other,
    needs_shared_values=True,
)
