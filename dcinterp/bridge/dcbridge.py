"""`DCBridge`: TransformerLens's bridge, with the state of the composition, errors for misspelt hooks and a lock."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components.base import alias_generation
from transformers.utils import TransformersKwargs

from dcinterp.bridge.cache import CompositionWarning, DCActivationCache
from dcinterp.bridge.lock import LockedBridge
from dcinterp.bridge.processing import centre_over_vocabulary, same_predictions
from dcinterp.model.build import build_model
from dcinterp.model.config import STAGES, DCFormerConfig
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.vocabulary import has_unknown, unknown_clause, unknown_words

_BEFORE_FORK = re.compile(r"blocks\.\d+\.(ln1\.hook_\w+|attn\.hook_in|attn\.[qkv]\.hook_in)")
"""Hooks of what attention reads where heads have one input."""

RUNS, NO_OPTIONS = ("run_with_hooks", "run_with_cache"), {"self", "kwargs"}
OPTIONS = {
    *(name for name in inspect.signature(TransformerBridge.forward).parameters if name not in NO_OPTIONS),
    *TransformersKwargs.__annotations__,
    *("cache_position", "input_ids", "one_zero_attention_mask", "return_dict", "use_past_kv_cache"),
}
"""What TransformerLens and transformers read of the options of a run, beside those that the model's forward names."""


