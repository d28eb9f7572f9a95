r"""Who decided a composition: what the score that is shared, and the dynamic weight that shares it, were made from.

Head f shares its attention from token t to token s with head h:    A[f,t,s] * C_c[f,h]     (see `compose_breakdown`)

    score    S[f,t,s] = q[f,t] . k[f,s] / sqrt(d)       of which A is made: read once from the query's stream, with the
                                                        key as it is, and once from the key's, with the query as it is
    weight   C_c[f,h] = sum_r w_1[r,f] w_2[r,h]         a function of one token's stream: the query's (branch qp) or the
                                                        key's (kp); of gates (qg, kg) w_g[h]

Each is a function F of what the layer reads at one position, which is a sum over components i written below: the
embedding, every head, every MLP, biases. With u_i a component and m_i its mean over the other positions of the prompt,

    cause[i] = <N (u_i - m_i), integral_0^1 dF/dx(N m + a N (u - m)) da>        sum over i = F(x) - F(N m) - gap

N is the layer's norm with its scale frozen at the value it has at that position, which makes it linear. The integral
covers what is not linear (gelu, the norm over heads, tanh, norms of q and k); scores without such norms are linear, and
their gap is rounding. What a head wrote is divided further among the tokens that it read (`by_token`).

Source: integrated gradients (Sundararajan et al. 2017); the decomposition of scores into components is that of
"A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021). That of dynamic weights is ours.

It does not show what made the components (it is one step back), nor whether the composition matters for the answer
(`attribute_edges`). The softmax compares scores of all keys, and in a model that composes scores it reads composed
ones: a cause of S[f,t,s] is a cause of A[f,t,s] only as far as the other scores stay. `ablation` says what setting one
component to its mean does to F, measured with the norm as it is.

Identity that the tests assert: causes and gap add up to F(x) - F(N m), and scores have a gap of rounding.

    causes = dcinterp.composition_causes(model, prompt, layer=2, head_from=5, head_to=0, query=-1, key=3)
    causes.table().head()
    causes.sentences()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge, one_input
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.path_gradient import legendre
from dcinterp.mechanism.prompt import (
    Prompt,
    head_number,
    layer_number,
    pair_of,
    require_in_window,
    require_stage,
    str_tokens,
    token_ids,
)
from dcinterp.mechanism.stream import Stream
from dcinterp.mechanism.upstream import Upstream, upstream
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count
from dcinterp.support.text import in_sentence

QUANTITIES = ("score, by the query", "score, by the key", "weight")
BATCH = 64
"""Rows of one run of the layer."""


@dataclass(frozen=True)
class CompositionCauses(Result):
    """What one shared attention entry was made from.

    value, at_mean, gap [quantity]: F(x), F(N m), and what the causes miss of the difference; causes, ablation
    [quantity, component]: the attribution, and F(x) - F with that component at its mean, measured; by_token [quantity,
    pos]: the causes by the token that they come from. places [quantity]: the position whose stream is read.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{name: ("quantity",) for name in ("value", "at_mean", "gap")},
        **{name: ("quantity", "component") for name in ("causes", "ablation")},
        "by_token": ("quantity", "pos"),
    }

    tokens: tuple[str, ...]
    layer: int
    stage: str
    branch: str
    head_from: int
    head_to: int
    query: int
    key: int
    quantities: tuple[str, ...]
    components: tuple[str, ...]
    places: tuple[int, ...]
    value: Float[Tensor, " quantity"]
    at_mean: Float[Tensor, " quantity"]
    gap: Float[Tensor, " quantity"]
    causes: Float[Tensor, "quantity component"]
    ablation: Float[Tensor, "quantity component"]
    by_token: Float[Tensor, "quantity pos"]

    def labels(self, axis: str) -> list[Any] | None:
        names = {"quantity": self.quantities, "component": self.components, "pos": self.tokens}
        return list(names[axis]) if axis in names else None

    def top(self, quantity: int) -> int:
        """The component with the largest cause, in size."""
        return int(self.causes[quantity].abs().argmax())

    def differs(self, quantity: int) -> bool:
        """Whether there is anything to explain: the mean stream changes the number, or some part would."""
        return bool(self.value[quantity] != self.at_mean[quantity]) or bool(self.causes[quantity].any())

    def confirmed(self, quantity: int) -> bool:
        """Whether ablating the top cause changes the number in its direction, by a third to three times as much."""
        at = self.top(quantity)
        cause, effect = float(self.causes[quantity, at]), float(self.ablation[quantity, at])
        return cause * effect > 0 and 1 / 3 <= effect / cause <= 3

    def sentences(self) -> list[str]:
        """One sentence a quantity: its top cause, the token that it comes from most, and the ablation."""
        said = []
        for number, quantity in enumerate(self.quantities):
            at, token = self.top(number), int(self.by_token[number].abs().argmax())
            what = (
                f"The dynamic weight from head {self.head_from} to head {self.head_to} ({self.branch})"
                if quantity == "weight"
                else f"The score of head {self.head_from} ({quantity.partition(', ')[2]})"
            )
            place = f'in the place of that at "{in_sentence(self.tokens[self.places[number]])}"'
            if not self.differs(number):
                said.append(
                    f"{what} is {float(self.value[number]):.2f}, and the same with the mean stream of the other "
                    f"positions {place}: there is nothing to explain."
                )
                continue
            said.append(
                f"{what} is {float(self.value[number]):.2f}, against {float(self.at_mean[number]):.2f} with the mean "
                f"stream of the other positions {place}; the "
                f"largest part of the difference, by integrated gradients, is of {self.components[at]} "
                f"({float(self.causes[number, at]):+.2f}; ablated alone {float(self.ablation[number, at]):+.2f}, which "
                f"{'confirms' if self.confirmed(number) else 'does not confirm'} it), and by token of "
                f'"{in_sentence(self.tokens[token])}"{self._which(token)} '
                f"({float(self.by_token[number, token]):+.2f})."
            )
        return said

    def _which(self, token: int) -> str:
        """The position of a token that a prompt has more than once."""
        return f" (at position {token})" if self.tokens.count(self.tokens[token]) > 1 else ""

    def warnings(self) -> list[str]:
        differences = (self.value - self.at_mean).abs()
        bad = [q for q, gap, d in zip(self.quantities, self.gap.abs(), differences, strict=True) if not gap <= 0.05 * d]
        bad = [q for q in bad if self.differs(self.quantities.index(q))]
        sentences = [f"The causes of {', '.join(bad)} miss more than 5% of the difference: raise steps."] if bad else []
        if not_confirmed := [q for n, q in enumerate(self.quantities) if self.differs(n) and not self.confirmed(n)]:
            sentences.append(
                f"Ablation does not confirm the largest cause of {'; '.join(not_confirmed)}: it has the other sign or "
                "another size."
            )
        return sentences

    def table(self) -> pd.DataFrame:
        """One row a quantity and component, the largest causes of each first."""
        rows = [
            (quantity, name, float(self.causes[q, c]), float(self.ablation[q, c]))
            for q, quantity in enumerate(self.quantities)
            for c, name in sorted(enumerate(self.components), key=lambda each: -abs(float(self.causes[q, each[0]])))
        ]
        return pd.DataFrame(rows, columns=["quantity", "component", "cause", "ablation"])


