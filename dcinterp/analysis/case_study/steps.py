"""The sentences of the case study, each made from the numbers of its step, and the thresholds they use.

A step `holds` if this example behaves as the paper describes and the effect is large enough: a tenth of the head's
attention (NOTABLE_SHARE), a tenth of the logit difference (NOTABLE_EFFECT). Otherwise the sentence says what happened
instead, and how large it is.
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
"""If composition changes an attention weight by less than this share, the weight counts as the head's own."""

NOTABLE_EFFECT = 0.1
"""Share of the logit difference; a smaller effect does not support a step."""

FAR_APART = 2.0
"""The sentence says so if the attribution and the measured effect differ by more than this factor."""

NOTABLE_WEIGHT = 0.1
"""With less weight than this, before and after composition, a head does not attend to a token."""

ACCEPTABLE_GAP = 0.01
"""Share of the layer's effect; the sentence says so if the integral misses more."""

PROMOTED = 10
"""An OV circuit promotes a token if it ranks the token among its first so many."""

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
    " The OV circuit leaves out what earlier layers add to the word and what MLPs make of the head's output; the "
    "head's direct effect includes both."
)
"""Why the answer may come from this head although its OV circuit does not promote it."""

FORMER_STEPS = {"lender": "sharing"}
"""What version 0.1 called the steps, and their names now."""

BRANCH_WORDS = {BRANCHES[name].hook: BRANCHES[name].label for name in ADDED}
"""What composition adds, by hook."""


class Step(NamedTuple):
    """One step of the case study; `holds` is False if this example does not behave as the paper describes."""

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
        return Step(name, title, f'The model answers "{says}"{part}, which is right ({chance:.0%}).')
    return Step(
        name,
        title,
        f'The model is wrong: it answers "{says}" ({chance:.0%}); the right answer "{prediction.answer}"{part} has '
        f"rank {prediction.rank} ({prediction.answer_probability:.1%}). The steps below explain the logit of the right "
        "answer.",
        holds=False,
    )


def share_of(effect: float, logit_difference: float) -> str:
    """An effect as a share of the logit difference, to put behind it; empty unless the difference is positive."""
    if logit_difference <= 0:
        return ""
    share = round(effect / logit_difference, 2) + 0.0  # no minus before a zero
    return f" ({share:.0%} of the difference)" if abs(share) < 2 else f" ({share:.1f} times the difference)"


def matters(effect: float, logit_difference: float) -> bool:
    """Whether an effect supports the answer by a tenth of the logit difference or more."""
    return effect > 0 and effect >= NOTABLE_EFFECT * logit_difference


def reduces(effect: float, logit_difference: float, of: str = "it") -> str:
    """What a removal with this effect does to the logit difference (`of`), with the share of it."""
    size = round(effect, 2) + 0.0  # no minus before a zero
    verb = "reduces" if size >= 0 else "increases"
    return f"{verb} {of} by {abs(size):.2f}{share_of(abs(effect), logit_difference)}"


def head_step(
    attribution: HeadAttribution, direct: Float[Tensor, "layer head"], layer: int, head: int, best: tuple[int, int]
) -> Step:
    """The followed head: its direct effect, its attribution by integrated gradients, and its ablation.

    direct: the direct effect of every head; best: the (layer, head) that is followed unless another is chosen.
    """
    here = float(attribution.by_position[layer, head, attribution.position])
    everywhere = float(attribution.scores[layer, head])
    measured, effect = float(attribution.ablation[layer, head]), float(direct[layer, head])
    top_layer, top_head = attribution.best
    logit_difference, gap = attribution.metric, float(attribution.relative_gap[layer])
    who = f"Head {head} of layer {layer} has the largest direct effect (of the heads with a notable attribution score)"
    if (layer, head) != best:
        who = (
            f"Head {head} of layer {layer} was chosen (head {best[1]} of layer {best[0]} has the largest direct effect)"
        )
    score = f"{here:+.2f}" + ("" if abs(here - everywhere) < 0.005 else f" ({everywhere:+.2f} over all positions)")
    sentence = (
        f"{who}: with its output at the last token removed and all other heads unchanged, the logit difference between "
        f'"{attribution.target}" and "{attribution.foil}" goes from {logit_difference:.2f} to '
        f"{logit_difference - effect:.2f} logits{share_of(effect, logit_difference)}. Integrated gradients attribute "
        f"{score} to this head. Ablating it at all positions {reduces(measured, logit_difference, 'the difference')}."
        f"{_apart(everywhere, measured)}"
    )
    if (top_layer, top_head) not in ((layer, head), best):
        sentence += (
            f" Head {top_head} of layer {top_layer} has the largest attribution score "
            f"({float(attribution.scores[top_layer, top_head]):+.2f} over all positions), but its direct effect is "
            f"{float(direct[top_layer, top_head]):+.2f}."
        )
    if gap > ACCEPTABLE_GAP:
        sentence += f" Integrated gradients miss {gap:.0%} of the layer's effect, so read the scores with care."
    holds = here > 0 and matters(effect, logit_difference) and gap <= ACCEPTABLE_GAP
    return Step("head", "Which head has the largest direct effect?", sentence, holds)


