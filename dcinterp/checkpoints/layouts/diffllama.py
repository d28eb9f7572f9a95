"""The `diffllama` layout of transformers: a Llama with differential attention (`compose="differential"`).

Names are ours but for the vectors that make lambda. The columns of o_proj follow pairs of heads there (head h, head
h + H/2, head h + 1, ...), and heads here. Where heads share keys and values, the two of a pair have different ones, in
both: those of head h and of head h + H/2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dcinterp.checkpoints.released.attention import require_fields
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.compose.differential import first_lambda
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError

FIELDS = frozenset(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads hidden_act "
    "max_position_embeddings initializer_range rms_norm_eps use_cache pad_token_id bos_token_id eos_token_id "
    "tie_word_embeddings rope_parameters rope_theta rope_scaling attention_bias attention_dropout lambda_std_dev "
    "head_dim model_type architectures dtype torch_dtype transformers_version _name_or_path auto_map id2label label2id "
    "output_attentions output_hidden_states return_dict problem_type is_encoder_decoder chunk_size_feed_forward".split()
)
VECTOR = re.compile(r"model\.layers\.(\d+)\.self_attn\.(lambda_[qk][12])")
LAMBDA = re.compile(r"model\.layers\.(\d+)\.self_attn\.post\.lambda_init")
OUT = re.compile(r"model\.layers\.\d+\.self_attn\.o_proj\.weight")
SHARED = re.compile(
    r"model\.layers\.\d+\.(self_attn\.[qkv]_proj|mlp\.(gate|up|down)_proj|(input|post_attention)_layernorm)\.weight"
    r"|model\.norm\.weight|lm_head\.weight|model\.embed_tokens\.weight"
)


def read_config(fields: dict[str, Any], tensors: CheckpointTensors) -> DCFormerConfig:
    """Our config for a folder with these config.json fields.

    Raises:
        UserError: a field is missing, or asks for something that our decoder does not have; the message names it.
    """
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    for name in sizes:
        if name not in fields:
            raise UserError(f"The config.json of a diffllama checkpoint needs the field {name!r}; copy it again.")
        require_fitting(name, fields[name], int)
    heads, width = fields["num_attention_heads"], fields["hidden_size"]
    turn = fields.get("rope_scaling") or fields.get("rope_parameters") or {}  # in this order, as transformers
    only: dict[str, tuple[Any, Any]] = {
        "head_dim": (fields.get("head_dim") or width // heads, width // heads),
        "hidden_act": (fields.get("hidden_act", "silu"), "silu"),
        "attention_bias": (fields.get("attention_bias", False), False),
        "rope_type": (turn.get("rope_type", turn.get("type", "default")), "default"),
    }
    for name, (value, needed) in only.items():
        if value != needed:
            raise UserError(
                f"This diffllama checkpoint has {name}={value!r}, but our decoder needs {needed!r} there; open it with "
                "transformers."
            )
    shared = fields.get("num_key_value_heads") or heads
    if shared % 2:
        raise UserError(
            f"This diffllama checkpoint has num_key_value_heads={shared!r}, but pairs of heads need an even number, in "
            "transformers too; check its config.json."
        )
    given: dict[str, Any] = {name: fields[name] for name in sizes} | {"num_key_value_heads": shared}
    given |= {name: fields.get(name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    return DCFormerConfig(
        max_position_embeddings=fields.get("max_position_embeddings", 2048),
        norm_eps=fields.get("rms_norm_eps", 1e-5),
        rotary_base=float(turn.get("rope_theta") or fields.get("rope_theta") or 10000.0),
        initializer_range=fields.get("initializer_range", 0.02),
        tie_word_embeddings=fields.get("tie_word_embeddings", False),
        compose="differential",
        **given,
    )


def to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of what the foreign tensor holds; KeyError if the layout knows no such tensor."""
    if vector := VECTOR.fullmatch(name):
        at = f"model.layers.{vector[1]}.self_attn.post."
        yield at + vector[2], tensor
        yield at + "lambda_init", torch.tensor(first_lambda(int(vector[1])))
    elif OUT.fullmatch(name):
        yield name, _turn(tensor, (config.num_attention_heads // 2, 2))
    elif name.endswith("rotary_emb.inv_freq"):
        return  # what older files save of what the config says
    elif SHARED.fullmatch(name):
        yield name, tensor
    else:
        raise KeyError(name)


def write_config(config: DCFormerConfig) -> dict[str, Any]:
    """The config.json fields of the layout.

    Raises:
        UserError: it has no place for something in `config`.
    """
    needed: dict[str, Any] = dict(compose="differential", norm_type="rmsnorm", mlp_type="swiglu", mlp_gate_groups=0)
    needed |= dict(position_type="rotary", rotary_fraction=1.0, use_parallel_residual=False, use_qk_norm=False)
    needed |= dict(has_qkv_bias=False, has_output_bias=False, has_mlp_bias=False, attention_windows=(None,))
    needed |= dict(rotary_scaling=None, head_dim=config.hidden_size // config.num_attention_heads)
    require_fields(config, needed, layout="diffllama")
    if (config.num_key_value_heads or 0) % 2:
        raise UserError("The diffllama layout needs an even num_key_value_heads; this model cannot be written in it.")
    same = "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads max_position_embeddings"
    same += " initializer_range pad_token_id bos_token_id eos_token_id head_dim"
    return {name: getattr(config, name) for name in same.split()} | dict(
        model_type="diffllama",
        architectures=["DiffLlamaForCausalLM"],
        num_key_value_heads=config.num_key_value_heads,
        rms_norm_eps=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base},
        tie_word_embeddings=config.tie_word_embeddings,
    )


def to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    for name, tensor in tensors.items():
        if place := LAMBDA.fullmatch(name):
            said = first_lambda(int(place[1]))
            stored = (float(torch.tensor(said, dtype=kind)) for kind in (torch.float32, torch.bfloat16, torch.float16))
            if min(abs(float(tensor) - each) for each in stored) > 1e-6:
                raise UserError(
                    f"{name} is {float(tensor):.4f}, and the diffllama layout has {said:.4f} in that layer, so layers "
                    "were moved or taken out; write our own layout."
                )
        if name.endswith("lambda_init") or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue  # the number of the layer says it; the embedding is it
        yield (
            name.replace(".post.lambda_", ".lambda_"),
            (_turn(tensor, (2, config.num_attention_heads // 2)) if OUT.fullmatch(name) else tensor),
        )


def _turn(weight: Tensor, heads: tuple[int, int]) -> Tensor:
    """The columns of o_proj, which are `heads` times a head's width, with the two axes of heads exchanged."""
    return weight.unflatten(1, (*heads, -1)).transpose(1, 2).flatten(1).contiguous()
