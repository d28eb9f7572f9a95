"""The case study of one answer, as in the appendix "Interpretation and Visualization" of the DCMHA paper.

    answer           what the model answers                                  (prediction)
    head             which head has the largest direct effect on it          (measured; with its attribution, ablation)
    transformation   what that head does with the source word                (its OV circuit)
    source           what its attention to the source is made of             (post-composition, branch by branch;
                     control: does it follow the fact if that is another?     counterfactual prompts)
    sharing          which heads share their attention with it, and through  (w_k1 gathers, w_k2 shares; w_q1, w_q2 too)
                     which projection, and the effect of that alone          (its edge ablated)
    attention        where the head attends before and after composition     (attention rows)
    gate             which gate silences a head that would copy the source   (w_qg, w_kg; ablated)

The first line is the question; the other lines are the paper's five steps, with the last of them in two. The case study
combines several analyses. It adds one plain sentence per step, made from the numbers, and a summary: which head shared
its attention with the head that has the largest direct effect, and what happens to the answer without it. If a step
does not hold for an example (a wrong answer, a head that attends by itself, shared attention with an effect below a
tenth of the logit difference), the sentence says so.

Ablation. A part is replaced by its mean over reference prompts, by default 32 examples of the prompt's own task; zero
stands beside it. `kind` chooses another of dcinterp.mechanism.ablation.

Contrast. The foil is by default the strongest of the answers that the other facts of the prompt would give; a line
says if the runner-up would have another head followed.

Which head is followed. Integrated gradients give a head credit for everything that later layers make of its output, so
a head may score high that only helps a later head to attend to the source. Among the heads with at least a tenth of the
largest score, the one with the largest direct effect is followed: its output at the last position is ablated while all
other heads keep theirs, so that only MLPs and the unembedding respond.

It follows one head and is not a whole circuit: if a step does not hold, the answer came about in another way.

    study = dcinterp.case_study(model, example)  # study.summary and study.steps; study.save("folder")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.analysis.answers.predict import Prediction, predict
from dcinterp.analysis.attention.attention_rows import AttentionRows, attention_rows
from dcinterp.analysis.attribution.attribute_heads import HeadAttribution, attribute_heads
from dcinterp.analysis.case_study import sharing_steps, steps
from dcinterp.analysis.case_study.control import Control, control
from dcinterp.analysis.case_study.evidence import (
    Ablator,
    Effect,
    StrongestEdge,
    measure_logit_difference,
    measure_sharing,
    source_attention,
    strongest_edge,
)
from dcinterp.analysis.case_study.following import (
    OTHER_CONTRAST,
    about_foil,
    head_to_follow,
    hint,
    readings,
    reference_of,
    silenced,
    source_positions,
)
from dcinterp.analysis.case_study.question import Contrast, Told, ask
from dcinterp.analysis.case_study.summary import CLEAR_DIFFERENCE, FollowedBy, summarize
from dcinterp.analysis.case_study.wording import FORMER_STEPS, PROMOTED, Step, Words
from dcinterp.analysis.composition.compose_breakdown import ComposeBreakdown, compose_breakdown
from dcinterp.analysis.weights.ov_top_tokens import OVTopTokens, ov_ranks, ov_top_tokens
from dcinterp.bridge.protocol import Bridge, stages_of
from dcinterp.mechanism.ablation import ABLATIONS, DEFAULT, Kind
from dcinterp.mechanism.dataset import reference_warnings
from dcinterp.mechanism.intervention_hooks import unmatched_warnings
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.objective import explain
from dcinterp.mechanism.prompt import Prompt, Token, decoded, head_number, layer_number, position
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError, nearest
from dcinterp.support.former_names import former_name, warn_of
from dcinterp.support.progress import Progress, silent
from dcinterp.support.text import in_sentence, in_sentence_apart

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

    kind: of ablation, behind all these; at_zero: what zero does instead, by name. reference: the reference prompts, in
    text form, "given" for a list, "" for none. contrast: what the foil is. other_head: (layer, head) that would be
    followed under the other contrast, None if there is none or a head was chosen; control: of the source step;
    strongest: the edge whose ablation changes the logit difference most, as (line, effect, effect at zero, measured,
    edges). unmatched: as of `intervene`, where the kind resamples. beside_source: the source of the tasks' own reading
    of a text, where the token that is followed is another. None is what version 0.1 did not measure.
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
    kind: str = "zero"
    contrast: Told | None = None
    reference: str | None = None
    at_zero: tuple[tuple[str, float], ...] | None = None
    other_head: tuple[int, int] | None = None
    control: Control | None = None
    strongest: tuple[Any, ...] | None = None
    unmatched: float = 0.0
    beside_source: str | None = None

    def __post_init__(self) -> None:
        # A case study read from a file has its steps as plain tuples, and may be one of version 0.1.
        read = (Step(*step) for step in self.steps)
        named = (step._replace(name=FORMER_STEPS.get(step.name, step.name)) for step in read)
        object.__setattr__(self, "steps", tuple(named))
        if self.control is not None:
            object.__setattr__(self, "control", Control(*self.control))

    def step(self, name: str) -> Step:
        """The step of a name: answer, head, transformation, source, sharing, attention or gate.

        Raises:
            UserError: there is no such step.
        """
        known = {step.name: step for step in self.steps}
        if name in FORMER_STEPS:
            warn_of(f"the step {name}", FORMER_STEPS[name])
            name = FORMER_STEPS[name]
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
        return sharing_steps.is_unread(self.rows, self.head, self.key)

    @property
    def looked(self) -> int:
        """Where the followed head has its largest weight, in size, after composition."""
        return sharing_steps.largest_weight(self.rows, self.head)

    @property
    def head_from(self) -> int | None:
        """The other head whose attention adds most, in size, to this head's composed attention to the source."""
        return None if self.breakdown is None else sharing_steps.strongest_head_from(self.breakdown, self.head)

    @property
    def side(self) -> str:
        """ "query" or "key": the projection through which `head_from` shares most attention; if no head shares a
        notable part, the side of the branch that adds most.
        """
        if self.breakdown is None or self.head_from is None:
            return "query"
        shared = sharing_steps.shared_with(self.breakdown, self.head)[self.head_from]
        if sharing_steps.is_notable(shared, self.breakdown, self.head):
            return self.breakdown.sharing_side(self.head_from, self.head)
        return {"q": "query", "k": "key"}[sharing_steps.largest_branch(self.breakdown, self.head)[2]]

    @property
    def edge_line(self) -> str | None:
        """The intervention that ablates the attention shared by `head_from`; its effect is in `shared_effect`."""
        if self.head_from is None:
            return None
        return f"edge {self.layer}.post.added.{self.head_from}>{self.head} {self.kind} query=-1 key={self.key}"

    lender, loan_line = former_name("lender", "head_from"), former_name("loan_line", "edge_line")

    def table(self) -> pd.DataFrame:
        """The summary, and one row a step."""
        rows = [("summary", "", self.summary)]
        rows += [(step.name, "yes" if step.holds else "no", step.sentence) for step in self.steps]
        return pd.DataFrame(rows, columns=["step", "holds", "sentence"])

    def warnings(self) -> list[str]:
        """The warnings of the evidence; the sentences say the rest."""
        parts = (self.prediction, self.attribution, self.circuit, self.breakdown, self.rows)
        return [sentence for part in parts if part is not None for sentence in part.warnings()] + self.remarks()

    def remarks(self) -> list[str]:
        """The warnings that are of the whole study, and of none of its parts."""
        said = []
        if self.reference == "":
            said.append(
                "There are no reference prompts, so parts are set to zero, a state that the model never trained in: "
                "give reference=, a list of prompts like this one, for the mean over them."
            )
        if self.breakdown is not None and not torch.equal(self.breakdown.o_b, self.breakdown.a):
            said.append(
                "This composition has a map that is the same for all tokens, or no skip: the steps begin with what it "
                "makes of all heads, and not with the head's softmax (but for where it attends before composition)."
            )
        if abs(self.attribution.metric) < CLEAR_DIFFERENCE:
            said.append(
                f"The logit difference is only {self.attribution.metric:.2f} logits, so shares of it, and the steps "
                "that go by them, say little; take a prompt whose answer is clearer."
            )
        if self.beside_source:
            said.append(
                f'The prompt is an example of the tasks whose source is "{in_sentence(self.beside_source)}"; as it was '
                f"given as text, the source that is followed here is where the head attends most, "
                f'"{in_sentence(self.rows.tokens[self.key])}". Give the example itself, or its position as key=, to '
                "follow its source."
            )
        said += unmatched_warnings(self.unmatched)
        if ABLATIONS[self.kind].reference:
            said += reference_warnings(self.reference)
        if self.contrast == "no facts":
            said.append("No facts are known in this prompt, so the foil is the runner-up; foil= gives another one.")
        if self.other_head is not None and self.other_head != (self.layer, self.head):
            (layer, head), other = self.other_head, OTHER_CONTRAST[self.contrast or ""]
            said.append(f"The contrast matters: against the {other}, head {head} of layer {layer} would be followed.")
        return said