def _apart(attributed: float, measured: float) -> str:
    """A remark if attribution and ablation disagree."""
    more, less = max(abs(attributed), abs(measured)), min(abs(attributed), abs(measured))
    if more < 0.1 or (attributed * measured > 0 and more <= FAR_APART * less):
        return ""
    if attributed * measured < 0:
        return " Attribution and ablation disagree in sign: trust the ablation."
    factor = more / max(less, 1e-3)
    return f" Attribution and ablation differ by a factor of {factor:.1f}: trust the ablation, and use scores to rank."


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
    name, title = "transformation", "What does this head do with the source word?"
    size = circuit.vocabulary
    reading = f'Reading "{circuit.words[0].strip()}" alone, its OV circuit'
    if target_rank <= PROMOTED:
        named = [RELATION_WORDS.get(each.relation, each.relation) for each in readings if each.token == target_id]
        meaning = f": {named[0]}" if named else ""
        sentence = f'{reading} promotes the answer "{target.strip()}" (rank {target_rank} of {size}){meaning}.'
        return Step(name, title, sentence)
    sentence = f'{reading} does not promote the answer "{target.strip()}" (rank {target_rank} of {size})'
    if readings and readings[0].rank <= PROMOTED:
        best = readings[0]
        meaning = RELATION_WORDS.get(best.relation, best.relation)
        return Step(name, title, f'{sentence}, but "{best.value}", {meaning} (rank {best.rank}).{UNSEEN}', holds=False)
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
    """What the head's attention to the source is made of, and the effect of the part that composition adds."""
    name, title = "source", "What is its attention to the source made of?"
    token = rows.tokens[key]
    if breakdown is None:
        weight = float(rows.weights[head, key])
        sentence = f'Heads are not composed in this model: head {head} attends to "{token}" with {weight:.2f}.'
        return Step(name, title, sentence, holds=False)
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    effect = logit_difference - logit_difference_without
    added = {branch: float(breakdown.branches[branch][head]) for branch in BRANCH_WORDS}
    largest = largest_branch(breakdown, head)
    share = abs(sum(added.values())) / max(abs(own), abs(after), 1e-9)
    if is_unread(rows, head, key):
        return Step(
            name,
            title,
            f'Head {head} hardly attends to "{token}": {own:.2f} before composition, {after:.2f} after. '
            f"{looks_most(rows, head)} Choose that token to see what its attention there is made of.",
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
        f'Composition changes the attention of head {head} to "{token}" from {own:.2f} to {after:.2f}; the largest '
        f"part, {added[largest]:+.2f}, comes through the {BRANCH_WORDS[largest]}. Setting it back to {own:.2f} takes "
        f"the logit difference from {logit_difference:.2f} to {logit_difference_without:.2f} logits"
        f"{share_of(effect, logit_difference)}.",
        holds=after > own and matters(effect, logit_difference),
    )


def is_unread(rows: AttentionRows, head: int, key: int) -> bool:
    """Whether a head attends to a token neither before composition nor after it."""
    return max(abs(float(rows.weights[head, key])), abs(float(rows.composed[head, key]))) < NOTABLE_WEIGHT


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
    """How much attention every head shares with `head`, through both low-rank branches."""
    return (breakdown.shared("key")[:, head] + breakdown.shared("query")[:, head]).tolist()


def strongest_head_from(breakdown: ComposeBreakdown, head: int) -> int:
    """The other head that shares most attention with `head`, in size, through both low-rank branches."""
    shared = shared_with(breakdown, head)
    return max(
        (head_from for head_from in range(len(shared)) if head_from != head),
        key=lambda head_from: abs(shared[head_from]),
    )


def is_notable(amount: float, breakdown: ComposeBreakdown, head: int) -> bool:
    """Whether an amount of attention is notable beside the head's whole attention to the source."""
    return abs(amount) >= NOTABLE_SHARE * max(abs(float(breakdown.out[head])), NOTABLE_WEIGHT)


