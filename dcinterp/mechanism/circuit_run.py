r"""A forward pass in which every edge of the graph can be cut by its own gate: exact, non-linear, on a batch.

    input of reader v     = sum over writers u of  other_u + g_uv (u - other_u)
    composed[h']          = sum over kinds c and heads h of  C_c[h,h'] (other A_h + g_c,h,h' (A_h - other A_h))
                            (where c is a convolution, C_c is one over the pairs around)

u and A_h are what the nodes compute in this very run, each from its own gated inputs; `other` are their values in
another run (on the counterfactual prompt) or their means. Every reader has its own copy of the stream, and norms are
computed anew on it. C are the dynamic weights of this run: the node that makes them reads a gated stream too. A gate of
1 keeps an edge and 0 patches it; all gates 1 are the model, all gates 0 are the other run.

Biases are part of no edge: they are the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge, alone
from dcinterp.checkpoints.fingerprint import has_hooks
from dcinterp.mechanism.circuit_graph import AROUND, CircuitGraph, ComposeEdges, bare, decoder_of
from dcinterp.model.compose.branches import ComposeWeights, compose, low_rank_map, neighbours
from dcinterp.model.mask import Sight, mask_scores
from dcinterp.model.rotary import Rotation, rotate, rotation
from dcinterp.shapes import Attention, Mask, TokenIds
from dcinterp.support.errors import UserError

Gates = Float[Tensor, "batch edge"]
Streams = Float[Tensor, "reader batch pos d_model"]


@dataclass(frozen=True)
class Values:
    """What the nodes computed: written [writer, batch, pos, d_model], and by (layer, stage) the attention matrices
    before composition, [batch, head, query, key]; scores are those before the mask."""

    written: Float[Tensor, "writer batch pos d_model"]
    attention: dict[tuple[int, str], Attention]

    def minus(self, other: Values) -> Values:
        """The differences of two runs."""
        return Values(self.written - other.written, {at: a - other.attention[at] for at, a in self.attention.items()})

    def mean(self) -> Values:
        """The means over the batch, as a batch of one."""
        return Values(
            self.written.mean(1, keepdim=True), {at: a.mean(0, keepdim=True) for at, a in self.attention.items()}
        )

    def scaled(self, by: float) -> Values:
        """All of them times a number."""
        return Values(self.written * by, {at: a * by for at, a in self.attention.items()})

    def rows(self, places: Sequence[int] | Tensor) -> Values:
        """Those of some rows of the batch, in this order; a row may be asked for more than once."""
        index = torch.as_tensor(places, device=self.written.device)
        if self.written.shape[1] == 1:
            index = torch.zeros_like(index)
        return Values(self.written[:, index], {at: a[index] for at, a in self.attention.items()})


@dataclass(frozen=True)
class Cut:
    """Which edges are cut, and what takes their place: `gates` of every example, `other` of the same batch."""

    gates: Gates
    other: Values


@dataclass(frozen=True)
class Probe:
    """The model itself, plus `change` on every edge times its entry of `size`, which is zero: for gradients there."""

    size: Gates
    change: Values


@dataclass
class _State:
    """What a run has computed so far."""

    ids: TokenIds
    rotation: Rotation | None
    switch: Cut | Probe | None
    written: list[Tensor]
    bias: Tensor | float = 0.0
    attention: dict[tuple[int, str], Tensor] = field(default_factory=dict)


class CircuitRun:
    """Runs of one model with gates on its edges.

    Args:
        bridge: over a decoder of ours.

    Raises:
        UserError: the model is not one, or a composer of it does not keep the heads (see `CircuitGraph.of`); a run
            raises it too where hooks are active.
    """

    def __init__(self, bridge: Bridge) -> None:
        self.bridge, self.graph = bridge, CircuitGraph.of(bridge)
        self.model: Any = decoder_of(bridge)
        self.config = self.model.config

    def __call__(
        self,
        ids: TokenIds,
        switch: Cut | Probe | None = None,
        *,
        embedded: Float[Tensor, "batch pos d_model"] | None = None,
    ) -> tuple[Float[Tensor, "batch vocab"], Values]:
        """The logits at the last position, and what the nodes computed.

        Args:
            ids: prompts of one length.
            switch: gates on edges, or a probe of every edge; None for the model as it is.
            embedded: what takes the place of the embedding's output.

        Cost: about two forward passes of the model with a switch, for the reading nodes' own copies of the stream and
        their norms; memory: writers * batch * pos * d_model numbers.
        """
        # Forwards of another thread must not change the model in between.
        with alone(self.bridge):
            if has_hooks(self.bridge):
                raise UserError(
                    "Hooks are active on this model, and a circuit's runs go past them; remove them (reset_hooks), or "
                    "leave the `with` block that adds them."
                )
            return self._run(ids, switch, embedded)

    def embed(self, ids: TokenIds) -> Float[Tensor, "batch pos d_model"]:
        """What the embedding writes, positions included."""
        x: Tensor = bare(self.model.model.embed_tokens)(ids)
        if self.config.position_type == "learned":
            x = x + bare(self.model.model.embed_positions)(torch.arange(ids.shape[1], device=ids.device))
        return x

    def _run(self, ids: TokenIds, switch: Cut | Probe | None, embedded: Tensor | None) -> tuple[Tensor, Values]:
        x = self.embed(ids) if embedded is None else embedded
        positions, turn = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1), None
        if self.config.position_type == "rotary":
            turn = rotation(
                positions, self.config.rotary_width, self.config.rotary_base, x.dtype, self.config.rotary_scaling
            )
        state = _State(ids, turn, switch, [x])
        for layer, block in enumerate(self.model.model.layers):
            self._layer(state, layer, bare(block))
        final = self._read(state, self.graph.layers, "logits", last=True)
        logits = bare(self.model.lm_head)(bare(self.model.model.norm)(final))
        return logits[0, :, -1], Values(torch.stack(state.written), state.attention)

    def _layer(self, state: _State, layer: int, block: Any) -> None:
        attention = bare(block.self_attn)
        normed = bare(block.input_layernorm)(self._read(state, layer, "attention"))
        entering = len(state.written)
        heads = self._attend(state, layer, attention, normed)
        if block.parallel:
            middle = self._read(state, layer, "mlp", writers=entering)
        state.written += list(heads.unbind(1))
        biases = [bare(attention.o_proj).bias]
        if not block.parallel:
            state.bias = state.bias + (biases.pop() if biases[0] is not None else 0)
            middle = self._read(state, layer, "mlp")
        state.written.append(bare(block.mlp)(bare(block.post_attention_layernorm)(middle[0])))
        if biases and biases[0] is not None:
            state.bias = state.bias + biases[0]

    def _read(self, state: _State, layer: int, reader: Any, writers: int | None = None, last: bool = False) -> Streams:
        """What every reader of a group takes from the stream; one copy for all where nothing is cut."""
        written = torch.stack(state.written[:writers])
        if last:
            written = written[:, :, -1:]
        switch = state.switch
        if switch is None:
            return (written.sum(0) + state.bias)[None]
        if isinstance(switch, Cut):
            other = _like(switch.other.written[: len(written)], last)
            base, change, sizes = other, written - other, switch.gates
        else:
            base, change, sizes = written, _like(switch.change.written[: len(written)], last), switch.size
        gated = einsum("wbpd,bwr->rbpd", change, self.graph.stream(layer, reader).of(sizes))
        return base.sum(0) + state.bias + gated

    def _attend(self, state: _State, layer: int, attention: Any, normed: Streams) -> Float[Tensor, "batch head pos d"]:
        """What every head writes, from what its query, key and value and the dynamic weights read."""
        heads, shared = self.graph.heads, self.graph.kv_heads
        readers = heads + 2 * shared + len(self.graph.stages)
        normed = normed.expand(readers, -1, -1, -1)
        q, k, v, rest = normed.split([heads, shared, shared, len(self.graph.stages)])
        q, k, v = (_project(bare(getattr(attention, f"{n}_proj")), x) for n, x in (("q", q), ("k", k), ("v", v)))
        if hasattr(attention, "q_norm"):
            q, k = bare(attention.q_norm)(q), bare(attention.k_norm)(k)
        if state.rotation is not None:
            q, k = rotate(q, state.rotation), rotate(k, state.rotation)
        k, v = (x.repeat_interleave(heads // shared, dim=1) for x in (k, v))
        sight = Sight(window=self.config.window(layer))
        mask = sight.dense(q.shape[2], k.shape[2], q.device)
        inputs = dict(zip(self.graph.stages, rest, strict=True))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = self._composed(state, layer, "pre", attention, scores, inputs, mask)
        weights = mask_scores(scores, mask).softmax(-1)
        pattern = self._composed(state, layer, "post", attention, weights, inputs, mask)
        z = pattern @ v
        if "post" in inputs:
            z = bare(attention.post).read_out(z, inputs["post"])
        w_o = bare(attention.o_proj).weight.unflatten(1, (heads, -1))
        return einsum("bhpe,dhe->bhpd", z, w_o)

    def _composed(
        self,
        state: _State,
        layer: int,
        stage: str,
        attention: Any,
        a: Attention,
        inputs: dict[str, Tensor],
        mask: Mask | None,
    ) -> Attention:
        """The composed scores or weights, with the composition edges of this stage gated."""
        groups = self.graph.composition(layer, stage)
        weights = _weights(attention, stage, inputs, mask)
        if not groups:
            return a if weights is None else compose(a, weights)
        state.attention[layer, stage] = a
        switch = state.switch
        if switch is None:
            return a if weights is None else compose(a, weights)
        if isinstance(switch, Cut):
            other = switch.other.attention[layer, stage]
            base, change, sizes = other.expand_as(a), a - other, switch.gates
        else:
            base, change, sizes = a, switch.change.attention[layer, stage], switch.size
        whole = base if weights is None else compose(base, weights)
        return whole + gated_composition(change, weights, groups, sizes)


def gated_composition(
    change: Attention, weights: ComposeWeights | None, groups: Sequence[ComposeEdges], gates: Gates
) -> Attention:
    """sum over kinds and heads of g C_c[h,h'] change_h: what composing adds for a change of the matrices it reads.

    Args:
        change: of every head's matrix; weights: of the stage, None where its heads are not composed.
        groups: the edges of the stage; gates: of all edges of the model.
    """
    by_query, by_key = None, None
    total = change.new_zeros(())
    for kind, gate in ((g.kind, g.of(gates)) for g in groups):
        if kind == AROUND:
            assert weights is not None
            total = total + _around(change, weights, gate)
            continue
        if kind == "skip":
            part, side = gate[:, None], "query"
        elif kind == "static":
            assert weights is not None
            assert weights.static is not None
            part, side = (gate * weights.static)[:, None], "query"
        else:
            assert weights is not None
            side = "query" if kind[0] == "q" else "key"
            match weights.of(kind):
                case w1, w2:
                    part = low_rank_map(w1, w2, weights.groups) * gate[:, None]
                case (own,):
                    part = torch.diag_embed(own) * gate[:, None]
        if side == "query":
            by_query = part if by_query is None else by_query + part
        else:
            by_key = part if by_key is None else by_key + part
    if by_query is not None:
        by_query = by_query.expand(-1, change.shape[2], -1, -1)
        total = total + einsum("bfts,btfh->bhts", change.expand(len(by_query), -1, -1, -1), by_query)
    if by_key is not None:
        total = total + einsum("bfts,bsfh->bhts", change.expand(len(by_key), -1, -1, -1), by_key)
    return total


def _around(change: Attention, weights: ComposeWeights, gate: Float[Tensor, "batch head_from head_to"]) -> Attention:
    """O_kq of a change, every pair of heads by its own gate: one convolution with the examples as further groups."""
    assert weights.conv is not None
    n, groups = max(len(change), len(gate)), weights.groups
    to = torch.arange(len(weights.conv), device=gate.device)
    size = weights.conv.shape[1]
    heads = (to // size * size)[:, None] + torch.arange(size, device=gate.device)
    own = gate[:, heads, to[:, None]]  # [batch, head_to, group_head]
    taps = (weights.conv * own[..., None, None]).expand(n, *weights.conv.shape).flatten(0, 1)
    folded = neighbours(change.expand(n, -1, -1, -1).reshape(1, -1, *change.shape[2:]), taps, n * groups, weights.seen)
    return folded.unflatten(1, (n, -1))[0]


def weighted_mean(parts: Sequence[tuple[int, Values]]) -> Values:
    """The mean of means over so many rows each."""
    rows = sum(n for n, _ in parts)
    total = parts[0][1].scaled(parts[0][0] / rows)
    for n, values in parts[1:]:
        total = total.minus(values.scaled(-n / rows))
    return total


def in_batches(rows: int, size: int) -> Iterator[slice]:
    """The rows of a batch in parts of `size` at most."""
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _like(written: Tensor, last: bool) -> Tensor:
    return written[:, :, -1:] if last else written


def _project(linear: Any, x: Float[Tensor, "head batch pos d_model"]) -> Float[Tensor, "batch head pos d_head"]:
    """Every head's queries, keys or values, each from its own copy of the normed stream."""
    weight = linear.weight.unflatten(0, (len(x), -1))
    out = einsum("hbpd,hed->bhpe", x, weight)
    return out if linear.bias is None else out + linear.bias.unflatten(0, (len(x), 1, -1))


def _weights(attention: Any, stage: str, inputs: dict[str, Tensor], mask: Mask | None) -> ComposeWeights | None:
    if stage not in inputs:
        return None
    composer = bare(getattr(attention, stage))
    return composer.weights(inputs[stage], inputs[stage]).within(mask)
