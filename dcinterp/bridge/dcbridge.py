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

import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import ActivationCache
from transformer_lens.factories import architecture_adapter_factory
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter
from transformer_lens.model_bridge.generalized_components import (
    BlockBridge,
    EmbeddingBridge,
    GatedMLPBridge,
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
from transformer_lens.model_bridge.generalized_components.vision_classifier_head import VisionClassifierHeadBridge
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_config_from_hf, configure_tokenizer
from transformer_lens.model_bridge.sources.transformers_driver import TransformersDriver
from transformers import AutoTokenizer

from dcinterp.errors import UserError, nearest
from dcinterp.model.compose import BRANCHES, DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.model.config import STAGES, DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.presets import build_model
from dcinterp.model.vit import DCViTForImageClassification
from dcinterp.shapes import Attention, PerHead, Residual

ARCHITECTURES = {DCFormerForCausalLM: "DCFormerForCausalLM", DCViTForImageClassification: "DCViTForImageClassification"}

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
        composer: Any = self.original_component
        return composer(attention, weights, taps=self if self.listening() else None)


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


class HeadNormBridge(RMSNormalizationBridge):
    """The norm of queries or keys, [batch, head, pos, d_head]; its epsilon is its own, not that of the blocks."""

    def set_original_component(self, original_component: nn.Module) -> None:
        super().set_original_component(original_component)
        self.config = copy.copy(self.config)
        self.config.eps = original_component.variance_epsilon


class DCAttentionBridge(PositionEmbeddingsAttentionBridge):
    """Attention whose arithmetic stays in the model; this class only supplies the hooks."""

    def set_original_component(self, component: nn.Module) -> None:
        super().set_original_component(component)
        # A hook that never fires would swallow an intervention without a word.
        for dead in ("hook_hidden_states", "hook_cos", "hook_sin", "hook_q_normed", "hook_k_normed"):
            if dead in self._hook_registry:
                del self._hook_registry[dead]
                delattr(self, dead)

    def listening(self) -> bool:
        """Whether a hook inside the attention arithmetic has a listener, so that the fast path will not do."""
        own = [self._hook_registry[name] for name in ATTENTION_TAPS if name in self._hook_registry]
        stages = [self._modules[stage] for stage in STAGES if isinstance(self._modules.get(stage), ComposeBridge)]
        return _anybody_listens(own) or any(stage.listening() for stage in stages)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        hidden_states = kwargs.pop("hidden_states") if "hidden_states" in kwargs else rest.pop(0)
        attention: Any = self.original_component
        x = self.hook_in(hidden_states)
        forked = self.config.use_split_qkv_input or self.config.use_attn_in
        inputs = self._forked_inputs(x) if forked else (*attention.project(x), x, x)
        z, pattern = attention.attend(*inputs, *rest, taps=self if self.listening() else None, **kwargs)
        out = self._results(z) if self.config.use_attn_result else attention.write(z)
        return self.hook_out(out), pattern

    def _forked_inputs(self, x: Residual) -> tuple[PerHead, PerHead, PerHead, Residual, Residual]:
        """Queries, keys and values from an input per head (`hook_q_input` ...), and what the composition reads.

        The dynamic weights of a position read one vector that no head owns. They get the mean over the heads' normed
        inputs, so that the paths into the query side and the key side of the composition run through the `q_input` and
        `k_input` nodes, an equal share through each head: the sum over a layer's nodes then misses nothing.
        """
        heads, width = self.config.n_heads, self.config.d_head
        source = x if self._captured_pre_ln_residual is None else self._captured_pre_ln_residual
        if self.config.use_split_qkv_input:
            hooks = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            per_head = [self._fork_and_norm_per_head(source, hook, heads) for hook in hooks]
        else:
            per_head = [self._fork_and_norm_per_head(source, self.hook_attn_in, heads)] * 3
        q, k, v = (
            self._project_per_head_qkv(linear, each, heads, width).transpose(1, 2)
            for linear, each in zip((self.q, self.k, self.v), per_head, strict=True)
        )
        return q, k, v, per_head[0].mean(2), per_head[1].mean(2)

    def _results(self, z: PerHead) -> Residual:
        """What the heads write, each on its own at `hook_result`, and then their sum."""
        flat = self.o.hook_in(z.transpose(1, 2).flatten(2))
        per_head = flat.unflatten(-1, (self.config.n_heads, self.config.d_head))
        return self._compute_per_head_result(per_head, self.config.n_heads, self.config.d_head)


class DCGatedMLPBridge(GatedMLPBridge):
    """Gated MLP whose arithmetic stays in the model; TransformerLens's own, once weights are folded, has no groups."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden_states, *rest = args
        mlp: Any = self.original_component
        return self.hook_out(mlp(self.hook_in(hidden_states), *rest, **kwargs))


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
        self._rows_sum_to_anything = "post" in config.stages and config.use_bias
        self.component_mapping = self._mapping(config)

    def preprocess_weights(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Before TransformerLens folds the norms' gains into q, k and v: remember them for the composition."""
        self._norms = {}
        if self._fold_ln_requested:
            norms = (name for name in state_dict if name.split(".")[-2] in ("ln1", "ln2"))
            self._norms = {name: state_dict[name].clone() for name in norms}
        return super().preprocess_weights(state_dict)

    def postprocess_weights(self, bridge: Any) -> None:
        """Fold the gains (and biases) of a block's norms into our own maps that read their output.

        TransformerLens knows of q, k, v and the MLP's weights only; left alone, the dynamic weights of the composition
        and the MLP's group gate would read inputs without their gain.
        """
        super().postprocess_weights(bridge)
        values = [block.attn.v.original_component.bias for block in bridge.blocks]
        if self._rows_sum_to_anything and not any(bias is not None and bias.any() for bias in values):
            raise UserError(
                "Value biases were folded as if attention summed to 1, which composed attention does not; load the "
                "model with dcinterp.load, or pass fold_value_biases=False to a fresh bridge."
            )
        for layer, block in enumerate(bridge.blocks):
            group_gate = getattr(block.mlp.original_component, "group_gate", None)
            readers = {"ln1": dynamic_readers(block.attn.original_component), "ln2": filter(None, [group_gate])}
            for norm, linears in readers.items():
                if (gain := self._norms.get(f"blocks.{layer}.{norm}.weight")) is not None:
                    for linear in linears:
                        fold_norm(linear, gain, self._norms.get(f"blocks.{layer}.{norm}.bias"))

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


class DCViTAdapter(DCFormerAdapter):
    """The same for the image classifiers. They have no unembedding, so weights cannot be folded for text tools."""

    supports_generation = False
    supports_compatibility_mode = False

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.cfg.is_visual_model = True

    def _mapping(self, config: DCFormerConfig) -> dict[str, Any]:
        return {
            "embed": GeneralizedComponent("model.embeddings", config=self.cfg),
            "blocks": self._blocks(config),
            "ln_final": self._norm(config, "model.norm"),
            "classifier_head": VisionClassifierHeadBridge(name="classifier", config=self.cfg),
        }


def dynamic_readers(attention: nn.Module) -> Iterator[nn.Linear]:
    """The linear maps that make dynamic weights from the layer's normed input."""
    stages = (getattr(attention, stage, None) for stage in STAGES)
    composers = (stage.original_component if isinstance(stage, ComposeBridge) else stage for stage in stages)
    for composer in filter(None, composers):
        for side in filter(None, (getattr(composer, "query", None), getattr(composer, "key", None))):
            yield from (getattr(side, name) for name in ("down", "gate") if hasattr(side, name))


@torch.no_grad()
def fold_norm(linear: nn.Linear, gain: Tensor, bias: Tensor | None) -> None:
    """Make linear(x) what linear(gain * x + bias) was."""
    if bias is not None:
        shift = linear.weight @ bias.to(linear.weight)
        linear.bias = nn.Parameter(shift if linear.bias is None else linear.bias + shift)
    linear.weight *= gain.to(linear.weight)


class CompositionWarning(UserWarning):
    """An assumption of a tool that holds for plain attention does not hold for composed heads."""


class DCActivationCache(ActivationCache):
    """TransformerLens's cache, which refuses or warns where it would mislead about a model of ours."""

    model: Any

    def logit_attrs(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in TransformerLens.

        Raises:
            UserError: the final norm has a gain that is not folded into the unembedding yet, which this method ignores.
        """
        if not self.model.final_norm_is_folded():
            raise UserError(
                "logit_attrs would ignore the gain of the final norm; call enable_compatibility_mode() on the bridge "
                "first, which folds it into the unembedding, and run again."
            )
        return super().logit_attrs(*args, **kwargs)

    def __getitem__(self, key: Any) -> Tensor:
        # The shorthand is what pattern detectors use; who writes the full name has read where it comes from.
        if isinstance(key, tuple) and key[0] == "pattern" and "post" in self.model.stages:
            warnings.warn(
                "The pattern of composed heads is signed and its rows do not sum to 1; the softmax before composition "
                "is at blocks.{layer}.attn.post.hook_in.",
                CompositionWarning,
                stacklevel=2,
            )
        return super().__getitem__(key)


class RunLock:
    """A re-entrant lock that a deep copy of its owner does not share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> RunLock:
        return RunLock()


class DCBridge(TransformerBridge):
    """A `TransformerBridge` over one of our models.

    Runs hold `lock`, because hooks belong to the model and those of two threads would mix. Hold it yourself around
    several calls that belong together (`with bridge.lock:`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "lock", RunLock())

    @property
    def model_config(self) -> DCFormerConfig:
        """The configuration of the wrapped model (`cfg` is TransformerLens's view of it)."""
        model: Any = self.original_model
        return model.config

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which the model composes its heads; empty for a plain transformer."""
        return self.model_config.stages

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().forward(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, one thread at a time."""
        with self.lock:
            return super().generate(*args, **kwargs)

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a name in `names_filter` that is no hook is an error, also beside right ones.

        Raises:
            UserError: a misspelt name; the message suggests the nearest hooks. A filter function that selects none
                is only warned about.
        """
        names = kwargs.get("names_filter")
        if isinstance(names, tuple | set | frozenset):
            names = kwargs["names_filter"] = list(names)
        self._check_names(names)
        # TransformerLens asks for attention matrices of all layers, which would take the model off its fast path.
        kwargs.setdefault("output_attentions", False)
        with self.lock:
            output, cache = super().run_with_cache(*args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = DCActivationCache(cache.cache_dict, self, has_batch_dim=cache.has_batch_dim)
        return output, cache

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        self._check_hooks(kwargs)
        with self.lock:
            return super().run_with_hooks(*args, **kwargs)

    @contextmanager
    def hooks(self, *args: Any, **kwargs: Any) -> Iterator[DCBridge]:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        self._check_hooks(dict(zip(("fwd_hooks", "bwd_hooks"), args, strict=False)) | kwargs)
        with self.lock, super().hooks(*args, **kwargs):
            yield self

    def add_hook(self, name: Any, *args: Any, **kwargs: Any) -> None:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        self._check_names(name)
        super().add_hook(name, *args, **kwargs)

    def process_weights(self, *args: Any, fold_value_biases: bool | None = None, **kwargs: Any) -> None:
        """As in TransformerLens, except that value biases are not folded where the weights of a head do not sum to 1.

        Raises:
            UserError: `fold_value_biases=True` for such a model.
        """
        sums_to_one = "post" not in self.stages
        if fold_value_biases and not sums_to_one and self.model_config.use_bias:
            raise UserError(
                "Folding value biases assumes attention that sums to 1, which composed attention does not; leave "
                "fold_value_biases out."
            )
        super().process_weights(*args, fold_value_biases=sums_to_one, **kwargs)  # type: ignore[misc]

    def enable_compatibility_mode(self, *args: Any, fold_value_biases: bool | None = None, **kwargs: Any) -> None:
        """As in TransformerLens; `fold_value_biases` None folds them where that is exact (see `process_weights`)."""
        super().enable_compatibility_mode(*args, fold_value_biases=fold_value_biases, **kwargs)  # type: ignore[misc, arg-type]

    def final_norm_is_folded(self) -> bool:
        """Whether the final norm has no gain or bias of its own left."""
        norm = self.ln_final.original_component
        bias = getattr(norm, "bias", None)
        return bool((norm.weight == 1).all()) and (bias is None or bool((bias == 0).all()))

    def all_composition_scores(self, mode: str) -> Any:
        """As in TransformerLens: scores of heads as they are before composition."""
        if self.stages:
            warnings.warn(
                "Composition scores take each head's QK and OV maps by themselves; in this model a head's attention is "
                "mixed with that of others before it meets OV.",
                CompositionWarning,
                stacklevel=2,
            )
        return super().all_composition_scores(mode)

    def state_dict(self, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """As in TransformerLens, with the parameters of the composition, which it would leave out."""
        tensors = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if destination is not None or prefix:
            return tensors
        return tensors | {ours: t for ours, _, t in self._composition_state(keep_vars)}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """As in TransformerLens, and the parameters of the composition."""
        inner = {ours: theirs for ours, theirs, _ in self._composition_state(keep_vars=True)}
        missing = sorted(set(inner) - set(state_dict) - {k for k in inner if inner[k] in state_dict})
        if strict and missing:
            raise RuntimeError(f"Missing key(s) in state_dict: {', '.join(missing)}")
        return super().load_state_dict({inner.get(k, k): t for k, t in state_dict.items()}, strict, assign)

    def _composition_state(self, keep_vars: bool) -> Iterator[tuple[str, str, Tensor]]:
        """(name here, name in the wrapped model, tensor) of every parameter of the composition."""
        for name, tensor in self.original_model.state_dict(keep_vars=keep_vars).items():
            clean = name.replace("._original_component", "")
            parts = clean.split(".")
            if "self_attn" in parts and parts[parts.index("self_attn") + 1] in STAGES:
                yield clean.replace("model.layers.", "blocks.").replace(".self_attn.", ".attn."), name, tensor

    def save(self, folder: Any) -> None:
        """Write model and tokenizer as a folder that `dcinterp.load` and `from_pretrained` read.

        Raises:
            UserError: weights were folded by `enable_compatibility_mode`: they are no model of this config any more.
        """
        if self._weights_processed:
            raise UserError(
                "The weights of this bridge are folded for analysis; load the model again and save that bridge."
            )
        model: Any = self.original_model
        tensors = {k.replace("._original_component", ""): v for k, v in model.state_dict().items()}
        own = set(parameter_names(model.config))
        model.save_pretrained(folder, state_dict={k: v for k, v in tensors.items() if k in own})
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def _check_hooks(self, kwargs: dict[str, Any]) -> None:
        for hooks in ("fwd_hooks", "bwd_hooks"):
            for name, _ in kwargs.get(hooks) or []:
                self._check_names(name)

    def _check_names(self, names: str | list[str] | Callable[[str], bool] | None) -> None:
        if names is None:
            return
        known = self.hook_dict
        if callable(names):
            if not any(names(name) for name in known):
                warnings.warn(
                    f"The filter function selects none of the {len(known)} hooks of this model; print bridge.hook_dict "
                    "for their names.",
                    stacklevel=3,
                )
            return
        for name in [names] if isinstance(names, str) else names:
            if name not in known:
                raise UserError(f"There is no hook {name!r} in this model; {nearest(name, known)}")


def parameter_names(config: DCFormerConfig) -> list[str]:
    """Names of the tensors that a model of this config saves (a bridge adds zero biases of its own)."""
    with torch.device("meta"):
        return list(build_model(config).state_dict())


def wrap(
    model: DCFormerForCausalLM | DCViTForImageClassification, tokenizer: Any = None, name: str = "dcformer"
) -> DCBridge:
    """A bridge over `model`, which it changes in place (its submodules become bridge components).

    Args:
        model: one of our models, not wrapped before.
        tokenizer: one with tokens for beginning, end and padding; None for a model of bare token ids.
        name: what the bridge calls itself.

    Raises:
        UserError: the model is wrapped already, or the tokenizer lacks a special token.
    """
    parameter = next(model.parameters())
    cfg = build_bridge_config_from_hf(model.config, ARCHITECTURES[type(model)], name, parameter.dtype)
    adapter = (DCViTAdapter if isinstance(model, DCViTForImageClassification) else DCFormerAdapter)(cfg)
    adapter.cfg.device = str(parameter.device)
    adapter.prepare_model(model)
    tokenizer = _configured(tokenizer, adapter.cfg) if tokenizer is not None else None
    model.eval()
    return DCBridge(model, adapter, tokenizer, driver=TransformersDriver(model, adapter, tokenizer))


def _configured(tokenizer: Any, cfg: Any) -> Any:
    """TransformerLens's set-up of a tokenizer, which reads it again from a folder: one that still exists."""
    for token in ("bos_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise UserError(
                f"The tokenizer has no {token}; give it bos_token, eos_token and pad_token, or TransformerLens invents "
                "some that its vocabulary may lack."
            )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return configure_tokenizer(AutoTokenizer.from_pretrained(folder), cfg)


def boot(name_or_path: str, device: str | None = None, dtype: torch.dtype | None = None) -> TransformerBridge:
    """TransformerLens's own bridge for a causal language model that is not ours."""
    return TransformerBridge.boot_transformers(name_or_path, device=device, dtype=dtype or torch.float32)


def _register() -> None:
    """Let foreign code boot our models: the factory knows the entry point, `boot_transformers` reads only this dict."""
    table = getattr(architecture_adapter_factory, "SUPPORTED_ARCHITECTURES", None)
    if isinstance(table, dict):
        table.setdefault(ARCHITECTURES[DCFormerForCausalLM], DCFormerAdapter)


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
