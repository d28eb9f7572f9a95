"""What the case study compares with, what it replaces parts by, and the control of its source step."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import dcinterp
import synthetic_tasks
from dcinterp.analysis.case_study.control import Control


@pytest.fixture(scope="module")
def example():
    return synthetic_tasks.generate("task2", 1, seed=3, examples=1)[0].examples[0]


@pytest.fixture(scope="module")
def study(make_bridge, example):
    return dcinterp.case_study(make_bridge(), example, kind="zero")


@pytest.fixture(scope="module")
def by_mean(make_bridge, example):
    """The default."""
    return dcinterp.case_study(make_bridge(), example)


def logit_difference_under(bridge, study, prompt, hooks):
    """The logit difference under hooks, without any code of the case study."""
    target, foil = (
        bridge.tokenizer.convert_tokens_to_ids(w) for w in (study.attribution.target, study.attribution.foil)
    )
    with torch.no_grad():
        logits = bridge.run_with_hooks(bridge.to_tokens(prompt), fwd_hooks=hooks)[0, -1]
    return float(logits[target] - logits[foil])


def test_the_default_replaces_by_the_mean_over_examples_of_the_task(bridge, by_mean, study, example):
    from dcinterp.mechanism.dataset import prompts

    assert (by_mean.kind, by_mean.reference) == ("mean", "task2 n=32 seed=7 split=held-out")
    layer, head, name = by_mean.layer, by_mean.head, f"blocks.{by_mean.layer}.attn.hook_z"
    others = [bridge.run_with_cache(ids)[1] for ids in prompts(bridge, by_mean.reference)]
    mean = torch.cat([cache[name][0, :, head] for cache in others]).mean(0)
    _, own = bridge.run_with_cache(example.prompt)

    def put(z, hook, at):
        z = own[at].clone()
        if at == name:
            z[0, -1, head] = mean
        return z

    hooks = [(at, partial(put, at=at)) for at in (f"blocks.{n}.attn.hook_z" for n in range(2))]
    without = logit_difference_under(bridge, by_mean, example.prompt, hooks)
    assert float(by_mean.direct[layer, head]) == pytest.approx(by_mean.logit_difference - without, abs=1e-4)
    assert f"to {without:z.2f} logits" in by_mean.step("head").sentence
    same_head = dict(study.at_zero)["direct"] if (study.layer, study.head) == (layer, head) else None
    if same_head is not None:
        assert dict(by_mean.at_zero)["direct"] == pytest.approx(same_head, abs=1e-4)
    assert by_mean.edge_line.split()[2] == "mean"
    effect = dcinterp.intervene(
        bridge, example.prompt, by_mean.edge_line, by_mean.attribution.target, by_mean.attribution.foil
    )
    assert float(by_mean.shared_effect[by_mean.head_from]) == pytest.approx(effect.effect, abs=1e-4)
    assert dict(by_mean.at_zero)["shared"] == pytest.approx(effect.effect_of_zero, abs=1e-4)


def test_the_foil_is_the_strongest_answer_of_another_fact(bridge, study, example):
    from dcinterp.mechanism.dataset import other_answers

    answers = other_answers(example)
    logits = bridge(example.prompt)[0, -1]
    ids = bridge.tokenizer.convert_tokens_to_ids(answers)
    assert len(answers) > 1
    assert study.attribution.foil == answers[int(logits[ids].argmax())]
    assert study.contrast == "facts"
    runner_up = dcinterp.case_study(bridge, example, contrast="runner-up", kind="zero")
    order = [token for token in runner_up.prediction.top_tokens if token != example.answer]
    assert runner_up.attribution.foil == order[0]
    sentence = study.step("head").sentence
    assert study.other_head == (runner_up.layer, runner_up.head)
    same = study.other_head == (study.layer, study.head)
    assert ("Against the runner-up the same head would be followed" in sentence) == same
    assert any("The contrast matters" in warning for warning in study.warnings()) == (not same)


def test_the_strongest_edge_of_the_model_stands_beside(bridge, study, example):
    line, effect, _, measured, edges = study.strongest
    assert measured == edges == 2 * 2 * 8 * 7
    words = (study.attribution.target, study.attribution.foil)
    assert effect == pytest.approx(dcinterp.intervene(bridge, example.prompt, line, *words).effect, abs=1e-4)
    assert abs(effect) >= float(study.shared_effect_everywhere.abs().max()) - 1e-5
    assert "the strongest is head" in study.step("sharing").sentence


def test_the_token_that_was_asked_is_analysed(foreign, bridge, prompt):
    """As it is written, as an id, and of several tokens the first that differs from the foil."""
    model = foreign("gpt2")
    text = "Ruth has a violin. Who has the"
    for asked in ("e", " e"):
        study = dcinterp.case_study(model, text, asked, kind="zero")
        if len(study.attribution.target) == len(asked):
            assert study.attribution.target == asked
    token = bridge.tokenizer.convert_tokens_to_ids("animal")
    assert dcinterp.case_study(bridge, prompt, token, kind="zero").attribution.target == "animal"
    study = dcinterp.case_study(bridge, prompt, "violin beetle", foil="violin lime", kind="zero")
    assert (study.attribution.target, study.attribution.foil) == ("beetle", "lime")
    assert 'The answer "violin beetle" is 2 tokens' in study.step("answer").sentence
    assert 'its second token, "beetle", the first that differs from the foil' in study.step("answer").sentence
    assert study.prediction.tokens[-1] == "violin"


def test_a_prompt_without_reference_is_studied_with_zero_and_says_so(foreign):
    study = dcinterp.case_study(foreign("llama"), "Ruth has a violin. Who has the", "Ruth", key=1)
    assert (study.kind, study.reference) == ("zero", "")
    assert any("give reference=" in warning for warning in study.warnings())
    assert study.contrast == "no facts"
    others = ["Carol has a lime. Who has the", "Ruth has a taxi. Who has a"]
    given = dcinterp.case_study(foreign("llama"), "Ruth has a violin. Who has the", "Ruth", key=1, reference=others)
    assert (given.kind, given.reference) == ("mean", "given")


@pytest.mark.parametrize(
    ("found", "holds", "says"),
    [
        (Control(("pot", "car"), 2.0, 1, 32, True), True, "100% of the direct effect, so what it writes follows"),
        (Control(("pot",), 0.4, 1, 32, True), False, "20% of the direct effect, so what it writes depends little"),
        (Control(("pot",), 2.0, 32, 32, None), False, "stands in 32 of the 32 reference prompts: it may belong to the"),
        (
            Control(("pot",), 2.0, 1, 32, False),
            False,
            'by the rules of the task this "can" is of another fact than the answer',
        ),
        (None, None, ""),
    ],
)
def test_the_control_tells_a_source_from_a_prior(found, holds, says):
    from dcinterp.analysis.case_study.sharing_steps import control_says

    verdict, sentence = control_says(found, "can", 2.0, 10.0)
    assert verdict is holds
    assert says in sentence


def test_the_wording_of_a_question_is_no_source(shipped):
    """The head reads "can" of "the thing that can", which every question of the kind has."""
    prompt = "< Sharon has chalk. Donna has a taxi. Kevin has a pot. >. Donna possesses the thing that can"
    key = shipped.to_str_tokens(prompt).index("can")
    study = dcinterp.case_study(shipped, prompt, "drive", key=key)
    assert study.control.wording
    assert not study.step("source").holds


def test_a_head_that_is_not_less_attentive_is_not_called_silenced():
    from dcinterp.analysis.case_study.evidence import Effect
    from dcinterp.analysis.case_study.sharing_steps import Silenced, gate_step
    from dcinterp.analysis.case_study.wording import Words

    closed = Silenced(1, 2, 1, 1.0, 1.16, {"query": -0.3, "key": -0.1}, 5.0, Effect(1.0, 2.0))
    said = gate_step("meat", closed, Words("mean"), copies=False, composed=True)
    assert not said.holds
    assert "1.00 before composition, 1.16 after" in said.sentence
    assert "it is not silenced" in said.sentence
    useful = gate_step("meat", closed._replace(after=0.5), Words("mean"), copies=False, composed=True)
    assert useful.holds
    assert "by 1.00 (20% of the difference; set to zero: -2.00)" in useful.sentence
    idle = gate_step(
        "meat", closed._replace(after=0.5, without=Effect(0.1, 0)), Words("mean"), copies=False, composed=True
    )
    assert not idle.holds
    assert "matters little" in idle.sentence