class DCBridge(LockedBridge):
    """A `TransformerBridge` over one of our models; its runs hold `lock`.

    given_tokenizer: (TransformerLens's copy of a tokenizer, which puts a BOS token in front of every text; the
    tokenizer itself, which is what is saved).
    """

    given_tokenizer: tuple[Any, Any] = (None, None)

    @property
    def hook_dict(self) -> dict[str, HookPoint]:
        """As in TransformerLens, which works out the aliases in every call; here only where a hook has changed."""
        made_from = (*map(id, self._hook_registry.values()), alias_generation())
        kept: tuple[Any, dict[str, HookPoint]] | None = self.__dict__.get("_hooks_by_name")
        if kept is None or kept[0] != made_from:
            kept = (made_from, super().hook_dict)
            self.__dict__["_hooks_by_name"] = kept
        return dict(kept[1])

    def _scan_existing_hooks(self, module: nn.Module, prefix: str = "") -> None:
        """Find the hooks of all components, as TransformerLens does, in a small part of its time.

        It asks every component for every attribute that it could have, twice for each bridge; the weights in the form
        of TransformerLens, which are computed when asked for, among them. Hooks are submodules or plain attributes.
        """
        named = {id(hook) for hook in self._hook_registry.values() if hook.name is not None}
        seen: set[int] = set()

        def keep(name: str, hook: HookPoint) -> None:
            if id(hook) not in named:
                hook.name = name
                named.add(id(hook))
            self._hook_registry[name] = hook

        def scan(component: Any, path: str) -> None:
            if id(component) in seen:
                return
            seen.add(id(component))
            own = component.get_hooks() if callable(getattr(component, "get_hooks", None)) else {}
            for name, hook in own.items() if isinstance(own, dict) else ():
                keep(path + name, hook)
            held = {**vars(component), **component._modules}
            for name in sorted(name for name, part in held.items() if isinstance(part, HookPoint)):
                if not name.startswith("_"):
                    keep(path + name, held[name])
            for name, child in component.named_children():
                if name not in ("original_component", "_original_component", "original_model"):
                    scan(child, f"{path}{name}.")

        scan(module, f"{prefix}." if prefix else "")

    @property
    def model_config(self) -> DCFormerConfig:
        """The configuration of the wrapped model (`cfg` is TransformerLens's view of it)."""
        model: Any = self.original_model
        return model.config

    @property
    def stages(self) -> tuple[str, ...]:
        """Stages at which the model composes its heads; empty for a plain transformer."""
        return self.model_config.stages

    def to_tokens(
        self,
        input: str | list[str],
        prepend_bos: bool | None = None,
        padding_side: str | None = None,
        move_to_device: bool = True,
        truncate: bool = True,
    ) -> Any:
        """As in TransformerLens, with a warning where words are unknown, or a text is cut to the context."""
        # TransformerLens counts a token that it then removes, and would cut a text that just fits.
        tokens = super().to_tokens(input, prepend_bos, padding_side, move_to_device, truncate=False)
        if truncate and (length := tokens.shape[-1]) > self.cfg.n_ctx:
            tokens = super().to_tokens(input, prepend_bos, padding_side, move_to_device)
            warnings.warn(
                f"The text has {length:,} tokens and this model reads {self.cfg.n_ctx:,}: only its first "
                f"{tokens.shape[-1]:,} are used.",
                stacklevel=2,
            )
        if has_unknown(self.tokenizer, tokens):
            for text in [input] if isinstance(input, str) else input:
                if words := unknown_words(self.tokenizer, text):
                    unknown = self.tokenizer.unk_token
                    warnings.warn(
                        f"This model does not know {unknown_clause(words)}, and reads `{unknown}` there.", stacklevel=2
                    )
        return tokens

    def to_single_token(self, string: str) -> int:
        """As in TransformerLens; a word that the model does not know is an error here.

        Raises:
            UserError: the word is unknown.
        """
        if words := unknown_words(self.tokenizer, string):
            raise UserError(f"This model does not know {unknown_clause(words)}; use words of its tasks.")
        return super().to_single_token(string)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens; an option that nothing reads is an error.

        Raises:
            UserError: a misspelt option; the message suggests the nearest ones.
        """
        unknown = kwargs.keys() - OPTIONS
        if unknown and (unknown := unknown - inspect.signature(self.original_model.forward).parameters.keys()):
            runs = {run: inspect.signature(getattr(TransformerBridge, run)).parameters for run in RUNS}
            name = min(unknown)
            if others := [run for run in RUNS if name in runs[run]]:
                raise UserError(f"This run has no option {name!r}, which is one of {' and '.join(others)}.")
            raise UserError(
                f"A run has no option {name!r}; {nearest(name, OPTIONS.union(*runs.values()) - NO_OPTIONS)}"
            )
        given = args[0] if args else kwargs.get("input")
        if kwargs.get("attention_mask") is None and (mask := self._mask_of_padding(given)) is not None:
            kwargs["attention_mask"] = mask
        return super().forward(*args, **kwargs)

    def _mask_of_padding(self, given: Any) -> Tensor | None:
        """The mask of token ids that are padded in front, as those of texts have one; None where nothing is.

        TransformerLens makes one for texts alone. A padding token that also begins texts is none that can be told.
        """
        pad, begins = (getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "bos"))
        if pad is None or pad == begins or not isinstance(given, Tensor) or given.is_floating_point():
            return None
        if given.ndim != 2 or given.shape[1] < 2 or not bool((given[:, 0] == pad).any()):
            return None
        return (given != pad).long().cummax(1).values

    def run_with_cache(self, *args: Any, **kwargs: Any) -> Any:
        """As in TransformerLens, with a cache that refuses or warns where it would mislead."""
        # TransformerLens asks for attention matrices of all layers, which would take the model off its fast path.
        kwargs.setdefault("output_attentions", False)
        output, cache = super().run_with_cache(*args, **kwargs)
        if isinstance(cache, ActivationCache):
            cache = DCActivationCache(cache.cache_dict, self, has_batch_dim=cache.has_batch_dim)
        return output, cache

    def process_weights(
        self,
        verbose: bool = False,
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        fold_value_biases: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
    ) -> None:
        """As in TransformerLens, except that value biases are not folded where the weights of a head do not sum to 1.

        Args:
            fold_value_biases: None folds them where that is exact.

        Raises:
            UserError: `fold_value_biases=True` for such a model, or `refactor_factored_attn_matrices=True`, which
                TransformerLens does for separate heads with biases, without rotary positions and composition; or
                TransformerLens would take the MLP's matrices for their transposes.
        """
        config = self.model_config
        apart = config.has_qkv_bias and config.position_type != "rotary" and not self.stages
        apart = apart and config.num_key_value_heads in (None, config.num_attention_heads)
        if refactor_factored_attn_matrices and not apart:
            raise UserError(
                "TransformerLens refactors attention matrices only of models with biases, without rotary positions, "
                "shared keys and composition; leave refactor_factored_attn_matrices out."
            )
        sums_to_one, layernorm = "post" not in self.stages, config.norm_type == "layernorm"
        # A norm's bias becomes one of the values.
        if fold_value_biases and not sums_to_one and (config.has_qkv_bias or (fold_ln and layernorm)):
            raise UserError(
                "Folding value biases assumes attention that sums to 1, which composed attention does not; leave "
                "fold_value_biases out."
            )
        if layernorm and config.intermediate_size == config.hidden_size and (fold_ln or center_writing_weights):
            raise UserError(
                f"An MLP as wide as the stream ({config.hidden_size}) has square matrices, which TransformerLens takes "
                "for their transposes when it centres them; give fold_ln=False and center_writing_weights=False."
            )
        before = self._places()
        # Of a square unembedding it would centre the wrong axis.
        square = center_unembed and config.hidden_size == self.cfg.d_vocab and not self._weights_processed
        try:
            with same_predictions(self):
                super().process_weights(
                    verbose,
                    fold_ln,
                    center_writing_weights,
                    center_unembed and not square,
                    sums_to_one if fold_value_biases is None else fold_value_biases,
                    refactor_factored_attn_matrices,
                )
                if square:
                    centre_over_vocabulary(self.unembed.original_component)
        except Exception:
            # TransformerLens takes them for folded from the beginning on, and would not fold them when asked again.
            self._weights_processed = before is None or self._places() != before
            raise

    def _places(self) -> list[tuple[int, int]] | None:
        """Where every weight is in memory, and how often it was written to there; None where torch does not count."""
        weights = list(self.original_model.parameters())
        return None if any(each.is_inference() for each in weights) else [(w.data_ptr(), w._version) for w in weights]

    def enable_compatibility_mode(
        self,
        disable_warnings: bool = False,
        no_processing: bool = False,
        fold_ln: bool = True,
        center_writing_weights: bool = True,
        center_unembed: bool = True,
        fold_value_biases: bool | None = None,
        refactor_factored_attn_matrices: bool = False,
    ) -> None:
        """As in TransformerLens; `fold_value_biases` None folds them where that is exact (see `process_weights`)."""
        super().enable_compatibility_mode(
            disable_warnings,
            no_processing,
            fold_ln,
            center_writing_weights,
            center_unembed,
            fold_value_biases,  # type: ignore[arg-type]
            refactor_factored_attn_matrices,
        )

    def final_norm_is_folded(self) -> bool:
        """Whether the final norm has no gain or bias of its own left."""
        return _is_folded(self.ln_final)

    def norm_is_folded(self, layer: int | None, mlp_input: bool = False) -> bool:
        """The same of the norm that a layer reads by: before attention or the MLP, or the final norm for `layer` None
        or the number of layers.
        """
        if layer is None or layer == self.cfg.n_layers:
            return self.final_norm_is_folded()
        block = self.blocks[layer]
        return _is_folded(block.ln2 if mlp_input else block.ln1)

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
        """As in TransformerLens, with what it would leave out: the composition and the MLP's gate."""
        tensors = super().state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if destination is not None or prefix:
            return tensors
        return tensors | {ours: t for ours, _, t in self._own_state(keep_vars)}

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """As in TransformerLens, and the parameters that `state_dict` has besides."""
        known = super().state_dict()  # what TransformerLens finds by itself
        inner: dict[str, list[str]] = {}  # a parameter may have several names in the wrapped model
        for ours, theirs, _ in self._own_state(keep_vars=True):
            if ours not in known:
                inner.setdefault(ours, []).append(theirs)
        missing = sorted(ours for ours, all_ in inner.items() if not {ours, *all_} & set(state_dict))
        if strict and missing:
            raise RuntimeError(f"Missing key(s) in state_dict: {', '.join(missing)}")
        given = {theirs: t for k, t in state_dict.items() for theirs in inner.get(k, [k])}
        return super().load_state_dict(given, strict, assign)

    def _own_state(self, keep_vars: bool) -> Iterator[tuple[str, str, Tensor]]:
        """(name here, name in the wrapped model, tensor) of what is ours: the composition, and the MLP's group gate."""
        for name, tensor in self.original_model.state_dict(keep_vars=keep_vars).items():
            clean = name.replace("._original_component", "")
            parts = clean.split(".")
            composes = "self_attn" in parts and parts[parts.index("self_attn") + 1] in STAGES
            if composes or "group_gate" in parts:
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
            ours, given = self.given_tokenizer
            (given if self.tokenizer is ours else self.tokenizer).save_pretrained(folder)

    def _check_hooks(self, kwargs: dict[str, Any]) -> None:
        super()._check_hooks(kwargs)
        for name, _ in kwargs.get("fwd_hooks") or []:
            self._warn_before_fork(name)

    def add_hook(self, name: Any, *args: Any, **kwargs: Any) -> None:
        """As in TransformerLens; a name that is no hook is an error that suggests the nearest ones."""
        super().add_hook(name, *args, **kwargs)
        self._warn_before_fork(name)

    def _warn_before_fork(self, name: Any) -> None:
        """Say once where nothing reads an edit while heads have inputs of their own."""
        split = self.cfg.use_split_qkv_input
        if not (split or self.cfg.use_attn_in) or "_warned" in self.__dict__:
            return
        known = self.hook_dict
        names = [each for each in known if name(each)] if callable(name) else [name]
        if unread := [each for each in names if _BEFORE_FORK.fullmatch(known[each].name or each)]:
            self.__dict__["_warned"], name = True, unread[0]
            own = "hook_q_input, hook_k_input and hook_v_input" if split else "hook_attn_in"
            warnings.warn(
                f"While every head has an input of its own, attention does not read {name}: an edit there would change "
                f"nothing. Edit {own}, or set use_split_qkv_input and use_attn_in to False.",
                stacklevel=4,
            )


def _is_folded(norm: Any) -> bool:
    """Whether a norm multiplies by 1 and adds 0."""
    inner = norm.original_component
    bias = getattr(inner, "bias", None)
    return bool((inner.weight == 1).all()) and (bias is None or bool((bias == 0).all()))


def parameter_names(config: DCFormerConfig) -> list[str]:
    """Names of the tensors that a model of this config saves (a bridge adds zero biases of its own)."""
    with torch.device("meta"):
        return list(build_model(config).state_dict())
