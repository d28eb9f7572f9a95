"""The five-step story of one answer, as in the appendix "Interpretation and Visualization" of the DCMHA paper.

    1. what the model answers                                   (prediction)
    2. which head writes it                                     (integrated gradients)
    3. what that head's attention to the source is made of      (post-composition, branch by branch)
    4. which heads lent it, and through which projection        (w_k1 gathers, w_k2 shares; w_q1, w_q2 likewise)
    5. where the head looks before and after composition        (attention rows)

It strings analyses together and adds one plain sentence a step, made from the numbers; where the story does not hold
for an example (a wrong answer, a head that attends by itself), the sentence says so. It shows one head's path and not
a whole circuit, and attribution is no intervention: ablate before you claim.

    story = dcinterp.case_study(model, example)
    for step in story.steps:
        print(step.title, "-", step.sentence)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dcinterp.analysis.attention_rows import AttentionRows, attention_rows
from dcinterp.analysis.compose_breakdown import ComposeBreakdown, compose_breakdown
from dcinterp.analysis.head_attribution import HeadAttribution, attribute_heads
from dcinterp.analysis.prediction import Prediction, predict
from dcinterp.analysis.prompt import Prompt, first_token
from dcinterp.errors import UserError
from dcinterp.progress import Progress, silent

if TYPE_CHECKING:
    from synthetic_tasks import Example

# Below this share the attention counts as the head's own: composition is a detail of this entry.
NOTABLE_SHARE = 0.1
# Below this weight, before and after, a head does not read a token.
NOTABLE_WEIGHT = 0.1
ACCEPTABLE_GAP = 0.01


@dataclass(frozen=True)
class Step:
    """One step of the story; `holds` is False where the paper's mechanism is not what happened."""

    title: str
    sentence: str
    holds: bool = True


@dataclass(frozen=True)
class CaseStudy:
    """The evidence of the five steps and what it says in words. `breakdown` is None where heads are not composed."""

    prediction: Prediction
    attribution: HeadAttribution
    layer: int
    head: int
    key: int
    breakdown: ComposeBreakdown | None
    rows: AttentionRows
    steps: tuple[Step, ...]

    @property
    def lender(self) -> int | None:
        """The other head whose attention adds most, in size, to this head's composed attention to the source."""
        if self.breakdown is None:
            return None
        lent = _lent_to(self.breakdown, self.head)
        return max((f for f in range(len(lent)) if f != self.head), key=lambda f: abs(lent[f]))


def case_study(
    bridge: Any,
    example: Example | Prompt,
    answer: str | None = None,
    *,
    foil: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    key: int | None = None,
    attribution: HeadAttribution | None = None,
    progress: Progress = silent,
) -> CaseStudy:
    """Tell the five-step story of an example of the tasks, or of any prompt with its answer.

    Args:
        bridge: any bridge; without composed heads steps 3 and 4 say so.
        example: a `synthetic_tasks.Example`, or a prompt as text or token ids.
        answer: the expected answer of a prompt; the model's own answer when None.
        foil: id of the token the answer competes with; the most likely other token when None.
        layer: the layer to follow; that of the head which contributes most at the last token when None.
        head: the head to follow; the largest contributor there (of `layer`) when None.
        key: the source token; the example's source, else where the followed head looks most, when None.
        attribution: head scores of this prompt computed before, to be used again.
        progress: called as the attribution proceeds.

    Cost: that of `attribute_heads`, unless it is given, and three forward passes.

    Raises:
        UserError: the prompt, the answer or a number does not fit the model.
    """
    prompt, answer, source = _question(bridge, example, answer)
    prediction = predict(bridge, prompt, first_token(bridge, answer) if answer is not None else None)
    target = prediction.answer_id if answer is not None else int(prediction.top_ids[0])
    if foil is None:
        foil = next(int(i) for i in prediction.top_ids if int(i) != target)
    if attribution is None:
        attribution = attribute_heads(bridge, prompt, target, foil, progress=progress)
    layer, head = _followed(attribution, layer, head)
    rows = attention_rows(bridge, prompt, layer)
    if key is None:
        key = source if source is not None else int(rows.composed[head].abs().argmax())
    composed = "post" in getattr(bridge, "stages", ())
    breakdown = compose_breakdown(bridge, prompt, layer, -1, key, "post") if composed else None
    steps = (
        _answer_step(prediction, answer),
        _head_step(attribution, layer, head),
        _source_step(rows, breakdown, head, key),
        _lender_step(breakdown, head),
        _attention_step(rows, head, breakdown is not None),
    )
    return CaseStudy(prediction, attribution, layer, head, key, breakdown, rows, steps)


