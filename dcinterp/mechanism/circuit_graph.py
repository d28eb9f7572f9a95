"""The computational graph of one of our models, down to the edges that circuits are made of.

    graph = CircuitGraph.of(bridge)
    graph.names[:2]            # ('embedding -> L0H0.q', 'embedding -> L0H1.q')
    graph.find("L1H6 -> L1H1 (post kp)")

Writers add to the residual stream: the embedding (token and position together), every head, every MLP. Readers take
from it: the query, key and value of every head, the dynamic weights of each stage of composition, every MLP, and the
logits. Every pair of a writer and a later reader is an edge of the stream.

Within a layer, composition edges run from the head that computes an attention matrix (its scores in the `pre` stage,
its softmax in the `post` stage) to the head that uses it, one for each branch: skip, static, qp, kp, qg, kg, and kq for
what multi-token attention takes from the pairs around. Where the softmax is not composed, a head's reading uses its own
attention alone: one edge, by `skip`.

A position in a list of all edges names an edge; gates [batch, edge] say for each how much of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.model.compose.base import Composer
from dcinterp.model.compose.branches import same_group
from dcinterp.support.errors import UserError, nearest

if TYPE_CHECKING:
    from dcinterp.model.decoder import DCFormerForCausalLM

AROUND = "kq"
"""Of edges that carry what a pair takes from other pairs of tokens: all offsets of a convolution together."""

KINDS = ("skip", "static", "qp", "kp", "qg", "kg", AROUND)
"""Of composition edges. Elsewhere the static map counts with the skip; here they are two edges."""

OWN = ("skip", "qg", "kg")
"""Kinds that lead from a head to itself only."""

Reader = Literal["attention", "mlp", "logits"]


@dataclass(frozen=True)
class StreamEdges:
    """Edges from the first `writers` writers to a group of readers: [writer, reader] in a list, from `start` on."""

    layer: int
    reader: Reader
    writers: int
    readers: tuple[str, ...]
    start: int

    @property
    def size(self) -> int:
        return self.writers * len(self.readers)

    def of(self, gates: Float[Tensor, "batch edge"]) -> Float[Tensor, "batch writer reader"]:
        """Their part of a list of gates."""
        return gates[:, self.start : self.start + self.size].unflatten(1, (self.writers, len(self.readers)))


@dataclass(frozen=True)
class ComposeEdges:
    """Edges of one branch of one stage of a layer, `pairs` of (head_from, head_to), from `start` on."""

    layer: int
    stage: str
    kind: str
    pairs: tuple[tuple[int, int], ...]
    heads: int
    start: int

    @property
    def size(self) -> int:
        return len(self.pairs)

    def of(self, gates: Float[Tensor, "batch edge"]) -> Float[Tensor, "batch head_from head_to"]:
        """Their part of a list of gates, as a map over heads; zero where there is no edge."""
        own = gates[:, self.start : self.start + self.size]
        if self.size == self.heads**2:
            return own.unflatten(1, (self.heads, self.heads))
        if self.kind in OWN:
            return torch.diag_embed(own)
        places = torch.tensor([f * self.heads + t for f, t in self.pairs], device=own.device)
        full = own.new_zeros(len(own), self.heads**2).index_copy(1, places, own)
        return full.unflatten(1, (self.heads, self.heads))


@dataclass(frozen=True)
class Edge:
    """One edge. kind: "stream", or for a composition edge its stage and branch, as in "post kp"."""

    source: str
    target: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.source} -> {self.target}" + ("" if self.kind == "stream" else f" ({self.kind})")

    @property
    def nodes(self) -> tuple[str, str]:
        """Where it starts and ends: of a head, its scores and its attention are nodes beside what it writes."""
        if self.kind == "stream":
            return self.source, self.target
        if self.kind.startswith("pre"):
            return f"{self.source} scores", f"{self.target} attention"
        return f"{self.source} attention", self.target


@dataclass(frozen=True)
class CircuitGraph:
    """All nodes and edges of a model; build it by `CircuitGraph.of`.

    writers: in the order in which they write. parallel: whether MLPs read the stream that attention reads.
    """

    layers: int
    heads: int
    kv_heads: int
    parallel: bool
    stages: tuple[str, ...]
    writers: tuple[str, ...]
    groups: tuple[StreamEdges | ComposeEdges, ...]

    @classmethod
    def of(cls, bridge: Bridge) -> CircuitGraph:
        """The graph of a model.

        Raises:
            UserError: the model is not one of ours, or a composer of it does not keep the heads, or reads other layers.
        """
        model = decoder_of(bridge)
        config = model.config
        layers, heads, kv_heads = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
        assert kv_heads is not None
        writers, groups, start = ["embedding"], [], 0
        for layer in range(layers):
            for group in _layer_groups(model, layer, len(writers), start):
                groups.append(group)
                start = group.start + group.size
            writers += [f"L{layer}H{head}" for head in range(heads)] + [f"MLP {layer}"]
        groups.append(StreamEdges(layers, "logits", len(writers), ("logits",), start))
        return cls(
            layers, heads, kv_heads, config.use_parallel_residual, stages_of(bridge), tuple(writers), tuple(groups)
        )

    @property
    def size(self) -> int:
        """How many edges there are."""
        last = self.groups[-1]
        return last.start + last.size

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge, in the order of gates and scores."""
        return tuple(edge for group in self.groups for edge in _edges_of(group, self.writers))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all edges."""
        return tuple(edge.name for edge in self.edges)

    def find(self, name: str) -> int:
        """The place of an edge in the list.

        Raises:
            UserError: there is no such edge.
        """
        if name not in self.names:
            raise UserError(f"There is no edge {name!r} in this model; {nearest(name, self.names)}")
        return self.names.index(name)

    @cached_property
    def by_source(self) -> dict[str, list[int]]:
        """The places of all edges by what they come from: embedding, heads or MLP of a layer, attention of a stage."""
        found: dict[str, list[int]] = {}
        for place, edge in enumerate(self.edges):
            layer, _, head = edge.source.partition("H")
            source = (
                (edge.source if not head else layer) if edge.kind == "stream" else f"{layer} {edge.kind.split()[0]}"
            )
            found.setdefault(source, []).append(place)
        return found

    def stream(self, layer: int, reader: Reader) -> StreamEdges:
        """The edges into the attention or the MLP of a layer; the logits read after the last, at `layers`."""
        return next(g for g in self.groups if isinstance(g, StreamEdges) and (g.layer, g.reader) == (layer, reader))

    def composition(self, layer: int, stage: str) -> list[ComposeEdges]:
        """The composition edges of one stage of a layer, a group for each kind."""
        return [g for g in self.groups if isinstance(g, ComposeEdges) and (g.layer, g.stage) == (layer, stage)]

    def of_stage(self, stage: str) -> list[int]:
        """The places of the composition edges of one stage, of all layers."""
        return [
            group.start + i
            for group in self.groups
            if isinstance(group, ComposeEdges) and group.stage == stage
            for i in range(group.size)
        ]

    @cached_property
    def inner_edges(self) -> tuple[tuple[str, str], ...]:
        """What carries a signal and cannot be cut: from the inputs of a node to what it computes."""
        return inner_links(self.layers, self.heads, self.kv_heads, self.stages)

    def connected(self, kept: Bool[Tensor, " edge"]) -> Bool[Tensor, " edge"]:
        """The kept edges on a path of kept edges from the embedding to the logits; the others carry no difference."""
        return torch.tensor(on_paths(self.edges, self.inner_edges, kept.tolist()), dtype=torch.bool)


def inner_links(layers: int, heads: int, kv_heads: int, stages: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What carries a signal and cannot be cut in a model of this size: (an input of a node, the node)."""
    found = []
    for layer in range(layers):
        for head in range(heads):
            name, shared = f"L{layer}H{head}", f"L{layer}H{head // (heads // kv_heads)}"
            first = f"{name} scores" if "pre" in stages else f"{name} attention"
            found += [(f"{name}.q", first), (f"{shared}.k", first), (f"{shared}.v", name)]
            if "pre" in stages:
                found += [(f"L{layer} pre weights", f"{name} attention")]
            if "post" in stages:
                found += [(f"L{layer} post weights", name)]
    return tuple(found)


