r"""What a change inside the model does to its answer: the measured counterpart of an attribution.

    effect = f(clean) - f(edited)

f is the metric of dcinterp.mechanism.objective; the change is a list of interventions on heads, branches, edges or
dynamic weights (dcinterp.mechanism.interventions), in force together in one forward pass. With dynamic_weights="frozen"
the compositions keep the weights they have on the untouched prompt, so that the effect is what flows through values;
"recomputed" lets the change steer later compositions too, and the difference of the two effects is control flow.
Source: ablation and activation patching as in Wang et al. 2022 (IOI) and Heimersheim & Nanda 2024.

A line without a kind of change replaces the part by its mean over reference prompts: examples of the prompt's own task,
unless `reference` gives others. Zero may be far from what the model ever computes, so it is not the default; its effect
stands beside that of every other ablation.

It does not show what the part does elsewhere: other prompts, or next to other interventions.

Identities that the tests assert: scaling by 1 changes nothing; setting every edge of a branch to zero sets the branch
to zero; a branch at zero is the model without those weights; every branch taken from another prompt gives its pattern.

    effect = dcinterp.intervene(model, prompt, "edge 2.post.kp.2>3 mean", "elephant", "sweater")
    effect.answer_before, effect.answer_after, effect.effect
    dcinterp.figures.plot(effect)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.ablation_kinds import ABLATIONS, takes_reference
from dcinterp.mechanism.dataset import default_reference, prompts, reference_warnings
from dcinterp.mechanism.intervention_hooks import (
    DynamicWeights,
    freezes,
    frozen_hooks,
    intervention_hooks,
    references,
    unmatched_warnings,
)
from dcinterp.mechanism.interventions import Intervention, Interventions, all_checked, read_interventions
from dcinterp.mechanism.objective import Objective, explain, other_answer
from dcinterp.mechanism.prompt import Prompt, Token, position, str_tokens, token_ids
from dcinterp.results.registry import EXAMPLE_PROMPT, analysis
from dcinterp.results.result import Result
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count
from dcinterp.support.text import in_sentence, in_sentence_apart


@dataclass(frozen=True)
class InterventionEffect(Result):
    """The model before and after, at one position (of an answer of several tokens, that of the first).

    top_ids, logit_before, logit_after, probability_before, probability_after [top]: the most likely tokens of either
    run; attention_before, attention_after [layer, head, key]: the (composed) attention of the position;
    attention_change [layer, head]: mean over queries of the sum over keys of its |change|; metric_before, metric_after.
    metric_at_zero, answer_at_zero: under the same interventions with zero in place of every other kind of ablation;
    None where there is none. reference: the set of reference prompts in text form, "given" for a list of prompts.
    unmatched: share of resampled positions for which no reference prompt has the same position (or token).
    right_before: the untouched model gives the target, token by token; None in what earlier versions saved.
    unused: arguments that were given, and that no line takes a value from.
    """

    AXES: ClassVar[dict[str, tuple[str, ...]]] = {
        **{
            name: ("top",)
            for name in ("top_ids", "logit_before", "logit_after", "probability_before", "probability_after")
        },
        "attention_before": ("layer", "head", "key"),
        "attention_after": ("layer", "head", "key"),
        "attention_change": ("layer", "head"),
    }

    tokens: tuple[str, ...]
    position: int
    interventions: tuple[str, ...]
    dynamic_weights: str
    objective: str
    target: str
    foil: str
    answer_before: str
    answer_after: str
    metric_before: float
    metric_after: float
    top_tokens: tuple[str, ...]
    top_ids: Int[Tensor, " top"]
    logit_before: Float[Tensor, " top"]
    logit_after: Float[Tensor, " top"]
    probability_before: Float[Tensor, " top"]
    probability_after: Float[Tensor, " top"]
    attention_before: Float[Tensor, "layer head key"]
    attention_after: Float[Tensor, "layer head key"]
    attention_change: Float[Tensor, "layer head"]
    metric_at_zero: float | None = None
    answer_at_zero: str | None = None
    reference: str | None = None
    unmatched: float = 0.0
    right_before: bool | None = None
    unused: tuple[str, ...] = ()

    @property
    def effect(self) -> float:
        """By how much the intervention reduces the metric."""
        return self.metric_before - self.metric_after

    @property
    def effect_of_zero(self) -> float | None:
        """By how much zero in its place reduces the metric; None if nothing else was put in."""
        return None if self.metric_at_zero is None else self.metric_before - self.metric_at_zero

    def table(self) -> pd.DataFrame:
        """One row per token that is likely in either run."""
        columns = ("logit_before", "logit_after", "probability_before", "probability_after")
        return pd.DataFrame({"token": self.top_tokens, **{name: getattr(self, name).tolist() for name in columns}})

    def labels(self, axis: str) -> list[str] | None:
        return {"top": list(self.top_tokens), "key": list(self.tokens[: self.position + 1])}.get(axis)

    def sentence(self, strong: str = "") -> str:
        """The answer and the metric before and after, and the effect.

        strong: put around answers and numbers, "**" for Markdown.
        """
        target, foil, first, then = in_sentence_apart(self.target, self.foil, self.answer_before, self.answer_after)
        still = "still" if self.answer_after == self.answer_before else "now"
        size = round(self.effect, 2)  # as it is shown
        lowers, raises = f"lowers this {self.objective}", f"raises this {self.objective}"
        if self.foil:
            lowers, raises = f'speaks against "{target}", for "{foil}"', f'speaks for "{target}" over "{foil}"'
        meaning = lowers if size > 0 else raises if size < 0 else "moves it by less than 0.005"
        minus = f' minus that of "{foil}"' if foil else ""
        before, after, effect = (
            f"{strong}{text}{strong}"
            for text in (f"{self.metric_before:z.2f}", f"{self.metric_after:z.2f}", f"{self.effect:+z.2f}")
        )
        beside = ""
        if self.effect_of_zero is not None:
            also = " and the model " + (
                "answers the same"
                if self.answer_at_zero == self.answer_after
                else f'answers "{in_sentence(self.answer_at_zero)}"'
            )
            beside = f" With zero in its place the effect is {self.effect_of_zero:+z.2f}{also}."
        return (
            f"The model answered {strong}{first}{strong} and {still} answers "
            f'{strong}{then}{strong}. The {self.objective} of "{target}"{minus} is {before} before '
            f"and {after} after, so the effect is {effect}: the change {meaning}.{beside}"
        )

    def warnings(self) -> list[str]:
        sentences = []
        if said := other_answer(self.answer_before, self.target, self.right_before):
            sentences.append(f"The untouched model {said}: the effect is on a logit that is not the largest.")
        if self.metric_before == self.metric_after and bool((self.logit_before == self.logit_after).all()):
            sentences.append(
                "The intervention changes no logit here: the part already has this value, or does not reach the answer."
            )
        for name in self.unused:
            kinds = [name] if name == "counterfactual" else [each for each in ABLATIONS if takes_reference([each])]
            sentences.append(f"The {name} that was given is not used: no line is of the kind {' or '.join(kinds)}.")
        sentences += unmatched_warnings(self.unmatched) + reference_warnings(self.reference)
        if self.effect_of_zero is not None and round(self.effect, 2) * round(self.effect_of_zero, 2) < 0:
            sentences.append(
                "With zero in its place the effect has the other sign: it depends on what is put in the place of the "
                "part."
            )
        return sentences


@analysis(
    title="Intervention",
    question="What changes when a part is removed or replaced?",
    guide="analyses/causal.md",
    example={"prompt": EXAMPLE_PROMPT, "interventions": "head 1.3 zero"},
)
def intervene(
    bridge: Bridge,
    prompt: Prompt,
    interventions: Interventions,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    at: int = -1,
    objective: Objective = "logit",
    counterfactual: Prompt | None = None,
    reference: str | Sequence[Prompt] | None = None,
    dynamic_weights: DynamicWeights = "recomputed",
    k: Count = 10,
    seed: int = 0,
) -> InterventionEffect:
    """Change parts of the model on one prompt, and compare.

    Args:
        bridge: any bridge; all but heads need composed heads.
        prompt: text, or token ids as in [5, 7, 9].
        interventions: one line such as "edge 2.post.kp.2>3 mean", several apart by semicolons, or a list of them. The
            kind is mean (as without any), zero, resample, resample-token, rotate, scale=X or counterfactual. An edge of
            `attribute_edges` stands for its removal (zero). Positions below 0 count from the end of the prompt.
        target: the answer; the model's own most likely token by default.
        foil: the answer it competes with.
        at: the position whose next token is predicted.
        objective: "logit" (with a foil, the difference) or "log-probability".
        counterfactual: the other prompt, with as many tokens, that "counterfactual" takes its values from.
        reference: prompts, or a set of examples such as "same-person n=20", that "mean" and the kinds of resampling
            take their values from; by default examples of the prompt's own task.
        dynamic_weights: "recomputed", or "frozen" at their values on the untouched prompt.
        k: how many of the most likely tokens of either run to keep.
        seed: of the draws of resampling.

    Cost: two forward passes that keep the attention of every layer, one more for each reference prompt (32 unless they
    are given), one for zero beside it, one for the counterfactual and one for freezing.

    Raises:
        UserError: an intervention is not valid or does not fit the model, a prompt, target or position does not fit, or
            the values of a kind are not given: those of "counterfactual", or reference prompts for one that is no
            prompt of the tasks. Logits are not finite, as with a very large factor.
    """
    if target is None:
        ids = token_ids(bridge, prompt)
        with torch.no_grad():
            target = int(bridge(ids)[0, position(at, ids.shape[1], "Position")].argmax())
    explanation = explain(bridge, prompt, target, foil, at=at, objective=objective)
    length = explanation.ids.shape[1]
    changes = [_counted_in_prompt(one, length - explanation.read) for one in read_interventions(interventions)]
    units = all_checked(bridge, changes, length)
    used = {
        "counterfactual": any(one.kind == "counterfactual" for one in units),
        "reference": takes_reference(one.kind for one in units),
    }
    given = {"counterfactual": counterfactual, "reference": reference}
    unused = [name for name, each in given.items() if each is not None and not used[name]]
    if counterfactual is not None and used["counterfactual"]:
        counterfactual = explanation.baseline(bridge, counterfactual, "counterfactual")
    among = None
    if used["reference"]:
        reference = default_reference(bridge, prompt) if reference is None else reference
        among = prompts(bridge, reference)
    values = references(
        bridge, units, length, counterfactual, among, ids=explanation.ids, seed=seed, read=explanation.read
    )
    frozen = list(frozen_hooks(bridge, explanation.ids)) if freezes(dynamic_weights) else []
    before, clean = _run(bridge, explanation.ids, frozen)
    after, edited = _run(bridge, explanation.ids, list(intervention_hooks(bridge, [units], values, frozen=frozen)))
    if not before[0, list(explanation.positions)].isfinite().all():
        raise UserError("The logits of this prompt are not finite numbers; load the model with dtype=torch.float32.")
    if not after[0, list(explanation.positions)].isfinite().all():
        smaller = "a smaller factor" if any(one.kind == "scale" for one in units) else "another change"
        raise UserError(f"With this change the logits are no longer finite numbers; give {smaller}.")
    at_zero = None
    if any(one.kind in ABLATIONS and one.kind != "zero" for one in units):
        zeroed = [replace(one, kind="zero") if one.kind in ABLATIONS else one for one in units]
        hooks = list(intervention_hooks(bridge, [zeroed], values, frozen=frozen))
        at_zero, _ = _run(bridge, explanation.ids, hooks)
    place = explanation.positions[0]
    rows = torch.stack([logits[0, place].float().cpu() for logits in (before, after)])
    top = _either_top(rows, k)
    attention = torch.stack([torch.stack(list(each.values()))[:, 0].float().cpu() for each in (clean, edited)])
    chances = rows.softmax(-1)
    return InterventionEffect(
        tokens=str_tokens(bridge, explanation.ids),
        position=place,
        interventions=tuple(map(str, read_interventions(interventions))),
        dynamic_weights=dynamic_weights,
        objective=objective,
        target=explanation.target,
        foil=explanation.foil,
        answer_before=explanation.answer(bridge, before),
        right_before=explanation.is_right(before),
        answer_after=explanation.answer(bridge, after),
        metric_before=float(explanation.metric(before)),
        metric_after=float(explanation.metric(after)),
        top_tokens=str_tokens(bridge, top[None]),
        top_ids=top,
        logit_before=rows[0, top],
        logit_after=rows[1, top],
        probability_before=chances[0, top],
        probability_after=chances[1, top],
        attention_before=attention[0, :, :, place, : place + 1].contiguous(),
        attention_after=attention[1, :, :, place, : place + 1].contiguous(),
        attention_change=(attention[1] - attention[0]).abs().sum(-1).mean(-1),
        metric_at_zero=None if at_zero is None else float(explanation.metric(at_zero)),
        answer_at_zero=None if at_zero is None else explanation.answer(bridge, at_zero),
        reference=None if among is None else reference if isinstance(reference, str) else "given",
        unmatched=values.most_unmatched,
        unused=tuple(unused),
    )


def _counted_in_prompt(one: Intervention, length: int) -> Intervention:
    """With positions from the end counted from that of the prompt, and not of the answer that is read behind it."""
    places = {name: getattr(one, name) for name in ("query", "key")}
    behind = {name: at for name, at in places.items() if at is not None and at < 0}
    counted: dict[str, Any] = {name: position(at, length, name.capitalize()) for name, at in behind.items()}
    return replace(one, **counted)


def _run(bridge: Bridge, ids: Tensor, hooks: list[Any]) -> tuple[Tensor, Mapping[str, Tensor]]:
    """(logits, composed attention by hook name) under forward hooks."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(bridge.cfg.n_layers)]
    kept: dict[str, Tensor] = {}

    def keep(tensor: Tensor, hook: Any) -> None:
        kept[hook.name] = tensor.detach()

    with torch.no_grad():
        logits = bridge.run_with_hooks(ids, fwd_hooks=[*hooks, *((name, keep) for name in names)])
    return logits, {name: kept[name] for name in names}


def _either_top(rows: Float[Tensor, "2 vocabulary"], k: int) -> Int[Tensor, " top"]:
    """The k most likely tokens of either run, the most likely of the first run first."""
    ids = torch.cat([row.topk(min(k, len(row))).indices for row in rows]).unique()
    return ids[rows[0, ids].argsort(descending=True, stable=True)]
