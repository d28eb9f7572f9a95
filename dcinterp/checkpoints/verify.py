"""Comparing a loaded model, layer by layer, with the plain reference or with another checkpoint of the same model.

Differences are relative: the largest absolute one over the largest entry of what is compared (1 at least).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.checkpoints.composition import read_composed
from dcinterp.checkpoints.load import load
from dcinterp.checkpoints.names import is_composition
from dcinterp.checkpoints.oracle import PlainRun, plain_forward
from dcinterp.checkpoints.read import read_model
from dcinterp.model.config import DCFormerConfig, DCViTConfig
from dcinterp.shapes import Attention, TokenIds
from dcinterp.support.errors import UserError

SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "stages")
"""What two models must share to be compared place by place."""


@dataclass
class Verification:
    """Relative differences: per layer (`stream`, `pre in`, ...) and of the whole (`logits`, ...)."""

    against: str
    stage_names: tuple[str, ...]
    layers: list[dict[str, float]] = field(default_factory=list)
    whole: dict[str, float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest difference; infinite if anything is no number."""
        values = [*self.whole.values(), *(value for row in self.layers for value in row.values())]
        return max((value if value == value else float("inf")) for value in values)


@torch.no_grad()
def verify(folder: Path, *, against: Path | None = None, length: int = 48, seed: int = 0) -> Verification:
    """Run the model of `folder` on two random texts: with taps, on its fast path, and token by token with the cache.

    Args:
        folder: a model of ours, in a released layout, or a composition on top of its base.
        against: another folder of the same model; None for the plain reference in float64.
        length: tokens of each text; at most the context.
        seed: of the texts.

    Cost: two forward passes of each model, `length` decoding steps, and the reference (slow: loops over heads).

    Raises:
        UserError: the models have different shapes, or the folder holds an image model.
    """
    model: Any = (read_composed if is_composition(Path(folder)) else read_model)(Path(folder), dtype=torch.float32)
    config = model.config
    if isinstance(config, DCViTConfig):
        raise UserError(f"{folder} holds an image model; verify compares language models.")
    length = min(length, config.max_position_embeddings)
    ids = torch.randint(0, config.vocab_size, (2, length), generator=torch.Generator().manual_seed(seed))
    if against is None:
        expected, name = plain_forward(config, model.state_dict(), ids), "the plain reference"
    else:
        expected, name = _tapped(against, ids, like=config), str(against)
    fast = model(ids).logits
    decoded = _decode(model, ids)
    found = _tapped(folder, ids)
    names = tuple(f"{stage} {end}" for stage in config.stages for end in ("in", "out"))
    report = Verification(name, names)
    for layer in range(config.num_hidden_layers):
        row = {"stream": difference(found.streams[layer], expected.streams[layer])}
        for stage in config.stages:
            pairs = zip(found.stages[layer, stage], expected.stages[layer, stage], ("in", "out"), strict=True)
            for got, wanted, end in pairs:
                row[f"{stage} {end}"] = difference(*(_seen(a, config.window(layer)) for a in (got, wanted)))
        report.layers.append(row)
    report.whole = {
        "logits": difference(found.logits, expected.logits),
        "logits, fast path": difference(fast, expected.logits),
        "logits, decoded with the cache": difference(decoded, expected.logits),
    }
    return report


def difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference over the largest entry of `b` (at least 1)."""
    return ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1)).item()


def _seen(a: Attention, window: int | None) -> Tensor:
    """The entries of pairs that the mask lets through; others are never used."""
    ahead = torch.arange(a.shape[-2])[:, None] - torch.arange(a.shape[-1])
    return a[..., (ahead >= 0) & (ahead < (window or a.shape[-1]))]


def _tapped(folder: Path, ids: TokenIds, like: DCFormerConfig | None = None) -> PlainRun:
    bridge: Bridge = load(folder, dtype=torch.float32, decoder="own")
    if not hasattr(bridge, "stages"):
        raise UserError(
            f"{folder} does not hold a model of this library; verify compares DCFormers and their baseline models."
        )
    if like is not None and any(getattr(bridge.original_model.config, size) != getattr(like, size) for size in SIZES):
        raise UserError(f"{folder} and the other are models of different shapes; give two folders of the same model.")
    logits, cache = bridge.run_with_cache(
        ids,
        names_filter=lambda name: name.endswith(
            ("hook_resid_post", "pre.hook_in", "pre.hook_out", "post.hook_in", "post.hook_out")
        ),
    )
    layers = range(bridge.cfg.n_layers)
    return PlainRun(
        logits=logits,
        streams=[cache[f"blocks.{layer}.hook_resid_post"] for layer in layers],
        stages={
            (layer, stage): tuple(cache[f"blocks.{layer}.attn.{stage}.hook_{end}"] for end in ("in", "out"))  # type: ignore[misc]
            for layer in layers
            for stage in stages_of(bridge)
        },
    )


def _decode(model: Any, ids: TokenIds) -> Tensor:
    cache, logits = None, []
    for token in ids.split(1, dim=1):
        output = model(token, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, dim=1)
