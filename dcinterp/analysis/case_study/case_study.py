"""The case study of one answer, as in the appendix "Interpretation and Visualization" of the DCMHA paper.

    answer           what the model answers                                  (prediction)
    head             which head has the largest direct effect on it          (measured; with its attribution, ablation)
    transformation   what that head does with the source word                (its OV circuit)
    source           what its attention to the source is made of             (post-composition, branch by branch)
    sharing          which heads share their attention with it, and through  (w_k1 gathers, w_k2 shares; w_q1, w_q2 too)
                     which projection, and the effect of that alone          (its edge removed)
    attention        where the head attends before and after composition     (attention rows)
    gate             which gate silences a head that would copy the source   (w_qg, w_kg)

The first line is the question; the other lines are the paper's five steps, with the last of them in two. The case study
combines several analyses. It adds one plain sentence per step, made from the numbers, and a summary: which head shared
its attention with the head that has the largest direct effect, and what happens to the answer without it. If a step
does not hold for an example (a wrong answer, a head that attends by itself, shared attention with an effect below a
tenth of the logit difference), the sentence says so.

Which head is followed. Integrated gradients give a head credit for everything that later layers make of its output, so
a head may score high although it only helps a later head to attend to the source. Among the heads with at least a tenth
of the largest score, the case study therefore follows the one with the largest direct effect: its output at the last
position is set to zero while all other heads keep theirs, so that only MLPs and the unembedding respond. (Direct logit
attribution would stop before the MLPs, and would credit no head with what the last MLP makes of its output.)

It follows one head and is not a whole circuit: if a step does not hold, the answer came about in another way.

    study = dcinterp.case_study(model, example)
    print(study.summary)
    for step in study.steps:
        print(step.title, "-", step.sentence)
    dcinterp.intervene(model, example.prompt, study.edge_line).effect       # the effect of the shared attention
    study.save("folder")                         # evidence and sentences; dcinterp.load_result reads them back
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.analysis.answers.predict import Prediction, predict
from dcinterp.analysis.attention.attention_rows import AttentionRows, attention_rows
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution, attribute_heads
from dcinterp.analysis.case_study import steps as sentences
from dcinterp.analysis.case_study.evidence import (
    SourceAttention,
    direct_effects,
    measure_logit_difference,
    measure_sharing,
    source_attention,
    uncomposed,
    without_composition,
)
from dcinterp.analysis.case_study.steps import Step
from dcinterp.analysis.case_study.summary import summarize
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown, compose_breakdown
from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens, ov_ranks, ov_top_tokens
from dcinterp.analysis.weights.ov_transformations import word_pairs
from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.objective import explain
from dcinterp.mechanism.prompt import Prompt, Token, first_token, head_number, layer_number, word_tokens
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.former_names import former_name, warn_of
from dcinterp.support.progress import Progress, silent

if TYPE_CHECKING:
    from synthetic_tasks import Example


@dataclass(frozen=True)
class CaseStudy(Result):
    """The evidence of a case study and what it says in words: a summary, and a sentence a step.

    `breakdown` is None if heads are not composed. For every head, [layer, head]: direct, its direct effect on the
    answer (in logits, measured); copy_rank and target_rank, the ranks of the source word and of the answer in what its
    OV circuit promotes when it reads the source word alone; before, query_gate, key_gate, after: its attention from the
    last position to the source, and what the gates add to it.
    logit_difference: the answer's logit minus the foil's; logit_difference_without: the same when the followed head's
    attention to the source is set back to what it was before composition; logit_difference_uncomposed: the same for all
    attention of its layer's heads. shared_effect [head_from]: by how much removing the attention to the source that
    each other head shares with the followed one reduces the logit difference; shared_effect_everywhere: the same for
    the whole edge, all positions.
    """

    FORMER: ClassVar[dict[str, str]] = {
        "lead": "logit_difference",
        "lead_without": "logit_difference_without",
        "lead_uncomposed": "logit_difference_uncomposed",
        "loan": "shared_effect",
        "loan_everywhere": "shared_effect_everywhere",
        "verdict": "summary",
    }
    PROSE: ClassVar[tuple[str, ...]] = ("summary", "steps")
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{
            name: ("layer", "head")
            for name in ("direct", "copy_rank", "target_rank", "before", "query_gate", "key_gate", "after")
        },
        **{name: ("head_from",) for name in ("shared_effect", "shared_effect_everywhere")},
    }

    prediction: Prediction
    attribution: HeadAttribution
    circuit: OVTopTokens
    breakdown: ComposeBreakdown | None
    rows: AttentionRows
    layer: int
    head: int
    key: int
    logit_difference: float
    logit_difference_without: float
    logit_difference_uncomposed: float
    summary: str
    steps: tuple[Step, ...]
    shared_effect: Float[Tensor, " head_from"]
    shared_effect_everywhere: Float[Tensor, " head_from"]
    direct: Float[Tensor, "layer head"]
    copy_rank: Int[Tensor, "layer head"]
    target_rank: Int[Tensor, "layer head"]
    before: Float[Tensor, "layer head"]
    query_gate: Float[Tensor, "layer head"]
    key_gate: Float[Tensor, "layer head"]
    after: Float[Tensor, "layer head"]

    def __post_init__(self) -> None:
        # A case study read from a file has its steps as plain tuples, and may be one of version 0.1.
        steps = (Step(*step) for step in self.steps)
        named = (step._replace(name=sentences.FORMER_STEPS.get(step.name, step.name)) for step in steps)
        object.__setattr__(self, "steps", tuple(named))

    def step(self, name: str) -> Step:
        """The step of a name: answer, head, transformation, source, sharing, attention or gate.

        Raises:
            UserError: there is no such step.
        """
        known = {step.name: step for step in self.steps}
        if name in sentences.FORMER_STEPS:
            warn_of(f"the step {name}", sentences.FORMER_STEPS[name])
            name = sentences.FORMER_STEPS[name]
        if name not in known:
            raise UserError(f"There is no step {name!r}; {nearest(name, known)}")
        return known[name]

    @property
    def holds(self) -> bool:
        """Whether this example behaves as the paper describes: the answer is right, and the head with the largest
        direct effect uses attention that another head shares with it, whose removal reduces the logit difference by a
        tenth or more.
        """
        return all(self.step(name).holds for name in ("answer", "head", "transformation", "source", "sharing"))

    @property
    def unread(self) -> bool:
        """Whether the followed head attends to the source neither before composition nor after it."""
        return sentences.is_unread(self.rows, self.head, self.key)

    @property
    def looked(self) -> int:
        """Where the followed head has its largest weight, in size, after composition."""
        return sentences.largest_weight(self.rows, self.head)

    @property
    def head_from(self) -> int | None:
        """The other head whose attention adds most, in size, to this head's composed attention to the source."""
        return None if self.breakdown is None else sentences.strongest_head_from(self.breakdown, self.head)

    @property
    def side(self) -> str:
        """ "query" or "key": the projection through which `head_from` shares most attention; if no head shares a
        notable part, the side of the branch that adds most.
        """
        if self.breakdown is None or self.head_from is None:
            return "query"
        shared = sentences.shared_with(self.breakdown, self.head)[self.head_from]
        if sentences.is_notable(shared, self.breakdown, self.head):
            return self.breakdown.sharing_side(self.head_from, self.head)
        return {"q": "query", "k": "key"}[sentences.largest_branch(self.breakdown, self.head)[2]]

    @property
    def edge_line(self) -> str | None:
        """The intervention that removes the attention shared by `head_from`; its effect is in `shared_effect`."""
        if self.head_from is None:
            return None
        return f"edge {self.layer}.post.added.{self.head_from}>{self.head} zero query=-1 key={self.key}"

    lender = former_name("lender", "head_from")
    loan_line = former_name("loan_line", "edge_line")

    def table(self) -> pd.DataFrame:
        """The summary, and one row a step."""
        rows = [("summary", "", self.summary)]
        rows += [(step.name, "yes" if step.holds else "no", step.sentence) for step in self.steps]
        return pd.DataFrame(rows, columns=["step", "holds", "sentence"])

    def warnings(self) -> list[str]:
        """The warnings of the evidence; the sentences say the rest."""
        parts = (self.prediction, self.attribution, self.circuit, self.breakdown, self.rows)
        return [sentence for part in parts if part is not None for sentence in part.warnings()]


