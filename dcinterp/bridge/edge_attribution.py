"""Edge attribution patching as TransformerLens has it: from writers of the residual stream to later readers.

Its graph has no edges of composition. What it says of a head is how much of the effect comes in through the head's
query and key (it computes an attention matrix that matters), and how much goes out of it (it writes what matters).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.tools.analysis.attribution_patching import EdgeAttributionConfig, attribution_patch

from dcinterp.bridge.protocol import Bridge


def stream_attribution(
    bridge: Bridge,
    clean: Int[Tensor, "batch pos"],
    corrupt: Int[Tensor, "batch pos"],
    metric: Callable[[Tensor], Tensor],
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
    """(attends, writes): sums of TransformerLens's edge scores into each head's query and key, and out of each head.

    Args:
        bridge: in evaluation mode.
        clean: prompts.
        corrupt: their counterfactuals, of the same length.
        metric: from the logits of one prompt to a number.

    Cost: for each prompt two forward passes and a backward one.
    """
    config = EdgeAttributionConfig(granularity="edge")
    found = attribution_patch(bridge, clean, corrupt, metric, config)
    attends, writes = (torch.zeros(bridge.cfg.n_layers, bridge.cfg.n_heads) for _ in range(2))
    for (source, destination), score in found.edge_scores.items():
        if source.kind == "attn_head_out" and source.layer is not None and source.head is not None:
            writes[source.layer, source.head] += float(score)
        if destination.kind in ("q_input", "k_input") and None not in (destination.layer, destination.head):
            attends[destination.layer, destination.head] += float(score)
    return attends, writes
