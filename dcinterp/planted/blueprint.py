"""From "this head looks from here to there and copies that" to the weights of a DCFormer.

A head is a sum of rank-one terms, one channel of its width each:

    score(t, s) = sum over terms of strength * (x_t . query) (x_s . key)
    output(t)   = sum over s of A'(t, s) * sum over terms of weight * (x_s . read) write

A sharing is one hidden unit of the dynamic projection: where `feature` is 1 (at the query's or the key's position), the
low-rank branch adds amount * A[from] to every head of `to`. A gate is tanh(-10 feature) = -1: it removes the whole
attention. Before the softmax the same is done to scores; there a closed gate leaves equal scores. Scores are so large
that softmax is as good as one-hot, and the norms' epsilon is so large that a norm is x times a constant (relative error
|x|^2 / (2 D eps), about 1e-9): the model computes what the blueprint says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.planted.stream import Direction, Stream
from dcinterp.planted.words import ANSWERS, CONTEXT, NAMES, TOKEN_ID, VOCABULARY

LAYERS, HEAD_WIDTH = 2, 16
"""Layers of most circuits, and channels of a head."""
SHARPNESS = 40.0
"""Score of a head on its target; e^-40 is what softmax leaves for the rest."""
LOGIT = 10.0
"""Logit of an answer that the circuit adds with weight 1."""
NORM_EPS = 1e8
SATURATED = 10.0
"""gelu(10) = 10 and tanh(10) = 1, to rounding."""


@dataclass
class HeadPlan:
    """Terms of one head: (query, key, strength) and (read, write, weight)."""

    scores: list[tuple[Direction, Direction, float]] = field(default_factory=list)
    values: list[tuple[Direction, Direction, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Sharing:
    """O_qp or O_kp: where `feature` is 1, each of `to` gets amount * (sum of what `sources` have).

    That is their attention in stage "post", and their scores in stage "pre".
    """

    layer: int
    stage: str
    side: str
    feature: Direction
    sources: tuple[int, ...]
    to: tuple[int, ...]
    amount: float
    rank: int


class Blueprint:
    """Collects the plans of the heads of a small model, and builds it.

    Args:
        heads: per layer.
        rank: of the dynamic projections.
        layers: of the model.
        fields: of the config, for heads that are composed in another way; its parameters are then left to fill in.
    """

    def __init__(self, heads: int, rank: int, layers: int = LAYERS, **fields: Any) -> None:
        self.heads, self.rank, self.layers, self.fields = heads, rank, layers, fields
        self.stream = Stream(heads * HEAD_WIDTH)
        self.plans = {(layer, head): HeadPlan() for layer in range(layers) for head in range(heads)}
        self.sharings: list[Sharing] = []
        self.gates: list[tuple[int, str, str, Direction, int]] = []

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of composition that the model has."""
        return tuple(self.fields.get("compose_stages", ("post",)))

    def look(self, layer: int, head: int, query: Direction, key: Direction, strength: float = 1.0) -> None:
        """Add strength * SHARPNESS to the score where query and key feature meet."""
        self.plans[layer, head].scores.append((query, key, strength * SHARPNESS))

    def look_for_name(self, layer: int, head: int, query: str, key: str) -> None:
        """Add SHARPNESS where space `query` of the query holds the name that space `key` of the key holds."""
        for name in NAMES:
            self.look(layer, head, self.stream.at(query, name), self.stream.at(key, name))

    def rest_on_bos(self, layer: int, head: int, strength: float = 0.5) -> None:
        """Attend to <bos> unless something scores more than `strength`."""
        self.look(layer, head, self.stream.always(), self.stream.at("token", "<bos>"), strength)

    def copy(self, layer: int, head: int, read: Direction, write: Direction, weight: float = 1.0) -> None:
        """Add weight to `write` for every unit of attention on a position with `read`."""
        self.plans[layer, head].values.append((read, write, weight))

    def share(
        self,
        side: str,
        feature: Direction,
        sources: Sequence[int],
        to: Sequence[int],
        amount: float,
        ranks: Sequence[int],
        *,
        layer: int = 1,
        stage: str = "post",
    ) -> None:
        """Share an equal part of `amount` through each of `ranks`; odd ones with both signs turned."""
        for rank in ranks:
            part = amount / len(ranks)
            self.sharings.append(Sharing(layer, stage, side, feature, tuple(sources), tuple(to), part, rank))

    def silence(
        self, side: str, feature: Direction, heads: Iterable[int], *, layer: int = 1, stage: str = "post"
    ) -> None:
        """Close heads by the gate of one side, where `feature` is 1: all that they attend, or (pre) all scores."""
        self.gates += [(layer, stage, side, feature, head) for head in heads]

    def build(self) -> DCFormerForCausalLM:
        """The model, in float32."""
        model = DCFormerForCausalLM(self.config())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.fill_(NORM_EPS**0.5 if name.endswith("norm.weight") else 0.0)
            self._embed(model)
            for (layer, head), plan in self.plans.items():
                _fill_head(model.model.layers[layer].self_attn, head, plan)
            if model.config.compose == "dynamic":
                for layer, block in enumerate(model.model.layers):
                    for stage in self.stages:
                        self._compose(getattr(block.self_attn, stage), layer, stage)
        return model.eval()

    def config(self) -> DCFormerConfig:
        """Learned positions, and unless `fields` differ: norms that do nothing, no MLP, composition after softmax."""
        own: dict[str, Any] = dict(
            compose_stages=("post",), compose_rank=self.rank, intermediate_size=1, norm_eps=NORM_EPS
        )
        own |= self.fields
        return DCFormerConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=self.stream.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=CONTEXT,
            mlp_type="gelu",
            position_type="learned",
            pad_token_id=TOKEN_ID["<pad>"],
            bos_token_id=TOKEN_ID["<bos>"],
            eos_token_id=TOKEN_ID["<eos>"],
            **own,
        )

    def _embed(self, model: DCFormerForCausalLM) -> None:
        for word, number in TOKEN_ID.items():
            model.model.embed_tokens.weight[number] = self.stream.at("token", word)
        for position in range(CONTEXT):
            model.model.embed_positions.weight[position] = self.stream.at("position", str(position))
        for word in ANSWERS:
            model.lm_head.weight[TOKEN_ID[word]] = LOGIT * self.stream.at("answer", word)

    def _compose(self, module: torch.nn.Module, layer: int, stage: str) -> None:
        units = {"query": 0, "key": 0}
        for sharing in (each for each in self.sharings if (each.layer, each.stage) == (layer, stage)):
            side, unit = getattr(module, sharing.side), units[sharing.side]
            units[sharing.side] += 1
            assert unit < side.down.out_features, "more sharings than hidden units"
            side.down.weight[unit] = SATURATED * sharing.feature
            sign = -1.0 if sharing.rank % 2 else 1.0
            # w_1 is normalised over heads: n equal entries become sqrt(H / n) each, which w_2 takes back.
            normed = math.sqrt(self.heads / len(sharing.sources))
            for head in sharing.sources:
                # Of the size of w_2's entries, so that noise of one size does to both the same.
                side.up[0, unit, sharing.rank * self.heads + head] = sign / SATURATED
            for head in sharing.to:
                column = (self.rank + sharing.rank) * self.heads + head
                side.up[0, unit, column] = sign * sharing.amount / (normed * SATURATED)
        for at, where, name, feature, head in self.gates:
            if (at, where) == (layer, stage):
                getattr(module, name).gate.weight[head] -= SATURATED * feature


def _fill_head(attention: torch.nn.Module, head: int, plan: HeadPlan) -> None:
    assert max(len(plan.scores), len(plan.values)) <= HEAD_WIDTH, "a head is too narrow for its plan"
    start = head * HEAD_WIDTH
    for channel, (query, key, strength) in enumerate(plan.scores, start):
        size = math.sqrt(abs(strength) * math.sqrt(HEAD_WIDTH))
        attention.q_proj.weight[channel] = math.copysign(size, strength) * query
        attention.k_proj.weight[channel] = size * key
    for channel, (read, write, weight) in enumerate(plan.values, start):
        attention.v_proj.weight[channel] = read
        attention.o_proj.weight[:, channel] = weight * write


@torch.no_grad()
def add_noise(model: DCFormerForCausalLM, share: float, seed: int) -> None:
    """Gaussian noise on every weight but the norms' and the (zero) MLPs'.

    Its standard deviation is `share` of the largest entry among the matrices of the same name in all layers.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds: dict[str, list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and ".mlp." not in name:
            kinds.setdefault(name.split("layers.")[-1].lstrip("0123456789."), []).append(parameter)
    for parameters in kinds.values():
        scale = share * max(float(parameter.abs().max()) for parameter in parameters)
        for parameter in parameters:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
