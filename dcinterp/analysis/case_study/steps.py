"""The sentences of the story, each made from the numbers of its step, and what counts as notable in them.

A step `holds` where what the paper describes is what happened in this example and is no trifle: a tenth of the head's
attention (NOTABLE_SHARE), a tenth of the answer's lead (NOTABLE_EFFECT). Otherwise the sentence says what happened, and
how large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.analysis.attention.attention_rows import AttentionRows
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.analysis.case_study.evidence import SharingEffects
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown
from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens
from dcinterp.mechanism.branches import ADDED, BRANCHES

NOTABLE_SHARE = 0.1
"""Below this share the attention counts as the head's own: composition is a detail of this entry."""

NOTABLE_EFFECT = 0.1
"""Of the answer's lead; what costs less than that is a detail of this answer."""

FAR_APART = 2.0
"""Where an attribution is this many times the measured effect, or the reverse, that is said."""

NOTABLE_WEIGHT = 0.1
"""Below this weight, before and after, a head does not read a token."""

ACCEPTABLE_GAP = 0.01
"""Of the layer's effect; a larger part that the integral misses is said."""

PROMOTED = 10
"""A head's OV circuit promotes the tokens that it puts among its first so many."""

RELATION_WORDS = {
    "copy": "the word itself",
    "obj->superclass": "its class",
    "city->country": "its country",
    "obj->capability": "what one can do with it",
    "adj->opposite": "its opposite",
    "ordinal->next": "the one after it",
    "ordinal->prev": "the one before it",
    "synonym->opposite": "a word of the opposite meaning",
}

UNSEEN = (
    " The circuit leaves out what earlier layers add to the word and what MLPs make of the head's output; the effect "
    "of the head counts both."
)
"""What an OV circuit that does not promote the answer may miss."""

BRANCH_WORDS = {BRANCHES[name].hook: BRANCHES[name].label for name in ADDED}
"""What composition adds, by hook."""


class Step(NamedTuple):
    """One step of the story; `holds` is False where the paper's mechanism is not what happened."""

    name: str
    title: str
    sentence: str
    holds: bool = True


def answer_step(prediction: Prediction, answer: str | None) -> Step:
    """What the model answers, and whether that is right."""
    name, title = "answer", "What does the model answer?"
    says, chance = prediction.top_tokens[0], float(prediction.probability[0])
    if answer is None:
        return Step(name, title, f'The model continues with "{says}" ({chance:.0%}).')
    part = "" if prediction.answer.strip() == answer.strip() else f', the first token of "{answer}"'
    if prediction.rank == 1:
        return Step(name, title, f'The model answers "{says}"{part}, and that is right ({chance:.0%}).')
    return Step(
        name,
        title,
        f'The model is wrong: it says "{says}" ({chance:.0%}), and the right "{prediction.answer}"{part} has rank '
        f"{prediction.rank} ({prediction.answer_probability:.1%}). What follows explains the right answer's logit.",
        holds=False,
    )


def share_of(effect: float, logit_difference: float) -> str:
    """How large an effect is against the answer's lead, as words behind it; empty where nothing leads."""
    if logit_difference <= 0:
        return ""
    share = round(effect / logit_difference, 2) + 0.0  # no minus before a zero
    return f" ({share:.0%} of the lead)" if abs(share) < 2 else f" ({share:.1f} times the lead)"


def matters(effect: float, logit_difference: float) -> bool:
    """Whether an effect helps the answer by a tenth of its lead or more."""
    return effect > 0 and effect >= NOTABLE_EFFECT * logit_difference


