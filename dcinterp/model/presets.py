"""Named models, as data: the paper's, with the hyperparameters they were trained with, and tiny ones for a laptop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dcinterp.support.errors import UserError, nearest

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
        "vit": dict(compose="none"),
    }
)
"""What tells the families apart; their DC versions add dynamic composition (and q/k norms for DCPythia)."""

_TALKING = dict(compose_skip=False, compose_options={"bias": True})
COMPOSED: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "talking-heads": dict(compose="static") | _TALKING,
        "differential": dict(compose="differential", norm_eps=1e-5),
        "fish": dict(compose="fish", compose_stages=("pre",)),
        "multi-token": dict(compose="multi-token", compose_groups=4),
        "dense-collaboration": dict(compose="dense-collaboration", compose_stages=("pre",)),
        "mixture-of-heads": dict(compose="mixture-of-heads"),
        "gated": dict(compose="gated", compose_options={"elementwise": True}),
        "dynamic-talking-heads": dict(compose="dynamic-talking-heads", compose_static=True),
    }
)
"""Families that are a `transformer++` with another way of composing heads than DCMHA."""

_DC = {"dcformer": "transformer", "dcformer++": "transformer++", "dcpythia": "pythia", "dcvit": "vit"}


def family(name: str) -> dict[str, Any]:
    """Config fields of a family: "transformer", "dcformer", "transformer++", "dcformer++", "pythia", "dcpythia", "vit",
    "dcvit", and those of `COMPOSED`."""
    if name in COMPOSED:
        return dict(COMPOSED[name])
    if name in FAMILIES:
        return dict(FAMILIES[name])
    if name not in _DC:
        raise UserError(f"There is no family {name!r}; {nearest(name, [*FAMILIES, *_DC, *COMPOSED])}")
    fields = FAMILIES[_DC[name]] | {"compose": "dynamic"}
    return fields | {"use_qk_norm": True} if name == "dcpythia" else fields


@dataclass(frozen=True)
class Preset:
    """A named configuration. `training` holds the paper's hyperparameters where it states them."""

    name: str
    family: str
    fields: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> bool:
        """Whether it is an image classifier."""
        return self.family in ("vit", "dcvit")

    def all_fields(self, **changes: Any) -> dict[str, Any]:
        """The fields of its configuration: those of the family, its own, and `changes` on top.

        With another way of composing, what only its own one takes is left out.
        """
        shared, own = dict(family(self.family)), dict(self.fields)
        if "compose" in changes and changes["compose"] != (shared | own).get("compose"):
            for fields, name in ((shared, "compose_options"), (own, "compose_options"), (shared, "compose_stages")):
                fields.pop(name, None)
        return shared | own | changes


def presets() -> Mapping[str, Preset]:
    """All presets by name."""
    return _PRESETS


def preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        UserError: there is none; the message suggests the nearest names.
    """
    if name.lower() not in _PRESETS:
        raise UserError(f"There is no preset {name!r}; {nearest(name, _PRESETS)}")
    return _PRESETS[name.lower()]


# 1/sqrt(128) instead of 0.02, embeddings of unit size and small writes at the start: at this width the task models
# found bare pairs with it where a flat 0.088 had not after 500 steps (one seed, no longer comparison).
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
_TINY_FAMILIES |= {name: dict(intermediate_size=352) for name in COMPOSED}
_TINY_VIT = dict(
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=8,
    intermediate_size=512,
    image_size=32,
    patch_size=4,
    num_labels=10,
)

_OPTIMISER = dict(optimizer="adamw", betas=(0.9, 0.95), weight_decay=0.1, gradient_clipping=1.0, dropout=0.0)
_SCHEDULE = dict(warmup_fraction=0.01, schedule="cosine", final_learning_rate_fraction=0.1)


def _scaling(learning_rate: float, tokens: float) -> dict[str, Any]:
    """The recipe of the scaling experiments: half a million tokens a batch."""
    return _OPTIMISER | _SCHEDULE | dict(learning_rate=learning_rate, batch_tokens=5e5, tokens=tokens, context=2048)


_SCALING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "405m": (dict(num_hidden_layers=24, hidden_size=1024, num_attention_heads=16), _scaling(3e-4, 7e9)),
    "834m": (dict(num_hidden_layers=24, hidden_size=1536, num_attention_heads=24), _scaling(2.5e-4, 15e9)),
    "1.4b": (dict(num_hidden_layers=24, hidden_size=2048, num_attention_heads=32), _scaling(2e-4, 26e9)),
}
_SWIGLU_WIDTH = {1024: 2816, 1536: 4096, 2048: 5632}  # 8/3 of the width, up to the next multiple of 256

_LLAMA_SHAPES = {
    "2.8b": dict(num_hidden_layers=32, hidden_size=2560, num_attention_heads=32, intermediate_size=6912),
    "6.9b": dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, intermediate_size=11008),
    "13b": dict(num_hidden_layers=40, hidden_size=5120, num_attention_heads=40, intermediate_size=13824),
    "33b": dict(num_hidden_layers=60, hidden_size=6656, num_attention_heads=52, intermediate_size=17920),
}
_PYTHIA_SHAPES = {
    "2.8b": (dict(num_hidden_layers=32, hidden_size=2560, num_attention_heads=32, intermediate_size=10240), 1.6e-4),
    "6.9b": (dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, intermediate_size=16384), 1.2e-4),
}
_VIT_SHAPES = {
    "s/16": dict(num_hidden_layers=12, hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "m/16": dict(num_hidden_layers=12, hidden_size=512, num_attention_heads=8, intermediate_size=2048),
}
_VIT_TRAINING = dict(
    optimizer="adamw",
    betas=(0.9, 0.9),
    weight_decay=1e-4,
    gradient_clipping=1.0,
    learning_rate=1e-3,
    warmup_steps=10_000,
    schedule="cosine",
    final_learning_rate_fraction=0.1,
    dropout=0.0,
)

# The paper's DC models alternate local and global attention; its baselines attend globally.
_LOCAL_GLOBAL = dict(attention_windows=(256, None))
_PAPER = dict(max_position_embeddings=2048)


def _build() -> Mapping[str, Preset]:
    tiny = [Preset(f"tiny-{name}", name, _TINY | fields) for name, fields in _TINY_FAMILIES.items()]
    tiny += [
        Preset(f"tiny-{name}-gqa", name, _TINY | _TINY_FAMILIES[name] | dict(num_key_value_heads=2))
        for name in ("transformer++", "dcformer++")
    ]
    tiny += [Preset(f"tiny-{name}", name, dict(_TINY_VIT)) for name in ("vit", "dcvit")]
    found = [*tiny, *_scaling_presets(), *_large_presets(), *_image_presets()]
    return MappingProxyType({preset.name: preset for preset in found})


def _scaling_presets() -> Iterator[Preset]:
    for size, (shape, training) in _SCALING.items():
        width = shape["hidden_size"]
        for name in ("transformer", "dcformer", "transformer++", "dcformer++"):
            inner = _SWIGLU_WIDTH[width] if name.endswith("++") else 4 * width
            composed: dict[str, Any] = dict(_LOCAL_GLOBAL) if name.startswith("dc") else {}
            if name == "dcformer++":
                composed = composed | dict(use_qk_norm=True)
            yield Preset(f"{name}-{size}", name, _PAPER | shape | dict(intermediate_size=inner) | composed, training)


def _large_presets() -> Iterator[Preset]:
    for size, (shape, rate) in _PYTHIA_SHAPES.items():
        training = _OPTIMISER | _SCHEDULE | dict(learning_rate=rate, batch_tokens=2**21, tokens=3e11, context=2048)
        yield Preset(f"pythia-{size}", "pythia", _PAPER | shape, training)
        edge = dict(window_includes_edge=True)
        yield Preset(f"dcpythia-{size}", "dcpythia", _PAPER | shape | _LOCAL_GLOBAL | edge, training)
    for size, shape in _LLAMA_SHAPES.items():
        yield Preset(f"transformer++-{size}", "transformer++", _PAPER | shape)
        yield Preset(f"dcformer++-{size}", "dcformer++", _PAPER | shape | _LOCAL_GLOBAL)


def _image_presets() -> Iterator[Preset]:
    for size, shape in _VIT_SHAPES.items():
        for name in ("vit", "dcvit"):
            yield Preset(f"{name}-{size}", name, shape | dict(num_labels=1000), _VIT_TRAINING)


_PRESETS = _build()
