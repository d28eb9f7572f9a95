"""Adjective to any word of the opposite meaning."""

from synthetic_tasks.domains.synonym import OPPOSITES
from synthetic_tasks.relation import Relation

RELATION = Relation(
    "synonym->opposite",
    OPPOSITES.__getitem__,
    domains=("synonym",),
    phrase="the opposite of",
    many_to_one=True,
)
