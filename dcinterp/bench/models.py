"""Whole models: a training step, a prompt, and cached decoding of a DCFormer++ against a Transformer++ of its shape.

The Transformer++ is the baseline. Beside it runs `transformers`' Llama of the same shape, which computes the same
function as the baseline, so that one sees what the baseline is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dcinterp.bench.timing import Measurement, race
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import fused
from dcinterp.support.progress import Progress, silent

BASELINE = "Transformer++ (baseline)"
LLAMA = "Llama (transformers)"
VOCABULARY = 512
CONTEXT = 2048


@dataclass(frozen=True)
class ModelShape:
    """Width, layers, heads and MLP units of a model."""

    width: int
    layers: int
    heads: int
    units: int

    def __str__(self) -> str:
        return f"width {self.width}, {self.layers} layers"

    def fields(self) -> dict[str, Any]:
        """As fields of a config, ours or that of Llama."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.units,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
        }


SMALL, MIDDLE, LARGE = ModelShape(128, 3, 8, 344), ModelShape(256, 4, 8, 704), ModelShape(512, 6, 8, 1376)
TRAINING = ((SMALL, 16, 192), (MIDDLE, 16, 192), (MIDDLE, 2, 1024), (LARGE, 4, 512))
"""Shape, batch and tokens."""
PREFILL = ((SMALL, 512), (MIDDLE, 1024), (LARGE, 512))
"""Shape and tokens of the prompt."""
DECODING = ((SMALL, 128), (MIDDLE, 128), (MIDDLE, 1024), (LARGE, 512))
"""Shape and tokens in the cache."""


def build(shape: ModelShape, implementation: str, *, compose: str = "dynamic") -> DCFormerForCausalLM:
    """A model of these benchmarks, or with `compose="none"` its baseline."""
    torch.manual_seed(0)
    model = DCFormerForCausalLM(DCFormerConfig(compose=compose, **shape.fields()))
    model.set_attn_implementation(implementation)
    return model


def build_llama(shape: ModelShape) -> Any:
    """The Llama of `transformers`, with its own choice of attention (SDPA)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model("llama", num_key_value_heads=shape.heads, rms_norm_eps=1e-6, **shape.fields())
    return AutoModelForCausalLM.from_config(config)


def candidates(shape: ModelShape, *, slow: bool = True) -> dict[str, Any]:
    """The baseline, Llama, and the DCFormer++ by implementation of its attention: all, or without the `slow` ones."""
    models: dict[str, Any] = {BASELINE: build(shape, "auto", compose="none"), LLAMA: build_llama(shape)}
    if fused.available():
        models["DCFormer++, fused"] = build(shape, "fused")
    if slow or not fused.available():
        models["DCFormer++, portable"] = build(shape, "chunked")
    if slow:
        models["DCFormer++, as written"] = build(shape, "eager")
    return models


def measure_training(
    shape: ModelShape, batch: int, tokens: int, *, slow: bool = True, rounds: int = 5, progress: Progress = silent
) -> Measurement:
    """One step of AdamW: forward, loss, backward, update."""

    def stepper(model: Any) -> Callable[[], object]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = _text(batch, tokens)

        def step() -> None:
            optimiser.zero_grad()
            model(ids, labels=ids, use_cache=False).loss.backward()
            optimiser.step()

        return step

    runs = {name: stepper(model.train()) for name, model in candidates(shape, slow=slow).items()}
    return _raced(f"{shape}, B{batch} T{tokens}", "training step", runs, rounds, progress)


def measure_prefill(
    shape: ModelShape, tokens: int, *, slow: bool = True, rounds: int = 5, progress: Progress = silent
) -> Measurement:
    """A prompt through the model into an empty cache, up to the logits of its last token."""

    def reader(model: Any) -> Callable[[], object]:
        ids = _text(1, tokens)

        @torch.no_grad()
        def read() -> object:
            return model(ids, use_cache=True, logits_to_keep=1)

        return read

    runs = {name: reader(model.eval()) for name, model in candidates(shape, slow=slow).items()}
    return _raced(f"{shape}, T{tokens}", "prefill", runs, rounds, progress)


def measure_decoding(
    shape: ModelShape,
    past: int,
    *,
    slow: bool = True,
    tokens: int = 16,
    rounds: int = 5,
    progress: Progress = silent,
) -> Measurement:
    """`tokens` further tokens, one at a time, on top of `past` cached ones; the cache is cropped after each round."""

    def decoder(model: Any) -> Callable[[], object]:
        ids = _text(1, past)
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values

        @torch.no_grad()
        def decode() -> None:
            token = ids[:, -1:]
            for _ in range(tokens):
                token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            cache.crop(-tokens)

        return decode

    runs = {name: decoder(model.eval()) for name, model in candidates(shape, slow=slow).items()}
    return _raced(f"{shape}, {past} cached", f"{tokens} tokens decoded", runs, rounds, progress)


def jobs(kind: str, *, rounds: int, slow: bool) -> list[partial[Measurement]]:
    """The measurements of a kind at all its shapes, to be called with their progress.

    Args:
        kind: "training step", "prefill" or "decoding".
        rounds: repeats of every candidate.
        slow: whether the slower implementations take part.
    """
    kinds: dict[str, tuple[Callable[..., Measurement], Sequence[tuple[Any, ...]]]] = {
        "training step": (measure_training, TRAINING),
        "prefill": (measure_prefill, PREFILL),
        "decoding": (measure_decoding, DECODING),
    }
    measure, shapes = kinds[kind]
    return [partial(measure, *each, rounds=rounds, slow=slow) for each in shapes]


def _text(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(0))


def _raced(
    label: str, what: str, runs: Mapping[str, Callable[[], object]], rounds: int, progress: Progress
) -> Measurement:
    timings = race(runs, BASELINE, rounds=rounds, progress=progress)
    return Measurement(label, what, torch.get_num_threads(), timings)
