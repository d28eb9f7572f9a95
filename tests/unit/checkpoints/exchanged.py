"""What a shipped model of a puzzle answers with a stage's dynamic weights of another question."""

from __future__ import annotations

from typing import Any


def answer_with(model: Any, prompt: str, other: str, stage: str) -> str:
    """The most likely token after `prompt`, with the query's weights of layer 1 at a stage taken from `other`."""
    taps = [tap for tap in model.hook_dict if tap.startswith(f"blocks.1.attn.{stage}.hook_w_q")]
    assert len(taps) == 3
    _, cache = model.run_with_cache(other, names_filter=taps)
    hooks = [(tap, lambda weights, hook: cache[hook.name]) for tap in taps]
    return str(model.tokenizer.decode(model.run_with_hooks(prompt, fwd_hooks=hooks)[0, -1].argmax()))
