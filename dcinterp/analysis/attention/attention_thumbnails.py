"""Where all heads of all layers attend, at a glance: every attention matrix in small, before and after composing.

    weights = softmax(composed, masked scores);   composed = Compose_post(weights)
    cell[i, j] = the entry of largest magnitude among queries i b ... (i + 1) b - 1 and keys j b ... (j + 1) b - 1

b is the number of tokens in a cell: 1 as long as the window has at most `cells` tokens.

It does not show sums: in a cell of several tokens one entry stands for all, so that a sharp line stays visible and a
faint spread does not. `attention_patterns` has every entry.

Identity that the tests assert: with one token in a cell, the matrices of `attention_patterns`; else their largest
entries, block by block.

    seen = dcinterp.attention_thumbnails(model, prompt)
    seen.composed[1, 6]                        # [query, key] of layer 1, head 6
    dcinterp.figures.plot(seen)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import max_pool2d, pad

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.memory import check_fits
from dcinterp.mechanism.prompt import Prompt, position, str_tokens, token_ids
from dcinterp.mechanism.stream import Stream
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.progress import Progress, silent
from dcinterp.support.ranges import Count, Number

AXIS = ("layer", "head", "query", "key")


@dataclass(frozen=True)
class AttentionThumbnails(Result):
    """Attention of every head between the tokens of a window, `block` tokens in a cell.

    tokens: of the window, which begins at position `first`. weights: after the softmax; composed: what multiplies the
    values. composes: whether the two differ.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"weights": AXIS, "composed": AXIS}

    tokens: tuple[str, ...]
    first: int
    block: int
    composes: bool
    weights: Float[Tensor, "layer head query key"]
    composed: Float[Tensor, "layer head query key"]

    def labels(self, axis: str) -> list[str] | None:
        return self.cell_names() if axis in ("query", "key") else None

    def cell_names(self) -> list[str]:
        """The tokens of each cell: the one, or the first and the last."""
        parts = [self.tokens[start : start + self.block] for start in range(0, len(self.tokens), self.block)]
        return [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in parts]


@analysis(
    title="Attention of all heads",
    question="Where do all heads of all layers attend, before and after composition?",
    guide="analyses/attention.md",
    example={"prompt": EXAMPLE_PROMPT},
)
def attention_thumbnails(
    bridge: Bridge,
    prompt: Prompt,
    *,
    first: Number = 0,
    window: Count = 512,
    cells: Count = 64,
    progress: Progress = silent,
) -> AttentionThumbnails:
    """The attention of every head, as small matrices that fit on one screen.

    Args:
        bridge: any bridge; its heads need not be composed.
        prompt: text, or token ids as in [5, 7, 9].
        first: the first position of the window.
        window: how many tokens, both of queries and of keys.
        cells: how many cells a side at most; more tokens than that share a cell.
        progress: called after each layer.

    Cost: one and a half forward passes that take one layer apart at a time, and layers * heads * cells^2 numbers.

    Raises:
        UserError: the prompt is shorter than the window's first position, or a layer does not fit into the memory.
    """
    ids = token_ids(bridge, prompt)
    first = position(first, ids.shape[1], "First position")
    end = min(first + window, ids.shape[1])
    block = -(-(end - first) // cells)
    composes, layers = "post" in stages_of(bridge), int(bridge.cfg.n_layers)
    check_fits(bridge, ids.shape[1], what="Looking into a layer")
    stream, seen = Stream(bridge, ids), {"weights": list[Tensor](), "composed": list[Tensor]()}
    for layer in range(layers):
        after = f"blocks.{layer}.attn.hook_pattern"
        before = f"blocks.{layer}.attn.post.hook_in" if composes else after
        taken = stream.read(list(dict.fromkeys((before, after))))
        for kind, name in (("weights", before), ("composed", after)):
            seen[kind].append(largest(taken[name][0, :, first:end, first:end].float().cpu(), block))
        progress(layer + 1, layers, f"layer {layer}")
    return AttentionThumbnails(
        tokens=tuple(str_tokens(bridge, ids)[first:end]),
        first=first,
        block=block,
        composes=composes,
        weights=torch.stack(seen["weights"]),
        composed=torch.stack(seen["composed"]),
    )


def largest(matrix: Float[Tensor, "head query key"], block: int) -> Float[Tensor, "head row column"]:
    """The entry of largest magnitude of every block of `block` by `block` entries; the last ones may be smaller."""
    if block == 1:
        return matrix.clone()
    more = -matrix.shape[-1] % block
    high, low = (max_pool2d(pad(sign * matrix, (0, more, 0, more)), block) for sign in (1, -1))
    return torch.where(high >= low, high, -low)
