"""Where TransformerLens finds the parts of our language models, and what its folding of weights must know of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    ParallelBlockBridge,
    PosEmbedBridge,
    RMSNormalizationBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from dcinterp.bridge.attention import DCAttentionBridge, HeadNormBridge
from dcinterp.bridge.compose import ComposeBridge
from dcinterp.bridge.folding import check_folding, composers_by_layer, fold_composer, fold_norm
from dcinterp.bridge.mlp import DCGatedMLPBridge
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError


class DCFormerAdapter(ArchitectureAdapter):
    """Tells TransformerLens where the parts of our decoder are; the mapping follows the model it is given."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.attn_only = False
        # Nothing we train sees a beginning-of-sequence token.
        self.cfg.default_prepend_bos = False
        self._attention_bridge_cls = DCAttentionBridge
        self.weight_processing_conversions = {**self._qkvo_weight_conversions(include_biases=True)}
        self.component_mapping = {}

    def prepare_model(self, hf_model: Any) -> None:
        """Build the mapping for this model's ingredients; runs before TransformerLens wires its components.

        Raises:
            UserError: the model is wrapped already.
        """
        config: DCFormerConfig = hf_model.config
        self._model = hf_model
        if isinstance(hf_model.model.norm, GeneralizedComponent):
            raise UserError(
                "This model is wrapped in a bridge already; use that bridge, or wrap a deep copy made before wrapping."
            )
        rms = config.norm_type == "rmsnorm"
        self.cfg.normalization_type = "RMS" if rms else "LN"
        self.cfg.uses_rms_norm = self.cfg.final_rms = rms
        self.cfg.positional_embedding_type = "rotary" if config.position_type == "rotary" else "standard"
        self.cfg.gated_mlp = config.mlp_type == "swiglu"
        self.cfg.act_fn = "silu" if config.mlp_type == "swiglu" else "gelu"
        self.cfg.parallel_attn_mlp = config.use_parallel_residual
        self._rows_sum_to_anything = "post" in config.stages
        self.component_mapping = self._mapping(config)

    def preprocess_weights(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Before TransformerLens folds the norms' gains into q, k and v: remember them for the composition.

        Raises:
            UserError: a composer reads its input by something that gains cannot be folded into; nothing was folded.
        """
        self._norms = {}
        # A norm's bias becomes one of the values when the norm is folded.
        biases = (".attn.v.bias", ".ln1.bias") if self._fold_ln_requested else (".attn.v.bias",)
        self._had_value_biases = any(bool(t.any()) for name, t in state_dict.items() if name.endswith(biases))
        if self._fold_ln_requested:
            norms = (name for name in state_dict if name.split(".")[-2] in ("ln1", "ln2"))
            self._norms = {name: state_dict[name].clone() for name in norms}
            for layer, composer in composers_by_layer(self._model):
                if (norm := self._norm_of(layer, "ln1")) is not None:
                    check_folding(composer, *norm)
        return super().preprocess_weights(state_dict)

    def postprocess_weights(self, bridge: Any) -> None:
        """Fold the gains (and biases) of a block's norms into our own maps that read their output.

        TransformerLens knows of q, k, v and the MLP's weights only; left alone, the dynamic weights of the composition
        and the MLP's group gate would read inputs without their gain.
        """
        super().postprocess_weights(bridge)
        values = [block.attn.v.original_component.bias for block in bridge.blocks]
        left = any(bias is not None and bias.any() for bias in values)
        if self._rows_sum_to_anything and self._had_value_biases and not left:
            raise UserError(
                "Value biases were folded as if attention summed to 1, which composed attention does not; load the "
                "model with dcinterp.load, or pass fold_value_biases=False to a fresh bridge."
            )
        for layer, composer in composers_by_layer(self._model):
            if (norm := self._norm_of(layer, "ln1")) is not None:
                fold_composer(composer, *norm)
        for layer, block in enumerate(bridge.blocks):
            group_gate = getattr(block.mlp.original_component, "group_gate", None)
            if group_gate is not None and (norm := self._norm_of(layer, "ln2")) is not None:
                fold_norm(group_gate, *norm)

    def _norm_of(self, layer: int, norm: str) -> tuple[Tensor, Tensor | None] | None:
        """(gain, bias) that a norm had before it was folded."""
        gain = self._norms.get(f"blocks.{layer}.{norm}.weight")
        return None if gain is None else (gain, self._norms.get(f"blocks.{layer}.{norm}.bias"))

    def _mapping(self, config: DCFormerConfig) -> dict[str, Any]:
        mapping: dict[str, Any] = {"embed": EmbeddingBridge(name="model.embed_tokens")}
        if config.position_type == "learned":
            mapping["pos_embed"] = PosEmbedBridge(name="model.embed_positions")
        return mapping | {
            "blocks": self._blocks(config),
            "ln_final": self._norm(config, "model.norm"),
            "unembed": UnembeddingBridge(name="lm_head", config=self.cfg),
        }

    def _norm(self, config: DCFormerConfig, name: str) -> GeneralizedComponent:
        kind = RMSNormalizationBridge if config.norm_type == "rmsnorm" else NormalizationBridge
        return kind(name=name, config=self.cfg)

    def _blocks(self, config: DCFormerConfig) -> GeneralizedComponent:
        inside: dict[str, GeneralizedComponent] = {stage: ComposeBridge(stage, self.cfg) for stage in config.stages}
        if config.use_qk_norm:
            inside |= {name: HeadNormBridge(name=name, config=self.cfg) for name in ("q_norm", "k_norm")}
        parts: dict[str, Any] = {
            "ln1": self._norm(config, "input_layernorm"),
            "ln2": self._norm(config, "post_attention_layernorm"),
            "attn": self._qkvo_attention_bridge(extra_submodules=inside),
            "mlp": self._mlp(gated=config.mlp_type == "swiglu"),
        }
        if config.use_parallel_residual:
            return ParallelBlockBridge(name="model.layers", submodules=parts)
        # Stock TransformerLens aliases hook_resid_mid to the MLP's input, where an edit would miss the stream.
        parts["resid_mid"] = GeneralizedComponent("resid_mid", config=self.cfg)
        middle = {"hook_resid_mid": "resid_mid.hook_out"}
        return BlockBridge(name="model.layers", submodules=parts, hook_alias_overrides=middle)

    def _mlp(self, gated: bool) -> MLPBridge:
        layers: dict[str, GeneralizedComponent] = {
            "in": LinearBridge(name="up_proj"),
            "out": LinearBridge(name="down_proj"),
        }
        if not gated:
            return MLPBridge(name="mlp", config=self.cfg, submodules=layers)
        layers["gate"] = LinearBridge(name="gate_proj")
        return DCGatedMLPBridge(name="mlp", config=self.cfg, submodules=layers)