@analysis(
    title="The case study",
    ignore=("attribution", "direct"),
    question="Which head's attention produced this answer, step by step?",
    guide="analyses/case-study.md",
    example={"example": EXAMPLE_PROMPT},
)
def case_study(
    bridge: Bridge,
    example: Example | Prompt,
    answer: Token | None = None,
    *,
    foil: Token | None = None,
    layer: int | None = None,
    head: int | None = None,
    key: int | None = None,
    attribution: HeadAttribution | None = None,
    direct: Float[Tensor, "layer head"] | None = None,
    progress: Progress = silent,
) -> CaseStudy:
    """Study one answer step by step: an example of the tasks, or any prompt with its answer.

    Args:
        bridge: any bridge; without composed heads the steps about composition say so.
        example: a prompt as text or token ids, or an example of the tasks (`synthetic_tasks.Example`, or its JSON).
        answer: the expected answer of a prompt, or its token id; the model's own answer by default.
        foil: the token the answer competes with; by default the most likely other token.
        layer: the layer to follow, negative counted from the last; by default that of the head with the largest direct
            effect.
        head: the head to follow; by default the one (of `layer`) with the largest direct effect, among the heads whose
            attribution at the last token is at least a tenth of the largest there.
        key: the position of the source token; by default where the followed head attends most, in an example of the
            tasks among the tokens of its source.
        attribution: head scores of this prompt computed before, to be used again.
        direct: the direct effects of an earlier case study of this prompt, to be used again.
        progress: called as the attribution proceeds.

    Cost: that of `attribute_heads`, unless it is given, seven forward passes, and rows of forward passes: one for every
        head of the model (unless they are given) and two for every head of the layer.

    Raises:
        UserError: the prompt, the answer or a number does not fit the model.
    """
    prompt, answer, sources = _question(bridge, example, answer)
    prediction = predict(bridge, prompt, first_token(bridge, answer) if answer is not None else None)
    target = prediction.answer_id if answer is not None else int(prediction.top_ids[0])
    if foil is None:
        foil = next(int(i) for i in prediction.top_ids if int(i) != target)
    if attribution is None:
        attribution = attribute_heads(bridge, prompt, target, foil, progress=progress)
    explanation = explain(bridge, prompt, target, foil)
    ids = explanation.ids
    if direct is None:
        direct = direct_effects(bridge, ids, explanation.metric)
    best = _head_to_follow(attribution, direct, None, None)
    layer, head = _head_to_follow(
        attribution,
        direct,
        None if layer is None else layer_number(bridge, layer),
        None if head is None else head_number(bridge, head),
    )
    rows = attention_rows(bridge, prompt, layer)
    if key is None:
        key = max(sources or range(rows.composed.shape[1]), key=lambda at: abs(float(rows.composed[head, at])))
    composed = "post" in stages_of(bridge)
    breakdown = compose_breakdown(bridge, prompt, layer, -1, key, "post") if composed else None

    word = int(ids[0, key])
    circuit = ov_top_tokens(bridge, layer, head, [word], sentences.PROMOTED)
    whole = ov_top_tokens(bridge, layer, head, [word], bridge.cfg.d_vocab)
    copy_rank, target_rank = (ov_ranks(bridge, [word], [token])[:, :, 0] for token in (word, target))
    attends = source_attention(bridge, ids, key)
    shared = None
    difference = without = whole_layer = measure_logit_difference(bridge, ids, explanation.metric)
    if breakdown is not None:
        without = measure_logit_difference(
            bridge, ids, explanation.metric, without_composition(layer, head, key, float(breakdown.o_b[head]))
        )
        whole_layer = measure_logit_difference(bridge, ids, explanation.metric, uncomposed(layer))
        head_from = sentences.strongest_head_from(breakdown, head)
        shared = measure_sharing(bridge, ids, explanation.metric, layer, head, key, head_from)
    read = example.facts[example.source].item if key in sources else rows.tokens[key]
    steps = (
        sentences.answer_step(prediction, prediction.answer if isinstance(answer, int) else answer),
        sentences.head_step(attribution, direct, layer, head, best),
        sentences.transformation_step(
            circuit, attribution.target, target, int(target_rank[layer, head]), _readings(bridge, whole, read)
        ),
        sentences.source_step(rows, breakdown, head, key, difference, without),
        sentences.sharing_step(breakdown, shared, layer, head, difference, whole_layer),
        sentences.attention_step(rows, head, composed),
        _gate_step(rows.tokens[key], copy_rank, attends, copies=word == target, composed=composed),
    )
    return CaseStudy(
        prediction=prediction,
        attribution=attribution,
        circuit=circuit,
        breakdown=breakdown,
        rows=rows,
        layer=layer,
        head=head,
        key=key,
        logit_difference=difference,
        logit_difference_without=without,
        logit_difference_uncomposed=whole_layer,
        summary=summarize(attribution, rows, breakdown, shared, head, key, best=best == (layer, head)),
        steps=steps,
        shared_effect=shared.here if shared else torch.zeros(bridge.cfg.n_heads),
        shared_effect_everywhere=shared.everywhere if shared else torch.zeros(bridge.cfg.n_heads),
        direct=direct,
        copy_rank=copy_rank,
        target_rank=target_rank,
        before=attends.before,
        query_gate=attends.query_gate,
        key_gate=attends.key_gate,
        after=attends.after,
    )


