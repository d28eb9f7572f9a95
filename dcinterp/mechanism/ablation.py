r"""Ablation: what takes the place of a part of the model, and where it comes from.

    mean             its mean over all positions of reference prompts
    zero             nothing
    resample         what it is at the same position of another reference prompt
    resample-token   what it is where the same token stands in another reference prompt
    rotate           what the head before it has

What composition adds is a map over heads applied to this prompt's attention, and it is the map that is replaced:

    o[h,t,s] = sum_f A[f,t,s] M[f,h]    M: mean of C[f,h] over positions; C of another prompt; C with its columns moved

so that the attention itself stays that of the prompt. A mean map is composition that no longer depends on the token.
`ABLATIONS` says in one line what each kind removes; help, documentation and app take it from there.

    values = replacement(bridge, ["blocks.1.attn.post.hook_o_kp"], "mean", prompts)
    with bridge.hooks(fwd_hooks=list(values.hooks())):      # any batch of prompts
        logits = bridge(ids)
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, einsum

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ablation_kinds import ABLATIONS, DEFAULT, AblationKind, Kind, kinds_in_words
from dcinterp.mechanism.branches import BRANCHES, BY_HOOK
from dcinterp.mechanism.dataset import equal_lengths
from dcinterp.mechanism.head_maps import branch_map, composer_of
from dcinterp.mechanism.path_gradient import Hooks
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.wide import wide

__all__ = ["ABLATIONS", "DEFAULT", "AblationKind", "Kind", "Replacement", "Unmatched", "kinds_in_words", "replacement"]
__all__ += ["apply_map", "rotated", "side_of"]

_BRANCH = re.compile(r"blocks\.(\d+)\.attn\.(pre|post)\.hook_(o_\w+)")
_HEADS = {"hook_z": -2, "hook_q": -2, "hook_k": -2, "hook_v": -2, "hook_in": 1, "hook_out": 1, "hook_pattern": 1}
"""The axis of the heads in [batch, ...], of hooks that have one; branches have 1 and dynamic weights -1."""

EMBEDDING = "embed.hook_in"


@dataclass
class Unmatched:
    """How many positions were resampled, and for how many of them no reference prompt had the position or token."""

    positions: int = 0
    without: int = 0

    @property
    def share(self) -> float:
        """Of the positions, those without a match."""
        return self.without / self.positions if self.positions else 0.0


@dataclass(frozen=True)
class Replacement:
    """What takes the place of some taps; made by `replacement`.

    means: by tap, the mean over positions; of a branch that of its map, [head_from, head_to]. pool: by tap, what it is
    at every position of the reference prompts, [n, ...]; of a branch its dynamic weights. tokens [n]: those of these
    positions; lengths: of the prompts. groups: of heads, by tap of a branch.
    """

    kind: str
    taps: tuple[str, ...]
    means: Mapping[str, Tensor] = field(default_factory=dict)
    pool: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    lengths: tuple[int, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    unmatched: Unmatched = field(default_factory=Unmatched)

    def at(self, ids: TokenIds, read: int = 0) -> dict[str, Tensor]:
        """What to put in on one prompt [1, pos], by tap: [...], or [pos, ...] where it differs by position.

        read: how many tokens of an answer the prompt ends with, as in `choose`.

        Of a branch it is the map [head_from, head_to], of the positions that choose it where there is more than one.
        Empty for kinds that need no other prompts: those change the running value.
        """
        if self.kind == "mean":
            return dict(self.means)
        if not self.pool:
            return {}
        chosen = self.choose(ids[0], read)
        found = {}
        for tap in self.taps:
            values = [self.pool[name][chosen] for name in _read(tap)]
            found[tap] = branch_map(values, self.groups[tap]) if tap in self.groups else values[0]
        return found

    def only(self, taps: Sequence[str]) -> Replacement:
        """The same for some of the taps; what is counted in `unmatched` stays common to all."""
        return replace(self, taps=tuple(taps))

    def hooks(self, padding: int | None = None) -> Hooks:
        """Forward hooks that put it in, for any batch of prompts; every row has donors of its own.

        padding: the token that fills up rows behind their prompts; it is no part of them, and nothing is drawn for it.
        """
        if self.kind == "zero":
            return [(tap, _zero) for tap in self.taps]
        if self.kind == "rotate":
            return [(tap, partial(_rotate, axis=_head_axis(tap))) for tap in self.taps]
        if self.kind == "mean":
            return [hook for tap in self.taps for hook in self._mean_hooks(tap)]
        plan: dict[str, Tensor] = {}

        def choose(ids: Tensor, hook: Any) -> None:
            plan["chosen"] = torch.stack([self._choose_padded(row, padding) for row in ids])

        def put(tensor: Tensor, hook: Any, values: Tensor) -> Tensor:
            return values[plan["chosen"].to(values.device)].to(tensor)

        names = dict.fromkeys(name for tap in self.taps for name in _read(tap))
        return [(EMBEDDING, choose), *((name, partial(put, values=self.pool[name])) for name in names)]

    def _choose_padded(self, row: Int[Tensor, " pos"], padding: int | None) -> Int[Tensor, " pos"]:
        """`choose` for a row that may be filled up; there it is the pool's first position, which nothing reads."""
        real = torch.nonzero(row != padding)[:, 0] if padding is not None else torch.arange(len(row))
        length = int(real[-1]) + 1 if len(real) else len(row)
        return torch.nn.functional.pad(self.choose(row[:length]), (0, len(row) - length))

    def choose(self, ids: Int[Tensor, " pos"], read: int = 0) -> Int[Tensor, " pos"]:
        """For every position of a prompt, the position in the pool that its value is taken from.

        One donor is drawn for the prompt, by the seed and its tokens; where it does not have the position, or (for
        "resample-token") nothing in the pool has the token, another donor takes its place.

        read: how many tokens of an answer stand behind the prompt, which is known without them, too.
        """
        row = ids.tolist()
        digest = blake2b(f"{self.seed}/{row}".encode(), digest_size=7).digest()
        draw = random.Random(int.from_bytes(digest, "big"))
        # The prompt itself is no other prompt, unless there is none beside it.
        itself = (row, row[: len(row) - read])
        donors = [e for e, (start, end) in enumerate(self._spans) if self._ids[start:end] not in itself]
        donors = donors or list(range(len(self._spans)))
        draw.shuffle(donors)
        spans = [self._spans[e] for e in donors]
        same_token = self._by_token if self.kind == "resample-token" else {}
        left_out = set(range(len(self._spans))) - set(donors)
        chosen = []
        for place, token in enumerate(row):
            same = [i for e, i in same_token.get(token, ()) if e not in left_out]
            there = next((start + place for start, end in spans if start + place < end), None)
            self.unmatched.positions += 1
            self.unmatched.without += not same if self.kind == "resample-token" else there is None
            if same:
                chosen.append(draw.choice(same))
            else:
                chosen.append(there if there is not None else draw.randrange(*spans[0]))
        return torch.tensor(chosen)

    @cached_property
    def _ids(self) -> list[int]:
        return self.tokens.tolist()

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Where each reference prompt begins and ends in the pool."""
        ends = list(accumulate(self.lengths))
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @cached_property
    def _by_token(self) -> dict[int, list[tuple[int, int]]]:
        """By token, where it stands: (reference prompt, position in the pool)."""
        found: dict[int, list[tuple[int, int]]] = {}
        for example, (start, end) in enumerate(self._spans):
            for i in range(start, end):
                found.setdefault(self._ids[i], []).append((example, i))
        return found

    def _mean_hooks(self, tap: str) -> Hooks:
        mean = self.means[tap]
        if tap not in self.groups:
            return [(tap, lambda tensor, hook: mean.to(tensor).expand_as(tensor))]
        seen: dict[str, Tensor] = {}

        def keep(attention: Tensor, hook: Any) -> None:
            seen["attention"] = attention

        def put(branch: Tensor, hook: Any) -> Tensor:
            return einsum("bfts,fh->bhts", seen["attention"], mean.to(branch))

        return [(f"{tap.rpartition('.')[0]}.hook_in", keep), (tap, put)]


def replacement(
    bridge: Bridge, hook_names: Sequence[str], kind: str, examples: Sequence[TokenIds] = (), seed: int = 0
) -> Replacement:
    """What an ablation of this kind puts in the place of some taps.

    Args:
        bridge: any bridge.
        hook_names: taps [batch, pos, ...] such as `blocks.0.attn.hook_z`, `blocks.0.hook_mlp_out` or a dynamic weight,
            and branches of a composition such as `blocks.0.attn.post.hook_o_kp`.
        kind: one of `ABLATIONS`.
        examples: the reference prompts, as ids [1, pos]; "zero" and "rotate" need none.
        seed: of the donors of the two kinds of resampling.

    Cost: one forward pass for each reference prompt. Memory: for resampling, the taps at all their positions.

    Raises:
        UserError: there is no such kind or tap, it cannot be done to a tap, or it needs prompts and there are none.
    """
    require_known("kind of ablation", kind, ABLATIONS)
    taps = tuple(dict.fromkeys(hook_names))
    for tap in taps:
        if tap not in bridge.hook_dict:
            raise UserError(f"This model has no hook {tap!r}; `dcinterp hooks` lists them.")
        _refuse_axes(tap, kind)
    if not ABLATIONS[kind].reference or not taps:
        return Replacement(kind, taps, seed=seed)
    if not len(examples):
        raise UserError(f"{kind!r} takes its values from other prompts; give reference=, a list of prompts, or 'zero'.")
    groups = {tap: composer_of(bridge, int(m[1]), m[2]).groups for tap in taps if (m := _BRANCH.fullmatch(tap))}
    names = sorted({name for tap in taps for name in _read(tap)})
    total: dict[str, Tensor] = {}
    rows: dict[str, dict[int, Tensor]] = {name: {} for name in names}
    for some in equal_lengths(examples):
        with torch.no_grad():
            cache = bridge.run_with_cache(torch.cat([examples[i] for i in some]), names_filter=names)[1]
        if kind != "mean":
            for name in names:
                rows[name] |= {i: cache[name][row].detach() for row, i in enumerate(some)}
            continue
        for tap in taps:
            values = [cache[name] for name in _read(tap)]
            value = branch_map(values, groups[tap]) if tap in groups else values[0]
            total[tap] = total.get(tap, 0) + wide(value.detach()).sum((0, 1))
    kept = {name: [found[i] for i in sorted(found)] for name, found in rows.items()}
    positions = sum(ids.shape[1] for ids in examples)
    if kind == "mean":
        return Replacement(kind, taps, means={tap: value / positions for tap, value in total.items()}, groups=groups)
    return Replacement(
        kind,
        taps,
        pool={name: torch.cat(values) for name, values in kept.items()},
        tokens=torch.cat([ids[0].cpu() for ids in examples]),
        lengths=tuple(ids.shape[1] for ids in examples),
        groups=groups,
        seed=seed,
    )


def rotated(tensor: Tensor, axis: int) -> Tensor:
    """Every head gets what the head before it has; the first gets the last one's."""
    return tensor.roll(1, dims=axis)


