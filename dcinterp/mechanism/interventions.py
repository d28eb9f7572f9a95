r"""Interventions as plain data: what to change in a model, written as one line, and the hooks that change it.

    head 1.3 zero                       what head 3 of layer 1 reads (hook_z)
    attention 1.6 zero                  the attention that head 6 computes, whichever heads use it: its edges to
                                        all of them ("1.pre.6": its scores)
    branch 1.post.kp mean               one branch of a composition, for all heads
    branch 1.post.added zero            all of a composition but the skip and a static map: plain attention in its place
    edge 1.post.kp.2>3 zero             what head 2's attention adds to head 3 by one branch ("added": all but the skip)
    weight 1.post.w_k1.2 scale=2        a dynamic weight, of one head or (without ".2") of all

and after it, where the change is to be confined to some positions, `query=-1` and/or `key=7`.

Without a kind of change, a line means `mean`. Kinds of change are those of dcinterp.mechanism.ablation:
    mean              its mean over the positions of a reference set of prompts. For a branch or an edge that is the
                      mean of its map over heads, C[f,h], applied to the attention of this prompt: composition that no
                      longer depends on the token. The skip is such a map already, so it has no mean ablation.
    zero              nothing in its place
    resample          what it is at the same position of another reference prompt (of a branch or edge, its map)
    resample-token    what it is where the same token stands in another reference prompt
    rotate            what the head before it has (of an edge, what is added to that head instead)
and, beside them:
    scale=X           X times itself
    counterfactual    what it is, at the same positions, in another prompt with as many tokens (activation patching)

Several interventions act in the order of the computation: weights, then edges, then whole branches, then heads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ablation_kinds import ABLATIONS, DEFAULT, OF_ATTENTION
from dcinterp.mechanism.branches import ADDED as ADDED_BRANCHES
from dcinterp.mechanism.branches import BRANCHES, WEIGHTS
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.prompt import layer_number, position, require_stage
from dcinterp.model.compose.branches import same_group
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.text import shown

PARTS = ("weight", "edge", "branch", "head")
"""In the order of the computation."""

KINDS = (*ABLATIONS, "counterfactual", "scale")
ADDED = "added"
"""Stands for every branch that the model has but the skip."""

_HELP = (
    "write it as in 'head 1.3 zero', 'attention 1.3 zero', 'branch 1.post.kp mean', 'edge 1.post.kp.2>3 zero' or "
    "'weight 1.post.w_k1.2 scale=2'"
)
_LINE = re.compile(r"(\w+)\s+(\S+)(?:\s+(?!(?:query|key)=)([\w-]+)(?:=(\S+))?)?((?:\s+(?:query|key)=-?\d+)*)\s*")
_PLACES = {
    "head": re.compile(r"(?P<layer>-?\d+)\.(?P<head>\d+)"),
    "attention": re.compile(r"(?P<layer>-?\d+)\.(?:(?P<stage>\w+)\.)?(?P<head>\d+)"),
    "branch": re.compile(r"(?P<layer>-?\d+)\.(?P<stage>\w+)\.(?P<name>\w+)"),
    "edge": re.compile(r"(?P<layer>-?\d+)\.(?P<stage>\w+)\.(?P<name>\w+)\.(?P<head_from>\d+)>(?P<head>\d+)"),
    "weight": re.compile(r"(?P<layer>-?\d+)\.(?P<stage>\w+)\.(?P<name>\w+)(?:\.(?P<head>\d+))?"),
}


@dataclass(frozen=True)
class Intervention:
    """One change to a model; `str` gives its line and `parse` reads it.

    part: "head", "attention", "branch", "edge" or "weight"; stage and name (a branch or a dynamic weight): where there
    is one; of attention without a stage it is "post".
    head: the head that is changed, of an edge the one that receives; head_from: the one that shares.
    query, key: positions that the change is confined to; None for all.
    """

    part: str
    layer: int
    stage: str = ""
    name: str = ""
    head: int | None = None
    head_from: int | None = None
    kind: str = "zero"
    factor: float = 0.0
    query: int | None = None
    key: int | None = None

    def __post_init__(self) -> None:
        if self.part not in _PLACES:
            raise UserError(
                f"There is nothing called {shown(self.part)} to intervene on; {nearest(self.part, _PLACES)}"
            )
        if self.kind not in KINDS:
            raise UserError(f"There is no kind of change {shown(self.kind)}; {nearest(self.kind, KINDS)}")
        if not math.isfinite(self.factor):
            raise UserError(f"{float(self.factor)} is no factor; write a number, as in scale=2.")

    @classmethod
    def parse(cls, text: str) -> Intervention:
        """The intervention of a line such as "edge 1.post.kp.2>3 zero query=-1".

        Raises:
            UserError: the line is not one; the message shows how they are written.
        """
        line = _LINE.fullmatch(text.strip())
        if line is None:
            raise UserError(f"{shown(text)} is no intervention; {_HELP}.")
        part, place, kind, factor, where = line.groups()
        kind = kind or DEFAULT
        if part not in _PLACES:
            raise UserError(f"There is nothing called {shown(part)} to intervene on; {nearest(part, _PLACES)}")
        found = _PLACES[part].fullmatch(place)
        if found is None:
            raise UserError(f"{shown(place)} names no {part}; {_HELP}.")
        if kind not in KINDS:
            raise UserError(f"There is no kind of change {shown(kind)}; {nearest(kind, KINDS)}")
        if re.search(r"\d{10}", place + where):
            raise UserError(f"{shown(place + where)} has a number that is too large; {_HELP}.")
        numbers = {k: int(v) for k, v in found.groupdict().items() if k not in ("stage", "name") and v is not None}
        words = {k: v for k, v in found.groupdict().items() if k in ("stage", "name") and v is not None}
        pairs = [pair.split("=") for pair in where.split()]
        where_numbers = {k: int(v) for k, v in pairs}
        if len(where_numbers) < len(pairs):
            raise UserError(f"{shown(where.strip())} names one position twice; write a line for each.")
        return cls(part, kind=kind, factor=_factor(kind, factor), **numbers, **words, **where_numbers)  # type: ignore[arg-type]

    def __str__(self) -> str:
        place = [str(self.layer), *filter(None, (self.stage, self.name))]
        if self.part == "edge":
            place.append(f"{self.head_from}>{self.head}")
        elif self.head is not None:
            place.append(str(self.head))
        kind = f"scale={_written(self.factor)}" if self.kind == "scale" else self.kind
        where = [f"{name}={at}" for name in ("query", "key") if (at := getattr(self, name)) is not None]
        return " ".join([self.part, ".".join(place), kind, *where])

    def plain(self) -> str:
        """The line, which is how records of calls keep an intervention."""
        return str(self)

    @property
    def unit(self) -> str:
        """What is changed, without how: "edge 1.post.kp.2>3"."""
        return " ".join(str(self).split()[:2])


@runtime_checkable
class EdgeOfResult(Protocol):
    """An edge of what `attribute_edges` returns; it stands for its removal."""

    @property
    def intervention(self) -> Intervention: ...


Interventions = str | Intervention | EdgeOfResult | Sequence[str | Intervention | EdgeOfResult]
"""Lines, `Intervention`s, edges of a result (their removal), or one text with lines apart by semicolons."""


def _removal(given: Any) -> Any:
    """The removal of an edge of a result; anything else as it is."""
    return getattr(given, "intervention", given)


def read_interventions(given: Interventions) -> list[Intervention]:
    """All of them as `Intervention`s.

    Raises:
        UserError: a line is none, or there are none at all.
    """
    whole = _removal(given)  # first, as the edges of results are tuples
    if isinstance(whole, Intervention):
        return [whole]
    lines = re.split(r"[;\n]", whole) if isinstance(whole, str) else list(whole)
    read = []
    for each in map(_removal, lines):
        if not isinstance(each, str | Intervention):
            raise UserError(f"{shown(each)} is no intervention; {_HELP}.")
        if isinstance(each, Intervention):
            read.append(each)
        elif each.strip():
            read.append(Intervention.parse(each))
    if not read:
        raise UserError(f"There is no intervention; {_HELP}.")
    return read


def checked(bridge: Bridge, given: Intervention, length: int) -> list[Intervention]:
    """The intervention with its positions counted from the start, if this model can have it.

    "added" becomes every branch that it stands for, and attention the edges by which heads use it.

    Raises:
        UserError: the layer, head, stage, branch, weight or position does not exist in this model and prompt, or an
            intervention on a head or an edge names none.
    """
    layer = layer_number(bridge, given.layer)
    if given.head is None and given.part in ("head", "attention", "edge"):
        kind = {"head": "a head", "edge": "an edge"}.get(given.part, "attention")
        raise UserError(f"An intervention on {kind} names its head=.")
    if given.head_from is None and given.part == "edge":
        raise UserError("An intervention on an edge names the head whose attention it takes, as head_from=.")
    for head in (given.head, given.head_from):
        if head is not None and not 0 <= head < bridge.cfg.n_heads:
            raise UserError(f"There is no head {head}; this model has heads 0..{bridge.cfg.n_heads - 1}.")
    query = None if given.query is None else position(given.query, length, "Query")
    key = None if given.key is None else position(given.key, length, "Key")
    one = replace(given, layer=layer, query=query, key=key)
    _refuse_meaningless_positions(one)
    if one.part == "head":
        return [one]
    if one.part == "attention":
        return _uses(bridge, one)
    require_stage(bridge, one.stage)
    if one.part == "weight":
        if one.name not in WEIGHTS:
            raise UserError(f"There is no dynamic weight {one.name!r}; {nearest(one.name, WEIGHTS)}")
        if tap(one) not in bridge.hook_dict:
            raise UserError(f"This model has no dynamic weight {one.name} in its {one.stage} composition.")
        return [one]
    if one.name == ADDED:
        present = [b for b in ADDED_BRANCHES if tap(replace(one, name=b)) in bridge.hook_dict]
        named = [replace(one, name=b) for b in present]
        if one.part == "edge":  # a gate scales a head by itself: it leads from no head to another
            named = [edge for edge in named if edge_exists(bridge, edge)]
        if not named:
            apart = edges_that_exist(bridge, replace(one, part="edge", name="skip")).fill_diagonal_(False)
            way = "name a head"
            if bool(apart.any()):
                head_from, head_to = apart.nonzero()[0].tolist()
                line = f"edge {one.layer}.{one.stage}.skip.{head_from}>{head_to}"
                way = f"name an edge of its map of all tokens, as in {line!r}, or a head"
            elif present:
                way = "name its branch, or a head: a gate leads from a head to itself only"
            raise UserError(
                f"The {one.stage} composition of this model has nothing beside its base that {one.unit!r} could name; "
                f"{way}. What other pairs of tokens or the layer before add is changed by hooks alone."
            )
        return named
    if one.name not in BRANCHES:
        raise UserError(f"There is no branch {one.name!r}; {nearest(one.name, (*BRANCHES, ADDED))}")
    if tap(one) not in bridge.hook_dict or (one.part == "edge" and not edge_exists(bridge, one)):
        raise UserError(
            f"This model has no {one.unit!r}; a gate, and a skip without a map, lead from a head to itself only."
        )
    if one.name == "skip" and one.kind in ABLATIONS and ABLATIONS[one.kind].reference:
        raise UserError(
            f"The skip is the same for every token: its {one.kind} changes nothing; use zero or counterfactual."
        )
    if one.name == "skip" and one.part == "edge" and one.kind == "rotate":
        raise UserError("The skip leads from a head to itself only, so its edge cannot be rotated; use zero.")
    return [one]


def all_checked(bridge: Bridge, given: Sequence[Intervention], length: int) -> list[Intervention]:
    """All of them, `checked`.

    Raises:
        UserError: as `checked`; two of them change the same edge, which would be taken away twice.
    """
    found: list[Intervention] = []
    lines: dict[str, list[tuple[Intervention, Intervention]]] = {}
    for line in given:
        units = checked(bridge, line, length)
        for one in units if line.part in ("attention", "edge") else ():
            for other, of in lines.get(one.unit, []):
                if _meet(one.query, other.query) and _meet(one.key, other.key):
                    raise UserError(f"{str(of)!r} and {str(line)!r} both change {one.unit!r}; leave one of them out.")
        for one in units:
            lines.setdefault(one.unit, []).append((one, line))
        found += units
    return found


def _meet(one: int | None, other: int | None) -> bool:
    """Whether two positions, None for all, have one in common."""
    return one is None or other is None or one == other


def _uses(bridge: Bridge, attention: Intervention) -> list[Intervention]:
    """The edges by which heads use the attention of one of them.

    Raises:
        UserError: the model does not compose at that stage, heads use attention of other pairs of tokens too, or the
            kind of change would replace the map over heads too.
    """
    of = replace(attention, part="edge", stage=attention.stage or "post")
    require_stage(bridge, of.stage)
    if not composer_of(bridge, of.layer, of.stage).PAIRWISE:
        raise UserError(
            f"In this model heads use each other's attention of other pairs of tokens too, which "
            f"{attention.unit!r} does not name; use a hook at blocks.{of.layer}.attn.{of.stage}.hook_in."
        )
    if attention.kind not in OF_ATTENTION:
        raise UserError(
            f"{attention.unit!r} is changed by zero or scale=X: {attention.kind} would replace how heads are mixed, "
            f"too. For other values use a hook at blocks.{of.layer}.attn.{of.stage}.hook_in."
        )
    uses = []
    for name in ("skip", *ADDED_BRANCHES):
        exist = edges_that_exist(bridge, replace(of, name=name))
        uses += [replace(of, name=name, head_from=of.head, head=to) for to in exist[of.head].nonzero()[:, 0].tolist()]
    return uses


def edge_exists(bridge: Bridge, edge: Intervention) -> bool:
    """Whether a branch of the model leads from `head_from` to `head` at all."""
    assert edge.head is not None
    assert edge.head_from is not None
    return bool(edges_that_exist(bridge, edge)[edge.head_from, edge.head])


def edges_that_exist(bridge: Bridge, branch: Intervention) -> Bool[Tensor, "head_from head_to"]:
    """From which heads to which a branch of the model leads.

    Raises:
        UserError: the composer does not keep the heads.
    """
    composer, heads = composer_of(bridge, branch.layer, branch.stage), bridge.cfg.n_heads
    composer.require_square("An edge from head to head")
    if tap(branch) not in bridge.hook_dict:
        return torch.zeros(heads, heads, dtype=torch.bool)
    weights = BRANCHES[branch.name].weights
    if not weights:
        return composer.base_map() != 0
    return (torch.eye(heads) if len(weights) == 1 else same_group(heads, composer.groups)).bool()


def tap(one: Intervention) -> str:
    """The hook at which the intervention acts."""
    if one.part == "head":
        return f"blocks.{one.layer}.attn.hook_z"
    name = BRANCHES[one.name].hook if one.part != "weight" and one.name in BRANCHES else one.name
    return f"blocks.{one.layer}.attn.{one.stage}.hook_{name}"


def all_units(bridge: Bridge, part: str, stage: str = "post", kind: str = "zero") -> Iterator[Intervention]:
    """Every unit of one sort that the model has: its heads, branches, edges, or dynamic weights of single heads.

    Raises:
        UserError: there is no such sort, or the model does not compose its heads at that stage.
    """
    if part not in PARTS:
        raise UserError(f"There is no sort of unit {part!r}; {nearest(part, PARTS)}")
    layers, heads = range(bridge.cfg.n_layers), range(bridge.cfg.n_heads)
    if part == "head":
        yield from (Intervention("head", layer, head=head, kind=kind) for layer in layers for head in heads)
        return
    require_stage(bridge, stage)
    names = WEIGHTS if part == "weight" else [b for b in BRANCHES if not (b == "skip" and kind == "mean")]
    for layer in layers:
        for name in names:
            whole = Intervention(part, layer, stage, name, kind=kind)
            if tap(whole) not in bridge.hook_dict:
                continue
            if part == "branch":
                yield whole
            elif part == "weight":
                yield from (replace(whole, head=head) for head in heads)
            else:
                exists = edges_that_exist(bridge, whole)
                yield from (replace(whole, head_from=f, head=h) for f in heads for h in heads if exists[f, h])


def _refuse_meaningless_positions(one: Intervention) -> None:
    side = {"head": "query", "weight": {"q": "query", "k": "key"}.get(one.name[2:3], "")}.get(one.part)
    for name in ("query", "key"):
        if side is not None and name != side and getattr(one, name) is not None:
            raise UserError(f"{one.unit!r} has no {name} position; leave {name}= out.")


def _written(factor: float) -> str:
    """A factor so that `_factor` reads the same number."""
    number = float(factor)  # also of NumPy and torch
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def _factor(kind: str, text: str | None) -> float:
    if (kind == "scale") != (text is not None):
        raise UserError(f"{kind!r} takes {'a factor, as in scale=2' if kind == 'scale' else 'no factor'}; {_HELP}.")
    if text is None:
        return 0.0
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is no factor; write a number, as in scale=2.") from None
