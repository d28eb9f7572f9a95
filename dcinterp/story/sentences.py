"""The sentences of the story, each made from the numbers of its step, and what counts as notable in them.

A step `holds` where what the paper describes is what happened in this example. Every sentence says what happened
otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dcinterp.analysis.attention_rows import AttentionRows
from dcinterp.analysis.compose_breakdown import ComposeBreakdown
from dcinterp.analysis.head_attribution import HeadAttribution
from dcinterp.analysis.ov_circuit import OVTopTokens
from dcinterp.analysis.prediction import Prediction

NOTABLE_SHARE = 0.1
"""Below this share the attention counts as the head's own: composition is a detail of this entry."""

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

BRANCH_WORDS = {
    "o_qp": "query-wise projection",
    "o_kp": "key-wise projection",
    "o_qg": "query-wise gate",
    "o_kg": "key-wise gate",
}


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


def head_step(attribution: HeadAttribution, layer: int, head: int, best: bool) -> Step:
    """Which head writes the answer, by integrated gradients, and what its removal does."""
    here = float(attribution.by_position[layer, head, attribution.position])
    everywhere = float(attribution.scores[layer, head])
    measured = float(attribution.ablation[layer, head])
    gap = float(attribution.relative_gap[layer])
    sentence = (
        f"Head {head} of layer {layer} {'writes most' if best else 'contributes'} at the last token: {here:+.2f} "
        f'logits of "{attribution.target}" against "{attribution.foil}" ({everywhere:+.2f} over all positions; '
        f"switched off, it costs {measured:+.2f})."
    )
    if gap > ACCEPTABLE_GAP:
        sentence += f" The integral misses {gap:.0%} of the layer's effect, so read the scores with care."
    holds = here > 0 and measured > 0 and gap <= ACCEPTABLE_GAP
    return Step("head", "Which head writes it?", sentence, holds)


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
        return Step(name, title, f'{sentence}, but "{best.value}", {what} (rank {best.rank}).', holds=False)
    most = ", ".join(f'"{token.strip()}"' for token in circuit.top_tokens[0][:3])
    return Step(name, title, f"{sentence}; it promotes {most} most.", holds=False)


def source_step(
    rows: AttentionRows, breakdown: ComposeBreakdown | None, head: int, key: int, lead: float, lead_without: float
) -> Step:
    """What the head's attention to the source is made of, and what the composed part of it is worth."""
    name, title = "source", "What is its attention to the source made of?"
    token = rows.tokens[key]
    if breakdown is None:
        weight = float(rows.weights[head, key])
        sentence = f'Heads are not composed in this model: head {head} attends to "{token}" with {weight:.2f}.'
        return Step(name, title, sentence, holds=False)
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    added = {name: float(term[head]) for name, term in breakdown.branches.items() if name != "o_b"}
    largest = max(added, key=lambda branch: abs(added[branch]))
    share = abs(sum(added.values())) / max(abs(own), abs(after), 1e-9)
    if max(abs(own), abs(after)) < NOTABLE_WEIGHT:
        most = int(rows.composed[head].abs().argmax())
        return Step(
            name,
            title,
            f'Head {head} hardly attends to "{token}": {own:.2f} before composition, {after:.2f} after. It looks most '
            f'at "{rows.tokens[most]}" (position {most}): choose that token to take its attention there apart.',
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
        f"leads by {lead_without:+.2f} logits in place of {lead:+.2f}.",
        holds=after > own and lead > lead_without,
    )


def lent_to(breakdown: ComposeBreakdown, head: int) -> list[float]:
    """What every head's attention adds to `head` through both low-rank branches."""
    return (breakdown.lent("key")[:, head] + breakdown.lent("query")[:, head]).tolist()


def lender_step(breakdown: ComposeBreakdown | None, head: int) -> Step:
    """Which head's attention was lent, and by which side's dynamic weights."""
    name, title = "lender", "Which heads lent it?"
    if breakdown is None:
        sentence = "None can: without composition every head reads with its own attention alone."
        return Step(name, title, sentence, holds=False)
    lent = lent_to(breakdown, head)
    lender = max((f for f in range(len(lent)) if f != head), key=lambda f: abs(lent[f]))
    by_key, by_query = (float(breakdown.lent(side)[lender, head]) for side in ("key", "query"))
    side, through = ("key", by_key) if abs(by_key) >= abs(by_query) else ("query", by_query)
    letter = side[0]
    if abs(lent[lender]) < NOTABLE_SHARE * max(abs(float(breakdown.out[head])), NOTABLE_WEIGHT):
        sentence = f"No other head lends head {head} a notable part of this attention (most: {lent[lender]:+.3f})."
        return Step(name, title, sentence, holds=False)
    verb = f"lends head {head} most" if lent[lender] > 0 else f"takes most from head {head}"
    return Step(
        name,
        title,
        f"Head {lender}, which attends there with {float(breakdown.a[lender]):.2f}, {verb}: {lent[lender]:+.2f}, of "
        f"which {through:+.2f} by the {side} token (w_{letter}1 gathers from head {lender}, w_{letter}2 shares to head "
        f"{head}).",
        holds=lent[lender] > 0,
    )


def attention_step(rows: AttentionRows, head: int, composed: bool) -> Step:
    """Where the head looks before and after composition."""
    name, title = "attention", "Where does the head look, before and after?"
    after = int(rows.composed[head].abs().argmax())
    if not composed:
        sentence = f'Head {head} looks most at "{rows.tokens[after]}" ({float(rows.composed[head, after]):.2f}).'
        return Step(name, title, sentence, holds=False)
    before = int(rows.weights[head].argmax())
    place = "the same token" if before == after else f'"{rows.tokens[after]}" (position {after})'
    return Step(
        name,
        title,
        f'Before composition head {head} looks most at "{rows.tokens[before]}" (position {before}, '
        f"{float(rows.weights[head, before]):.2f}), after it at {place} ({float(rows.composed[head, after]):+.2f}).",
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
    return Step(name, title, f"{who}; the {side}-wise gate adds {gates[side]:+.2f} (both gates {total:+.2f}).")
