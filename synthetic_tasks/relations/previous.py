"""A point in time to the previous one: 2013 is `the year just after 2012`."""

from synthetic_tasks.domains.ordinal import SCALES
from synthetic_tasks.relation import Relation

PREVIOUS = {word: (before,) for _, words in SCALES.values() for before, word in zip(words, words[1:], strict=False)}

RELATION = Relation("ordinal->prev", PREVIOUS.__getitem__, domains=("ordinal",), phrase="the {unit} just after")