@analysis(
    title="Causes of a composition",
    needs_composition=True,
    question="Who decided that a head's attention is shared?",
    guide="analyses/composition-causes.md",
    example={
        "prompt": EXAMPLE_PROMPT,
        "layer": "1",
        "head_from": "1",
        "head_to": "2",
        "query": "-1",
        "key": "4",
        "steps": "16",
    },
)
def composition_causes(
    bridge: Bridge,
    prompt: Prompt,
    layer: int,
    head_from: int,
    head_to: int,
    query: int,
    key: int,
    *,
    branch: str | None = None,
    stage: str = "post",
    steps: Count = 64,
) -> CompositionCauses:
    """Attribute the score and the dynamic weight behind one shared attention entry to what was written upstream.

    Args:
        bridge: a bridge over a DCFormer.
        prompt: text, or token ids as in [5, 7, 9]; at least two tokens.
        layer: the layer that composes; negative counts from the last.
        head_from, head_to: the head whose attention is shared, and the one that uses it (the same one for a gate).
        query: the position that attends; negative counts from the end.
        key: the position attended to, not after `query`.
        branch: "qp", "kp", "qg" or "kg"; by default, of those that the model has for this pair of heads, the one with
            the largest weight at this pair of positions.
        stage: "post" for shared weights, "pre" for shared scores.
        steps: Gauss-Legendre points of the integrals.

    Cost: a forward pass for the components, and for each of three quantities steps + 2 rows of this layer forward and
    backward and a row forward for every component.

    Raises:
        UserError: the model does not compose at that stage, has no such branch between these heads, or a position,
            layer or head does not exist.
    """
    require_stage(bridge, stage)
    ids = token_ids(bridge, prompt)
    layer, length = layer_number(bridge, layer), ids.shape[1]
    head_from, head_to = head_number(bridge, head_from), head_number(bridge, head_to)
    query, key = pair_of(query, key, length)
    require_in_window(bridge, layer, query, key)
    if length < 2:
        raise UserError("The prompt is one token, so there are no other positions to compare with; give a longer one.")
    stream = Stream(bridge, ids)
    branch = _branch(bridge, stream, layer, stage, branch, head_from, head_to, query, key)
    parts = upstream(bridge, stream, layer)
    prefix = f"blocks.{layer}.attn."
    score = f"{prefix}pre.hook_in" if f"{prefix}pre.hook_in" in bridge.hook_dict else f"{prefix}hook_attn_scores"
    weights = [f"{prefix}{stage}.hook_{name}" for name in BRANCHES[branch].weights]
    side = query if BRANCHES[branch].side == "query" else key

    def of_score(taps: dict[str, Tensor]) -> Tensor:
        return taps[score][:, head_from, query, key]

    def of_weight(taps: dict[str, Tensor]) -> Tensor:
        if len(weights) == 1:
            return taps[weights[0]][:, side, head_to]
        return (taps[weights[0]][:, side, :, head_from] * taps[weights[1]][:, side, :, head_to]).sum(-1)

    read: list[tuple[int, list[str], Quantity, str]] = [
        (query, [score], of_score, f"{prefix}hook_k"),
        (key, [score], of_score, f"{prefix}hook_q"),
        (side, weights, of_weight, ""),
    ]
    with one_input(bridge):
        made = [
            _Cause(bridge, stream, layer, place, parts, taps, value, held).attribute(steps)
            for place, taps, value, held in read
        ]
    value, at_mean, causes, ablation, by_token = (torch.stack(each).float().cpu() for each in zip(*made, strict=True))
    return CompositionCauses(
        tokens=str_tokens(bridge, ids),
        layer=layer,
        stage=stage,
        branch=branch,
        head_from=head_from,
        head_to=head_to,
        query=query,
        key=key,
        quantities=QUANTITIES,
        components=parts.names,
        places=(query, key, side),
        value=value,
        at_mean=at_mean,
        gap=value - at_mean - causes.sum(1),
        causes=causes,
        ablation=ablation,
        by_token=by_token,
    )


