"""The released `dcpythia` layout (DCPythia: LayerNorm, GELU, rotary positions on a part of each head, biases)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from dcinterp.checkpoints.released.attention import (
    IGNORED_FIELDS,
    require_fields,
    require_types,
    shared_config,
    shared_fields,
)
from dcinterp.checkpoints.released.tensors import tensor_to_ours, tensors_to_theirs
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig

TOP = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "norm.weight": "model.norm.weight",
    "norm.bias": "model.norm.bias",
}
BLOCK = {
    f"{theirs}.{kind}": f"{ours}.{kind}"
    for theirs, ours in (
        ("attention_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("feed_forward.w1", "mlp.up_proj"),
        ("feed_forward.w2", "mlp.down_proj"),
    )
    for kind in ("weight", "bias")
}

FIELDS = IGNORED_FIELDS | set(
    "vocab_size n_layer n_head dim intermediate_size block_size rope_base norm_eps use_qk_norm use_dcmha window_size "
    "window_type query_wise use_parallel_residual use_linear_bias rotary_pct mgate".split()
)


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields.

    Raises:
        UserError: a field is missing, of another type, or asks for what this model family does not have.
    """
    require_types(fields, tensors.folder)
    return DCFormerConfig(
        norm_type="layernorm",
        mlp_type="gelu",
        rotary_fraction=fields.get("rotary_pct", 0.25),
        use_parallel_residual=fields.get("use_parallel_residual", True),
        use_bias=fields.get("use_linear_bias", True),
        window_includes_edge=True,  # the released code: s >= t - window
        **shared_config(fields, tensors, default_rope_base=10_000, default_mlp_width=4 * fields.get("dim", 0)),
    )


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds; KeyError if the layout knows no such tensor."""
    return tensor_to_ours(name, tensor, config, TOP, BLOCK)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    needed: dict[str, Any] = dict(norm_type="layernorm", mlp_type="gelu", mlp_gate_groups=0)
    if any(window is not None for window in config.attention_windows):
        needed["window_includes_edge"] = True
    require_fields(config, needed, layout="dcpythia", other="dcformer")
    return (
        {"model_type": "dcpythia"}
        | shared_fields(config)
        | dict(
            rotary_pct=config.rotary_fraction,
            use_parallel_residual=config.use_parallel_residual,
            use_linear_bias=config.use_bias,
        )
    )


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return tensors_to_theirs(tensors, config, TOP, BLOCK)
