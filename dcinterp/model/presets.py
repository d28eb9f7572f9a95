"""Named models: the paper's, with the hyperparameters they were trained with, and tiny ones for a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dcinterp.errors import UserError, nearest
from dcinterp.model.config import DCFormerConfig

FAMILIES: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "transformer": dict(
            norm_type="layernorm",
            mlp_type="gelu",
            position_type="learned",
            use_bias=True,
            norm_eps=1e-5,
            compose="none",
        ),
        "transformer++": dict(compose="none"),
        "pythia": dict(
            norm_type="layernorm",
            mlp_type="gelu",
            rotary_fraction=0.25,
            use_parallel_residual=True,
            use_bias=True,
            norm_eps=1e-5,
            compose="none",
        ),
    }
)
"""What tells the families apart; their DC versions add dynamic composition (and q/k norms for DCPythia)."""

_DC = {"dcformer": "transformer", "dcformer++": "transformer++", "dcpythia": "pythia"}


def family(name: str) -> dict[str, Any]:
    """Config fields of a family: "transformer", "dcformer", "transformer++", "dcformer++", "pythia" or "dcpythia"."""
    if name in FAMILIES:
        return dict(FAMILIES[name])
    if name not in _DC:
        raise UserError(f"There is no family {name!r}; {nearest(name, [*FAMILIES, *_DC])}")
    fields = FAMILIES[_DC[name]] | {"compose": "dynamic"}
    return fields | {"use_qk_norm": True} if name == "dcpythia" else fields


@dataclass(frozen=True)
class Preset:
    """A named configuration. `training` holds the paper's hyperparameters where it states them."""

    name: str
    family: str
    fields: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)

    def config(self, **changes: Any) -> DCFormerConfig:
        """The configuration, with `changes` on top."""
        return DCFormerConfig(**(family(self.family) | self.fields | changes))


def presets() -> Mapping[str, Preset]:
    """All presets by name."""
    return _PRESETS


def preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        UserError: there is none; the message suggests the nearest names.
    """
    if name not in _PRESETS:
        raise UserError(f"There is no preset {name!r}; {nearest(name, _PRESETS)}")
    return _PRESETS[name]


# 1/sqrt(128) instead of 0.02, embeddings of unit size and small writes at the start: at this width the task models
# learn retrieval several times sooner with it.
_TINY = dict(
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=8,
    initializer_range=0.088,
    embedding_initializer_range=1.0,
    depth_scaled_init=True,
)
_TINY_FAMILIES = {
    "transformer": dict(intermediate_size=512),
    "dcformer": dict(intermediate_size=512),
    "transformer++": dict(intermediate_size=352),
    "dcformer++": dict(intermediate_size=352),
    "pythia": dict(intermediate_size=512),
    "dcpythia": dict(intermediate_size=512),
}


def _build() -> Mapping[str, Preset]:
    tiny = [Preset(f"tiny-{name}", name, _TINY | fields) for name, fields in _TINY_FAMILIES.items()]
    return MappingProxyType({p.name: p for p in tiny})


_PRESETS = _build()
