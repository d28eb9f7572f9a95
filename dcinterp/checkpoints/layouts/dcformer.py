"""The released `dcformer` layout (DCFormer++: RMSNorm, SwiGLU, rotary positions, sequential blocks)."""

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
from dcinterp.support.errors import UserError

GROUP_GATE = "feed_forward.mg.weight"
TOP = {"tok_embeddings.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
TOP |= {"norm.weight": "model.norm.weight"}
BLOCK = {"attention_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight"}
BLOCK |= {
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    GROUP_GATE: "mlp.group_gate.weight",
}

FIELDS = IGNORED_FIELDS | set(
    "vocab_size n_layer n_head dim intermediate_size block_size rope_base norm_eps use_qk_norm use_dcmha window_size "
    "window_type query_wise mgate".split()
)


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields.

    Raises:
        UserError: a field is missing, of another type, or asks for what this model family does not have.
    """
    require_types(fields, tensors.folder)
    gates = next((tensors.shape(name)[0] for name in tensors if name.endswith(GROUP_GATE)), 0)
    if fields.get("mgate") and not gates:
        raise UserError(
            f'{tensors.folder} has "mgate": true in its config.json, but no {GROUP_GATE} in its weights; use files '
            "that belong together."
        )
    width = -(-(8 * fields.get("dim", 0) // 3) // 256) * 256  # as the released config class: up to a multiple of 256
    return DCFormerConfig(
        norm_type="rmsnorm",
        mlp_type="swiglu",
        mlp_gate_groups=gates if fields.get("mgate", bool(gates)) else 0,
        window_includes_edge=False,  # the released inference code: s > t - window
        **shared_config(fields, tensors, default_rope_base=500_000, default_mlp_width=width),
    )


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds; KeyError if the layout knows no such tensor."""
    unused_gate = name.endswith(GROUP_GATE) and not config.mlp_gate_groups
    return iter(()) if unused_gate else tensor_to_ours(name, tensor, config, TOP, BLOCK)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    needed: dict[str, Any] = dict(norm_type="rmsnorm", mlp_type="swiglu", use_parallel_residual=False, use_bias=False)
    needed |= dict(rotary_fraction=1.0, window_includes_edge=False)
    require_fields(config, needed, layout="dcformer", other="dcpythia")
    gates = dict(mgate=bool(config.mlp_gate_groups), mgate_dim=config.mlp_gate_groups or 44)
    return {"model_type": "dcformer"} | shared_fields(config) | gates


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return tensors_to_theirs(tensors, config, TOP, BLOCK)
