"""Object to the class it belongs to."""

from synthetic_tasks.domains.object import CLASSES
from synthetic_tasks.relation import Relation, inverted

RELATION = Relation("obj->superclass", inverted(CLASSES), domains=("object",), phrase="a kind of", many_to_one=True)
