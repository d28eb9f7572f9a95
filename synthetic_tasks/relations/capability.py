"""Tool to what one can do with it."""

from synthetic_tasks.domains.tool import CAPABILITIES
from synthetic_tasks.relation import Relation, inverted

RELATION = Relation(
    "obj->capability",
    inverted(CAPABILITIES),
    domains=("tool",),
    phrase="the thing that can",
    many_to_one=True,
)
