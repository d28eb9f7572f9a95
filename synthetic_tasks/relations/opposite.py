"""Adjective to its opposite; happy, healthy and interesting have two."""

from synthetic_tasks.domains.adjective import OPPOSITES
from synthetic_tasks.relation import Relation

RELATION = Relation("adj->opposite", OPPOSITES.__getitem__, domains=("adjective",), phrase="the opposite of")
