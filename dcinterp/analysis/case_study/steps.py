"""The sentences of the case study about the answer, the head that is followed and what it does with the source word.

A step `holds` if this example behaves as the paper describes and the effect is large enough: a tenth of the logit
difference. Otherwise the sentence says what happened instead, and how large it is. Sentences are made from the ablation
that was asked for, by default the mean; zero stands beside it in brackets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution
from dcinterp.analysis.case_study.evidence import Effect
from dcinterp.analysis.case_study.question import Asked
from dcinterp.analysis.case_study.wording import (
    ACCEPTABLE_GAP,
    FAR_APART,
    PROMOTED,
    Step,
    Words,
    matters,
    reduces,
    share_of,
)
from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens
from dcinterp.support.text import in_sentence, in_sentence_apart

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


def answer_step(prediction: Prediction, asked: Asked, text: str, spaced: tuple[str, int] | None = None) -> Step:
    """What the model answers, and whether that is right.

    text: the whole answer; spaced: the token that it is after a space, and its rank, if that ranks higher.
    """
    name, title = "answer", "What does the model answer?"
    says, answer = in_sentence_apart(prediction.top_tokens[0], prediction.answer)
    text, chance = in_sentence(text), float(prediction.probability[0])
    if not asked.expected:
        return Step(name, title, f'The model continues with "{says}" ({chance:.0%}).')
    several = ""
    if (count := len(asked.tokens)) > 1:
        which = {0: "first", 1: "second", 2: "third"}.get(asked.place, f"{asked.place + 1}th")
        why = (
            "the first that differs from the foil"
            if asked.contrast in ("facts", "given")
            else ("the first that the model writes otherwise" if not asked.written else "where the model has to choose")
        )
        several = (
            f' The answer "{text}" is {count} tokens, with a probability of {asked.probability:.0%} as a whole; the '
            f'steps below are about its {which} token, "{answer}", {why}.'
        )
    hint = f' After a space it is another token, "{spaced[0]}", with rank {spaced[1]}.' if spaced else ""
    if asked.written:
        whole = "answers" if count == 1 else f'writes "{text}", whose {which} token is'
        right = "right" if asked.known else "the expected answer"
        return Step(name, title, f'The model {whole} "{says}", which is {right} ({chance:.0%}).{several}')
    if prediction.rank == 1:
        return Step(
            name,
            title,
            f'The model writes "{says}" here ({chance:.0%}), but not the whole answer.{several}',
            holds=False,
        )
    if int(prediction.top_ids[0]) in asked.also_right:
        return Step(
            name,
            title,
            f'The model answers "{says}" ({chance:.0%}), which is right, too: several answers are. The steps below '
            f'explain the logit of "{answer}", which the tasks name first (rank {prediction.rank}, '
            f"{prediction.answer_probability:.1%}).{several}",
            holds=False,
        )
    wrong, right = ("is wrong", "right") if asked.known else ("is wrong by the expected answer", "expected")
    return Step(
        name,
        title,
        f'The model {wrong}: it answers "{says}" ({chance:.0%}); the {right} answer "{answer}" has rank '
        f"{prediction.rank} ({prediction.answer_probability:.1%}). The steps below explain the logit of the {right} "
        f"answer.{several}{hint}",
        holds=False,
    )


def head_step(
    attribution: HeadAttribution,
    direct: Effect,
    everywhere: Effect,
    directs: Float[Tensor, "layer head"],
    layer: int,
    head: int,
    best: tuple[int, int],
    words: Words,
    about_foil: str,
) -> Step:
    """The followed head: its direct effect, its attribution by integrated gradients, and its ablation.

    direct, everywhere: of this head, at the last token alone and with later heads answering, at all positions; directs:
    the direct effect of every head; best: the (layer, head) that is followed unless another is chosen.
    """
    here = float(attribution.by_position[layer, head, attribution.position])
    scored = float(attribution.scores[layer, head])
    top_layer, top_head = attribution.best
    difference, complete = attribution.metric, float(attribution.gap_share[layer]) <= ACCEPTABLE_GAP
    who = f"Head {head} of layer {layer} has the largest direct effect (of the heads with a notable attribution score)"
    if (layer, head) != best:
        among = "" if directs[best] == directs.max() else " of the heads with a notable attribution score"
        who = (
            f"Head {head} of layer {layer} was chosen (head {best[1]} of layer {best[0]} has the largest direct effect"
            f"{among})"
        )
    score = f"{here:+z.2f}" + ("" if abs(here - scored) < 0.005 else f" ({scored:+z.2f} over all positions)")
    sentence = (
        f"{who}: with its output at the last token {words.done} and all other heads unchanged, the logit difference "
        f'between "{attribution.target}" and "{attribution.foil}" goes from {difference:z.2f} to '
        f"{difference - direct.value:z.2f} logits"
        f"{share_of(direct.value, difference, words.at_zero(f'{difference - direct.at_zero:z.2f}'))}.{about_foil} "
        f"Integrated gradients attribute {score} to this head. Having its output {words.done} at all positions "
        f"{reduces(everywhere.value, difference, 'the difference', words.effect_of_zero(everywhere.at_zero))}."
        f"{apart(scored, everywhere.value)}"
    )
    if (top_layer, top_head) not in ((layer, head), best):
        sentence += (
            f" Head {top_head} of layer {top_layer} has the largest attribution score "
            f"({float(attribution.scores[top_layer, top_head]):+z.2f} over all positions), but its direct effect is "
            f"{float(directs[top_layer, top_head]):+z.2f}."
        )
    if not complete:
        effect = difference - float(attribution.metric_at_baseline[layer])
        sentence += (
            f" The scores of this layer's heads miss {abs(float(attribution.gap[layer])):.2g} of its effect of "
            f"{effect:+.2g}, so read them with care."
        )
    holds = here > 0 and matters(direct.value, difference) and complete
    return Step("head", "Which head has the largest direct effect?", sentence, holds)


def apart(attributed: float, measured: float) -> str:
    """A remark if attribution and ablation disagree."""
    more, less = max(abs(attributed), abs(measured)), min(abs(attributed), abs(measured))
    factor, beyond = round(more / max(less, 1e-3), 1), "more than " * (less < 1e-3)
    if more < 0.1 or (attributed * measured > 0 and factor <= FAR_APART):
        return ""
    if attributed * measured < 0:
        return " Attribution and ablation disagree in sign: trust the ablation."
    many = f"a factor of {beyond}{factor:.1f}"
    return f" Attribution and ablation differ by {many}: trust the ablation, and use scores to rank."


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
    reading = f'Reading "{in_sentence(circuit.words[0])}" alone, its OV circuit'
    if target_rank <= PROMOTED:
        named = [RELATION_WORDS.get(each.relation, each.relation) for each in readings if each.token == target_id]
        meaning = f": {named[0]}" if named else ""
        sentence = f'{reading} promotes the answer "{target}" (rank {target_rank} of {size}){meaning}.'
        return Step(name, title, sentence)
    sentence = f'{reading} does not promote the answer "{target}" (rank {target_rank} of {size})'
    if readings and readings[0].rank <= PROMOTED:
        best = readings[0]
        meaning = RELATION_WORDS.get(best.relation, best.relation)
        return Step(name, title, f'{sentence}, but "{best.value}", {meaning} (rank {best.rank}).{UNSEEN}', holds=False)
    most = ", ".join(f'"{in_sentence(token)}"' for token in circuit.top_tokens[0][:3])
    return Step(name, title, f"{sentence}; it promotes {most} most.{UNSEEN}", holds=False)
