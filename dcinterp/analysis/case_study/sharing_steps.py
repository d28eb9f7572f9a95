"""The sentences of the case study about attention: what it is made of, who shares it, where it goes, which gate closes.

They hold, and are made, as those of `steps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.analysis.case_study.control import Control
from dcinterp.analysis.case_study.evidence import Effect, SharingEffects, StrongestEdge
from dcinterp.analysis.case_study.wording import (
    BRANCH_WORDS,
    FOLLOWS,
    NOTABLE_EFFECT,
    NOTABLE_SHARE,
    NOTABLE_WEIGHT,
    Step,
    Words,
    matters,
    percent,
    reduces,
    share_of,
)
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.support.text import in_sentence


class Base(NamedTuple):
    """What a head's attention is called before what depends on the tokens is added."""

    before: str
    own: str
    by: str
    rest: str


def base_of(breakdown: ComposeBreakdown) -> Base:
    """The words: with a map that is the same for all tokens, or without a skip, it is not the head's own softmax."""
    if torch.equal(breakdown.o_b, breakdown.a):
        return Base("before composition", "its own attention", "by itself", "Composition")
    every = "by the map that is the same for all tokens"
    return Base(every, "what that map makes of all heads", "by that map", "What depends on the tokens")


def source_step(
    rows: AttentionRows,
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    head: int,
    key: int,
    logit_difference: float,
    words: Words,
    controlled: Control | None,
    direct: float,
) -> Step:
    """What the head's attention to the source is made of, the effect of the part that composition adds, and whether
    what the head writes follows the source (`controlled`, beside its direct effect).
    """
    name, title = "source", "What is its attention to the source made of?"
    token = rows.tokens[key]
    follows, about = control_says(controlled, token, direct, logit_difference)
    if breakdown is None or sharing is None:
        weight = float(rows.weights[head, key])
        sentence = (
            f'Attention is not composed after the softmax in this model: head {head} attends to "{token}" with '
            f"{weight:.2f}.{about}"
        )
        return Step(name, title, sentence, holds=False)
    own, after, base = float(breakdown.o_b[head]), float(breakdown.out[head]), base_of(breakdown)
    added = {branch: float(breakdown.branches[branch][head]) for branch in BRANCH_WORDS}
    largest = largest_branch(breakdown, head)
    share = percent(abs(sum(added.values())), max(abs(own), abs(after), 1e-9))
    if is_unread(rows, head, key):
        return Step(
            name,
            title,
            f'Head {head} hardly attends to "{token}": {own:z.2f} {base.before}, {after:z.2f} after. '
            f"{looks_most(rows, head)} Choose that token to see what its attention there is made of.",
            holds=False,
        )
    if share < 100 * NOTABLE_SHARE:
        return Step(
            name,
            title,
            f'Head {head} attends to "{token}" {base.by}: {own:z.2f} {base.before}, {after:z.2f} after; '
            f"{base.rest[:1].lower()}{base.rest[1:]} changes it by {share}%.{about}",
            holds=False,
        )
    without = sharing.without
    how = f"With that {words.done}" if words.kind == "zero" else f"With what composition adds there {words.done}"
    return Step(
        name,
        title,
        f'{base.rest} changes the attention of head {head} to "{token}" from {own:z.2f} to {after:z.2f}; the largest '
        f"part, {added[largest]:+z.2f}, comes through the {BRANCH_WORDS[largest]}. {how}, the logit difference goes "
        f"from {logit_difference:z.2f} to {logit_difference - without.value:z.2f} logits"
        f"{share_of(without.value, logit_difference, words.at_zero(f'{logit_difference - without.at_zero:z.2f}'))}."
        f"{about}",
        holds=after > own and matters(without.value, logit_difference) and follows is not False,
    )


