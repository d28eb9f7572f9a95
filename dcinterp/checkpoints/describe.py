"""What a model is and what it takes, from its files alone or from a loaded bridge.

dcinterp.describe("dcformer++").weights_bytes     # before loading: config.json and the headers of the weights
dcinterp.describe(bridge).composition             # after
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from dcinterp.bridge.protocol import Bridge
from dcinterp.checkpoints.adapters import base_of
from dcinterp.checkpoints.fit import require_next_token
from dcinterp.checkpoints.gguf_file import gguf_facts
from dcinterp.checkpoints.hub import cached_snapshot
from dcinterp.checkpoints.layouts import LAYOUTS, CheckpointTensors, opens_by_default, read_foreign_config
from dcinterp.checkpoints.names import (
    OWN,
    folder_of,
    gguf_file,
    is_adapter,
    is_composition,
    refuse_file,
)
from dcinterp.checkpoints.read import OURS, our_config, read_config_file, require_whole
from dcinterp.model.added_composition import AddedComposition, composed_config
from dcinterp.model.build import count_parameters
from dcinterp.model.compose.registry import composer_class
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.model.presets import COMPOSED, family
from dcinterp.support.errors import UserError
from dcinterp.support.file_names import COMPOSITION

# What the process of `dcinterp load` takes for a model of no size; tests/unit/cli measures it.
BUFFER = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|inv_freq|masked_bias)$")
"""Masks and tables of rotary embeddings, in checkpoints of older versions of transformers."""

LIBRARIES_BYTES = 500_000_000


@dataclass(frozen=True)
class Description:
    """A model in numbers. What cannot be known without loading, or does not apply, is None.

    key_value_heads: fewer than heads where several share them.
    name: what was asked for; family: one of the families of docs/models.md, or the `model_type` of a foreign model;
    composition: in words, empty for a model whose heads are not composed; parameters, composition_parameters: counts;
    dtype: of the stored weights; weights_bytes: memory of the weights in that dtype;
    attention_bytes: one layer's attention matrices of one full context in float32, which a cache of hooks multiplies.
    """

    name: str
    family: str
    layers: int | None
    width: int | None
    heads: int | None
    key_value_heads: int | None
    head_width: int | None
    mlp_width: int | None
    vocabulary: int | None
    context: int | None
    windows: tuple[int | None, ...]
    composition: str
    parameters: int
    composition_parameters: int
    dtype: str
    weights_bytes: int
    attention_bytes: int | None

    @property
    def loading_bytes(self) -> int:
        """About what a process needs that loads the model: the weights, and the libraries."""
        return self.weights_bytes + LIBRARIES_BYTES

    def record(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self) | {"loading_bytes": self.loading_bytes}

    def sentences(self) -> list[str]:
        """The same for a person, a line a topic."""
        layers = "1 layer" if self.layers == 1 else f"{self.layers} layers"
        few = self.key_value_heads is not None and self.key_value_heads != self.heads
        shared = f" ({self.key_value_heads} of keys and values)" if few else ""
        mlp = f", MLP {self.mlp_width}" if self.mlp_width else ", no MLP" if self.mlp_width == 0 else ""
        if any(self.windows):
            seen = sorted({"all" if each is None else f"{each:,}" for each in self.windows})
            mlp += f", windows {' and '.join(seen)}"
        shape = f"{layers}, width {self.width}, {self.heads} heads of {self.head_width}{shared}{mlp}"
        texts = f", {self.vocabulary:,} tokens, context {self.context}" if self.vocabulary and self.context else ""
        share = f", {self.composition_parameters:,} of them for composing" if self.composition_parameters else ""
        lines = [
            f"{self.name}: {self.family}, {shape}{texts}",
            f"heads: {self.composition or 'not composed'}",
            f"parameters: {self.parameters:,}{share}",
            f"memory: {size(self.weights_bytes)} of weights ({self.dtype}), about {size(self.loading_bytes)} to load",
        ]
        if self.attention_bytes:
            lines.append(
                f"looking: one attention tap of one layer at full context takes {size(self.attention_bytes)} in float32"
            )
        return lines


def size(count: float) -> str:
    """Bytes in words: 2.9 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def describe(model: Any) -> Description:
    """Describe a shipped model, a folder or a GGUF file without loading its weights, or a bridge.

    Args:
        model: the name of a shipped model, a folder (of an adapter, too), a GGUF file, a hub id that is in the local
            cache, or what `dcinterp.load` returned.

    Raises:
        UserError: there is no such model on this machine, or its folder is incomplete or damaged.
    """
    if hasattr(model, "original_model"):
        return _of_bridge(model)
    own, model = str(model).startswith(OWN), str(model).removeprefix(OWN)
    folder = folder_of(model)
    if (file := gguf_file(folder)) is not None:
        return _of_gguf(str(model), file)
    refuse_file(str(model))
    if is_composition(folder):
        return _of_composition(str(model), folder)
    if is_adapter(folder):
        base = describe(base_of(folder))
        return replace(base, name=str(model), family=f"{base.family}, with the adapter merged into it")
    if not folder.is_dir():
        cached = cached_snapshot(str(model))
        if cached is None:
            raise UserError(
                f"There is no folder {model}, no shipped model of that name, and none in the cache of the hub; what is "
                "on the hub alone is described once it is loaded: give a folder, or load it."
            )
        folder = cached
    fields = read_config_file(folder)
    require_next_token(folder / "config.json", fields)
    tensors = CheckpointTensors(folder)
    kind = fields.get("model_type")
    # The type of the largest tensor; norms and buffers may be stored as another.
    dtype = tensors.dtype(max(tensors, key=lambda name: prod(tensors.shape(name)))) or torch.float32
    if opens_by_default(kind) or (own and kind in LAYOUTS):
        return _ours(str(model), read_foreign_config(fields, tensors), dtype)
    if kind in OURS:
        config = our_config(folder, fields)
        require_whole(folder, config, dtype)  # else these would be the numbers of a model that does not open
        return _ours(str(model), config, dtype)
    weights = [name for name in tensors if not BUFFER.search(name)]
    return _foreign(str(model), fields, sum(prod(tensors.shape(name)) for name in weights), dtype)