def on_paths(edges: Sequence[Edge], inner: Sequence[tuple[str, str]], kept: Sequence[bool]) -> list[bool]:
    """Which kept edges are on a path of kept edges, and of what cannot be cut, from the embedding to the logits."""
    chosen = [edge for edge, keep in zip(edges, kept, strict=True) if keep]
    links = [edge.nodes for edge in chosen] + list(inner)
    after = _reached({"embedding"}, links)
    before = _reached({"logits"}, [(b, a) for a, b in links])
    on = iter([edge.nodes[0] in after and edge.nodes[1] in before for edge in chosen])
    return [bool(keep) and next(on) for keep in kept]


def decoder_of(bridge: Bridge) -> DCFormerForCausalLM:
    """The model under a bridge, if it is a decoder of ours.

    Raises:
        UserError: it is not.
    """
    from dcinterp.model.decoder import DCFormerForCausalLM  # brings transformers, which the help of a verb need not

    model = bridge.original_model
    if not isinstance(model, DCFormerForCausalLM):
        raise UserError(
            "Circuits are computed for decoders of dcinterp, plain or composed, and this model is not one. Load one, "
            "such as 'dcformer++' or 'transformer++', or a checkpoint of the Llama family with decoder=\"own\"."
        )
    return model


def bare(module: Any) -> Any:
    """A module of the model without the component of the bridge around it."""
    while (inner := getattr(module, "original_component", None)) is not None:
        module = inner
    return module


