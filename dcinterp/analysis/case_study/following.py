"""What the case study finds by itself: reference prompts, the head to follow, the source's tokens, the gated head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.analysis.case_study import sharing_steps, steps
from dcinterp.analysis.case_study.evidence import Ablator, SourceAttention, measure_logit_difference
from dcinterp.analysis.case_study.question import Asked, better_with_space
from dcinterp.analysis.case_study.wording import NOTABLE_SHARE, NOTABLE_WEIGHT, PROMOTED
from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens
from dcinterp.analysis.weights.ov_transformations import word_pairs
from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ablation import ABLATIONS, Kind
from dcinterp.mechanism.dataset import default_reference, prompts
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.objective import explain
from dcinterp.mechanism.prompt import Prompt, Token, word_tokens
from dcinterp.support.errors import UserError

if TYPE_CHECKING:
    from synthetic_tasks import Example


OTHER_CONTRAST = {"facts": "runner-up", "runner-up": "strongest answer of the other facts"}
"""What the other contrast compares with."""


def reference_of(
    bridge: Bridge, example: Any, kind: Kind, given: str | Sequence[Prompt] | None
) -> tuple[Kind, str | Sequence[Prompt] | None, list[Any]]:
    """(kind, reference, its prompts); the kind is zero where another one needs prompts and there are none."""
    if given is None:
        try:
            given = default_reference(bridge, example)
        except UserError:
            return ("zero" if ABLATIONS[kind].reference else kind), None, []
    return kind, given, prompts(bridge, given)


def hint(bridge: Bridge, asked: Asked, answer: Token | None, prediction: Prediction) -> tuple[str, int] | None:
    """The token that the answer is after a space, if the model would rather give that one."""
    if asked.place > 0 or prediction.rank <= 1:
        return None
    return better_with_space(bridge, asked.ids, answer, prediction.rank)


def about_foil(asked: Asked, best: tuple[int, int], other_head: tuple[int, int] | None) -> str:
    """What the foil is, and whether the other contrast would have the same head followed."""
    what = {
        "facts": " The foil is the strongest of the answers that the other facts of the prompt would give.",
        "runner-up": " The foil is the runner-up, the most likely other token.",
        "no facts": " No facts are known in this prompt, so the foil is the runner-up, the most likely other token.",
        "given": "",
    }[asked.contrast]
    if other_head is None:
        return what
    other = OTHER_CONTRAST[asked.contrast]
    if other_head == best:
        return f"{what} Against the {other} the same head would be followed."
    return f"{what} Against the {other} head {other_head[1]} of layer {other_head[0]} would be followed instead."


def source_position(bridge: Bridge, example: Example) -> int | None:
    """The last token of the source's item in an example's prompt; None when the tokenizer gives no offsets."""
    positions = source_positions(bridge, example)
    return positions[-1] if positions else None


def source_positions(bridge: Bridge, example: Example, before: str = "") -> list[int]:
    """All tokens of the source's item in an example's prompt; none when the tokenizer gives no offsets.

    before: what stands before the example in the text that the model reads.
    """
    if not getattr(bridge.tokenizer, "is_fast", False):
        return []
    start, end = (len(before) + place for place in example.spans.source)
    # With the tokens that open a prompt, so that positions are those of the model's input.
    special = bool(bridge.cfg.default_prepend_bos)
    encoding = bridge.tokenizer(before + example.prompt, return_offsets_mapping=True, add_special_tokens=special)
    return [i for i, (a, b) in enumerate(encoding["offset_mapping"]) if a < end and b > start]


def head_to_follow(
    scores: Float[Tensor, "layer head"], direct: Float[Tensor, "layer head"], layer: int | None, head: int | None
) -> tuple[int, int]:
    """The chosen head, or else the one with the largest direct effect of those with a notable score.

    scores: by integrated gradients, at the last position.
    """
    chosen = torch.zeros_like(direct, dtype=torch.bool)
    chosen[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    there = scores.where(chosen, -torch.inf)
    candidates = chosen & (there >= NOTABLE_SHARE * there.max().clamp(min=0))
    # Where every score is negative, the least negative head is the only candidate.
    candidates |= there == there.max()
    best, best_head = divmod(int(direct.where(candidates, -torch.inf).argmax()), direct.shape[1])
    return best, best_head


def readings(bridge: Bridge, circuit: OVTopTokens, text: str) -> list[steps.Reading]:
    """The values that the relations of the lexicon give a word, with their ranks in the circuit; the best first."""
    from synthetic_tasks.relations import RELATIONS

    order = circuit.top_ids[0].tolist()
    found = []
    for relation in RELATIONS:
        for value in dict(word_pairs(relation)).get(text.strip(), ()):
            try:
                token = word_tokens(bridge, value)[0]
            except UserError:  # a value that this vocabulary lacks
                continue
            found.append(steps.Reading(order.index(token) + 1, relation, value, token))
    return sorted(found)


def silenced(
    ablator: Ablator, asked: Asked, copy_rank: Tensor, attends: SourceAttention, key: int, *, composed: bool
) -> sharing_steps.Silenced | None:
    """The head that copies the source word and whose attention to it the gates reduce most, with its gates ablated."""
    copying = (copy_rank <= PROMOTED) & (attends.before >= NOTABLE_WEIGHT)
    gates = attends.query_gate + attends.key_gate
    if not copying.any():
        return None
    layer, head = divmod(int(gates.where(copying, torch.inf).argmin()), gates.shape[1])
    difference, without, word = 0.0, None, int(asked.ids[0, key])
    if composed and word != asked.target:
        metric = explain(ablator.bridge, asked.prompt, asked.target, word).metric
        both = [Intervention("edge", layer, "post", gate, head, head, query=-1, key=key) for gate in ("qg", "kg")]
        without = ablator.effects({"gates": both}, metric).of("gates")
        difference = measure_logit_difference(ablator.bridge, ablator.ids, metric)
    return sharing_steps.Silenced(
        layer,
        head,
        rank=int(copy_rank[layer, head]),
        before=float(attends.before[layer, head]),
        after=float(attends.after[layer, head]),
        gates={"query": float(attends.query_gate[layer, head]), "key": float(attends.key_gate[layer, head])},
        difference=difference,
        without=without,
    )