def side_of(tap: str) -> str:
    """Which position chooses the map of a branch: "query" or "key"."""
    found = _BRANCH.fullmatch(tap)
    assert found is not None
    return BY_HOOK[found[3]].side


def apply_map(attention: Float[Tensor, "head query key"], heads: Tensor, side: str) -> Float[Tensor, "head query key"]:
    """A branch of one prompt from the attention before composition and a map, of all positions or of each."""
    if heads.dim() == 2:
        return einsum("fts,fh->hts", attention, heads.to(attention))
    return einsum("fts,tfh->hts" if side == "query" else "fts,sfh->hts", attention, heads.to(attention))


def _zero(tensor: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(tensor)


def _rotate(tensor: Tensor, hook: Any, axis: int) -> Tensor:
    return rotated(tensor, axis)


def _head_axis(tap: str) -> int:
    name = tap.rpartition(".")[2]
    return 1 if _BRANCH.fullmatch(tap) else -1 if name.startswith("hook_w_") else _HEADS[name]


def _read(tap: str) -> list[str]:
    """The hooks that a tap's values are read from: itself, or the dynamic weights of a branch."""
    found = _BRANCH.fullmatch(tap)
    if found is None:
        return [tap]
    return [f"{tap.rpartition('hook_')[0]}hook_{weight}" for weight in BY_HOOK[found[3]].weights]


def _refuse_axes(tap: str, kind: str) -> None:
    """Refuse what has no meaning: the skip's map does not depend on tokens; attention has no positions to average."""
    name = tap.rpartition(".")[2]
    if tap.endswith(BRANCHES["skip"].hook) and ABLATIONS[kind].reference:
        raise UserError(
            f"The skip is the same for every token: {kind!r} changes nothing; choose 'zero' or 'counterfactual'."
        )
    if _BRANCH.fullmatch(tap) or name.startswith("hook_w_"):
        return
    whole = name in ("hook_in", "hook_out", "hook_pattern", "hook_attn_scores") and ".attn." in tap
    if whole and ABLATIONS[kind].reference:
        raise UserError(f"{tap!r} is attention between positions, which has no {kind}; ablate branches, or use 'zero'.")
    if kind == "rotate" and name not in _HEADS:
        raise UserError(f"{tap!r} has no heads to rotate; choose another kind, such as 'mean'.")
