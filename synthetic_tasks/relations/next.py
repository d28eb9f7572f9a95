"""A point in time to the next one: who came in 2013 came `the year just before 2014`."""

from synthetic_tasks.domains.ordinal import SCALES
from synthetic_tasks.relation import Relation

NEXT = {word: (after,) for _, words in SCALES.values() for word, after in zip(words, words[1:], strict=False)}

RELATION = Relation("ordinal->next", NEXT.__getitem__, domains=("ordinal",), phrase="the {unit} just before")
