"""What the layouts of Llama and its relatives share: their tensors have the names of ours, and most fields are common.

config.json is read by the configuration class of transformers itself, so that old spellings (`rope_theta` and
`rope_scaling` beside each other, `type` for `rope_type`, windows without `layer_types`) mean what they mean there. A
family's module adds the fields that it has beside the common ones. What our decoder does not compute is refused by
the name of its field, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedConfig

from dcinterp.checkpoints.released.attention import require_fields
from dcinterp.checkpoints.tensor_files import CheckpointTensors
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.rotary import SCALINGS, check_scaling
from dcinterp.support.errors import UserError, shortened

OLD_SPELLINGS = frozenset("torch_dtype rope_theta rope_scaling rope_type partial_rotary_factor head_dim".split())
"""Fields that transformers understands beside those that its configuration class has today."""


def known_fields(family: str) -> frozenset[str]:
    """Fields of config.json that transformers reads for this family, or writes without meaning for the arithmetic."""
    return frozenset(CONFIG_MAPPING[family]().to_dict()) | OLD_SPELLINGS | {"auto_map", "quantization_config"}


def read_shared(
    family: str, fields: Mapping[str, Any], tensors: CheckpointTensors
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """(transformers' configuration, our fields that all of the family have).

    Raises:
        UserError: config.json is damaged, or asks for something that our decoder does not compute.
    """
    try:
        theirs = CONFIG_MAPPING[family].from_dict(dict(fields))
    except Exception as error:  # transformers raises classes of its own for fields of a wrong type
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip().rstrip(".")
        raise UserError(
            f"The config.json in {tensors.folder} is not a valid {family} one: {shortened(said, 120)}."
        ) from error
    given: Any = theirs
    if getattr(given, "quantization_config", None):
        refuse(tensors, "quantization_config", "weights that are not plain numbers", "load the model dequantized")
    if given.hidden_act not in ("silu", "swish"):
        refuse(tensors, "hidden_act", f"{given.hidden_act!r}; it computes 'silu'")
    ours = dict(
        compose="none",
        norm_type="rmsnorm",
        mlp_type="swiglu",
        position_type="rotary",
        vocab_size=given.vocab_size,
        hidden_size=given.hidden_size,
        intermediate_size=given.intermediate_size,
        num_hidden_layers=given.num_hidden_layers,
        num_attention_heads=given.num_attention_heads,
        num_key_value_heads=given.num_key_value_heads,
        head_dim=getattr(given, "head_dim", None),
        max_position_embeddings=given.max_position_embeddings,
        norm_eps=given.rms_norm_eps,
        initializer_range=given.initializer_range,
        tie_word_embeddings=given.tie_word_embeddings,
        pad_token_id=given.pad_token_id,
        bos_token_id=given.bos_token_id,
        eos_token_id=given.eos_token_id,
    )
    return theirs, ours | _rotary(given.rope_parameters or {}, given, tensors)


def _rotary(rope: Mapping[str, Any], given: Any, tensors: CheckpointTensors) -> dict[str, Any]:
    """Base and scaling of the rotary positions; `given` is transformers' configuration, `rope` its rope_parameters."""
    kind = rope.get("rope_type", "default")
    if kind != "default" and kind not in SCALINGS:
        known = ", ".join(("default", *SCALINGS))
        refuse(tensors, "rope_type", f"{kind!r}; it scales rotary positions by {known}")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        refuse(
            tensors, "partial_rotary_factor", f"{rope['partial_rotary_factor']} in this family; it turns all of a head"
        )
    if "rope_theta" not in rope:
        refuse(tensors, "rope_parameters", "other ones for each kind of layer")
    base = dict(rotary_base=float(rope["rope_theta"]))
    if kind == "default":
        return base
    original = rope.get("original_max_position_embeddings", given.max_position_embeddings)
    filled = {"factor": given.max_position_embeddings / original, "beta_fast": 32, "beta_slow": 1}
    filled |= {"truncate": True, "original_max_position_embeddings": original}
    filled |= {name: value for name, value in rope.items() if value is not None}
    if kind == "yarn":
        filled.setdefault("attention_factor", _yarn_attention(filled))
    scaling = {"rope_type": kind} | {name: filled[name] for name in SCALINGS[kind]}
    check_scaling(scaling)
    return base | {"rotary_scaling": scaling}


def _yarn_attention(rope: Mapping[str, Any]) -> float:
    """What YaRN multiplies cos and sin by where config.json does not say: 0.1 ln(factor) + 1."""

    def size(weight: float) -> float:
        return 0.1 * weight * math.log(rope["factor"]) + 1 if rope["factor"] > 1 else 1.0

    some, whole = rope.get("mscale"), rope.get("mscale_all_dim")
    return size(some) / size(whole) if some and whole else size(1)


def windows_of(theirs: Any, tensors: CheckpointTensors) -> tuple[int | None, ...]:
    """The keys that each layer sees, from `layer_types` and `sliding_window`; one entry where all layers are alike."""
    size: dict[str, int | None] = {"full_attention": None, "sliding_attention": theirs.sliding_window}
    unknown = [kind for kind in theirs.layer_types if kind not in size]
    if unknown:
        refuse(tensors, "layer_types", f"{unknown[0]!r}; it computes {' and '.join(size)}")
    windows = tuple(size[kind] for kind in theirs.layer_types)
    return windows[:1] if len(set(windows)) == 1 else windows


def refuse(tensors: CheckpointTensors, field: str, value: str, way: str = "load it without `own`") -> NoReturn:
    """Raises:
    UserError: our decoder does not compute this.
    """
    raise UserError(
        f"The config.json in {tensors.folder} has {field}, and our decoder does not compute {value}; {way}, and "
        "TransformerLens opens it if it can."
    )


def tensor_to_ours(name: str, tensor: Tensor, config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor): the same name."""
    if not name.endswith(".rotary_emb.inv_freq"):  # older versions saved what follows from the config
        yield name, tensor


def tensors_to_theirs(tensors: Mapping[str, Tensor], config: DCFormerConfig) -> Iterator[tuple[str, Tensor]]:
    """(foreign name, tensor) of a whole model."""
    return ((name, t) for name, t in tensors.items() if name != "lm_head.weight" or not config.tie_word_embeddings)


def write_shared(family: str, config: DCFormerConfig, needed: Mapping[str, Any], **own: Any) -> dict[str, Any]:
    """config.json of the layout.

    Args:
        family: its model_type.
        needed: our fields beside the common ones, with the one value that the layout can hold.
        own: its fields beside the common ones.

    Raises:
        UserError: it has no place for something in `config`.
    """
    common: dict[str, Any] = dict(
        stages=(),
        norm_type="rmsnorm",
        mlp_type="swiglu",
        mlp_gate_groups=0,
        position_type="rotary",
        rotary_fraction=1.0,
        use_parallel_residual=False,
    )
    require_fields(config, common | dict(needed), layout=family)
    make: Any = CONFIG_MAPPING[family]
    theirs: Any = make(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.norm_eps,
        initializer_range=config.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": config.rotary_base} | (config.rotary_scaling or {}),
        tie_word_embeddings=config.tie_word_embeddings,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        dtype=config.dtype,
        **own,
    )
    architecture = f"{type(theirs).__name__.removesuffix('Config')}ForCausalLM"
    return theirs.to_dict() | {"architectures": [architecture]}


def windows_to_theirs(config: DCFormerConfig) -> dict[str, Any]:
    """The fields that say which layers see how many keys.

    Raises:
        UserError: local layers of different windows, for which there is one number.
    """
    windows = [config.window(layer) for layer in range(config.num_hidden_layers)]
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise UserError(
            f"This layout has one sliding_window for all local layers, and the model has {sorted(sizes)}; keep it in "
            "our own layout."
        )
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return dict(use_sliding_window=bool(sizes), sliding_window=next(iter(sizes), None), layer_types=kinds)
