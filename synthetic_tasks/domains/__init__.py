"""The domains, one file each; `DOMAINS` finds them."""

from collections.abc import Mapping

from synthetic_tasks.domain import Domain
from synthetic_tasks.registry import collect

DOMAINS: Mapping[str, Domain] = collect(__name__, "DOMAIN")
