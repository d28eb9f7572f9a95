r"""What a layer reads at one position, as a sum over what was written there: embedding, heads, MLPs, biases.

    stream[l, t] = embedding[t] + sum over layers below of (sum over heads z[h, t] W_O[h] + MLP[t]) + biases

A head's part is again a sum over the tokens that it read: pattern[h, t, s] v[h, s] W_O[h].

    parts = upstream(bridge, stream, layer)
    parts.at(position)              # [component, d_model], which add up to the stream there
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.head_sites import read_values
from dcinterp.mechanism.stream import Stream


@dataclass(frozen=True)
class Upstream:
    """names: of the components; written [component, pos, d_model], which add up to the stream; readers: for every
    component that is a head, [pos, source, d_model] of what it wrote, by the token that it read."""

    names: tuple[str, ...]
    written: Float[Tensor, "component pos d_model"]
    by_source: dict[int, tuple[Float[Tensor, "pos source"], Float[Tensor, "source d_model"]]]

    def against_mean(self, position: int) -> Float[Tensor, "component d_model"]:
        """Every component at a position, less its mean over the other positions."""
        others = [at for at in range(self.written.shape[1]) if at != position]
        return self.written[:, position] - self.written[:, others].mean(1)

    def tokens(self, position: int, direction: Float[Tensor, " d_model"]) -> Float[Tensor, "component pos"]:
        """<component less its mean, direction>, by the token that it comes from.

        What a head wrote comes from the tokens that it read; everything else from the position itself.
        """
        others = [at for at in range(self.written.shape[1]) if at != position]
        out = torch.zeros(self.written.shape[:2]).to(self.written)
        out[:, position] = self.against_mean(position) @ direction
        for component, (pattern, values) in self.by_source.items():
            out[component] = (pattern[position] - pattern[others].mean(0)) * (values @ direction)
        return out


def upstream(bridge: Bridge, stream: Stream, layer: int) -> Upstream:
    """The components of what a layer reads.

    Cost: one forward pass of the layers below, and their heads' values through W_O.
    """
    below = range(layer)
    taps = [f"blocks.{at}.{tap}" for at in below for tap in ("attn.hook_v", "attn.hook_pattern", "hook_mlp_out")]
    read = stream.read(["blocks.0.hook_in", *taps])
    whole = stream.read([f"blocks.{layer}.hook_in"])[f"blocks.{layer}.hook_in"][0]
    names, written = ["embedding"], [read["blocks.0.hook_in"][0]]
    by_source = {}
    for at in below:
        values, pattern = (
            read_values(bridge, read[f"blocks.{at}.attn.hook_v"][0]),
            read[f"blocks.{at}.attn.hook_pattern"][0],
        )
        w_o = bridge.blocks[at].attn.W_O.detach()
        values = values.repeat_interleave(len(w_o) // values.shape[1], dim=1)
        for head in range(len(w_o)):
            wrote = values[:, head] @ w_o[head]
            by_source[len(names)] = (pattern[head], wrote)
            names.append(f"L{at}H{head}")
            written.append(pattern[head] @ wrote)
        names.append(f"MLP {at}")
        written.append(read[f"blocks.{at}.hook_mlp_out"][0])
    rest = whole - torch.stack(written).sum(0)
    return Upstream((*names, "biases"), torch.stack([*written, rest]), by_source)
