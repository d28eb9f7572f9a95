"""City to country."""

from synthetic_tasks.domains.city import COUNTRIES
from synthetic_tasks.relation import Relation, inverted

RELATION = Relation("city->country", inverted(COUNTRIES), domains=("city",), phrase="the city in", many_to_one=True)
