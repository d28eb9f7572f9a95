"""The summary of a case study in a sentence or two: which head shared its attention, and the effect on the answer."""

from __future__ import annotations

from typing import Literal

from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.analysis.case_study.evidence import Effect, SharingEffects
from dcinterp.analysis.case_study.sharing_steps import (
    base_of,
    by_every_token,
    is_notable,
    is_unread,
    largest_share,
    looks_most,
    shared_with,
    strongest_head_from,
)
from dcinterp.analysis.case_study.wording import BRANCH_WORDS, NOTABLE_EFFECT, Words, percent
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.mechanism.branches import BRANCHES

FollowedBy = Literal["effect", "score and effect", "choice"]

CLEAR_DIFFERENCE = 0.5
"""Logits; of a smaller difference between answer and foil shares say little."""

SLIGHT_EFFECT = 0.02
"""Share of the logit difference, in whole percent; an effect below it hardly matters."""


def summarize(
    attribution: HeadAttribution,
    rows: AttentionRows,
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    head: int,
    key: int,
    words: Words,
    *,
    followed_by: FollowedBy,
) -> str:
    """Which head shares attention with the followed head, how much, through what, and the logit difference without it.

    Args:
        attribution: names the answer and its foil, and has their logit difference.
        rows, breakdown: the head's attention, and its composition at the last position and `key`.
        sharing: the effects of removing shared attention; None, as `breakdown`, if heads are not composed.
        head: the followed head, of the rows' layer.
        key: the position of the source.
        words: how to speak of the ablation.
        followed_by: why this head is followed: its direct effect is the largest ("effect"), or the largest of the heads
            with a notable attribution score ("score and effect"), or it was chosen ("choice").
    """
    token = rows.tokens[key]
    wrong = "" if attribution.right else f'The model does not answer "{attribution.target}". '
    who = f"head {head} of layer {rows.layer}"
    who += {
        "choice": ", which was chosen",
        "effect": ", which has the largest direct effect on the answer",
        "score and effect": ", which of the heads with a notable attribution score has the largest direct effect",
    }[followed_by]
    if breakdown is None or sharing is None:
        weight = float(rows.weights[head, key])
        if is_unread(rows, head, key):
            return (
                f"{wrong}Attention is not composed after the softmax in this model: {who}, hardly attends to "
                f'"{token}" ({weight:z.2f}). '
                f"{looks_most(rows, head)}"
            )
        return (
            f"{wrong}Attention is not composed after the softmax in this model: {who}, uses its own attention to "
            f'"{token}" ({weight:z.2f}).'
        )
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    if is_unread(rows, head, key):
        return (
            f'{wrong}Nothing is said of sharing attention to "{token}": {who}, hardly attends to it ({own:z.2f} '
            f"{base_of(breakdown).before}, {after:z.2f} after). {looks_most(rows, head)}"
        )
    head_from, shared = strongest_head_from(breakdown, head), shared_with(breakdown, head)
    if not is_notable(shared[head_from], breakdown, head):
        return wrong + _without_sharing(breakdown, head, who, token)
    through = [
        f"{amount:+z.2f} through the {BRANCH_WORDS[branch]}"
        for branch, side in ((BRANCHES[name].hook, BRANCHES[name].side) for name in ("qp", "kp"))
        if abs(amount := float(breakdown.shared(side)[head_from, head])) >= 0.005
    ]
    parts = ", ".join(through)
    if shared[head_from] > 0:
        sentence = (
            f'Head {head_from} shares its attention to "{token}" with {who}. This shared attention is '
            f"{shared[head_from]:+z.2f} ({parts}); with it {words.done},"
        )
    else:
        sentence = (
            f'Head {head_from} takes {-shared[head_from]:z.2f} of attention to "{token}" away from {who} ({parts}). '
            f"With this {words.done},"
        )
    return f"{wrong}{sentence} {_effect(attribution, sharing.most, words)}"


def _without_sharing(breakdown: ComposeBreakdown, head: int, who: str, token: str) -> str:
    """The sentences if no single head shares a notable part."""
    shared = shared_with(breakdown, head)
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    others = sum(amount for head_from, amount in enumerate(shared) if head_from != head)
    gates = float(breakdown.o_qg[head] + breakdown.o_kg[head])
    base = base_of(breakdown)
    parts = [f"{own:z.2f} {base.before}"]
    parts += [f"gates {gates:+z.2f}"] if is_notable(gates, breakdown, head) else []
    again = float((breakdown.shared("key") + breakdown.shared("query"))[head, head])
    parts += [f"the same through the projections {again:+z.2f}"] if is_notable(again, breakdown, head) else []
    parts += [f"all other heads together {others:+z.2f}"] if is_notable(others, breakdown, head) else []
    whose = "a little attention from each of many heads"
    if is_notable(own, breakdown, head):
        whose = base.own if own * after > 0 else f"{base.own} with the other sign"
    return (
        f'No head shares a notable part of the attention to "{token}" with {who}{largest_share(breakdown, head)}.'
        f"{by_every_token(breakdown)} It uses {whose}: {', '.join([*parts, f'{after:z.2f} after'])}."
    )


def _effect(attribution: HeadAttribution, effect: Effect, words: Words) -> str:
    """The end of a sentence: what the ablation does to the logit difference, how much of it that is, and zero."""
    difference, without = attribution.metric, attribution.metric - effect.value
    names = f'"{attribution.target}" and "{attribution.foil}"'
    beside = words.at_zero(f"{difference - effect.at_zero:z.2f}")
    zero, also = (f" ({beside})", f"; {beside}") if beside else ("", "")
    if difference <= 0:
        return f"the logit difference between {names} goes from {difference:z.2f} to {without:z.2f} logits{zero}."
    share, way = percent(effect.value, difference), f"from {difference:z.2f} to {without:z.2f} logits"
    if share <= -100 * SLIGHT_EFFECT:
        how = f"rises {way}: it works against the answer, by {-share}% of the difference"
    elif share < 100 * SLIGHT_EFFECT:
        how = f"goes {way}: it hardly matters here"
    else:
        sizes = (
            (101, "all of it and more"),
            (100, "all of it"),
            (50, "most of it"),
            (100 * NOTABLE_EFFECT, "a notable part"),
            (0, "a small part"),
        )
        how = f"falls {way}: {next(word for least, word in sizes if share >= least)} ({share}%{also})"
    return f"the logit difference between {names} {how}{'' if how.endswith(')') else zero}."