def _question(bridge: Bridge, example: Any, answer: Token | None) -> tuple[Any, Token | None, list[int]]:
    """(prompt, answer, source positions) of an example or of a bare prompt."""
    if not hasattr(example, "facts"):
        return example, answer, []
    return example.prompt, example.answer, source_positions(bridge, example)


def source_position(bridge: Bridge, example: Example) -> int | None:
    """The last token of the source's item in an example's prompt; None when the tokenizer gives no offsets."""
    positions = source_positions(bridge, example)
    return positions[-1] if positions else None


def source_positions(bridge: Bridge, example: Example) -> list[int]:
    """All tokens of the source's item in an example's prompt; none when the tokenizer gives no offsets."""
    if not getattr(bridge.tokenizer, "is_fast", False):
        return []
    start, end = example.spans.source
    # With the tokens that open a prompt, so that positions are those of the model's input.
    special = bool(bridge.cfg.default_prepend_bos)
    encoding = bridge.tokenizer(example.prompt, return_offsets_mapping=True, add_special_tokens=special)
    return [i for i, (a, b) in enumerate(encoding["offset_mapping"]) if a < end and b > start]


def _head_to_follow(
    attribution: HeadAttribution, direct: Float[Tensor, "layer head"], layer: int | None, head: int | None
) -> tuple[int, int]:
    """The chosen head, or else the one with the largest direct effect of those with a notable score."""
    chosen = torch.zeros_like(direct, dtype=torch.bool)
    chosen[slice(None) if layer is None else layer, slice(None) if head is None else head] = True
    there = attribution.by_position[:, :, attribution.position].where(chosen, -torch.inf)
    candidates = chosen & (there >= sentences.NOTABLE_SHARE * there.max().clamp(min=0))
    # Where every score is negative, the least negative head is the only candidate.
    candidates |= there == there.max()
    best, best_head = divmod(int(direct.where(candidates, -torch.inf).argmax()), direct.shape[1])
    return best, best_head


def _readings(bridge: Bridge, circuit: OVTopTokens, text: str) -> list[sentences.Reading]:
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
            found.append(sentences.Reading(order.index(token) + 1, relation, value, token))
    return sorted(found)


def _gate_step(word: str, copy_rank: Tensor, attends: SourceAttention, **known: bool) -> Step:
    """The step about the head that copies the source word and whose attention to it the gates reduce most."""
    copying = (copy_rank <= sentences.PROMOTED) & (attends.before >= sentences.NOTABLE_WEIGHT)
    gates = attends.query_gate + attends.key_gate
    if not copying.any():
        return sentences.gate_step(word, None, 0, 0.0, {}, **known)
    layer, head = divmod(int(gates.where(copying, torch.inf).argmin()), gates.shape[1])
    by_side = {"query": float(attends.query_gate[layer, head]), "key": float(attends.key_gate[layer, head])}
    rank, before = int(copy_rank[layer, head]), float(attends.before[layer, head])
    return sentences.gate_step(word, (layer, head), rank, before, by_side, **known)
