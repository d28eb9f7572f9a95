"""The identity: the answer is the item itself."""

from synthetic_tasks.relation import Relation

RELATION = Relation("copy", values=lambda word: (word,), domains=("object", "city", "tool"))