def _question(bridge: Any, example: Any, answer: str | None) -> tuple[Any, str | None, int | None]:
    """(prompt, answer, source position) of an example or of a bare prompt."""
    if not hasattr(example, "facts"):
        return example, answer, None
    return example.prompt, example.answer, source_position(bridge, example)


def source_position(bridge: Any, example: Example) -> int | None:
    """The last token of the source's item in an example's prompt; None when the tokenizer gives no offsets."""
    if not getattr(bridge.tokenizer, "is_fast", False):
        return None
    start, end = example.spans.source
    encoding = bridge.tokenizer(example.prompt, return_offsets_mapping=True, add_special_tokens=False)
    inside = [i for i, (a, b) in enumerate(encoding["offset_mapping"]) if a < end and b > start]
    return inside[-1] if inside else None


def _followed(attribution: HeadAttribution, layer: int | None, head: int | None) -> tuple[int, int]:
    """The head to follow: the one asked for, or the one that contributes most at the position of the answer."""
    there = attribution.by_position[:, :, attribution.position]
    layers, heads = there.shape
    if layer is not None and not 0 <= layer < layers:
        raise UserError(f"There is no layer {layer}; this model has layers 0..{layers - 1}.")
    if head is not None and not 0 <= head < heads:
        raise UserError(f"There is no head {head}; this model has heads 0..{heads - 1}.")
    choice = torch.full_like(there, -torch.inf)
    chosen = (slice(None) if layer is None else layer, slice(None) if head is None else head)
    choice[chosen] = there[chosen]
    best, best_head = divmod(int(choice.argmax()), heads)
    return best, best_head


def _answer_step(prediction: Prediction, answer: str | None) -> Step:
    title = "What does the model answer?"
    says, chance = prediction.top_tokens[0], float(prediction.probability[0])
    if answer is None:
        return Step(title, f'The model continues with "{says}" ({chance:.0%}).')
    part = "" if prediction.answer.strip() == answer else f', the first token of "{answer}"'
    if prediction.rank == 1:
        return Step(title, f'The model answers "{says}"{part}, and that is right ({chance:.0%}).')
    return Step(
        title,
        f'The model is wrong: it says "{says}" ({chance:.0%}), and the right "{prediction.answer}"{part} has rank '
        f"{prediction.rank} ({prediction.answer_probability:.1%}). What follows explains the right answer's logit.",
        holds=False,
    )


def _head_step(attribution: HeadAttribution, layer: int, head: int) -> Step:
    here = float(attribution.by_position[layer, head, attribution.position])
    everywhere = float(attribution.scores[layer, head])
    best = _followed(attribution, None, None) == (layer, head)
    gap = float(attribution.relative_gap[layer])
    sentence = (
        f"Head {head} of layer {layer} {'writes most' if best else 'contributes'} at the last token: {here:+.2f} "
        f'logits of "{attribution.target}" against "{attribution.foil}" ({everywhere:+.2f} over all positions).'
    )
    if gap > ACCEPTABLE_GAP:
        sentence += f" The integral misses {gap:.0%} of the layer's effect, so read the scores with care."
    return Step("Which head writes it?", sentence, holds=here > 0 and gap <= ACCEPTABLE_GAP)


