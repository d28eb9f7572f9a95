"""What each attribution method recovers of a planted circuit: the regression test behind docs/analyses/planted.md."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.analysis.circuits.method_benchmark import METHODS, Trial
from dcinterp.bridge import wrap
from dcinterp.mechanism.intervention_hooks import measure_effects
from dcinterp.mechanism.interventions import Intervention
from dcinterp.mechanism.method_tally import QUESTIONS
from dcinterp.planted import plant, together, tokenizer


def trial(name, *, seed=0, dtype=torch.float32, **knobs):
    planted = plant(name, seed=seed, **knobs)
    bridge = wrap(planted.model.to(dtype), tokenizer())
    return Trial(bridge, planted, planted.examples(1, seed=1)[0], 0)


@pytest.fixture(scope="module")
def noise_free():
    return dcinterp.method_benchmark(seeds=2, examples=1)


def test_edge_ig_recovers_every_noise_free_circuit(noise_free):
    assert noise_free.settings == together()
    assert (noise_free.accuracy == 1).all()
    for question in QUESTIONS:
        for quantity in ("auroc", "precision", "sign_agreement"):
            methods, values = noise_free.of(question, quantity)
            assert (values[:, methods.index("edge IG")] == 1).all(), (question, quantity)


def test_where_other_methods_fail(noise_free):
    """Findings, not wishes: if one of these methods gets better, the docs have to change with it."""
    methods, precision = noise_free.of("edges", "precision")
    column = {method: precision[:, number] for number, method in enumerate(methods)}
    # Softmax is saturated where layer 0 acts on layer 1, so the gradient there is gone.
    assert (column["edge gradient"] < 0.8).all()
    # On the joint path the values of layer 1 do not answer to layer 0: direct effects only.
    assert (column["edge IG, joint path"] < 0.8).all()
    # Decoys attend as much as the circuit does.
    assert (column["attention weight"] < 0.5).all()
    methods, attention = noise_free.of("attention", "precision")
    # A finder's own output has no effect: whole heads cannot show whose attention was shared.
    assert (attention[:, methods.index("head IG")] < 1).all()
    assert (noise_free.of("output")[1][:, methods.index("head IG")] == 1).all()


def test_silencing_a_silenced_head_shows_nothing(noise_free):
    methods, attention = noise_free.of("attention", "precision")
    gate = noise_free.settings.index("gate-by-qg")
    assert attention[gate, methods.index("ablation")] < 1
    assert attention[gate, methods.index("edge IG")] == 1


def test_ablating_one_of_two_copies_misses_both_and_ig_does_not():
    case = trial("share-by-kp", redundancy=2)
    labels = case.cases["output"].labels
    spare = [head for head in case.planted.previous]
    measured = case.measured["output"].reshape(2, -1)
    integrated = METHODS["edge IG"](case)["output"].predicted.reshape(2, -1)
    assert labels.reshape(2, -1)[0, spare].all()
    assert (measured[0, spare].abs() < 0.01).all()
    assert (integrated[0, spare] > 1).all()


def test_control_is_at_chance(noise_free):
    methods, shuffled = noise_free.of("edges", "auroc_shuffled")
    assert (shuffled[:, methods.index("edge IG")] - 0.5).abs().mean() < 0.25
    assert noise_free.of("edges", "calibration_error")[1][:, methods.index("ablation")].abs().max() == 0


def gradient_x_edge(case):
    """Edge gradients written plainly: all edges, and the gradient at the composed attention."""
    scores = []
    for layer, edges in enumerate(case.edges):
        leaf = torch.zeros(1, *edges.shape[2:], dtype=edges.dtype, requires_grad=True)
        hooks = [(f"blocks.{layer}.attn.hook_pattern", lambda pattern, hook, leaf=leaf: pattern.detach() + leaf)]
        value = case.metric(case.bridge.run_with_hooks(case.ids, fwd_hooks=hooks)).sum()
        (gradient,) = torch.autograd.grad(value, leaf)
        scores.append((edges * gradient).sum((-1, -2)))
    return torch.stack(scores)


@pytest.mark.parametrize("name", together())
def test_edge_gradients_are_gradient_times_edge(name):
    case = trial(name, noise=0.01, dtype=torch.float64)
    example = case.example
    found = dcinterp.attribute_edges(
        case.bridge, example.prompt, example.target, example.foil, method="gradient", check=0
    )
    torch.testing.assert_close(found.scores.double(), gradient_x_edge(case), atol=1e-5, rtol=1e-5)


def test_an_edge_is_the_effect_of_intervening_on_it():
    """The measured effects against the library's own interventions, which are written apart from them."""
    case = trial("gate-by-qg", noise=0.01)
    names = ("skip", "qp", "kp", "qg", "kg")
    effect = torch.zeros(case.exists.shape)
    effect[case.exists] = case.measured["edges"]
    strongest = effect.abs().flatten().argsort(descending=True)[:6]
    places = [[int(i) for i in torch.unravel_index(index, effect.shape)] for index in strongest]
    lines = [f"edge {layer}.post.{names[branch]}.{f}>{to} zero" for layer, branch, f, to in places]
    rows = [[Intervention.parse(line)] for line in lines]
    change = measure_effects(case.bridge, case.ids, rows, case.metric)
    torch.testing.assert_close(change.float(), effect.flatten()[strongest], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"settings": ["share-by-kq"]}, "did you mean"),
        ({"methods": ["edge ig"]}, "no method 'edge ig'; did you mean edge IG"),
        ({"seeds": 0}, "seeds is 0; it must be at least 1"),
        ({"settings": ["share-by-pre-kp"]}, "composes scores, and this benchmark is about"),
    ],
)
def test_refuses_with_a_sentence(arguments, message):
    with pytest.raises(UserError, match=message):
        dcinterp.method_benchmark(**arguments)


def test_a_question_or_quantity_that_is_not_there_is_refused(noise_free):
    with pytest.raises(UserError, match="no question 'heads'"):
        noise_free.of("heads")
    with pytest.raises(UserError, match="did you mean precision"):
        noise_free.of("edges", "precison")


def test_the_former_names_of_questions_still_work(noise_free):
    for old, new in (("finds", "attention"), ("writes", "output")):
        with pytest.warns(DeprecationWarning, match=f"the question {old} is called {new} now"):
            methods, values = noise_free.of(old)
        assert methods == noise_free.of(new)[0]
        assert values.equal(noise_free.of(new)[1])
