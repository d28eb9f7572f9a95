"""Configs of composition that the tests of what runs in C++ share."""

from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "both": {},
    "rank 1": dict(compose_rank=1),
    "rank 3, groups": dict(compose_rank=3, compose_groups=2),
    "no gate": dict(compose_gate=False),
    "no projection": dict(compose_projection=False),
    "query side": dict(compose_key_wise=False),
    "key side": dict(compose_query_wise=False),
    "post": dict(compose_stages=("post",)),
    "static, no skip": dict(compose_static=True, compose_skip=False),
}
