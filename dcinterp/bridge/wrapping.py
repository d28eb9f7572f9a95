"""From a model to a bridge: `wrap` for ours, `boot` and `wrap_foreign` for others.

Also the registration by which others boot ours.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformer_lens.factories import architecture_adapter_factory
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.sources._bridge_builder import (
    build_bridge_config_from_hf,
    build_bridge_from_module,
    configure_tokenizer,
)
from transformer_lens.model_bridge.sources._hf_format import determine_architecture_from_hf_config
from transformer_lens.model_bridge.sources.transformers.helpers import get_hf_model_class_for_architecture
from transformer_lens.model_bridge.sources.transformers_driver import TransformersDriver

from dcinterp.bridge.adapter import DCFormerAdapter
from dcinterp.bridge.dcbridge import DCBridge
from dcinterp.bridge.foreign import guarded
from dcinterp.bridge.hook_points import keep_shapes, take_edits_in_place
from dcinterp.bridge.processing import share_off, short_prompt
from dcinterp.bridge.vit import DCViTAdapter
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.vit import DCViTForImageClassification
from dcinterp.support.errors import UserError, reason
from dcinterp.support.pretrained import on_disk, read_pretrained

ARCHITECTURES = {DCFormerForCausalLM: "DCFormerForCausalLM", DCViTForImageClassification: "DCViTForImageClassification"}


def wrap(
    model: DCFormerForCausalLM | DCViTForImageClassification, tokenizer: Any = None, name: str = "dcformer"
) -> DCBridge:
    """A bridge over `model`, which it changes in place (its submodules become bridge components).

    Args:
        model: one of our models, not wrapped before.
        tokenizer: one with tokens for beginning, end and padding; None for a model of bare token ids.
        name: what the bridge calls itself.

    Raises:
        UserError: the model is wrapped already or of another kind, or the tokenizer lacks a special token.
    """
    architecture = next((word for kind, word in ARCHITECTURES.items() if isinstance(model, kind)), None)
    if architecture is None:
        raise UserError(
            f"A {type(model).__name__} has no logits to look at; give a {' or a '.join(ARCHITECTURES.values())}."
        )
    parameter = next(model.parameters())
    cfg = build_bridge_config_from_hf(model.config, architecture, name, parameter.dtype)
    adapter = (DCViTAdapter if isinstance(model, DCViTForImageClassification) else DCFormerAdapter)(cfg)
    adapter.cfg.device = str(parameter.device)
    adapter.prepare_model(model)
    words = _configured(tokenizer, adapter.cfg) if tokenizer is not None else None
    model.eval()
    bridge = DCBridge(model, adapter, words, driver=TransformersDriver(model, adapter, words))
    bridge.given_tokenizer = (words, tokenizer)
    take_edits_in_place(bridge)
    keep_shapes(bridge)
    return bridge


def _configured(tokenizer: Any, cfg: Any) -> Any:
    """TransformerLens's set-up of a tokenizer, which reads it again from a folder: one that still exists."""
    for token in ("bos_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise UserError(
                f"The tokenizer has no {token}; give it bos_token, eos_token and pad_token, or TransformerLens invents "
                "some that its vocabulary may lack."
            )
    if tokenizer.pad_token is None:
        tokenizer = copy.deepcopy(tokenizer)  # the caller's stays as it is
        tokenizer.pad_token = tokenizer.eos_token
    with on_disk(tokenizer) as words:
        return configure_tokenizer(words, cfg)


def boot(
    name_or_path: str, device: str | None = None, dtype: torch.dtype | None = None, tokenizer: Any = None
) -> TransformerBridge:
    """TransformerLens's own bridge for a causal language model that is not ours, with its tokenizer or another."""
    complete = _Complete()
    bridge = TransformerBridge.boot_transformers(
        name_or_path,
        device=device,
        dtype=dtype or torch.float32,
        tokenizer=tokenizer,
        model_class=complete,
    )
    _require_same(bridge, complete.probe, name_or_path)
    return guarded(bridge)


class _Complete:
    """Where TransformerLens takes a class of models: the one that fits the architecture, read whole or refused.

    probe: logits of the model itself, before TransformerLens takes it apart.
    """

    probe: tuple[torch.Tensor, torch.Tensor] | None = None

    def from_pretrained(self, name: str, **options: Any) -> Any:
        architecture = determine_architecture_from_hf_config(options["config"])
        model = read_pretrained(get_hf_model_class_for_architecture(architecture), name, **options)
        self.probe = probe_of(model)
        return model


LARGEST_ERROR, LARGEST_OF_HALF = 1e-3, 0.02
"""The share of the size of all logits that those of a bridge may be off, in float32 and in half precision."""


def probe_of(model: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(token ids, logits of the model itself), both on the CPU; None of a model that does not read token ids alone."""
    try:
        config = model.config.get_text_config()
        ids = short_prompt(config.vocab_size, getattr(config, "max_position_embeddings", None))
        with torch.no_grad():
            logits = model.eval()(input_ids=ids.to(next(model.parameters()).device)).logits.float().cpu()
        return (ids, logits) if bool(logits.isfinite().all()) else None
    except Exception:  # of as many classes as there are kinds of models
        return None


def _require_same(bridge: Any, probe: tuple[torch.Tensor, torch.Tensor] | None, name: str) -> None:
    """Refuse a bridge whose logits are not those of the model: every reading would be of another model.

    Raises:
        UserError: they differ, or the bridge does not run, or not while its hook points are kept.
    """
    if probe is None:
        return
    ids, own = probe
    parameter = next(bridge.original_model.parameters())
    if parameter.is_meta:  # nothing is computed there
        return
    try:
        with torch.no_grad():
            there = bridge.run_with_cache(ids.to(parameter.device))[0].float().cpu()
    except Exception as error:  # as above
        raise UserError(f"TransformerLens does not run {name}, though transformers does: {reason(error)}.") from error
    off = share_off(there, own)
    if not off <= (LARGEST_ERROR if parameter.dtype == torch.float32 else LARGEST_OF_HALF):
        raise UserError(
            f"The logits of TransformerLens's bridge are not those of {name} (off by {off:.2g} of their size): it "
            "does not know something that this model's config asks for, so every reading would be of another model."
        )


def wrap_foreign(model: Any, tokenizer: Any, name: str) -> TransformerBridge:
    """TransformerLens's own bridge over a model of transformers in memory, which it changes in place.

    Args:
        model: a causal language model that is not ours.
        tokenizer: None for a model of bare token ids.
        name: what the bridge calls itself.

    Raises:
        UserError: TransformerLens does not know the architecture, or its logits are not those of the model.
    """
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")  # the others do not hand out their attention
    config = copy.deepcopy(model.config)
    if not getattr(config, "architectures", None):  # as of GGUF files, and of models that were made of a config
        config.architectures = [type(model).__name__]
    probe = probe_of(model)
    try:
        architecture = determine_architecture_from_hf_config(config)
        with on_disk(tokenizer) as words:
            bridge = build_bridge_from_module(model, architecture, hf_config=config, tokenizer=words, model_name=name)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # of as many classes as there are architectures
        raise UserError(f"{name} is a model that TransformerLens does not wrap: {reason(error)}.") from error
    model.eval()
    _require_same(bridge, probe, name)
    return guarded(bridge)


def register() -> None:
    """Let foreign code boot our models: the factory knows the entry point, `boot_transformers` reads only this dict."""
    table = getattr(architecture_adapter_factory, "SUPPORTED_ARCHITECTURES", None)
    if isinstance(table, dict):
        table.setdefault(ARCHITECTURES[DCFormerForCausalLM], DCFormerAdapter)


register()
