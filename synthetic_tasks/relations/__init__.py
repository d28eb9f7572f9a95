"""The relations, one file each; `RELATIONS` finds them."""

from collections.abc import Mapping

from synthetic_tasks.registry import collect
from synthetic_tasks.relation import Relation

RELATIONS: Mapping[str, Relation] = collect(__name__, "RELATION")