def sharing_step(
    breakdown: ComposeBreakdown | None,
    sharing: SharingEffects | None,
    layer: int,
    head: int,
    logit_difference: float,
    logit_difference_uncomposed: float,
) -> Step:
    """Which head shares its attention with the followed head, through which projection, and the effect of that alone.

    logit_difference_uncomposed: the logit difference if all heads of the layer use only their own attention.
    """
    name, title = "sharing", "Which heads share their attention with it?"
    if breakdown is None or sharing is None:
        sentence = "None: without composition every head uses only its own attention."
        return Step(name, title, sentence, holds=False)
    token, head_from = breakdown.tokens[breakdown.key], strongest_head_from(breakdown, head)
    shared = shared_with(breakdown, head)[head_from]
    whole = (
        f" If all heads of layer {layer} used only their own attention, the logit difference would be "
        f"{logit_difference_uncomposed:+.2f} instead of {logit_difference:+.2f}."
    )
    if not is_notable(shared, breakdown, head):
        sentence = (
            f'No other head shares a notable part of the attention of head {head} to "{token}" (largest: head '
            f"{head_from}, {shared:+.3f} of {float(breakdown.out[head]):.2f}, through both projections)."
            f"{_elsewhere(sharing, logit_difference)}{whole}"
        )
        return Step(name, title, sentence, holds=False)
    side = breakdown.sharing_side(head_from, head)
    through, letter = float(breakdown.shared(side)[head_from, head]), side[0]
    here, everywhere = float(sharing.here[head_from]), float(sharing.everywhere[head_from])
    part = sharing.by_branch[f"{letter}p"]
    removed = reduces(here, logit_difference, "the logit difference")
    verb = f"shares most with head {head}" if shared > 0 else f"takes most away from head {head}"
    return Step(
        name,
        title,
        f"Head {head_from}, which attends there with {float(breakdown.a[head_from]):.2f}, {verb}: {shared:+.2f}, of "
        f"which {through:+.2f} through the {side} projection (w_{letter}1 gathers from head {head_from}, w_{letter}2 "
        f"shares with head {head}). Removing this attention {removed}; removing only its part through the {side} "
        f"projection {reduces(part, 0)}; removing all that head {head_from} shares with head {head}, to every token "
        f"and at every position, {reduces(everywhere, 0)}.{whole}",
        holds=shared > 0 and matters(here, logit_difference),
    )


def _elsewhere(sharing: SharingEffects, logit_difference: float) -> str:
    """What is shared with the head at other tokens and positions, if it matters."""
    most = int(sharing.everywhere.abs().argmax())
    effect = float(sharing.everywhere[most])
    if abs(effect) < NOTABLE_EFFECT * abs(logit_difference):
        return ""
    return (
        f" This is about one token: removing all that head {most} shares with it, to every token and at every "
        f"position, {reduces(effect, logit_difference, 'the logit difference')}."
    )


def attention_step(rows: AttentionRows, head: int, composed: bool) -> Step:
    """Where the head attends before and after composition."""
    name, title = "attention", "Where does the head attend, before and after composition?"
    after = largest_weight(rows, head)
    if not composed:
        sentence = f'Head {head} attends most to "{rows.tokens[after]}" ({float(rows.composed[head, after]):.2f}).'
        return Step(name, title, sentence, holds=False)
    before = int(rows.weights[head].argmax())
    weight = f"{float(rows.composed[head, after]):+.2f}"
    place = f"the same token ({weight})" if before == after else f'"{rows.tokens[after]}" (position {after}, {weight})'
    return Step(
        name,
        title,
        f'Before composition head {head} attends most to "{rows.tokens[before]}" (position {before}, '
        f"{float(rows.weights[head, before]):.2f}), after it to {place}.",
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

    copier: the head that copies the word and attends to it, or None; rank: the rank of the word in its OV circuit;
    before: its attention before composition; gates: what each gate adds; copies: the answer is that word.
    """
    name, title = "gate", "Which gate silences a head that copies?"
    if copies:
        return Step(name, title, f'None should: the answer is "{word}" itself.', holds=False)
    if copier is None:
        sentence = f'No head that copies "{word}" attends to it with {NOTABLE_WEIGHT:.2f} or more.'
        return Step(name, title, sentence, holds=False)
    layer, head = copier
    total = sum(gates.values())
    side = min(gates, key=lambda each: gates[each])
    who = (
        f'Head {head} of layer {layer} copies "{word}" (rank {rank} in its OV circuit) and attends to it ({before:.2f})'
    )
    if not composed:
        return Step(name, title, f"{who}; without composition there are no gates.", holds=False)
    if total > -NOTABLE_SHARE * before:
        return Step(name, title, f"{who}; the gates change that by {total:+.2f}, so nothing silences it.", holds=False)
    return Step(name, title, f"{who}; the {side} gate adds {gates[side]:+.2f} (both gates {total:+.2f}).")
