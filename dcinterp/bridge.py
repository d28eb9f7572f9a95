"""The bridge to TransformerLens: our models as `TransformerBridge`s, with a hook on every part of the composition.

The only module that imports transformer_lens. Beside the standard hooks, every composed layer l has, for the stages
`pre` (scores) and `post` (weights):

    blocks.{l}.attn.{stage}.hook_in, hook_o_b, hook_o_qp, hook_o_kp, hook_o_qg, hook_o_kg, hook_out
                                                                              [batch, head, query, key]
    blocks.{l}.attn.{stage}.hook_w_q1, hook_w_q2 [batch, query, rank, head], hook_w_qg [batch, query, head]
    blocks.{l}.attn.{stage}.hook_w_k1, hook_w_k2 [batch, key, rank, head],   hook_w_kg [batch, key, head]

`hook_attn_scores` holds the composed, masked scores (its softmax is `post.hook_in`) and `hook_pattern` is
`post.hook_out`, the signed matrix that multiplies the values. A branch that a model lacks has no hook.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.factories import architecture_adapter_factory
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    BlockBridge,
    EmbeddingBridge,
    LinearBridge,
    MLPBridge,
    NormalizationBridge,
    ParallelBlockBridge,
    PosEmbedBridge,
    PositionEmbeddingsAttentionBridge,
    RMSNormalizationBridge,
    UnembeddingBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf, configure_tokenizer
from transformer_lens.model_bridge.sources.transformers_driver import TransformersDriver

from dcinterp.errors import UserError, nearest
from dcinterp.model.compose import BRANCHES, DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.model.config import STAGES, DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.shapes import Attention, Residual

ARCHITECTURE = "DCFormerForCausalLM"

ATTENTION_TAPS = ("hook_rot_q", "hook_rot_k", "hook_attn_scores", "hook_pattern")
"""Hooks inside the attention arithmetic; the first two exist in rotary models."""


class ComposeBridge(GeneralizedComponent):
    """One stage of composition with a HookPoint on every branch and dynamic weight that the model has."""

    def __init__(self, name: str, config: Any) -> None:
        super().__init__(name, config, optional=True)
        for tap in (*BRANCHES, *DYNAMIC_WEIGHTS):
            setattr(self, f"hook_{tap}", HookPoint())
        for tap in ("in", "out", *BRANCHES):
            # [batch, head, query, key]: a position slice means queries.
            getattr(self, f"hook_{tap}").pos_dim = -2

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        for tap in sorted({*BRANCHES, *DYNAMIC_WEIGHTS} - existing_taps(original_component)):
            del self._hook_registry[f"hook_{tap}"]
            delattr(self, f"hook_{tap}")

    def listening(self) -> bool:
        """Whether anybody, TransformerLens or plain torch, listens to a hook of this stage."""
        return _anybody_listens(self._hook_registry.values())

    def forward(self, attention: Attention, weights: ComposeWeights, taps: Any = None) -> Attention:
        return self.original_component(attention, weights, taps=self if self.listening() else None)


def existing_taps(composer: nn.Module) -> set[str]:
    """Names of the branches and dynamic weights that a composing module computes."""
    taps = set()
    skip, static = getattr(composer, "skip", True), getattr(composer, "static", None)
    if skip or static is not None:
        taps.add("o_b")
    for side, letter in (("query", "q"), ("key", "k")):
        weights = getattr(composer, side, None)
        if hasattr(weights, "down"):
            taps |= {f"o_{letter}p", f"w_{letter}1", f"w_{letter}2"}
        if hasattr(weights, "gate"):
            taps |= {f"o_{letter}g", f"w_{letter}g"}
    return taps


class DCAttentionBridge(PositionEmbeddingsAttentionBridge):
    """Attention whose arithmetic stays in the model; this class only supplies the hooks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.config.positional_embedding_type == "rotary":
            for name in ATTENTION_TAPS[:2]:
                if name not in self._hook_registry:
                    setattr(self, name, HookPoint())
                    getattr(self, name).pos_dim = 2

    def listening(self) -> bool:
        """Whether a hook inside the attention arithmetic has a listener, so that the fast path will not do."""
        own = [self._hook_registry[name] for name in ATTENTION_TAPS if name in self._hook_registry]
        stages = [self._modules[stage] for stage in STAGES if isinstance(self._modules.get(stage), ComposeBridge)]
        return _anybody_listens(own) or any(stage.listening() for stage in stages)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden_states = kwargs.pop("hidden_states", None)
        if hidden_states is None:
            hidden_states, *args = args
        taps = self if self.listening() else None
        out, pattern = self.original_component(self.hook_in(hidden_states), *args, taps=taps, **kwargs)
        return self.hook_out(out), pattern


