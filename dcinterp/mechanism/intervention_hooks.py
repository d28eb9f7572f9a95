"""Interventions as forward hooks, a different set for every row of a batch, and what they do to a metric.

    with applied(bridge, ["edge 1.post.kp.2>3 zero"], prompt):      # hooks are gone afterwards
        logits = bridge(prompt)

    effects = measure_effects(bridge, ids, rows, metric)                    # f(clean) - f(edited), one number per row

With `dynamic_weights="frozen"` every dynamic weight of the model keeps the value it has on the untouched prompt, so
that only what flows through values (and attention's own queries and keys) can answer the change; "recomputed" lets the
change steer the compositions of later layers too. The difference between the two is control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ablation import ABLATIONS, apply_map, replacement, rotated, side_of
from dcinterp.mechanism.ablation_kinds import takes_reference
from dcinterp.mechanism.branches import BRANCHES
from dcinterp.mechanism.dataset import default_reference, prompts
from dcinterp.mechanism.head_maps import composer_of
from dcinterp.mechanism.interventions import PARTS, Intervention, Interventions, all_checked, read_interventions, tap
from dcinterp.mechanism.path_gradient import Hooks, Metric
from dcinterp.mechanism.prompt import Prompt, token_ids
from dcinterp.model.compose.branches import low_rank_map
from dcinterp.support.errors import UserError

DynamicWeights = Literal["recomputed", "frozen"]

Taps = dict[str, Tensor]
"""Tensors of the running forward pass by hook name, [batch, ...]."""

Rows = int | slice
Edit = Callable[[Tensor, Rows, Taps], None]
"""Changes rows of a tensor in place: (their tensor, their number or all, taps so far)."""
Change = tuple[Rows, str, bool, Edit]
"""An edit of some rows: their number or all, the sort of unit, and whether it rotates."""


@dataclass
class References:
    """What interventions put in that takes its values from other prompts.

    counterfactual: taps of the other prompt, [1, ...] by hook name. ablations: for each kind of ablation, what it puts
    in by hook name (`dcinterp.mechanism.ablation.Replacement.at`); of a branch that is a map over heads. unmatched: for
    each kind that resamples, the share of positions of the prompt for which no other prompt has the same.
    """

    counterfactual: Mapping[str, Tensor] = field(default_factory=dict)
    ablations: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    unmatched: Mapping[str, float] = field(default_factory=dict)

    @property
    def most_unmatched(self) -> float:
        """The largest of these shares."""
        return max(self.unmatched.values(), default=0.0)


def unmatched_warnings(share: float) -> list[str]:
    """What to know where values were resampled from prompts that lack the position, or the token."""
    if not share:
        return []
    return [
        f"For {share:.0%} of the resampled positions no other prompt has the same position, or token where tokens are "
        "matched; they take their values from elsewhere: give a reference of such prompts."
    ]


def references(
    bridge: Bridge,
    interventions: Sequence[Intervention],
    length: int,
    counterfactual: Prompt | None = None,
    reference: Sequence[Prompt] | None = None,
    *,
    ids: Tensor | None = None,
    seed: int = 0,
    read: int = 0,
) -> References:
    """Run the other prompts and keep what these (checked) interventions need of them.

    Args:
        ids: the prompt that is intervened on, [1, pos], of which the last `read` tokens are an answer's, and seed: of
            the draws; for kinds that resample.

    Raises:
        UserError: an intervention needs a counterfactual or a reference set that was not given, or the counterfactual
            has another number of tokens than `length`.
    """
    kinds = {one.kind: one for one in interventions}
    if "counterfactual" in kinds and counterfactual is None:
        raise UserError(f"'{kinds['counterfactual']}' takes its values from another prompt; give counterfactual=.")
    from_others = [kind for kind in kinds if kind in ABLATIONS and ABLATIONS[kind].reference]
    if from_others and not reference:
        raise UserError(
            f"'{kinds[from_others[0]]}' takes its values from other prompts; give reference=, a list of prompts."
        )
    other: Mapping[str, Tensor] = {}
    if counterfactual is not None and "counterfactual" in kinds:
        changed = token_ids(bridge, counterfactual)
        if changed.shape[1] != length:
            raise UserError(
                f"The counterfactual is {changed.shape[1]} tokens long and the prompt {length}; give one with as many."
            )
        names = {name for one in interventions if one.kind == "counterfactual" for name in _read_by(bridge, one)}
        with torch.no_grad():
            other = bridge.run_with_cache(changed, names_filter=sorted(names))[1]
    given = [token_ids(bridge, prompt) for prompt in reference or ()] if from_others else []
    ablations: dict[str, Mapping[str, Tensor]] = {}
    unmatched: dict[str, float] = {}
    for kind in from_others:
        values = replacement(bridge, sorted({tap(one) for one in interventions if one.kind == kind}), kind, given, seed)
        ablations[kind] = values.means if kind == "mean" or ids is None else values.at(ids, read)
        if values.unmatched.positions:
            unmatched[kind] = values.unmatched.share
    return References(other, ablations, unmatched)


def frozen_hooks(bridge: Bridge, ids: Tensor) -> Hooks:
    """Hooks that keep every dynamic weight at its value on this prompt, whatever the batch size."""
    names = [name for name in bridge.hook_dict if ".hook_w_" in name]
    if not names:
        return []
    with torch.no_grad():
        cache = bridge.run_with_cache(ids, names_filter=names)[1]
    return [(name, partial(_keep, value=cache[name])) for name in names]


def intervention_hooks(
    bridge: Bridge, rows: Sequence[Sequence[Intervention]], values: References | None = None, *, frozen: Hooks = ()
) -> Hooks:
    """Forward hooks for a batch of as many rows, in which row i undergoes the (checked) interventions `rows[i]`.

    frozen: hooks of `frozen_hooks`, which act before the interventions.
    """
    values = values or References()
    seen: Taps = {}
    edits: dict[str, list[Change]] = {}
    for row, interventions in enumerate(rows):
        for one in sorted(interventions, key=lambda one: PARTS.index(one.part)):
            edit = _edit(bridge, one, values)
            edits.setdefault(tap(one), []).append((row, one.part, one.kind == "rotate", edit))
    needed = {name for row in rows for one in row if one.part in ("edge", "branch") for name in _inside(bridge, one)}
    changes = [(name, partial(_change, name=name, edits=some, seen=seen)) for name, some in edits.items()]
    # What an edge is made of is seen after the weights were changed, in the order of the computation.
    return [*frozen, *changes, *((name, partial(_remember, seen=seen)) for name in sorted(needed))]


def edge_hooks(bridge: Bridge, edge: Intervention, values: References | None = None) -> Hooks:
    """Forward hooks of one (checked) intervention on an edge, for every row of any batch of one length."""
    seen: Taps = {}
    edit = partial(_edit_edge, one=edge, values=values or References(), **_of_stage(bridge, edge))
    change = partial(_change, name=tap(edge), edits=[(slice(None), edge.part, False, edit)], seen=seen)
    return [(tap(edge), change), *((name, partial(_remember, seen=seen)) for name in sorted(_inside(bridge, edge)))]


@contextmanager
def applied(
    bridge: Bridge,
    interventions: Interventions,
    prompt: Prompt,
    *,
    counterfactual: Prompt | None = None,
    reference: str | Sequence[Prompt] | None = None,
    dynamic_weights: DynamicWeights = "recomputed",
    seed: int = 0,
) -> Iterator[Any]:
    """The bridge with the interventions in force for runs of this one prompt; no hook is left behind.

    Args: as in `intervene`.

    Raises:
        UserError: as `intervene`; a run is of several prompts at once.
    """
    ids = token_ids(bridge, prompt)
    ones = all_checked(bridge, read_interventions(interventions), ids.shape[1])
    among = None
    if takes_reference(one.kind for one in ones):
        among = prompts(bridge, default_reference(bridge, prompt) if reference is None else reference)
    values = references(bridge, ones, ids.shape[1], counterfactual, among, ids=ids, seed=seed)
    frozen = frozen_hooks(bridge, ids) if freezes(dynamic_weights) else ()
    guard = [("embed.hook_in", _require_one)] if "embed.hook_in" in bridge.hook_dict else []
    with bridge.hooks(fwd_hooks=[*guard, *intervention_hooks(bridge, [ones], values, frozen=frozen)]):
        yield bridge


def _require_one(ids: Tensor, hook: Any) -> None:
    if len(ids) != 1:
        raise UserError(f"The interventions are of one prompt, and this run is of {len(ids)}; run them one by one.")


def measure_effects(
    bridge: Bridge,
    ids: Tensor,
    rows: Sequence[Sequence[Intervention]],
    metric: Metric,
    values: References | None = None,
    *,
    frozen: Hooks = (),
    batch_size: int = 64,
    watch: Callable[[int, Tensor], None] | None = None,
    watched: str = "",
) -> Float[Tensor, " row"]:
    """f(clean) - f(edited) for every row of (checked) interventions.

    Args:
        watch: called with the number of the first row and the tensor at the hook `watched`, [1 + rows, ...], of every
            batch; its first entry is the clean one.

    Cost: a forward pass of `batch_size` rows for every batch_size - 1 rows; the clean prompt runs along in each batch.
    """
    effects = []
    size = max(batch_size - 1, 1)
    for start in range(0, len(rows), size):
        some = [[], *rows[start : start + size]]
        hooks = list(intervention_hooks(bridge, some, values, frozen=frozen))
        if watch is not None:
            hooks.append((watched, lambda tensor, hook, start=start: watch(start, tensor)))
        with torch.no_grad():
            value = metric(bridge.run_with_hooks(ids.expand(len(some), -1), fwd_hooks=hooks))
        effects.append(value[0] - value[1:])
    return torch.cat(effects)


def freezes(dynamic_weights: str) -> bool:
    if dynamic_weights not in ("recomputed", "frozen"):
        raise UserError(f"Dynamic weights are 'recomputed' or 'frozen', not {dynamic_weights!r}.")
    return dynamic_weights == "frozen"


def _keep(tensor: Tensor, hook: Any, value: Tensor) -> Tensor:
    return value.expand_as(tensor)


def _remember(tensor: Tensor, hook: Any, seen: Taps) -> None:
    seen[hook.name] = tensor


def _change(tensor: Tensor, hook: Any, name: str, edits: list[Change], seen: Taps) -> Tensor:
    out, before = tensor.clone(), None
    turning = [(row, part) for row, part, rotates, _ in edits if rotates]
    for row, part, _, edit in edits:
        # What rotates reads this sort of unit as it was, whatever the order they are written in, and what came before.
        if (row, part) != before and (row, part) in turning:
            seen[f"{name} as it was"] = out[row].clone()
        before = (row, part)
        edit(out[row], row, seen)
    return out


def _inside(bridge: Bridge, one: Intervention) -> list[str]:
    """Hooks of the same stage that say what an edge, or a branch with another map, is made of."""
    prefix = f"blocks.{one.layer}.attn.{one.stage}.hook_"
    if one.part == "branch":
        return [f"{prefix}in"] if _from_others(one) else []
    return [f"{prefix}in", *(f"{prefix}{name}" for name in BRANCHES[one.name].weights)]


def _from_others(one: Intervention) -> bool:
    """Whether it puts in what reference prompts have."""
    return one.kind in ABLATIONS and ABLATIONS[one.kind].reference


def _read_by(bridge: Bridge, one: Intervention) -> list[str]:
    """Hooks that a counterfactual value is read from."""
    return _inside(bridge, one) if one.part == "edge" else [tap(one)]


def _edit(bridge: Bridge, one: Intervention, values: References) -> Edit:
    if one.part == "edge":
        return partial(_edit_edge, one=one, values=values, **_of_stage(bridge, one))
    where = _where(one)
    if _from_others(one):
        new = values.ablations[one.kind][tap(one)]
        if one.part == "branch":
            return partial(_edit_branch_map, one=one, heads=new)
        if one.head is not None:
            new = new[..., one.head, :] if one.part == "head" else new[..., one.head]
        if one.kind != "mean":  # [pos, ...], of which the intervention may be confined to one
            new = new[where[0]]
        return lambda tensor, row, seen: _put(tensor, where, new)
    if one.kind == "counterfactual":
        other = values.counterfactual[tap(one)][0][where]
        return lambda tensor, row, seen: _put(tensor, where, other)
    if one.kind == "rotate":
        axis = {"head": -2, "branch": 0, "weight": -1}[one.part]

        def rotate(tensor: Tensor, row: Rows, seen: Taps) -> None:
            _put(tensor, where, rotated(seen[f"{tap(one)} as it was"], axis)[where])

        return rotate
    return lambda tensor, row, seen: _put(tensor, where, tensor[where] * one.factor)


def _put(tensor: Tensor, where: tuple[Any, ...], new: Tensor) -> None:
    tensor[where] = new.to(tensor)


def _slice(at: int | None) -> slice:
    return slice(None) if at is None else slice(at, at + 1)


def _where(one: Intervention) -> tuple[Any, ...]:
    """The entries of one row of the tap that the intervention changes."""
    if one.part == "head":  # [pos, head, d_head]
        return _slice(one.query), one.head
    if one.part == "branch":  # [head, query, key]
        return slice(None), _slice(one.query), _slice(one.key)
    at = _slice(one.query if one.name[2] == "q" else one.key)  # [pos, rank, head] or [pos, head]
    return at, ..., slice(None) if one.head is None else one.head


def _edit_edge(
    tensor: Tensor, row: Rows, seen: Taps, *, one: Intervention, values: References, pair: float, groups: int
) -> None:
    """Replace what one head's attention adds to another through one branch, in [..., head, query, key]."""
    old = _edge(one, {name: t[row] for name, t in seen.items()}, pair)
    if _from_others(one):
        attention = seen[f"blocks.{one.layer}.attn.{one.stage}.hook_in"][row][..., one.head_from, :, :]
        entry = values.ablations[one.kind][tap(one)][..., one.head_from, one.head].to(old)
        by_position = entry if entry.dim() == 0 else entry[:, None] if side_of(tap(one)) == "query" else entry[None, :]
        new = attention * by_position
    elif one.kind == "rotate":
        before = (one.head - 1) % tensor.shape[-3]
        new = _edge(replace(one, head=before), {name: t[row] for name, t in seen.items()}, pair)
        size = tensor.shape[-3] // groups
        # A gate leads from a head to itself only, and a map to heads of the same group.
        new = new * (BRANCHES[one.name].name[1:] != "g" and before // size == one.head_from // size)
    elif one.kind == "counterfactual":
        new = _edge(one, {name: t[0] for name, t in values.counterfactual.items()}, pair)
    else:
        new = old * one.factor
    where = (..., _slice(one.query), _slice(one.key))
    tensor[..., one.head, :, :][where] += (new - old)[where]


def _edge(one: Intervention, taps: Taps, pair: float) -> Float[Tensor, "*rows query key"]:
    """A[f,t,s] C_c[f,h](t,s) of one edge. `pair` is the entry of the skip's map."""
    prefix = f"blocks.{one.layer}.attn.{one.stage}.hook_"
    attention, f, h = taps[f"{prefix}in"][..., one.head_from, :, :], one.head_from, one.head
    weights = [taps[f"{prefix}{name}"] for name in BRANCHES[one.name].weights]
    if not weights:
        return attention * pair
    if len(weights) == 1:
        chosen = weights[0][..., h]
    else:  # one entry of the map, and so without groups: `checked` refuses edges between them
        chosen = low_rank_map(weights[0][..., f : f + 1], weights[1][..., h : h + 1])[..., 0, 0]
    return attention * (chosen[..., :, None] if BRANCHES[one.name].side == "query" else chosen[..., None, :])


def _of_stage(bridge: Bridge, one: Intervention) -> dict[str, Any]:
    """What an edge needs to know of its stage: the entry of the skip's map, and the groups of heads."""
    composer = composer_of(bridge, one.layer, one.stage)
    pair = float(composer.base_map()[one.head_from, one.head]) if one.name == "skip" else 1.0
    return {"pair": pair, "groups": composer.groups}


def _edit_branch_map(tensor: Tensor, row: Rows, seen: Taps, *, one: Intervention, heads: Tensor) -> None:
    attention = seen[f"blocks.{one.layer}.attn.{one.stage}.hook_in"][row]
    _put(tensor, _where(one), apply_map(attention, heads, side_of(tap(one)))[_where(one)])
