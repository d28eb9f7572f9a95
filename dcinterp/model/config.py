"""Configuration of every model in the family: one decoder, and the differences between families are fields."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from transformers import GenerationConfig, PreTrainedConfig

from dcinterp.model.compose.registry import NOT_COMPOSED, check_composition, composer_class
from dcinterp.model.field_types import check_field_types
from dcinterp.model.presets import preset
from dcinterp.model.rotary import check_scaling
from dcinterp.support.errors import UserError
from dcinterp.support.text import shown

NormKind = Literal["rmsnorm", "layernorm"]
MLPKind = Literal["swiglu", "gelu"]
PositionKind = Literal["rotary", "learned"]
Stage = Literal["pre", "post"]

STAGES: tuple[Stage, ...] = ("pre", "post")

# What transformers itself passes beside the fields when it reads a config.json.
_TRANSFORMERS_FIELDS = {
    "model_type",
    "torch_dtype",
    "num_labels",
    "name_or_path",
    "output_attentions",
    "attn_implementation",
    "experts_implementation",
    "per_layer_config",
    "auto_map",
    "is_decoder",
    "architectures",
    "default_prepend_bos",
}
_OF_OTHER_TOOLS = {
    "tokenizer_class",
    "sep_token_id",
    "torchscript",
    "loss_type",
    "task_specific_params",
    "unsloth_version",
}
"""Fields that other tools write into a config.json, and which say nothing of what the model computes."""


class DCFormerConfig(PreTrainedConfig):
    """Shape and ingredients of a DCFormer, of its Transformer twin and of every ablation in between.

    The defaults describe a small DCFormer++ (RMSNorm, SwiGLU, rotary positions, dynamic composition before and
    after softmax). Field names are those of `transformers` where a standard name exists.

    Args:
        vocab_size: number of token ids.
        hidden_size: D, width of the residual stream.
        intermediate_size: hidden units of the MLP; 0 for a model of attention alone.
        num_hidden_layers: number of blocks.
        num_attention_heads: H; must divide `hidden_size` unless `head_dim` is given.
        num_key_value_heads: heads of keys and values, each shared by as many consecutive query heads (grouped-query
            attention); H when None. Composition is over the H query heads.
        head_dim: d, width of a head; `hidden_size / num_attention_heads` when None.
        max_position_embeddings: longest context, in tokens.
        norm_type, norm_eps: "rmsnorm" or "layernorm" in the blocks and before the unembedding.
        mlp_type: "swiglu" (gate, up, down) or "gelu" (up, down; exact erf).
        mlp_gate_groups: groups of MLP units scaled by a softmax gate; 0 for none.
        position_type: "rotary" or "learned".
        rotary_base, rotary_fraction: base of the rotary angles; fraction of the head width that rotates.
        rotary_scaling: how the angles are stretched for long texts, None for not at all (`dcinterp.model.rotary` says
            which ways there are, and their fields).
        use_parallel_residual: attention and MLP read the same residual stream (Pythia).
        use_qk_norm, qk_norm_eps: RMS norm of queries and keys per head, before the rotation.
        use_bias: biases in the attention and MLP projections.
        attention_bias, attention_output_bias, mlp_bias: the same for queries, keys and values, for the output of
            attention (None: as for queries), and for the MLP; as `use_bias` says when None.
        compose: how heads are composed, "dynamic" (DCMHA), "static" (talking heads) or "none" (MHA), or the name of
            another file in `dcinterp.model.compose`.
        compose_options: options of that way of composing which have no field here, by name.
        compose_stages: where: "pre" (scores), "post" (weights), or both; of these, what the way of composing can have.
        compose_rank: R, rank of the dynamic projections.
        compose_groups: heads are composed within this many equal groups; the rank is per group.
        compose_static: a learned, input-independent map W_b beside the dynamic branches.
        compose_skip: the untouched attention is part of the sum.
        compose_projection, compose_gate: the low-rank branches and the gate branches.
        compose_query_wise, compose_key_wise: branches driven by the query position, by the key position.
        attention_windows: pattern repeated over the layers: a number of keys for a local layer, None for a global
            one. ``(256, None)`` is the paper's 1:1.
        window_includes_edge: local layers see the keys ``s >= t - window`` instead of ``s > t - window``.
        initializer_range: standard deviation of embeddings and projections (the composition has its own, see
            `dcinterp.model.compose.dynamic`).
        embedding_initializer_range: that of the embeddings alone; `initializer_range` when None.
        depth_scaled_init: divide the initial output projections of attention and MLP by sqrt(2 * layers), so that
            the stream starts as the embedding plus small updates.

    Raises:
        UserError: an unknown field, or fields that contradict each other; the message names them.
    """

    # Not "dcformer": the released checkpoints say that and mean another layout (see model/checkpoints).
    model_type = "dcmha"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 50257
    hidden_size: int = 128
    intermediate_size: int = 352
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 512

    norm_type: NormKind = "rmsnorm"
    norm_eps: float = 1e-6
    mlp_type: MLPKind = "swiglu"
    mlp_gate_groups: int = 0
    position_type: PositionKind = "rotary"
    rotary_base: float = 10000.0
    rotary_fraction: float = 1.0
    rotary_scaling: dict[str, Any] | None = None
    use_parallel_residual: bool = False
    use_qk_norm: bool = False
    qk_norm_eps: float = 1e-6
    use_bias: bool = False
    attention_bias: bool | None = None
    attention_output_bias: bool | None = None
    mlp_bias: bool | None = None

    compose: str = "dynamic"
    compose_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    compose_stages: tuple[Stage, ...] | list[Stage] = STAGES
    compose_rank: int = 2
    compose_groups: int = 1
    compose_static: bool = False
    compose_skip: bool = True
    compose_projection: bool = True
    compose_gate: bool = True
    compose_query_wise: bool = True
    compose_key_wise: bool = True

    attention_windows: tuple[int | None, ...] | list[int | None] = (None,)
    window_includes_edge: bool = False

    initializer_range: float = 0.02
    embedding_initializer_range: float | None = None
    depth_scaled_init: bool = False
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        check_field_types(self, DCFormerConfig)
        names = kwargs.get("id2label", getattr(self, "id2label", None))
        if names is not None and not (isinstance(names, Mapping) and all(str(key).isdigit() for key in names)):
            raise UserError(
                f"id2label is {shown(names)}; it must have a name for every number, as in {{0: 'cat', 1: 'dog'}}."
            )
        # JSON has no tuples: what config.json gives back as lists must compare equal to what was saved.
        self.compose_stages = tuple(self.compose_stages)
        self.attention_windows = tuple(self.attention_windows)
        self._check_choices()
        self._check_sizes()
        self._settle_heads()
        check_scaling(self.rotary_scaling, self.rotary_base)
        super().__post_init__(**kwargs)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> DCFormerConfig:
        """The configuration of a named model of the paper, or of a tiny one; see `dcinterp.presets()`.

        Raises:
            UserError: there is no such preset; the message suggests the nearest names.
        """
        chosen = preset(name)
        return (DCViTConfig if chosen.images else DCFormerConfig)(**chosen.all_fields(**changes))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages at which this model composes, in the order of computation: those that its composer can have."""
        if self.compose == NOT_COMPOSED:
            return ()
        return tuple(s for s in STAGES if s in self.compose_stages and s in composer_class(self.compose).STAGES)

    def without_composition(self) -> Self:
        """The same configuration as a plain transformer."""
        return type(self).from_dict(self.to_dict() | {"compose": NOT_COMPOSED, "compose_options": {}})

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the projections to queries, keys and values have biases."""
        return self.use_bias if self.attention_bias is None else self.attention_bias

    @property
    def has_output_bias(self) -> bool:
        """Whether the output projection of attention has a bias."""
        return self.has_qkv_bias if self.attention_output_bias is None else self.attention_output_bias

    @property
    def has_mlp_bias(self) -> bool:
        """Whether the MLP has biases."""
        return self.use_bias if self.mlp_bias is None else self.mlp_bias

    @property
    def heads_in_words(self) -> str:
        """How many heads, and of keys and values if these are fewer."""
        shared, heads = self.num_key_value_heads, self.num_attention_heads
        return f"{heads} ({shared} of keys and values)" if shared != heads else str(heads)

    @property
    def rotary_width(self) -> int:
        """How many channels of a head turn with the position."""
        return int(self.head_dim * self.rotary_fraction)  # type: ignore[operator]

    def window(self, layer: int) -> int | None:
        """How many keys, its own included, a query of this layer sees; None when it sees all."""
        pattern = self._pattern()
        return pattern[layer % len(pattern)]

    @property
    def windows(self) -> tuple[int | None, ...]:
        """`window` of every layer."""
        pattern = self._pattern()
        return tuple(pattern[layer % len(pattern)] for layer in range(self.num_hidden_layers))

    def _pattern(self) -> list[int | None]:
        """`window` of the first layers, which the others repeat."""
        edge = self.window_includes_edge
        return [None if window is None else window + edge for window in self.attention_windows]

    def _refuse_unknown(self, extra: dict[str, Any]) -> None:
        allowed = _TRANSFORMERS_FIELDS | _OF_OTHER_TOOLS | set(GenerationConfig._get_default_generation_params())
        allowed |= {"quantization_config"} if extra.get("quantization_config") is None else set()
        unknown = [name for name in extra if name not in allowed and not name.startswith("_")]
        if unknown:
            fields = [name for name in type(self).__dataclass_fields__ if not name.startswith("_")]
            near = difflib.get_close_matches(unknown[0], fields, n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UserError(f"{type(self).__name__} has no field {unknown[0]!r}.{hint}")

    def _check_choices(self) -> None:
        choices: dict[str, Any] = {
            "norm_type": NormKind,
            "mlp_type": MLPKind,
            "position_type": PositionKind,
        }
        for field, kind in choices.items():
            if getattr(self, field) not in get_args(kind):
                raise UserError(f"{field} is {getattr(self, field)!r}; choose one of {', '.join(get_args(kind))}.")
        bad = [stage for stage in self.compose_stages if stage not in STAGES]
        if bad:
            raise UserError(f"compose_stages has {bad[0]!r}; choose from 'pre' and 'post'.")
        check_composition(self)
        if not self.attention_windows:
            raise UserError("attention_windows is empty; use (None,) for global attention in every layer.")
        for window in self.attention_windows:
            if window is not None and (not isinstance(window, int) or window < 1):
                raise UserError(f"attention_windows has {window!r}; each entry is a number of keys >= 1, or None.")

    def _check_sizes(self) -> None:
        positive = (
            "vocab_size hidden_size num_hidden_layers num_attention_heads max_position_embeddings compose_rank "
            "compose_groups"
        )
        for field in positive.split():
            value = getattr(self, field)
            if value < 1:
                raise UserError(f"{field} is {value!r}; it must be a whole number of at least 1.")
        if self.intermediate_size < 0:
            raise UserError(f"intermediate_size is {self.intermediate_size!r}; it must be 0 (no MLP) or more.")
        if self.num_attention_heads % self.compose_groups:
            raise UserError(
                f"{self.num_attention_heads} heads do not divide into {self.compose_groups} composition groups; "
                "choose compose_groups among the divisors of num_attention_heads."
            )
        if self.pad_token_id is not None and not -self.vocab_size <= self.pad_token_id < self.vocab_size:
            raise UserError(
                f"pad_token_id is {self.pad_token_id!r}, outside the vocabulary of {self.vocab_size}; give the id of a "
                "token of it, or leave it out."
            )
        if self.mlp_gate_groups and self.intermediate_size % self.mlp_gate_groups:
            raise UserError(
                f"intermediate_size {self.intermediate_size} does not divide into {self.mlp_gate_groups} gate groups; "
                "choose mlp_gate_groups among its divisors, or 0 for no gate."
            )

    def _settle_heads(self) -> None:
        heads = self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = heads
        shared = self.num_key_value_heads
        if not isinstance(shared, int) or shared < 1 or heads % shared:
            raise UserError(
                f"num_key_value_heads is {shared!r}; choose a divisor of the {heads} query heads, which share them "
                "evenly."
            )
        if self.head_dim is None:
            if self.hidden_size % heads:
                raise UserError(
                    f"{heads} heads do not divide the width {self.hidden_size} "
                    f"(head_dim would be {self.hidden_size / heads:g}); choose a hidden_size that is a multiple of "
                    "num_attention_heads, or give head_dim."
                )
            self.head_dim = self.hidden_size // heads
        if not isinstance(self.head_dim, int) or self.head_dim < 1:
            raise UserError(f"head_dim is {self.head_dim!r}; it must be a whole number of at least 1.")
        if self.position_type == "rotary" and self.rotary_width % 2:
            raise UserError(
                f"rotary positions turn pairs of channels, but {self.rotary_fraction:g} of head_dim {self.head_dim} is "
                "odd; choose another head_dim or rotary_fraction."
            )


class DCViTConfig(DCFormerConfig):
    """Shape and ingredients of an image classifier; the fields of `DCFormerConfig`, and:

    Args:
        image_size, patch_size: edges in pixels; the image is cut into (image_size / patch_size)^2 patches.
        num_channels: colours of a pixel.
        num_labels: number of classes (a field of every config of transformers).

    Raises:
        UserError: as `DCFormerConfig`; also for positions and windows, which order tokens in a line.
    """

    model_type = "dcmha_vit"

    image_size: int = 224
    patch_size: int = 16
    num_channels: int = 3
    vocab_size: int = 1
    norm_type: NormKind = "layernorm"
    norm_eps: float = 1e-6
    mlp_type: MLPKind = "gelu"
    position_type: PositionKind = "learned"
    use_bias: bool = True
    use_cache: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        for field in ("image_size", "patch_size", "num_channels"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{field} is {value!r}; it must be a whole number of at least 1.")
        if self.image_size % self.patch_size:
            raise UserError(
                f"image_size {self.image_size} does not divide into patches of {self.patch_size}; choose a multiple."
            )
        windows = self.attention_windows
        if self.position_type != "learned" or not isinstance(windows, tuple | list) or tuple(windows) != (None,):
            raise UserError("Patches have no order: leave position_type 'learned' and attention_windows (None,).")
        super().__post_init__(**kwargs)

    @property
    def num_patches(self) -> int:
        """How many patches an image has."""
        return (self.image_size // self.patch_size) ** 2