def head_step(
    attribution: HeadAttribution, direct: Float[Tensor, "layer head"], layer: int, head: int, best: tuple[int, int]
) -> Step:
    """Which head writes the answer: its direct effect, what integrated gradients say, and what its removal does.

    direct: what every head writes by itself; best: the (layer, head) that is followed unless another is asked for.
    """
    here = float(attribution.by_position[layer, head, attribution.position])
    everywhere = float(attribution.scores[layer, head])
    measured, writes = float(attribution.ablation[layer, head]), float(direct[layer, head])
    top_layer, top_head = attribution.best
    logit_difference, gap = attribution.metric, float(attribution.relative_gap[layer])
    who = f"Head {head} of layer {layer} writes most directly"
    if (layer, head) != best:
        who = f"Head {head} of layer {layer} was chosen (head {best[1]} of layer {best[0]} writes most directly)"
    score = f"{here:+.2f}" + ("" if abs(here - everywhere) < 0.005 else f" ({everywhere:+.2f} over all positions)")
    sentence = (
        f"{who}: without what it puts into the last token, all other heads held still, the lead of "
        f'"{attribution.target}" over "{attribution.foil}" goes from {logit_difference:.2f} to {logit_difference - writes:.2f} logits'
        f"{share_of(writes, logit_difference)}. Integrated gradients give it {score}; switched off altogether, it costs "
        f"{measured:+.2f}{share_of(measured, logit_difference)}.{_apart(everywhere, measured)}"
    )
    if (top_layer, top_head) not in ((layer, head), best):
        sentence += (
            f" Head {top_head} of layer {top_layer} has the largest score of all "
            f"({float(attribution.scores[top_layer, top_head]):+.2f} over all positions), but by itself it writes "
            f"{float(direct[top_layer, top_head]):+.2f}."
        )
    if gap > ACCEPTABLE_GAP:
        sentence += f" The integral misses {gap:.0%} of the layer's effect, so read the scores with care."
    holds = here > 0 and matters(writes, logit_difference) and gap <= ACCEPTABLE_GAP
    return Step("head", "Which head writes it?", sentence, holds)


def _apart(attributed: float, measured: float) -> str:
    """A remark where attribution and ablation do not say the same."""
    more, less = max(abs(attributed), abs(measured)), min(abs(attributed), abs(measured))
    if more < 0.1 or (attributed * measured > 0 and more <= FAR_APART * less):
        return ""
    if attributed * measured < 0:
        return " The two disagree in sign: believe the removal."
    times = more / max(less, 1e-3)
    return f" The two are {times:.1f} times apart: believe the removal, and take the scores as a ranking."


class Reading(NamedTuple):
    """A value that a relation gives a word, its first token, and that token's rank in an OV circuit."""

    rank: int
    relation: str
    value: str
    token: int


def transformation_step(
    circuit: OVTopTokens, target: str, target_id: int, target_rank: int, readings: Sequence[Reading]
) -> Step:
    """What the head does with the source word, by its OV circuit; readings: what the lexicon knows, best first."""
    name, title = "transformation", "What does this head do with what it reads?"
    size = circuit.vocabulary
    reading = f'Reading "{circuit.words[0].strip()}" alone, its OV circuit'
    if target_rank <= PROMOTED:
        named = [RELATION_WORDS.get(each.relation, each.relation) for each in readings if each.token == target_id]
        what = f": {named[0]}" if named else ""
        sentence = f'{reading} promotes the answer "{target.strip()}" (rank {target_rank} of {size}){what}.'
        return Step(name, title, sentence)
    sentence = f'{reading} does not promote the answer "{target.strip()}" (rank {target_rank} of {size})'
    if readings and readings[0].rank <= PROMOTED:
        best = readings[0]
        what = RELATION_WORDS.get(best.relation, best.relation)
        return Step(name, title, f'{sentence}, but "{best.value}", {what} (rank {best.rank}).{UNSEEN}', holds=False)
    most = ", ".join(f'"{token.strip()}"' for token in circuit.top_tokens[0][:3])
    return Step(name, title, f"{sentence}; it promotes {most} most.{UNSEEN}", holds=False)