def _source_step(rows: AttentionRows, breakdown: ComposeBreakdown | None, head: int, key: int) -> Step:
    title = "What is its attention to the source made of?"
    token = rows.tokens[key]
    if breakdown is None:
        weight = float(rows.weights[head, key])
        return Step(title, f'Heads are not composed in this model: head {head} attends to "{token}" with {weight:.2f}.')
    own, after = float(breakdown.o_b[head]), float(breakdown.out[head])
    added = {name: float(term[head]) for name, term in breakdown.branches.items() if name != "o_b"}
    largest = max(added, key=lambda name: abs(added[name]))
    change = sum(added.values())
    share = abs(change) / max(abs(own), abs(after), 1e-9)
    if max(abs(own), abs(after)) < NOTABLE_WEIGHT:
        most = int(rows.composed[head].abs().argmax())
        return Step(
            title,
            f'Head {head} hardly attends to "{token}": {own:.2f} before composition, {after:.2f} after. It looks most '
            f'at "{rows.tokens[most]}" (position {most}): choose that token to take its attention there apart.',
            holds=False,
        )
    if share < NOTABLE_SHARE:
        return Step(
            title,
            f'Head {head} attends to "{token}" by itself: {own:.2f} before composition, {after:.2f} after; composition '
            f"changes it by {share:.0%}.",
            holds=False,
        )
    return Step(
        title,
        f'Composition takes the attention of head {head} to "{token}" from {own:.2f} to {after:.2f}; the largest '
        f"change, {added[largest]:+.2f}, comes through the {_BRANCH_WORDS[largest]}.",
    )


_BRANCH_WORDS = {
    "o_qp": "query-wise projection",
    "o_kp": "key-wise projection",
    "o_qg": "query-wise gate",
    "o_kg": "key-wise gate",
}


def _lent_to(breakdown: ComposeBreakdown, head: int) -> list[float]:
    """What every head's attention adds to `head` through both low-rank branches."""
    return (breakdown.lent("key")[:, head] + breakdown.lent("query")[:, head]).tolist()


def _lender_step(breakdown: ComposeBreakdown | None, head: int) -> Step:
    title = "Which heads lent it?"
    if breakdown is None:
        return Step(title, "None can: without composition every head reads with its own attention alone.")
    lent = _lent_to(breakdown, head)
    others = [f for f in range(len(lent)) if f != head]
    lender = max(others, key=lambda f: abs(lent[f]))
    by_key, by_query = (float(breakdown.lent(side)[lender, head]) for side in ("key", "query"))
    side, through = ("key", by_key) if abs(by_key) >= abs(by_query) else ("query", by_query)
    letter = side[0]
    attends = float(breakdown.a[lender])
    if abs(lent[lender]) < NOTABLE_SHARE * max(abs(float(breakdown.out[head])), 1e-9):
        return Step(
            title,
            f"No other head lends head {head} a notable part of this attention (most: {lent[lender]:+.3f}).",
            False,
        )
    verb = f"lends head {head} most" if lent[lender] > 0 else f"takes most from head {head}"
    return Step(
        title,
        f"Head {lender}, which attends there with {attends:.2f}, {verb}: {lent[lender]:+.2f}, of "
        f"which {through:+.2f} by the {side} token (w_{letter}1 gathers from head {lender}, w_{letter}2 shares to head "
        f"{head}).",
    )


def _attention_step(rows: AttentionRows, head: int, composed: bool) -> Step:
    title = "Where does the head look, before and after?"
    after = int(rows.composed[head].abs().argmax())
    if not composed:
        return Step(
            title, f'Head {head} looks most at "{rows.tokens[after]}" ({float(rows.composed[head, after]):.2f}).'
        )
    before = int(rows.weights[head].argmax())
    place = "the same token" if before == after else f'"{rows.tokens[after]}" (position {after})'
    return Step(
        title,
        f'Before composition head {head} looks most at "{rows.tokens[before]}" (position {before}, '
        f"{float(rows.weights[head, before]):.2f}), after it at {place} ({float(rows.composed[head, after]):+.2f}).",
        holds=before != after,
    )
