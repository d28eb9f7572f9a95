"""Ways of composing attention heads, one file each; `COMPOSERS` is the registry that the config's `compose` names.

A way of composing is a module built from a config, with `weights(x_query, x_key) -> ComposeWeights` and
`forward(attention, weights, taps) -> attention`; a module with parameters of its own also has `initialise()`. To add
one: a file here, one line below and its name in `config.ComposeKind`; tests/contract/test_compose.py then covers it.
"""

from collections.abc import Callable

from torch import nn

from dcinterp.model.compose.branches import BRANCHES, DYNAMIC_WEIGHTS, ComposeWeights, branches, compose
from dcinterp.model.compose.dynamic import DynamicCompose
from dcinterp.model.compose.static import StaticCompose
from dcinterp.model.config import DCFormerConfig

COMPOSERS: dict[str, Callable[[DCFormerConfig], nn.Module] | None] = {
    "dynamic": DynamicCompose,
    "static": StaticCompose,
    "none": None,
}

__all__ = ["BRANCHES", "COMPOSERS", "DYNAMIC_WEIGHTS", "ComposeWeights", "branches", "compose"]
