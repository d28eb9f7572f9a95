"""The attention tensors that both released layouts share: their names, shapes and order.

    wqkv [D + 2 G d, D]: rows of q, k, v, each head by head (older files: wq, wk, wv); G = n_local_heads heads of keys
    and values, H unless several query heads share one
    dyn_w_proj.dw1 [D, 1, C, K]       K = 2 H R; C = pre-query, pre-key, post-query, post-key
    dyn_w_proj.qkw [1, C, K, 2R, H]   of 2R, the first R make w_1 and the last R make w_2
    dyn_w_proj.dd  [D, 1, C H]        gates, in the order of C
    dyn_w_proj.{pre,post}_proj.w [1, H, H]   an identity, unless static maps were trained (then: A + A w)

With `query_wise` the released code reads only the two query parts when it decodes; files may then hold only those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError

SLOTS = (("pre", "query"), ("pre", "key"), ("post", "query"), ("post", "key"))
"""The axis of four: (stage, side)."""

WINDOW_TYPES: Mapping[str, tuple[int | None, ...]] = {
    "LG": (256, None),
    "LGLL": (256, None, 256, 256),
    "LGL6": (256, None, 256, 256, 256, 256, 256, 256),
}

RENAMED = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj"}

IGNORED_FIELDS = frozenset(
    "use_gradient_checkpointing is_training q_chunk_size prefill_pad mgate_dim head_dim n_local_heads _name_or_path "
    "architectures auto_map bos_token_id chunk_size_feed_forward dtype eos_token_id id2label is_encoder_decoder "
    "label2id model_type output_attentions output_hidden_states pad_token_id problem_type return_dict "
    "tie_word_embeddings torch_dtype transformers_version use_cache attn_implementation".split()
)
"""Fields that say nothing about the arithmetic, or that transformers itself writes."""


TYPES: Mapping[str, Any] = {
    **dict.fromkeys("vocab_size n_layer n_head dim block_size".split(), int),
    **dict.fromkeys("intermediate_size n_local_heads head_dim window_size".split(), int | None),
    **dict.fromkeys("norm_eps rope_base rotary_pct".split(), float),
    **dict.fromkeys("use_qk_norm use_dcmha query_wise mgate use_parallel_residual use_linear_bias".split(), bool),
    "window_type": str | None,
}
"""Of the fields of config.json that say something about the arithmetic."""


def require_types(fields: Mapping[str, Any], folder: Path) -> None:
    """Refuse a config.json whose fields are of other types than those of the released config classes.

    Raises:
        UserError: the message names the file and the field.
    """
    for name, kind in TYPES.items():
        if name in fields:
            try:
                require_fitting(name, fields[name], kind)
            except UserError as error:
                raise UserError(f"{folder / 'config.json'}: {error}") from error


def shared_config(
    fields: dict[str, Any], tensors: CheckpointTensors, *, default_rope_base: float, default_mlp_width: int
) -> dict[str, Any]:
    """The config fields that both layouts have, by our names.

    Raises:
        UserError: a field is missing, or asks for something that this model family does not have.
    """
    missing = [name for name in ("vocab_size", "n_layer", "n_head", "dim") if name not in fields]
    if missing:
        raise UserError(
            f"The config.json in {tensors.folder} has no field {missing[0]!r}; copy the one that belongs to these "
            "weights."
        )
    # What a config.json leaves out has these values in the released config classes.
    fields = dict(block_size=2048, rope_base=default_rope_base, norm_eps=1e-5) | fields
    heads, width = fields["n_head"], fields["dim"]
    ours = dict(
        vocab_size=fields["vocab_size"],
        hidden_size=width,
        intermediate_size=default_mlp_width if (mlp := fields.get("intermediate_size")) is None else mlp,
        num_hidden_layers=fields["n_layer"],
        num_attention_heads=heads,
        num_key_value_heads=_shared_heads(fields, tensors),
        max_position_embeddings=fields["block_size"],
        rotary_base=float(fields["rope_base"]),
        norm_eps=fields["norm_eps"],
    )
    special = {name: fields[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id") if name in fields}
    return ours | special | _composition(fields, tensors) | {"use_qk_norm": bool(fields.get("use_qk_norm", False))}


def _shared_heads(fields: dict[str, Any], tensors: CheckpointTensors) -> int:
    """Heads of keys and values: n_local_heads, where -1 means that every query head has its own."""
    heads = fields["n_head"]
    shared = fields.get("n_local_heads", heads)
    if not isinstance(shared, int) or (shared != -1 and (shared < 1 or heads % shared)):
        raise UserError(
            f"The config.json in {tensors.folder} has n_local_heads = {shared!r}, which does not divide n_head = "
            f"{heads}; copy the one that belongs to these weights."
        )
    return heads if shared == -1 else shared


def _composition(fields: dict[str, Any], tensors: CheckpointTensors) -> dict[str, Any]:
    composed = fields.get("use_dcmha", True)
    maps = [name for name in tensors if name.endswith((".pre_proj.w", ".post_proj.w"))]
    trained = any(not _is_identity(tensors.read(name)) for name in maps)
    up = next((name for name in tensors if name.endswith(".dyn_w_proj.qkw")), None)
    return dict(
        compose="dynamic" if composed else "none",
        compose_static=trained,
        compose_rank=tensors.shape(up)[3] // 2 if up is not None else 2,
        compose_key_wise=not fields.get("query_wise", False),
        attention_windows=_windows(fields),
    )


def _windows(fields: dict[str, Any]) -> tuple[int | None, ...]:
    # The released config class has 256 where config.json says nothing; null means global.
    size, kind = fields.get("window_size", 256), fields.get("window_type")
    if kind is not None and kind not in WINDOW_TYPES:
        raise UserError(f"window_type is {kind!r}; this layout knows {', '.join(WINDOW_TYPES)}, or null.")
    if size is None:
        return (None,)
    return (size, None) if kind is None else WINDOW_TYPES[kind]


def _is_identity(w: Tensor) -> bool:
    return bool((w == torch.eye(w.shape[-1], dtype=w.dtype)).all())


def attention_to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor `name` (after "attention.") holds; nothing if it is ignored."""
    part, _, kind = name.rpartition(".")
    if part in RENAMED:
        yield f"{RENAMED[part]}.{kind}", tensor
    elif part == "wqkv":
        assert config.head_dim is not None
        assert config.num_key_value_heads is not None
        shared = config.num_key_value_heads * config.head_dim
        sizes = [config.num_attention_heads * config.head_dim, shared, shared]
        if sum(sizes) != tensor.shape[0]:
            raise ValueError(name)  # of another number of heads
        for ours, rows in zip(("q_proj", "k_proj", "v_proj"), tensor.split(sizes), strict=True):
            yield f"{ours}.{kind}", rows.clone()
    elif name in ("q_norm.scale", "k_norm.scale"):
        yield f"{part}.weight", tensor
    elif re.fullmatch(r"dyn_w_proj\.(pre|post)_proj\.w", name):
        if config.compose_static:
            yield f"{part.removeprefix('dyn_w_proj.').removesuffix('_proj')}.static.weight", tensor
    elif part == "dyn_w_proj" and kind in ("dw1", "qkw", "dd"):
        if config.compose == "dynamic":
            yield from _dynamic_to_ours(kind, tensor, config)
    else:
        raise KeyError(name)