def source_step(
    rows: AttentionRows,
    breakdown: ComposeBreakdown | None,
    head: int,
    key: int,
    logit_difference: float,
    logit_difference_without: float,
) -> Step:
    """What the head's attention to the source is made of, and what the composed part of it is worth."""
    name, title = "source", "What is its attention to the source made of?"
    token = rows.tokens[key]
    if breakdown is None:
        weight = float(rows.weights[head, key])
        sentence = f'Heads are not composed in this model: head {head} attends to "{token}" with {weight:.2f}.'
        return Step(name, title, sentence, holds=False)
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    added = {branch: float(breakdown.branches[branch][head]) for branch in BRANCH_WORDS}
    largest = largest_branch(breakdown, head)
    share = abs(sum(added.values())) / max(abs(own), abs(after), 1e-9)
    if is_unread(rows, head, key):
        return Step(
            name,
            title,
            f'Head {head} hardly attends to "{token}": {own:.2f} before composition, {after:.2f} after. '
            f"{looks_most(rows, head)} Choose that token to take its attention there apart.",
            holds=False,
        )
    if share < NOTABLE_SHARE:
        return Step(
            name,
            title,
            f'Head {head} attends to "{token}" by itself: {own:.2f} before composition, {after:.2f} after; composition '
            f"changes it by {share:.0%}.",
            holds=False,
        )
    return Step(
        name,
        title,
        f'Composition takes the attention of head {head} to "{token}" from {own:.2f} to {after:.2f}; the largest '
        f"change, {added[largest]:+.2f}, comes through the {BRANCH_WORDS[largest]}. Put back to {own:.2f}, the answer "
        f"leads by {logit_difference_without:+.2f} logits in place of {logit_difference:+.2f}{share_of(logit_difference - logit_difference_without, logit_difference)}.",
        holds=after > own and matters(logit_difference - logit_difference_without, logit_difference),
    )


def is_unread(rows: AttentionRows, head: int, key: int) -> bool:
    """Whether a head attends to a token neither before composition nor after it."""
    return max(abs(float(rows.weights[head, key])), abs(float(rows.composed[head, key]))) < NOTABLE_WEIGHT


def largest_weight(rows: AttentionRows, head: int) -> int:
    """The position of a head's largest weight, in size, after composition."""
    return int(rows.composed[head].abs().argmax())


def looks_most(rows: AttentionRows, head: int) -> str:
    """Where a head has its largest weight, which composition may have made negative."""
    most = largest_weight(rows, head)
    weight, place = float(rows.composed[head, most]), f'"{rows.tokens[most]}" (position {most}, '
    if weight < 0:
        return f"Its largest weight is a negative one, on {place}{weight:.2f}): what it would read there it takes away."
    return f"It looks most at {place}{weight:.2f})."


def largest_branch(breakdown: ComposeBreakdown, head: int) -> str:
    """The branch that changes the head's attention most: "o_qp", "o_kp", "o_qg" or "o_kg"."""
    return max(BRANCH_WORDS, key=lambda branch: abs(float(breakdown.branches[branch][head])))


def shared_with(breakdown: ComposeBreakdown, head: int) -> list[float]:
    """What every head's attention adds to `head` through both low-rank branches."""
    return (breakdown.shared("key")[:, head] + breakdown.shared("query")[:, head]).tolist()


def strongest_head_from(breakdown: ComposeBreakdown, head: int) -> int:
    """The other head whose attention changes that of `head` most, through both low-rank branches."""
    shared = shared_with(breakdown, head)
    return max(
        (head_from for head_from in range(len(shared)) if head_from != head),
        key=lambda head_from: abs(shared[head_from]),
    )


def sharing_side(breakdown: ComposeBreakdown, head_from: int, head: int) -> str:
    """ "query" or "key": the token whose dynamic weights lend most of what one head lends another."""
    return max(("query", "key"), key=lambda side: abs(float(breakdown.shared(side)[head_from, head])))


def is_notable(amount: float, breakdown: ComposeBreakdown, head: int) -> bool:
    """Whether so much attention counts beside what the head reads the source with."""
    return abs(amount) >= NOTABLE_SHARE * max(abs(float(breakdown.out[head])), NOTABLE_WEIGHT)