@analysis(
    title="The case study",
    ignore=("attribution", "direct", "strongest"),
    before={"kind": "zero", "contrast": "runner-up"},
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
    contrast: Contrast = "facts",
    layer: int | None = None,
    head: int | None = None,
    key: int | None = None,
    kind: Kind = DEFAULT,
    reference: str | Sequence[Prompt] | None = None,
    attribution: HeadAttribution | None = None,
    direct: Float[Tensor, "layer head"] | None = None,
    strongest: tuple[Any, ...] | None = None,
    progress: Progress = silent,
) -> CaseStudy:
    """Study one answer step by step: an example of the tasks, or any prompt with its answer.

    Args:
        bridge: any bridge; without composed heads the steps about composition say so.
        example: a prompt as text or token ids, or an example of the tasks (`synthetic_tasks.Example`, or its JSON).
        answer: the expected answer of a prompt, as written or as a token id; the model's own by default. Of several
            tokens the first that differs from the foil is analysed.
        foil: the answer it competes with; by default that of the contrast.
        contrast: "facts", the most probable of the answers that the other facts of the prompt would give (the runner-up
            where no facts are known), or "runner-up", the most likely other token.
        layer: the layer to follow, negative counted from the last; by default that of the head that is followed.
        head: the head to follow; by default the one (of `layer`) with the largest direct effect, among the heads whose
            attribution at the last token is at least a tenth of the largest there. Without `layer`, of the heads with
            this number the one that is largest so.
        key: the position of the source token; by default where the followed head attends most, in an example of the
            tasks among the tokens of its source.
        kind: what takes the place of an ablated part: "mean", "zero", "resample", "resample-token" or "rotate".
        reference: prompts, or a set of examples such as "same-person n=20", that values come from; by default examples
            of the prompt's own task. A prompt without any is studied with zero, and a warning says so.
        attribution, direct, strongest: of a case study with the same foil, kind and reference, to be used again.
        progress: called as the attribution proceeds.

    Cost: twice that of `attribute_heads` (once if there is no second contrast or a head is chosen), a pass for each
        reference prompt, some ten forward passes, and rows of forward passes: two for every head of the model, four for
        every head of the layer and one for every edge.

    Raises:
        UserError: the prompt, the answer or a number does not fit the model.
    """
    asked = ask(bridge, example, answer, foil, contrast)
    kind, reference, others = reference_of(bridge, example, kind, reference)
    prediction = predict(bridge, asked.prompt, asked.target if asked.expected else None)
    metric = explain(bridge, asked.prompt, asked.target, asked.foil).metric
    ids, among = asked.ids, reference if ABLATIONS[kind].reference else None
    ablator = Ablator.of(bridge, ids, kind, others, asked.place)
    if attribution is None:
        given = (bridge, asked.prompt, asked.target, asked.foil)
        attribution = attribute_heads(*given, reference=among, means=ablator.starts, progress=progress)
    direct = ablator.direct(metric) if direct is None else direct
    there = attribution.by_position[:, :, attribution.position]
    best = head_to_follow(there, direct, None, None)
    other_head = None
    if layer is None and head is None and asked.other is not None:
        beside = explain(bridge, asked.prompt, asked.target, asked.other)
        besides = ablator.attributions(beside)[:, :, -1]
        other_head = head_to_follow(besides, ablator.direct(beside.metric), None, None)
    layer, head = head_to_follow(
        there,
        direct,
        None if layer is None else layer_number(bridge, layer),
        None if head is None else head_number(bridge, head),
    )
    rows = attention_rows(bridge, asked.prompt, layer)
    sources = [] if asked.example is None else source_positions(bridge, asked.example, asked.around[0])
    chosen = key is None
    if key is None:
        within = sources if hasattr(example, "facts") else ()
        key = max(within or range(rows.composed.shape[1]), key=lambda at: abs(float(rows.composed[head, at])))
    key = position(key, ids.shape[1], "Key")
    another_source = ""
    if asked.example is not None and chosen and sources and key not in sources:
        another_source = asked.example.facts[asked.example.source].item
    composed = "post" in stages_of(bridge)
    breakdown = compose_breakdown(bridge, asked.prompt, layer, -1, key, "post") if composed else None

    word = int(ids[0, key])
    circuit = ov_top_tokens(bridge, layer, head, [word], PROMOTED)
    whole = ov_top_tokens(bridge, layer, head, [word], bridge.cfg.d_vocab)
    copy_rank, target_rank = (ov_ranks(bridge, [word], [token])[:, :, 0] for token in (word, asked.target))
    attends = source_attention(bridge, ids, key)
    difference = measure_logit_difference(bridge, ids, metric)
    shared = edge = None
    if breakdown is not None:
        head_from = sharing_steps.strongest_head_from(breakdown, head)
        shared = measure_sharing(ablator, metric, layer, head, key, head_from)
    if stages_of(bridge):
        edge = StrongestEdge(*strongest) if strongest is not None else strongest_edge(ablator, metric)
    here = (f"blocks.{layer}.attn.hook_z", head)
    own_zero = float(ablator.patched(metric, {here: ablator.last_outputs("zero")[here[0]][head]}))
    followed = Effect(float(direct[layer, head]), own_zero)
    everywhere = ablator.effects({"head": [Intervention("head", layer, head=head)]}, metric).of("head")
    controlled = control(ablator, metric, asked, layer, head, key, sources, others) if others else None
    read = asked.example.facts[asked.example.source].item if key in sources else rows.tokens[key]
    words, spaced = Words(kind), hint(bridge, asked, answer, prediction)
    gated = silenced(ablator, asked, copy_rank, attends, key, composed=composed)
    # As sentences have them, with line breaks that can be seen.
    target, foil = in_sentence_apart(attribution.target, attribution.foil)
    named = replace(attribution, target=target, foil=foil)
    named_rows = replace(rows, tokens=tuple(map(in_sentence, rows.tokens)))
    said = (
        steps.answer_step(prediction, asked, decoded(bridge, list(asked.tokens)), spaced),
        steps.head_step(
            named, followed, everywhere, direct, layer, head, best, words, about_foil(asked, best, other_head)
        ),
        steps.transformation_step(
            circuit, target, asked.target, int(target_rank[layer, head]), readings(bridge, whole, read)
        ),
        sharing_steps.source_step(
            named_rows, breakdown, shared, head, key, difference, words, controlled, followed.value
        ),
        sharing_steps.sharing_step(
            breakdown, shared, edge, layer, head, difference, words, scores="pre" in stages_of(bridge)
        ),
        sharing_steps.attention_step(named_rows, head, composed),
        sharing_steps.gate_step(named_rows.tokens[key], gated, words, copies=word == asked.target, composed=composed),
    )
    followed_by: FollowedBy = (
        "choice" if best != (layer, head) else "effect" if direct[best] == direct.max() else "score and effect"
    )
    summary = summarize(named, named_rows, breakdown, shared, head, key, words, followed_by=followed_by)
    zero = {"direct": followed.at_zero, "head": everywhere.at_zero}
    if shared is not None:
        zero |= {"without": shared.without.at_zero, "layer": shared.layer.at_zero, "shared": shared.most.at_zero}
        zero |= {"shared_everywhere": shared.most_everywhere.at_zero}
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
        logit_difference_without=difference - (shared.without.value if shared else 0.0),
        logit_difference_uncomposed=difference - (shared.layer.value if shared else 0.0),
        summary=summary,
        steps=said,
        shared_effect=shared.here if shared else torch.zeros(bridge.cfg.n_heads),
        shared_effect_everywhere=shared.everywhere if shared else torch.zeros(bridge.cfg.n_heads),
        direct=direct,
        copy_rank=copy_rank,
        target_rank=target_rank,
        before=attends.before,
        query_gate=attends.query_gate,
        key_gate=attends.key_gate,
        after=attends.after,
        kind=kind,
        contrast=asked.contrast,
        reference=reference if isinstance(reference, str) else "" if reference is None else "given",
        at_zero=tuple(zero.items()),
        other_head=other_head,
        control=controlled,
        strongest=None if edge is None else astuple(edge),
        unmatched=ablator.values.most_unmatched,
        beside_source=another_source,
    )
