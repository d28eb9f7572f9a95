"""Predictions against the scores they stand for, effects against interventions, and the controls of the comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dcinterp import UserError, attribute_edges, attribute_heads, calibrate, intervene, load_result
from dcinterp.analysis.attribution.calibrate import FLOWS, _result
from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.dataset import read_questions

PROMPT = "< Ruth has a violin. Carol has a beetle. Ronald has blueberries. >. Ronald has a kind of"
QUESTION = [(PROMPT, "fruit", "animal")]
STEPS = {"steps": 8, "max_steps": 8}


def test_a_model_without_such_units_is_refused_in_a_sentence(make_bridge):
    static = make_bridge(compose="static")
    for part, kind in (("weight", "zero"), ("branch", "mean")):
        with pytest.raises(UserError, match=f"no {part} in its post composition that '{kind}' changes"):
            calibrate(static, QUESTION, part, kind=kind)


@pytest.mark.parametrize("stage", ["pre", "post"])
def test_predictions_for_edges_put_to_zero_are_their_scores(bridge, stage):
    found = calibrate(bridge, QUESTION, "edge", stage=stage, limit=60, **STEPS)
    for m, method in enumerate(found.methods):
        for f, flow in enumerate(FLOWS):
            scores = attribute_edges(
                bridge, *QUESTION[0], stage=stage, method=method, dynamic_weights=flow, check=0, **STEPS
            ).scores
            for unit, predicted in zip(found.units, found.predicted[m, f, 0].tolist(), strict=True):
                layer, _, branch, pair = unit.removeprefix("edge ").split(".")
                head_from, head_to = map(int, pair.split(">"))
                expected = float(scores[int(layer), NAMES.index(branch), head_from, head_to])
                assert predicted == pytest.approx(expected, abs=1e-4), (method, flow, unit)
    assert found.left_out == 2 * (2 * 64 + 3 * 8) - 60


def test_predictions_for_heads_are_head_attribution_and_effects_are_interventions(bridge):
    found = calibrate(bridge, QUESTION, "head", methods=["ig"], **STEPS)
    heads = attribute_heads(bridge, *QUESTION[0], **STEPS)
    recomputed = FLOWS.index("recomputed")
    assert torch.allclose(found.predicted[0, recomputed, 0], heads.scores.flatten(), atol=1e-4)
    assert float(found.missed[recomputed, 0]) == pytest.approx(float(heads.relative_gap.max()), rel=1e-3)
    for f, flow in enumerate(FLOWS):
        for unit in ("head 0.3", "head 1.2"):
            effect = intervene(bridge, PROMPT, f"{unit} zero", "fruit", "animal", dynamic_weights=flow).effect
            assert float(found.measured[f, 0, found.units.index(unit)]) == pytest.approx(effect, abs=1e-4)


def test_integrals_of_too_few_points_are_told(bridge, tmp_path):
    rough = calibrate(bridge, QUESTION, "branch", methods=["ig"], steps=1, max_steps=1)
    assert float(rough.missed.max()) > 0.01
    assert f"the metric difference, up to {float(rough.missed.max()):.0%}: raise max_steps" in " ".join(
        rough.warnings()
    )
    fine = calibrate(bridge, QUESTION, "branch", methods=["ig"], steps=64, max_steps=256)
    assert float(fine.missed.max()) < 0.01
    assert "integrals miss" not in " ".join(fine.warnings())
    without = calibrate(bridge, QUESTION, "branch", methods=["gradient"])
    assert without.missed is None
    assert load_result(without.save(tmp_path / "saved")).missed is None


def test_no_error_is_said_where_nothing_acts():
    numbers = {"level": 0.95, "seed": 0, "groups": [0, 1], "n": 2, "methods": ("gradient",), "units": ("a", "b", "c")}
    about = dict.fromkeys(("skipped", "left_out", "wrong"), 0) | {"part": "head", "kind": "zero", "stage": "post"}
    about |= {"objective": "logit", "prompts": ("one", "two")}
    predicted = torch.randn(1, len(FLOWS), 2, 3, generator=torch.Generator().manual_seed(0))
    found = _result(predicted, torch.zeros(len(FLOWS), 2, 3), **numbers, **about)
    assert bool(found.error.isnan().all())
    said = [f"No removal had an effect (dynamic weights {flow}), so there" for flow in FLOWS]
    assert [warning[: len(said[0])] for warning in found.warnings() if "No removal" in warning] == [
        each[: len(said[0])] for each in said
    ]
    acts = _result(predicted, predicted[0], **numbers, **about)
    assert acts.error.tolist() == [[0.0] * len(FLOWS)]
    assert not any("No removal" in warning for warning in acts.warnings())


@pytest.mark.parametrize(("part", "kind"), [("branch", "mean"), ("weight", "zero"), ("weight", "mean")])
def test_other_parts_and_kinds_are_measured(bridge, part, kind):
    second = (PROMPT.replace("Ruth", "Mary"), "fruit", "animal")
    found = calibrate(bridge, [*QUESTION, second], part, kind=kind, methods=["gradient"], limit=12)
    unit = found.units[0]
    result = intervene(bridge, PROMPT, f"{unit} {kind}", "fruit", "animal", reference=[PROMPT, second[0]])
    recomputed = FLOWS.index("recomputed")
    assert float(found.measured[recomputed, 0, 0]) == pytest.approx(result.effect, abs=1e-4)
    assert not any(".skip" in name for name in found.units) or kind == "zero"
    assert torch.allclose(found.measured_mean, found.measured.mean(1))


def test_where_the_metric_is_almost_linear_prediction_is_effect(make_bridge):
    """Beside a large embedding the last norm is a constant, and nothing else comes after the last layer's heads."""
    bridge = make_bridge()
    with torch.no_grad():
        bridge.original_model.model.embed_tokens.weight.mul_(300)
        bridge.blocks[1].mlp.out.original_component.weight.zero_()
    found = calibrate(bridge, QUESTION, "edge", **STEPS)
    last = torch.tensor([unit.startswith("edge 1.") for unit in found.units])
    predicted, measured = found.predicted[:, :, 0][..., last], found.measured[:, 0][..., last]
    size = float(measured.abs().max())
    assert size > 1e-4
    assert torch.allclose(predicted, measured.expand_as(predicted), atol=0.05 * size)


