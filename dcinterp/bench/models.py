"""Whole models: a training step and cached decoding of a small DCFormer++ against a Transformer++ baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dcinterp.bench.timing import Measurement, race
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import fused
from dcinterp.support.progress import Progress, silent

BASELINE = "Transformer++ (baseline)"
SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "num_attention_heads": 8}
VOCABULARY = 512


def build(implementation: str, *, compose: str = "dynamic", context: int = 2048) -> DCFormerForCausalLM:
    """The small model of these benchmarks, or with `compose="none"` its baseline."""
    torch.manual_seed(0)
    config = DCFormerConfig(vocab_size=VOCABULARY, max_position_embeddings=context, compose=compose, **SMALL)
    model = DCFormerForCausalLM(config)
    model.set_attn_implementation(implementation)
    return model


def candidates() -> dict[str, DCFormerForCausalLM]:
    """The baseline, and the DCFormer++ by implementation of its attention."""
    models = {BASELINE: build("auto", compose="none")}
    if fused.available():
        models["DCFormer++, fused"] = build("fused")
    return models | {"DCFormer++, portable": build("chunked"), "DCFormer++, as written": build("eager")}


def measure_training(batch: int, tokens: int, *, rounds: int = 5, progress: Progress = silent) -> Measurement:
    """One step of AdamW: forward, loss, backward, update."""

    def stepper(model: DCFormerForCausalLM) -> Callable[[], object]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = torch.randint(VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(0))

        def step() -> None:
            optimiser.zero_grad()
            model(ids, labels=ids, use_cache=False).loss.backward()
            optimiser.step()

        return step

    runs = {name: stepper(model.train()) for name, model in candidates().items()}
    timings = race(runs, BASELINE, rounds=rounds, progress=progress)
    return Measurement(f"B{batch} T{tokens}", "training step", torch.get_num_threads(), timings)


def measure_decoding(past: int, *, tokens: int = 16, rounds: int = 5, progress: Progress = silent) -> Measurement:
    """`tokens` further tokens, one at a time, on top of `past` cached ones; the cache is cropped after each round."""

    def decoder(model: DCFormerForCausalLM) -> Callable[[], object]:
        ids = torch.randint(VOCABULARY, (1, past), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values

        @torch.no_grad()
        def decode() -> None:
            token = ids[:, -1:]
            for _ in range(tokens):
                token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            cache.crop(-tokens)

        return decode

    runs = {name: decoder(model.eval()) for name, model in candidates().items()}
    timings = race(runs, BASELINE, rounds=rounds, progress=progress)
    return Measurement(f"{past} cached", f"{tokens} tokens decoded", torch.get_num_threads(), timings)