def _layer_groups(
    model: DCFormerForCausalLM, layer: int, writers: int, start: int
) -> Iterator[StreamEdges | ComposeEdges]:
    """The edges into and within one layer, in the order in which they are computed."""
    config, heads = model.config, model.config.num_attention_heads
    assert config.num_key_value_heads is not None
    block: Any = bare(model.model.layers[layer])
    attention = bare(block.self_attn)
    readers = [f"L{layer}H{head}.q" for head in range(heads)]
    readers += [f"L{layer}H{head}.{side}" for side in "kv" for head in range(config.num_key_value_heads)]
    readers += [f"L{layer} {stage} weights" for stage in config.stages]
    yield (made := StreamEdges(layer, "attention", writers, tuple(readers), start))
    start += made.size
    for stage in ("pre", "post"):
        composer = bare(getattr(attention, stage)) if stage in config.stages else None
        for kind, pairs in _kinds(composer, stage, heads):
            yield (edges := ComposeEdges(layer, stage, kind, pairs, heads, start))
            start += edges.size
    yield StreamEdges(layer, "mlp", writers + (0 if config.use_parallel_residual else heads), (f"MLP {layer}",), start)


def _kinds(composer: Composer | None, stage: str, heads: int) -> Iterator[tuple[str, tuple[tuple[int, int], ...]]]:
    """(kind, its pairs of heads) of the composition edges that a stage has."""
    own = tuple((head, head) for head in range(heads))
    if composer is None:
        if stage == "post":
            yield "skip", own
        return
    composer.require_square("A circuit")
    if composer.HANDS_ON:
        raise UserError(
            f"A circuit has edges between the heads of one layer, and the composer {composer.name!r} also reads those "
            "of the layer before; choose `attribute_edges`, which scores them."
        )
    weights = composer.probe()
    inside = [(int(f), int(t)) for f, t in same_group(heads, weights.groups).nonzero().tolist()]
    for kind in KINDS:
        if kind == "skip":
            exists = weights.skip
        elif kind == "static":
            exists = weights.static is not None
        elif kind == AROUND:
            exists = weights.conv is not None
        else:
            exists = bool(weights.of(kind))
        if exists:
            yield kind, own if kind in OWN else tuple(inside)


def _edges_of(group: StreamEdges | ComposeEdges, writers: tuple[str, ...]) -> Iterator[Edge]:
    if isinstance(group, StreamEdges):
        for writer in writers[: group.writers]:
            for reader in group.readers:
                yield Edge(writer, reader, "stream")
        return
    for f, t in group.pairs:
        source, target = f"L{group.layer}H{f}", f"L{group.layer}H{t}"
        yield Edge(source, target, f"{group.stage} {group.kind}")


def _reached(start: set[str], links: list[tuple[str, str]]) -> set[str]:
    """The nodes that a path from `start` leads to."""
    after: dict[str, list[str]] = {}
    for a, b in links:
        after.setdefault(a, []).append(b)
    found, todo = set(start), list(start)
    while todo:
        for node in after.get(todo.pop(), ()):
            if node not in found:
                found.add(node)
                todo.append(node)
    return found