def test_counterfactuals_are_those_of_the_tasks(shipped):
    from synthetic_tasks import corrupt, generate

    example = generate("task56", 1, 3)[0].examples[0]
    found = calibrate(shipped, [example], "head", kind="counterfactual", counterfactual="source", methods=["gradient"])
    other = corrupt(example, "source", tokenizer=shipped.tokenizer).corrupt.prompt
    question, unit = read_questions(shipped, [example])[0], found.units[20]
    effect = intervene(
        shipped, example.prompt, f"{unit} counterfactual", question.target, question.foil, counterfactual=other
    ).effect
    assert float(found.measured[1, 0, 20]) == pytest.approx(effect, abs=1e-3)


def test_on_the_shipped_model_predictions_beat_shuffled_ones(shipped):
    found = calibrate(shipped, "different-in-set n=2", "head", **STEPS)
    assert (found.correlation > found.shuffled).all()
    assert not any("no closer" in warning for warning in found.warnings())


def test_statistics_of_made_up_effects():
    generator = torch.Generator().manual_seed(0)
    effects = torch.randn(2, 6, 40, generator=generator)
    rest = {
        **{"n": 6, "part": "edge", "kind": "zero", "stage": "post", "objective": "logit", "left_out": 0, "skipped": 0},
        **{"wrong": 0, "prompts": ("",) * 6, "units": ("",) * 40, "level": 0.95, "seed": 0},
        "groups": tuple(range(6)),
    }
    right, reverse, noise = effects[None], -effects[None], torch.randn(1, 2, 6, 40, generator=generator)
    found = _result(torch.cat([right, reverse, noise]), effects, methods=("ig", "gradient", "recomputed"), **rest)
    assert torch.allclose(found.agreement[:2], torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert (found.agreement[2] - 0.5).abs().max() < 0.12
    assert torch.allclose(found.correlation[:2], torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert torch.allclose(found.error[:2], torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
    assert found.agreement_p[0].max() < 1e-6 < found.agreement_p[1].min()
    assert (found.measured_low <= found.measured_mean).all()
    assert (found.measured_mean <= found.measured_high).all()
    assert found.summary()["method"].tolist() == ["ig", "ig", "gradient", "gradient", "recomputed", "recomputed"]
    assert found.table().equals(found.summary()), "what the command line prints"
    assert found.by_unit()["measured_mean_recomputed"].abs().is_monotonic_decreasing
    assert set(found.by_unit()["unit"]) == set(found.units)
    said = " ".join(found.warnings())
    assert "(gradient) and ablation agree in sign in only 0%" in said
    assert "That the predictions of gradient go with the effects is not shown: they correlate by -1.00" in said
    assert "12 more units" in " ".join(replace(found, left_out=12).warnings())


def test_bad_choices_are_refused(bridge, twin):
    for change, says in (
        ({"part": "neuron"}, "There is no part 'neuron'"),
        ({"kind": "nought"}, "no kind"),
        ({"methods": ["magic"]}, "no method"),
        ({"kind": "counterfactual"}, "Only examples of the tasks have counterfactual prompts"),
    ):
        with pytest.raises(UserError, match=says):
            calibrate(bridge, QUESTION, **({"part": "head"} | change))
    with pytest.raises(UserError, match="not composed"):
        calibrate(twin, QUESTION, "edge")
    assert calibrate(twin, QUESTION, "head", methods=["gradient"]).n == 1


def test_heads_that_are_gated_after_they_have_read_are_refused(make_bridge):
    with pytest.raises(UserError, match=r"use part='edge' or 'branch', or dcinterp\.attribute_heads"):
        calibrate(make_bridge(compose="gated", compose_options={"elementwise": True}), QUESTION, "head", **STEPS)