def _slots(count: int) -> tuple[tuple[str, str], ...]:
    return SLOTS if count == 4 else tuple(slot for slot in SLOTS if slot[1] == "query")


def _dynamic_to_ours(kind: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    heads = config.num_attention_heads
    parts: list[Tensor]
    if kind == "dw1":
        parts, ours = [p.T.contiguous() for p in tensor[:, 0].unbind(1)], "down.weight"
    elif kind == "qkw":
        parts, ours = [p.flatten(1).unsqueeze(0).clone() for p in tensor[0].unbind(0)], "up"
    else:
        parts, ours = [p.T.contiguous() for p in tensor[:, 0].split(heads, dim=-1)], "gate.weight"
    for (stage, side), part in zip(_slots(len(parts)), parts, strict=True):
        if side == "query" or config.compose_key_wise:
            yield f"{stage}.{side}.{ours}", part


def require_trained_maps(tensors: Mapping[str, Tensor]) -> None:
    """Refuse a model all of whose static maps are the identity, which in this layout stands for no such maps.

    Raises:
        UserError: they would be left out.
    """
    static = [tensor for name, tensor in tensors.items() if name.endswith(".static.weight")]
    if static and all(_is_identity(each) for each in static):
        raise UserError(
            "Static maps that are the identity stand for untrained ones in this layout, and would be left out; write "
            "our own layout."
        )


def attention_to_theirs(own: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name after "attention.", tensor) of a layer's attention; `own` has our names after "self_attn."."""
    for kind in ("weight", "bias"):
        if f"q_proj.{kind}" in own:
            yield f"wqkv.{kind}", torch.cat([own[f"{p}_proj.{kind}"] for p in "qkv"])
            yield f"wo.{kind}", own[f"o_proj.{kind}"]
    for norm in ("q_norm", "k_norm"):
        if f"{norm}.weight" in own:
            yield f"{norm}.scale", own[f"{norm}.weight"]
    heads, rank = config.num_attention_heads, config.compose_rank
    empty = {
        "down.weight": own["q_proj.weight"].new_zeros(2 * heads * rank, config.hidden_size),
        "up": own["q_proj.weight"].new_zeros(1, 2 * heads * rank, 2 * heads * rank),
        "gate.weight": own["q_proj.weight"].new_zeros(heads, config.hidden_size),
    }
    down, up, gate = (
        [own.get(f"{stage}.{side}.{name}", empty[name]) for stage, side in SLOTS]
        for name in ("down.weight", "up", "gate.weight")
    )
    yield "dyn_w_proj.dw1", torch.stack([w.T for w in down], dim=1).unsqueeze(1).contiguous()
    yield "dyn_w_proj.qkw", torch.stack([w[0].unflatten(-1, (2 * rank, heads)) for w in up]).unsqueeze(0)
    yield "dyn_w_proj.dd", torch.cat([w.T for w in gate], dim=-1).unsqueeze(1)
    identity = torch.eye(heads, dtype=own["q_proj.weight"].dtype).unsqueeze(0)
    for stage in ("pre", "post"):
        yield f"dyn_w_proj.{stage}_proj.w", own.get(f"{stage}.static.weight", identity).clone()


def require_fields(
    config: DCFormerConfig, needed: Mapping[str, Any], layout: str = "released", other: str = ""
) -> None:
    """Refuse what a layout has no place for; UserError that names the field.

    Args:
        needed: our config fields, with the one value that the layout can hold.
        layout, other: its name, and that of a layout to try instead, if any.
    """
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise UserError(
                f"The {layout} layout has no place for {name}={getattr(config, name)!r} (it needs {value!r}); keep "
                f"this model in our own layout{f', or try {other}' if other else ''}."
            )


def shared_fields(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields that both layouts have.

    Raises:
        UserError: the layout has no place for something in `config`.
    """
    needed: dict[str, Any] = dict(
        compose="dynamic",
        stages=("pre", "post"),
        compose_groups=1,
        compose_skip=True,
        compose_projection=True,
        compose_gate=True,
        compose_query_wise=True,
        position_type="rotary",
        rotary_scaling=None,
        qk_norm_eps=1e-6,
        tie_word_embeddings=False,
        has_qkv_bias=config.use_bias,
        has_output_bias=config.use_bias,
        has_mlp_bias=config.use_bias,
        head_dim=config.hidden_size // config.num_attention_heads,
    )
    require_fields(config, needed)
    return dict(
        vocab_size=config.vocab_size,
        dim=config.hidden_size,
        intermediate_size=config.intermediate_size,
        n_layer=config.num_hidden_layers,
        n_head=config.num_attention_heads,
        n_local_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        block_size=config.max_position_embeddings,
        rope_base=config.rotary_base,
        norm_eps=config.norm_eps,
        use_qk_norm=config.use_qk_norm,
        use_dcmha=True,
        query_wise=not config.compose_key_wise,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        tie_word_embeddings=False,
    ) | _window_fields(config)


def _window_fields(config: DCFormerConfig) -> dict[str, Any]:
    windows = tuple(config.attention_windows)
    if all(window is None for window in windows):
        return dict(window_size=None, window_type=None)
    if len(windows) == 2 and windows[0] is not None and windows[1] is None:
        return dict(window_size=windows[0], window_type=None)
    for kind, pattern in WINDOW_TYPES.items():
        if windows == pattern:
            return dict(window_size=256, window_type=kind)
    raise UserError(
        f"The released layout has no place for attention_windows={windows}; keep this model in our own layout."
    )