def sharing_step(
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    layer: int,
    head: int,
    logit_difference: float,
    logit_difference_uncomposed: float,
) -> Step:
    """Which head's attention was lent, by which side's dynamic weights, and what that loan alone is worth.

    logit_difference_uncomposed: the lead where all heads of the layer read with their own attention.
    """
    name, title = "lender", "Which heads lent it?"
    if breakdown is None or sharing is None:
        sentence = "None can: without composition every head reads with its own attention alone."
        return Step(name, title, sentence, holds=False)
    token, head_from = breakdown.tokens[breakdown.key], strongest_head_from(breakdown, head)
    shared = shared_with(breakdown, head)[head_from]
    whole = (
        f" Were all heads of layer {layer} to read with their own attention alone, the answer would lead by "
        f"{logit_difference_uncomposed:+.2f} logits in place of {logit_difference:+.2f}."
    )
    if not is_notable(shared, breakdown, head):
        sentence = (
            f'No other head lends head {head} a notable part of its attention to "{token}" (most: head {head_from}, '
            f"{shared:+.3f} through both projections, of {float(breakdown.out[head]):.2f})."
            f"{_elsewhere(sharing, logit_difference)}{whole}"
        )
        return Step(name, title, sentence, holds=False)
    side = sharing_side(breakdown, head_from, head)
    through, letter = float(breakdown.shared(side)[head_from, head]), side[0]
    here, everywhere = float(sharing.here[head_from]), float(sharing.everywhere[head_from])
    verb = f"lends head {head} most" if shared > 0 else f"takes most from head {head}"
    return Step(
        name,
        title,
        f"Head {head_from}, which attends there with {float(breakdown.a[head_from]):.2f}, {verb}: {shared:+.2f}, of which "
        f"{through:+.2f} by the {side} token (w_{letter}1 gathers from head {head_from}, w_{letter}2 shares to head "
        f"{head}). Taken out, this loan costs the answer {here:+.2f} logits{share_of(here, logit_difference)}, its part by the "
        f"{side} token alone {sharing.by_branch[f'{letter}p']:+.2f}; all that head {head_from} lends head {head}, to every "
        f"token and at every position, {everywhere:+.2f}.{whole}",
        holds=shared > 0 and matters(here, logit_difference),
    )


def _elsewhere(sharing: SharingEffects, logit_difference: float) -> str:
    """What is lent to the head at other tokens and positions, where that matters."""
    most = int(sharing.everywhere.abs().argmax())
    worth = float(sharing.everywhere[most])
    if abs(worth) < NOTABLE_EFFECT * abs(logit_difference):
        return ""
    return (
        f" That is one token: all that head {most} lends it, to every token and at every position, is worth "
        f"{worth:+.2f} logits{share_of(worth, logit_difference)}."
    )


def attention_step(rows: AttentionRows, head: int, composed: bool) -> Step:
    """Where the head looks before and after composition."""
    name, title = "attention", "Where does the head look, before and after?"
    after = largest_weight(rows, head)
    if not composed:
        sentence = f'Head {head} looks most at "{rows.tokens[after]}" ({float(rows.composed[head, after]):.2f}).'
        return Step(name, title, sentence, holds=False)
    before = int(rows.weights[head].argmax())
    weight = f"{float(rows.composed[head, after]):+.2f}"
    place = f"the same token ({weight})" if before == after else f'"{rows.tokens[after]}" (position {after}, {weight})'
    return Step(
        name,
        title,
        f'Before composition head {head} looks most at "{rows.tokens[before]}" (position {before}, '
        f"{float(rows.weights[head, before]):.2f}), after it at {place}.",
        holds=before != after,
    )


def gate_step(
    word: str,
    copier: tuple[int, int] | None,
    rank: int,
    before: float,
    gates: dict[str, float],
    *,
    copies: bool,
    composed: bool,
) -> Step:
    """Whether a gate silences the head that would copy the source word.

    copier: the head that copies the word and attends to it, None when there is none; rank: the word's in its OV
    circuit; before: its attention before composition; gates: what each gate adds; copies: the answer is that word.
    """
    name, title = "gate", "Which gate silences a head that copies?"
    if copies:
        return Step(name, title, f'None should: the answer is "{word}" itself.', holds=False)
    if copier is None:
        sentence = f'No head that copies "{word}" attends to it with {NOTABLE_WEIGHT:.2f} or more: none to silence.'
        return Step(name, title, sentence, holds=False)
    layer, head = copier
    total = sum(gates.values())
    side = min(gates, key=lambda each: gates[each])
    who = (
        f'Head {head} of layer {layer} copies "{word}" (rank {rank} in its OV circuit) and attends to it ({before:.2f})'
    )
    if not composed:
        return Step(name, title, f"{who}; without composition there is no gate.", holds=False)
    if total > -NOTABLE_SHARE * before:
        return Step(name, title, f"{who}; the gates change that by {total:+.2f}: nothing silences it.", holds=False)
    return Step(name, title, f"{who}; the {side} gate adds {gates[side]:+.2f} (both gates {total:+.2f}).")
