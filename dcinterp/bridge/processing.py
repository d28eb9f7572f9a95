"""Whether TransformerLens's processing of weights keeps what a model predicts.

Folding and centring change weights and no prediction. TransformerLens tells by its shape which way round a matrix is
stored, which a square one does not say, and knows what most architectures put between their weights, not all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError
from dcinterp.support.wide import wide

TOKENS = 8
"""Of a run that is compared."""
LARGEST_CHANGE, LARGEST_OF_HALF = 1e-3, 0.1
"""Of log-probabilities, as a share of their size, in float32 and in half precision, in which folded weights round."""


def short_prompt(vocabulary: int, context: int | None) -> TokenIds:
    """A few tokens [1, pos] that every model of this vocabulary and context reads."""
    return torch.arange(1, min(TOKENS, context or TOKENS) + 1)[None] % vocabulary


def share_off(found: Tensor, expected: Tensor) -> float:
    """How far numbers are from others, as a share of the size of these; infinite where their shapes differ."""
    if found.shape != expected.shape:
        return math.inf
    return float((found - expected).norm() / expected.norm().clamp(min=1e-9))


@contextmanager
def same_predictions(bridge: Any) -> Iterator[None]:
    """Refuse a change of weights inside, by a short run before and after.

    Raises:
        UserError: the log-probabilities are others. The weights stay changed.
    """
    before = _log_probabilities(bridge)
    yield
    if before is None or (after := _log_probabilities(bridge)) is None:
        return
    off = share_off(after, before)
    half = next(bridge.original_model.parameters()).dtype.itemsize < torch.float32.itemsize
    if not off <= (LARGEST_OF_HALF if half else LARGEST_CHANGE):
        raise UserError(
            f"TransformerLens's processing of the weights changed what {bridge.cfg.model_name} predicts (by {off:.2g} "
            "of its log-probabilities), so the bridge is of another model now; open the model again, and use it as it "
            "is, or with enable_compatibility_mode(no_processing=True)."
        )


@torch.no_grad()
def centre_over_vocabulary(unembed: nn.Linear) -> None:
    """Take from every logit the mean of all, which changes no probability."""
    unembed.weight = nn.Parameter(unembed.weight - unembed.weight.mean(0, keepdim=True))
    if unembed.bias is not None:
        unembed.bias = nn.Parameter(unembed.bias - unembed.bias.mean())


def _log_probabilities(bridge: Any) -> Tensor | None:
    """Of the next token in a short run, in float64 on the CPU; None of a model that does not read token ids alone."""
    parameter = next(bridge.original_model.parameters())
    if parameter.is_meta:  # nothing is computed there
        return None
    try:
        ids = short_prompt(bridge.cfg.d_vocab, bridge.cfg.n_ctx)
        with torch.no_grad():
            found: Tensor = wide(bridge(ids.to(parameter.device))).log_softmax(-1).cpu()
    except Exception:  # of as many classes as there are kinds of models
        return None
    return found if bool(found.isfinite().all()) else None