def control_says(
    controlled: Control | None, token: str, direct: float, logit_difference: float
) -> tuple[bool | None, str]:
    """Whether what the head writes follows the source (None if that was not measured), and a sentence about it."""
    if controlled is None:
        return None, ""
    if controlled.wording:
        return False, (
            f' But "{token}" stands in {controlled.having} of the {controlled.prompts} reference prompts: it may '
            "belong to the wording of the question, and that the answer is read from it is not shown."
        )
    if controlled.source is False:
        return False, f' But by the rules of the task this "{token}" is of another fact than the answer.'
    if not matters(direct, logit_difference):
        return None, " The head's direct effect is too small to tell whether it follows this word."
    named = ", ".join(f'"{word}"' for word in controlled.words)
    named += " stand" if len(controlled.words) > 1 else " stands"
    share = percent(controlled.effect, direct)
    sentence = (
        f' Control: with what the head writes when {named} in place of "{token}", the logit difference '
        f"{'falls' if round(controlled.effect, 2) >= 0 else 'rises'} by "
        f"{abs(controlled.effect):.2f}, {share}% of the direct effect, "
    )
    if share >= 100 * FOLLOWS:
        return True, f"{sentence}so what it writes follows this word."
    return False, f"{sentence}so what it writes depends little on this word: it is not shown to read the fact."


def is_unread(rows: AttentionRows, head: int, key: int) -> bool:
    """Whether a head attends to a token neither before composition nor after it."""
    return round(max(abs(float(rows.weights[head, key])), abs(float(rows.composed[head, key]))), 2) < NOTABLE_WEIGHT


def largest_weight(rows: AttentionRows, head: int) -> int:
    """The position of a head's largest weight, in size, after composition."""
    return int(rows.composed[head].abs().argmax())


def looks_most(rows: AttentionRows, head: int) -> str:
    """Where a head has its largest weight, which may be negative after composition."""
    most = largest_weight(rows, head)
    weight, place = float(rows.composed[head, most]), f'"{rows.tokens[most]}" (position {most}, '
    if weight < 0:
        return f"Its largest weight is negative, on {place}{weight:.2f}): it subtracts what it reads there."
    return f"It attends most to {place}{weight:.2f})."


def largest_branch(breakdown: ComposeBreakdown, head: int) -> str:
    """The branch that changes the head's attention most: "o_qp", "o_kp", "o_qg" or "o_kg"."""
    return max(BRANCH_WORDS, key=lambda branch: abs(float(breakdown.branches[branch][head])))


def shared_with(breakdown: ComposeBreakdown, head: int) -> list[float]:
    """How much attention every other head shares with `head`, through both low-rank branches; 0 for itself."""
    shared = breakdown.shared("key")[:, head] + breakdown.shared("query")[:, head]
    return [0.0 if other == head else amount for other, amount in enumerate(shared.tolist())]


def strongest_head_from(breakdown: ComposeBreakdown, head: int) -> int:
    """The other head that shares most attention with `head`, in size; itself where it is the only one."""
    shared = shared_with(breakdown, head)
    return max(
        (head_from for head_from in range(len(shared)) if head_from != head),
        key=lambda head_from: abs(shared[head_from]),
        default=head,
    )


def is_notable(amount: float, breakdown: ComposeBreakdown, head: int) -> bool:
    """Whether an amount of attention is notable beside the head's whole attention to the source."""
    return percent(abs(amount), max(abs(float(breakdown.out[head])), NOTABLE_WEIGHT)) >= 100 * NOTABLE_SHARE


def largest_share(breakdown: ComposeBreakdown, head: int, of: str = "") -> str:
    """In brackets the head that shares most with `head`, with what it shares; empty where none shares anything."""
    head_from = strongest_head_from(breakdown, head)
    shared = shared_with(breakdown, head)[head_from]
    return "" if head_from == head or shared == 0 else f" (largest: head {head_from}, {shared:+z.3f}{of})"


def by_every_token(breakdown: ComposeBreakdown) -> str:
    """What is not counted where heads also share by a map that is the same for all tokens."""
    if not breakdown.has_map_of_all_tokens:
        return ""
    return " What they share by the map that is the same for all tokens is not counted here."