Quantity = Callable[[dict[str, Tensor]], Tensor]
"""From taps of one layer by hook name, [row, ...], to one number a row."""


@dataclass(frozen=True)
class _Cause:
    """One number made from what a layer reads at one position."""

    bridge: Bridge
    stream: Stream
    layer: int
    place: int
    parts: Upstream
    taps: list[str]
    value: Quantity
    held: str
    """A hook that stays as it is: of the query's position the keys, which may be of the same position."""

    def attribute(self, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(F(x), F(N m), causes [component], ablation [component], by token [pos])."""
        name = f"blocks.{self.layer}.attn.hook_in"
        x = self.stream.read([name])[name][0, self.place]
        moved = self.parts.against_mean(self.place)
        norm = self._norm(x)
        step = norm(moved.sum(0))
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        points, weights = legendre(0.0, 1.0, steps)
        values, average = [], torch.zeros_like(x)
        for some, weight in zip(
            torch.cat([ends, points]).split(BATCH), torch.cat([0 * ends, weights]).split(BATCH), strict=True
        ):
            rows = (x - step + some.to(x)[:, None] * step).detach().requires_grad_()
            with torch.enable_grad():
                value = self._run(name, rows)
                (gradient,) = torch.autograd.grad(value.sum(), rows)
            counts = weight > 0
            average += torch.einsum("r,rd->d", weight[counts].to(x), gradient[counts])
            values.append(value.detach())
        at_mean, actual = torch.cat(values)[:2]
        causes = norm(moved) @ average
        # The norm is linear here, so a direction after it is one before it.
        back = torch.autograd.functional.vjp(norm, torch.zeros_like(x), average)[1]
        by_token = self.parts.tokens(self.place, back).sum(0)
        return actual, at_mean, causes, self._ablations(moved), by_token

    def _norm(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """N without its bias: the layer's norm with the scale that it has at this position."""
        inner = self.bridge.blocks[self.layer].ln1.original_component
        written = self.parts.written[:, self.place].sum(0)
        centred = isinstance(inner, torch.nn.LayerNorm)
        bias = inner.bias if centred and inner.bias is not None else 0.0
        whole = written - written.mean() if centred else written
        gain = inner.weight.detach()
        scale = (x - bias).detach() @ (whole * gain) / (whole * gain).square().sum()
        return lambda u: (u - u.mean(-1, keepdim=True) if centred else u) * gain * scale

    @cached_property
    def _clean(self) -> Tensor:
        """What is held, as it is on the untouched prompt."""
        return self.stream.read([self.held])[self.held]

    def _run(self, hook: str, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, " row"]:
        """F of every row, put in the place of what is at `hook` at this position."""
        seen: dict[str, Tensor] = {}

        def put(tensor: Tensor, hook: Any) -> Tensor:
            out = tensor.clone()
            out[:, self.place] = rows
            return out

        def keep(tensor: Tensor, hook: Any, name: str) -> None:
            seen[name] = tensor

        hooks: list[tuple[str, Callable[..., Any]]] = [(hook, put)]
        if self.held:
            clean = self._clean  # read before the run that it is put into
            hooks.append((self.held, lambda tensor, hook: clean.expand_as(tensor)))
        hooks += [(name, partial(keep, name=name)) for name in self.taps]
        self.stream.layer(self.layer, len(rows), hooks)
        return self.value(seen)

    @torch.no_grad()
    def _ablations(self, moved: Tensor) -> Tensor:
        name = f"blocks.{self.layer}.hook_in"
        written = self.parts.written[:, self.place].sum(0)
        found = []
        for some in moved.split(BATCH - 1):
            values = self._run(name, torch.cat([written[None], written - some]))
            found.append(values[0] - values[1:])
        return torch.cat(found)


def _branch(
    bridge: Bridge, stream: Stream, layer: int, stage: str, branch: str | None, f: int, h: int, query: int, key: int
) -> str:
    """The branch asked for, or the one whose weight between the two heads is largest."""
    prefix = f"blocks.{layer}.attn.{stage}.hook_"
    group = bridge.cfg.n_heads // composer_of(bridge, layer, stage).groups
    kinds = [*(("qp", "kp") if f // group == h // group else ()), *(("qg", "kg") if f == h else ())]
    known = [each for each in kinds if all(prefix + weight in bridge.hook_dict for weight in BRANCHES[each].weights)]
    if not known or (branch is not None and branch not in known):
        if not known:
            raise UserError(
                f"Composition makes nothing of the tokens by which head {f} shares with head {h} in this stage, so "
                "there are no causes to find; what all tokens share is in static_composition_map."
            )
        raise UserError(
            f"Head {f} shares nothing with head {h} through branch {branch!r}; this stage has: {', '.join(known)}."
        )
    if branch is not None:
        return branch

    def size(name: str) -> float:
        places = query if BRANCHES[name].side == "query" else key
        taps = [stream.read([prefix + w])[prefix + w][0, places] for w in BRANCHES[name].weights]
        return abs(float(taps[0][h] if len(taps) == 1 else (taps[0][:, f] * taps[1][:, h]).sum()))

    return max(known, key=size)