def _of_composition(name: str, folder: Path) -> Description:
    base = base_of(folder, COMPOSITION)
    fields, tensors = read_config_file(base), CheckpointTensors(base)
    ours = fields.get("model_type") in OURS
    config = our_config(base, fields) if ours else read_foreign_config(fields, tensors)
    dtype = tensors.dtype(max(tensors, key=lambda each: prod(tensors.shape(each)))) or torch.float32
    return _ours(name, composed_config(config, AddedComposition.read(folder).fields), dtype)


def _of_gguf(name: str, file: Path) -> Description:
    fields, parameters, stored = gguf_facts(file)
    found = _foreign(name, fields, parameters, torch.float32)
    return replace(found, dtype=f"float32, from {stored} in the file")


def _of_bridge(bridge: Bridge) -> Description:
    config, name = bridge.original_model.config, str(bridge.cfg.model_name)
    parameters = list(bridge.original_model.parameters())
    dtype = max(parameters, key=lambda parameter: parameter.numel()).dtype
    if isinstance(config, DCFormerConfig):
        return _ours(name, config, dtype)
    return _foreign(name, config.to_dict(), _own_parameters(bridge), dtype)


def _own_parameters(bridge: Bridge) -> int:
    """The parameters of a model of others, without the copies of joint matrices that a bridge keeps by head."""
    model = bridge.original_model
    try:
        with torch.device("meta"):
            model = type(model)(model.config)
    except Exception:  # a class of others that takes more than its config
        pass
    return sum(parameter.numel() for parameter in model.parameters())


def _ours(name: str, config: DCFormerConfig, dtype: torch.dtype) -> Description:
    count, without = count_parameters(config), count_parameters(config.without_composition())
    images = isinstance(config, DCViTConfig)
    tokens = config.num_patches if images else config.max_position_embeddings
    return Description(
        name=name,
        family=family_of(config),
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        key_value_heads=config.num_key_value_heads,
        head_width=config.head_dim,
        mlp_width=config.intermediate_size,
        vocabulary=None if images else config.vocab_size,
        context=None if images else config.max_position_embeddings,
        windows=tuple(config.attention_windows),
        composition=composition_of(config),
        parameters=count,
        composition_parameters=count - without,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=count * dtype.itemsize,
        attention_bytes=4 * config.num_attention_heads * tokens**2,
    )


def _foreign(name: str, fields: dict[str, Any], parameters: int, dtype: torch.dtype) -> Description:
    """A model of transformers, whose config.json may call things by older names."""

    def first(*names: str) -> int | None:
        return next((int(fields[n]) for n in names if isinstance(fields.get(n), int)), None)

    text = fields.get("text_config")
    fields = text | fields if isinstance(text, dict) else fields
    heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
    width = first("hidden_size", "n_embd", "d_model")
    context = first("max_position_embeddings", "n_positions")
    return Description(
        name=name,
        family=str(fields.get("model_type", "unknown")),
        layers=first("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        width=width,
        heads=heads,
        key_value_heads=first("num_key_value_heads") or heads,
        head_width=first("head_dim") or (width // heads if width and heads else None),
        mlp_width=first("intermediate_size", "n_inner", "ffn_dim")
        or (4 * width if width and "n_inner" in fields else None),
        vocabulary=first("vocab_size"),
        context=context,
        windows=(),
        composition="",
        parameters=parameters,
        composition_parameters=0,
        dtype=str(dtype).removeprefix("torch."),
        weights_bytes=parameters * dtype.itemsize,
        attention_bytes=4 * heads * context**2 if heads and context else None,
    )


def family_of(config: DCFormerConfig) -> str:
    """The family whose ingredients a configuration has; "own mixture" where none fits."""
    composed = config.compose != "none"
    for name in ("transformer", "transformer++", "pythia", "vit"):
        images = name == "vit"
        expected = {"use_parallel_residual": False, "norm_type": "rmsnorm", "mlp_type": "swiglu"} | family(name)
        parts = ("norm_type", "mlp_type", "use_parallel_residual")
        if images == isinstance(config, DCViTConfig) and (
            images or all(getattr(config, part) == expected[part] for part in parts)
        ):
            return _composed_family(config, name) if composed else name
    return "own mixture"


def _composed_family(config: DCFormerConfig, base: str) -> str:
    """The family of a model with the ingredients of `base` whose heads are composed."""
    others = {name: fields for name, fields in COMPOSED.items() if fields["compose"] == config.compose}
    for name, fields in others.items():
        if base == "transformer++" and config.compose_skip == fields.get("compose_skip", True):
            return name
    # Static maps with the skip are an ablation of DCMHA.
    return f"dc{base.removeprefix('trans')}" if config.compose == "static" or not others else "own mixture"


def composition_of(config: DCFormerConfig) -> str:
    """How the heads are composed, in words; empty if they are not."""
    if not config.stages:
        return ""
    stages = " and ".join({"pre": "scores (pre)", "post": "weights (post)"}[stage] for stage in config.stages)
    return f"{stages} {composer_class(config.compose).in_words(config)}"