def sharing_step(
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    strongest: StrongestEdge | None,
    layer: int,
    head: int,
    logit_difference: float,
    words: Words,
    *,
    scores: bool = False,
) -> Step:
    """Which head shares its attention with the followed head, through which projection, and the effect of that alone;
    beside it the strongest edge of the whole model. scores: whether the model composes before the softmax.
    """
    name, title = "sharing", "Which heads share their attention with it?"
    if breakdown is None or sharing is None:
        sentence = (
            "None after the softmax, where this model composes nothing; heads share their scores before it, which the "
            f"attention of each is made of.{_strongest(strongest, logit_difference, words)}"
            if scores
            else "None: without composition after the softmax every head uses only its own attention."
        )
        return Step(name, title, sentence, holds=False)
    token, head_from = in_sentence(breakdown.tokens[breakdown.key]), strongest_head_from(breakdown, head)
    shared = shared_with(breakdown, head)[head_from]
    moves = any(bool(breakdown.branches[branch].any()) for branch in BRANCH_WORDS)  # else there is nothing to ablate
    whole = _whole_layer(sharing, layer, logit_difference, words) if moves else ""
    whole += _strongest(strongest, logit_difference, words)
    if not is_notable(shared, breakdown, head):
        sentence = (
            f'No other head shares a notable part of the attention of head {head} to "{token}"'
            f"{largest_share(breakdown, head, f' of {float(breakdown.out[head]):z.2f}, through both projections')}."
            f"{by_every_token(breakdown)}"
            f"{_elsewhere(sharing, logit_difference, words)}{whole}"
        )
        return Step(name, title, sentence, holds=False)
    side = breakdown.sharing_side(head_from, head)
    through, letter = float(breakdown.shared(side)[head_from, head]), side[0]
    here, everywhere, part = sharing.most, sharing.most_everywhere, sharing.by_branch[f"{letter}p"]
    verb = f"shares most with head {head}" if shared > 0 else f"takes most away from head {head}"
    removed = reduces(here.value, logit_difference, "the logit difference", words.effect_of_zero(here.at_zero))
    return Step(
        name,
        title,
        f"Head {head_from}, which attends there with {float(breakdown.a[head_from]):.2f}, {verb}: {shared:+z.2f}, of "
        f"which {through:+z.2f} through the {side} projection (w_{letter}1 gathers from head {head_from}, w_{letter}2 "
        f"shares with head {head}). Having this attention {words.done} {removed}; only its part through the {side} "
        f"projection {reduces(part.value, 0, more=words.effect_of_zero(part.at_zero))}; all that head {head_from} "
        f"shares with head {head}, to every token and at every position, "
        f"{reduces(everywhere.value, 0, more=words.effect_of_zero(everywhere.at_zero))}.{whole}",
        holds=shared > 0 and matters(here.value, logit_difference),
    )


def _whole_layer(sharing: SharingEffects, layer: int, logit_difference: float, words: Words) -> str:
    """The logit difference without the composition of a whole layer."""
    effect = sharing.layer
    beside = words.at_zero(f"{logit_difference - effect.at_zero:+z.2f}")
    beside = f" ({beside})" if beside else ""
    return (
        f" With all that composition adds in layer {layer} {words.done}, the logit difference would be "
        f"{logit_difference - effect.value:+z.2f} instead of {logit_difference:+z.2f}{beside}."
    )


def _strongest(strongest: StrongestEdge | None, logit_difference: float, words: Words) -> str:
    """The strongest edge of the whole model."""
    if strongest is None:
        return ""
    place = strongest.line.split()[1]
    layer, stage, _, pair = place.split(".")
    head_from, head_to = pair.split(">")
    what = "attention" if stage == "post" else "scores"
    among = (
        f"all {strongest.edges} edges between heads"
        if strongest.measured == strongest.edges
        else (f"the {strongest.measured} edges with the largest gradient scores, of {strongest.edges},")
    )
    beside = words.effect_of_zero(strongest.at_zero)
    return (
        f" Of {among} the strongest is head {head_from} -> head {head_to} of layer {layer} ({stage}: its {what}): "
        f"having it {words.done} at all positions "
        f"{reduces(strongest.effect, logit_difference, 'the logit difference', beside)}."
    )