def _anybody_listens(hooks: Iterable[nn.Module]) -> bool:
    # HookPoint.has_hooks() does not know of listeners that other libraries add, and is slower.
    return any(h._forward_hooks or h._forward_pre_hooks or h._backward_hooks or h._backward_pre_hooks for h in hooks)


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
        if isinstance(hf_model.model.embed_tokens, GeneralizedComponent):
            raise UserError(
                "This model is wrapped in a bridge already; use that bridge, or wrap a deep copy made before wrapping."
            )
        rms = config.norm_type == "rmsnorm"
        self.cfg.normalization_type = "RMS" if rms else "LN"
        self.cfg.uses_rms_norm = self.cfg.final_rms = rms
        self.cfg.positional_embedding_type = "rotary" if config.position_type == "rotary" else "standard"
        self.cfg.gated_mlp = config.mlp_type == "swiglu"
        self.cfg.parallel_attn_mlp = config.use_parallel_residual
        self.component_mapping = self._mapping(config)

    def _mapping(self, config: DCFormerConfig) -> dict[str, Any]:
        norm = RMSNormalizationBridge if config.norm_type == "rmsnorm" else NormalizationBridge
        inside: dict[str, GeneralizedComponent] = {stage: ComposeBridge(stage, self.cfg) for stage in config.stages}
        if config.use_qk_norm:
            inside |= {n: RMSNormalizationBridge(name=n, config=self.cfg) for n in ("q_norm", "k_norm")}
        parts: dict[str, Any] = {
            "ln1": norm(name="input_layernorm", config=self.cfg),
            "ln2": norm(name="post_attention_layernorm", config=self.cfg),
            "attn": self._qkvo_attention_bridge(extra_submodules=inside),
            "mlp": self._gated_mlp() if config.mlp_type == "swiglu" else self._plain_mlp(),
        }
        if config.use_parallel_residual:
            blocks = ParallelBlockBridge(name="model.layers", submodules=parts)
        else:
            # Stock TransformerLens aliases hook_resid_mid to the MLP's input, where an edit would miss the stream.
            parts["resid_mid"] = GeneralizedComponent("resid_mid", config=self.cfg)
            blocks = BlockBridge(
                name="model.layers", submodules=parts, hook_alias_overrides={"hook_resid_mid": "resid_mid.hook_out"}
            )
        mapping: dict[str, Any] = {"embed": EmbeddingBridge(name="model.embed_tokens")}
        if config.position_type == "learned":
            mapping["pos_embed"] = PosEmbedBridge(name="model.embed_positions")
        return mapping | {
            "blocks": blocks,
            "ln_final": norm(name="model.norm", config=self.cfg),
            "unembed": UnembeddingBridge(name="lm_head", config=self.cfg),
        }

    def _plain_mlp(self) -> MLPBridge:
        layers = {"in": LinearBridge(name="up_proj"), "out": LinearBridge(name="down_proj")}
        return MLPBridge(name="mlp", config=self.cfg, submodules=layers)


class DCBridge(TransformerBridge):
    """A `TransformerBridge` over one of our models. `lock` serialises runs: hooks of two threads would mix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "lock", threading.RLock())

    @property
    def model_config(self) -> DCFormerConfig:
        """The configuration of the wrapped model (`cfg` is TransformerLens's view of it)."""
        return self.original_model.config

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which the model composes its heads; empty for a plain transformer."""
        return self.model_config.stages

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a name in `names_filter` that is no hook is an error, also beside right ones.

        Raises:
            UserError: a misspelt name; the message suggests the nearest hooks.
        """
        self._check_names(kwargs.get("names_filter"))
        return super().run_with_cache(*args, **kwargs)

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        for hooks in ("fwd_hooks", "bwd_hooks"):
            self._check_names([name for name, _ in kwargs.get(hooks, []) if isinstance(name, str)])
        return super().run_with_hooks(*args, **kwargs)

    def save(self, folder: Any) -> None:
        """Write model and tokenizer as a folder that `dcinterp.load` and `from_pretrained` read."""
        model = self.original_model
        tensors = {k.replace("._original_component", ""): v for k, v in model.state_dict().items()}
        model.save_pretrained(folder, state_dict=tensors)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def _check_names(self, names: str | list[str] | Callable[[str], bool] | None) -> None:
        if names is None or callable(names):
            return
        known = set(self.hook_dict)
        for name in [names] if isinstance(names, str) else names:
            if name not in known:
                raise UserError(f"There is no hook {name!r} in this model; {nearest(name, known)}")


def wrap(model: DCFormerForCausalLM, tokenizer: Any = None, name: str = "dcformer") -> DCBridge:
    """A bridge over `model`, which it changes in place (its submodules become bridge components).

    Args:
        model: one of our models, not wrapped before.
        tokenizer: read from a folder that still exists: TransformerLens loads it again from there.
        name: what the bridge calls itself.

    Raises:
        UserError: the model is wrapped already.
    """
    parameter = next(model.parameters())
    cfg = build_bridge_config_from_hf(model.config, ARCHITECTURE, name, parameter.dtype)
    adapter = DCFormerAdapter(cfg)
    adapter.cfg.device = str(parameter.device)
    adapter.prepare_model(model)
    tokenizer = configure_tokenizer(tokenizer, adapter.cfg) if tokenizer is not None else None
    model.eval()
    return DCBridge(model, adapter, tokenizer, driver=TransformersDriver(model, adapter, tokenizer))


def boot(name_or_path: str, device: str | None = None, dtype: torch.dtype | None = None) -> TransformerBridge:
    """TransformerLens's own bridge for a causal language model that is not ours."""
    return TransformerBridge.boot_transformers(name_or_path, device=device, dtype=dtype or torch.float32)


def _register() -> None:
    """Let foreign code boot our models: the factory knows the entry point, `boot_transformers` reads only this dict."""
    table = getattr(architecture_adapter_factory, "SUPPORTED_ARCHITECTURES", None)
    if isinstance(table, dict):
        table.setdefault(ARCHITECTURE, DCFormerAdapter)


_register()

__all__ = [
    "ComposeBridge",
    "DCAttentionBridge",
    "DCBridge",
    "DCFormerAdapter",
    "Residual",
    "Tensor",
    "TransformerBridge",
    "boot",
    "existing_taps",
    "wrap",
]