def _elsewhere(sharing: SharingEffects, logit_difference: float, words: Words) -> str:
    """What is shared with the head at other tokens and positions, if it matters."""
    most = int(sharing.everywhere.abs().argmax())
    effect = float(sharing.everywhere[most])
    if logit_difference <= 0 or percent(abs(effect), logit_difference) < 100 * NOTABLE_EFFECT:
        return ""
    return (
        f" This is about one token: having all that head {most} shares with it, to every token and at every position, "
        f"{words.done} {reduces(effect, logit_difference, 'the logit difference')}."
    )


def attention_step(rows: AttentionRows, head: int, composed: bool) -> Step:
    """Where the head attends before and after composition."""
    name, title = "attention", "Where does the head attend, before and after composition?"
    after = largest_weight(rows, head)
    if not composed:
        sentence = f'Head {head} attends most to "{rows.tokens[after]}" ({float(rows.composed[head, after]):.2f}).'
        return Step(name, title, sentence, holds=False)
    before = int(rows.weights[head].argmax())
    weight = f"{float(rows.composed[head, after]):+z.2f}"
    place = f"the same token ({weight})" if before == after else f'"{rows.tokens[after]}" (position {after}, {weight})'
    return Step(
        name,
        title,
        f'Before composition head {head} attends most to "{rows.tokens[before]}" (position {before}, '
        f"{float(rows.weights[head, before]):.2f}), after it to {place}.",
        holds=before != after,
    )


class Silenced(NamedTuple):
    """The head that copies the source word, its attention to it, and what its gates do.

    rank: of the word in its OV circuit; before, after: its attention before and after composition; gates: what each
    gate adds. difference: the answer's logit minus that of the copied word; without: by how much ablating both gates of
    this head at this token reduces it.
    """

    layer: int
    head: int
    rank: int
    before: float
    after: float
    gates: Mapping[str, float]
    difference: float = 0.0
    without: Effect | None = None


def gate_step(word: str, silenced: Silenced | None, words: Words, *, copies: bool, composed: bool) -> Step:
    """Whether a gate silences the head that would copy the source word: it must attend less than before composition,
    by the gates, and ablating the gates must cost the answer against that word. copies: the answer is that word.
    """
    name, title = "gate", "Which gate silences a head that copies?"
    if copies:
        return Step(name, title, f'None should: the answer is "{word}" itself.', holds=False)
    if silenced is None:
        sentence = f'No head that copies "{word}" attends to it with {NOTABLE_WEIGHT:.2f} or more.'
        return Step(name, title, sentence, holds=False)
    gates, before, after = silenced.gates, silenced.before, silenced.after
    total = sum(gates.values())
    side = min(gates, key=lambda each: gates[each])
    who = (
        f'Head {silenced.head} of layer {silenced.layer} copies "{word}" (rank {silenced.rank} in its OV circuit) and '
        f"attends to it ({before:.2f}"
    )
    if not composed:
        return Step(name, title, f"{who}); without composition after the softmax no gate acts there.", holds=False)
    who += f" before composition, {after:z.2f} after)"
    if percent(-total, before) < 100 * NOTABLE_SHARE:
        return Step(name, title, f"{who}; the gates change that by {total:+z.2f}, so no gate silences it.", holds=False)
    closes = f"{who}; the {side} gate adds {gates[side]:+z.2f} (both gates {total:+z.2f})"
    if percent(before - after, before) < 100 * NOTABLE_SHARE:
        return Step(name, title, f"{closes}, but other heads add as much again: it is not silenced.", holds=False)
    if silenced.without is None:
        return Step(name, title, f"{closes}.")
    effect, gap = silenced.without, silenced.difference
    what, beside = f'the answer\'s logit minus that of "{word}"', words.effect_of_zero(effect.at_zero)
    measured = reduces(effect.value, gap, what, beside)
    helps = matters(effect.value, gap)
    end = "" if helps else ", so this closing matters little for the answer"
    return Step(name, title, f"{closes}. Having both gates there {words.done_to_both} {measured}{end}.", holds=helps)
