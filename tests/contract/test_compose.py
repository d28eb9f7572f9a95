"""What every way of composing heads must hold, over all that are registered, each with its options.

First one composer by itself; then small models of each, through everything that the project does with a model. What a
composer does not offer it must refuse by name: that is tried on composers made here that offer next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import dcinterp
from dcinterp.checkpoints.describe import composition_of
from dcinterp.checkpoints.verify import verify
from dcinterp.mechanism.branches import BRANCHES, DYNAMIC_WEIGHTS, HOOKS
from dcinterp.mechanism.head_maps import composer_of, position_maps
from dcinterp.mechanism.intervention_hooks import applied
from dcinterp.mechanism.interventions import all_units
from dcinterp.model.added_composition import add_composition, is_added
from dcinterp.model.card import card
from dcinterp.model.complexity import CountFlops, analytic_overhead
from dcinterp.model.compose.base import Composer, Cost, Place
from dcinterp.model.compose.branch_table import NEIGHBOURS, PREVIOUS, TERMS
from dcinterp.model.compose.branches import ComposeWeights, branches
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import composed_attention, fused
from dcinterp.model.kernels.portable import mix_heads
from dcinterp.support.errors import UserError

COMMON: list[dict[str, Any]] = [
    dict(),
    dict(compose_static=True),
    dict(compose_groups=2),
    dict(compose_rank=1),
    dict(compose_rank=3, compose_groups=4),
    dict(compose_key_wise=False),
    dict(compose_query_wise=False),
    dict(compose_gate=False, compose_static=True),
    dict(compose_projection=False),
    dict(compose_skip=False, compose_static=True),
]
"""Fields of the config that composers share; where a composer does not read one, the case is left out."""

BATCH, HEADS, POS, WIDTH = 2, 8, 5, 48


def own_options(name: str) -> list[dict[str, Any]]:
    """One config for every option of a composer, with another value than its default."""
    other: dict[type, Callable[[Any], Any]] = {bool: lambda x: not x, int: lambda x: x + 1, float: lambda x: x / 2}
    changed = ((option, other[type(value)](value)) for option, value in COMPOSERS[name].OPTIONS.items())
    return [dict(compose_options={option: value}) for option, value in changed]


def different(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configs that make different composers of this kind."""
    seen = []
    for options in COMMON:
        config = build_config(name, **options)
        made = COMPOSERS[name](config).place(Place(1, COMPOSERS[name].STAGES[0]))
        shapes = {which: tensor.shape for which, tensor in made.state_dict().items()}
        signature = (shapes, made.skip, made.groups, made.existing())
        if signature not in seen:
            seen.append(signature)
            yield name, options
    yield from ((name, options) for options in own_options(name))


def build_config(name: str, **changes: Any) -> DCFormerConfig:
    small = dict(vocab_size=11, hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=32)
    if name in COMPOSERS and COMPOSERS[name].HANDS_ON:
        small["num_hidden_layers"] = 2
    return DCFormerConfig(**(small | {"compose": name} | changes))


CONFIGS = [case for name in COMPOSERS for case in different(name)]


@pytest.fixture(params=CONFIGS, ids=str)
def config(request: pytest.FixtureRequest) -> DCFormerConfig:
    name, options = request.param
    return build_config(name, **options)


@pytest.fixture
def module(config: DCFormerConfig) -> Composer:
    return random_composer(config)


def random_composer(config: DCFormerConfig, seed: int = 0) -> Composer:
    generator = torch.Generator().manual_seed(seed)
    composer = COMPOSERS[config.compose]
    built = composer(config).place(Place(1, composer.STAGES[0])).double()
    with torch.no_grad():
        for parameter in built.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    return built


def scores_before(x: Tensor) -> Tensor:
    """Scores of the layer before this one, zero where nobody may look."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(BATCH, HEADS, POS, POS, generator=generator, dtype=torch.float64)[: len(x)].tril()


def weights_of(module: Composer, x: Tensor) -> ComposeWeights:
    return module.weights(x, x).after(scores_before(x))


def bias_of(weights: ComposeWeights) -> Tensor:
    """What is added to every entry, [head, 1, 1]; zero where there is no bias."""
    return torch.zeros(1, 1, 1) if weights.bias is None else weights.bias.detach()[:, None, None]


def z_of(x: Tensor) -> Tensor:
    """Something that heads may have read, [batch, head, pos, d_head]."""
    generator = torch.Generator().manual_seed(6)
    return torch.randn(len(x), HEADS, POS, WIDTH // HEADS, generator=generator, dtype=x.dtype)


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, POS, WIDTH, generator=g, dtype=torch.float64)
    return torch.randn(BATCH, HEADS, POS, POS, generator=g, dtype=torch.float64), x


def test_shape_and_branches(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = inputs
    weights = weights_of(module, x)
    out = module(a, weights)
    assert out.shape == a.shape
    terms = branches(a, weights)
    assert [name for name in TERMS if name in terms] == list(terms)
    torch.testing.assert_close(sum(terms.values()), out, atol=1e-10, rtol=0)
    mapped = out - bias_of(weights) - sum(terms.get(name, 0) for name in (NEIGHBOURS, PREVIOUS))
    torch.testing.assert_close(mix_heads(a, weights), mapped, atol=1e-10, rtol=0)


def test_what_it_says_of_itself_is_what_its_weights_say(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = inputs
    weights = weights_of(module, x)
    assert (module.skip, module.groups, module.keeps_heads) == (weights.skip, weights.groups, True)
    dynamic = {name for name, _ in weights.dynamic()}
    assert module.existing() == {*branches(a, weights), *dynamic, *module.out_hooks()}
    own = branches(a, weights).get("o_b", torch.zeros_like(a))
    mapped = torch.einsum("bfts,fh->bhts", a, module.base_map().to(a))
    torch.testing.assert_close(mapped, own - bias_of(weights), atol=1e-10, rtol=0)
    assert module.has_bias == (weights.bias is not None)
    assert module.name in COMPOSERS
    assert module.describe(module.config)


def test_taps_see_and_replace_what_exists(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = inputs
    seen: list[str] = []

    def tap(name: str) -> Any:
        return lambda t: (seen.append(name), t)[1]

    names = ("in", "out", *TERMS, *DYNAMIC_WEIGHTS)
    taps = SimpleNamespace(**{f"hook_{name}": tap(name) for name in names})
    weights = weights_of(module, x)
    torch.testing.assert_close(module(a, weights, taps), module(a, weights), atol=1e-12, rtol=0)
    expected = ["in", *(name for name, _ in weights.dynamic()), *branches(a, weights), "out"]
    assert seen == expected
    taps.hook_out = lambda t: t * 0
    assert not module(a, weights, taps).any()


def test_a_pair_depends_on_its_own_positions_only(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    """What makes composing causal: A'[:, t, s] reads A[:, t, s], x_t and x_s, and nothing else."""
    if not module.PAIRWISE:
        pytest.skip(f"{module.name!r} says that it reads other pairs")
    a, x = inputs
    before = module(a, weights_of(module, x))
    changed = x.clone()
    changed[:, 3] += 1
    after = module(a, weights_of(module, changed))
    untouched = [t for t in range(POS) if t != 3]
    assert torch.equal(after[:, :, untouched][..., untouched], before[:, :, untouched][..., untouched])
    b = a.clone()
    b[:, :, 1, 4] += 1
    moved = (module(b, weights_of(module, x)) - before).abs().amax((0, 1)) > 0
    assert moved.nonzero().tolist() == [[1, 4]]


def test_zero_stays_zero(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    """Post-composition needs no mask, unless there is a bias: where no head attends, no composed head does."""
    a, x = inputs
    a = a.tril()
    weights = weights_of(module, x).within(torch.ones(1, 1, POS, POS, dtype=torch.bool).tril())
    assert not module(a, weights).triu(1).any()


def test_the_gradient_reaches_every_parameter(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = inputs
    composed = module(a, weights_of(module, x)).pow(2).sum()
    (composed + module.read_out(z_of(x), x).pow(2).sum()).backward()
    assert [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_zero_parameters_are_the_identity_or_nothing(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    if not module.zero_is_identity:
        pytest.skip(f"{module.name!r} says that it is not")
    a, x = inputs
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    out = module(a, weights_of(module, x))
    assert torch.equal(out, a if module.skip else a * 0)


def test_it_costs_what_is_counted(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = (each[:1] for each in inputs)
    cost = module.cost_at(module.config, module.placed)
    assert cost.parameters == sum(parameter.numel() for parameter in module.parameters())
    with CountFlops() as making:
        weights = weights_of(module, x)
        module.read_out(z_of(x), x)
    with CountFlops() as composing:
        module(a, weights)
    assert making.total == POS * cost.per_query
    if module.config.compose_rank > 1:  # a sum over one rank is a product, which the counter takes for no work
        assert composing.total == POS**2 * cost.per_pair


def test_it_is_written_out(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    a, x = inputs
    before = a.clone()
    got = module.written_out(module.config, {**module.state_dict(), "before": scores_before(x)}, x, a)
    assert torch.equal(a, before), "the oracle keeps what came in"
    torch.testing.assert_close(got, module(a, weights_of(module, x)), atol=1e-10, rtol=0)
    z = z_of(x)
    got = module.finish_written_out(module.config, module.state_dict(), x, z.transpose(1, 2))
    torch.testing.assert_close(got.transpose(1, 2), module.read_out(z, x), atol=1e-10, rtol=0)


def test_what_a_query_writes_is_its_own_matter(module: Composer, inputs: tuple[Tensor, Tensor]) -> None:
    """A norm or a gate after attention reads no other position."""
    _, x = inputs
    z = z_of(x)
    x_other, z_other = x.clone(), z.clone()
    x_other[:, 3] += 1
    z_other[:, :, 3] += 1
    before, after = module.read_out(z, x), module.read_out(z_other, x_other)
    untouched = [t for t in range(POS) if t != 3]
    assert torch.equal(after[:, :, untouched], before[:, :, untouched])


@pytest.mark.parametrize("implementation", ["chunked", "fused"])
def test_every_kernel_computes_it(implementation: Any, config: DCFormerConfig, inputs: tuple[Tensor, Tensor]) -> None:
    """Values and gradients, of the parameters too, with another composer before the softmax than after it."""
    if implementation == "fused" and not fused.available():
        pytest.skip("there is no compiler here")
    _, x = inputs
    generator = torch.Generator().manual_seed(2)
    q, k, v = torch.randn(3, BATCH, HEADS, POS, WIDTH // HEADS, generator=generator, dtype=torch.float64)
    found = []
    for each in ("eager", implementation):
        stages = [random_composer(config, seed) for seed in (0, 1)]
        moving = [t.clone().requires_grad_() for t in (q, k, v, x)]
        weights = [weights_of(stage, moving[3]) for stage in stages]
        if each == "fused" and stages[0].reads_beyond:
            with pytest.raises(UserError, match=f"'{each}' composes the scores of one pair and one layer alone"):
                composed_attention(*moving[:3], *weights, causal=True, implementation=each)
            each = "auto"
        out = composed_attention(*moving[:3], *weights, causal=True, implementation=each)
        wanted = [*moving, *(p for stage in stages for p in stage.parameters())]
        found.append((out, *torch.autograd.grad(out.pow(2).sum(), wanted, allow_unused=True)))
    for eager, other in zip(*found, strict=True):
        assert (eager is None) == (other is None)
        if eager is not None:
            torch.testing.assert_close(other, eager, atol=1e-9, rtol=0)


@pytest.mark.parametrize("implementation", ["chunked", "fused"])
@pytest.mark.parametrize(
    "how", [dict(causal=True, window=2), dict(causal=True, window=9), dict(), dict(mask=True)], ids=str
)
def test_a_bias_is_added_where_a_query_may_look(implementation: Any, how: dict[str, Any]) -> None:
    """Every rule of who sees whom, with more keys than queries, as in decoding."""
    if implementation == "fused" and not fused.available():
        pytest.skip("there is no compiler here")
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(BATCH, HEADS, n, 6, generator=generator, dtype=torch.float64) for n in (3, POS, POS))
    if how.get("mask"):
        how = dict(mask=torch.rand(BATCH, 1, 3, POS, generator=generator) > 0.4)
    x = torch.zeros(BATCH, POS, WIDTH, dtype=torch.float64)  # which a static map does not read
    weights = random_composer(build_config("static", compose_options={"bias": True})).weights(x, x)
    assert weights.bias is not None
    eager, other = (
        composed_attention(q, k, v, weights, weights, implementation=i, **how) for i in ("eager", implementation)
    )
    torch.testing.assert_close(other, eager, atol=1e-10, rtol=0)
    bare = composed_attention(q, k, v, weights, weights.without_bias(), implementation="eager", **how)
    assert (eager - bare).abs().max() > 0.1


def test_the_model_initialises_trains_and_saves_it(config: DCFormerConfig, tmp_path: Any) -> None:
    torch.manual_seed(0)
    # Memory that nobody initialised is NaN then, and not by luck something small.
    torch.use_deterministic_algorithms(True)
    try:
        model = DCFormerForCausalLM(config)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(p.isfinite().all() for p in model.parameters())
    ids = torch.randint(0, 11, (2, POS))
    model(ids, labels=ids).loss.backward()
    model.save_pretrained(tmp_path)
    again = DCFormerForCausalLM.from_pretrained(tmp_path)
    assert again.config.compose_options == config.compose_options
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model.eval()(ids).logits)


@torch.no_grad()
def test_decoding_with_the_cache_is_the_full_forward(config: DCFormerConfig) -> None:
    model = DCFormerForCausalLM(config).double().eval()
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
    ids = torch.randint(0, 11, (2, POS))
    past, logits = None, []
    for token in ids.split(1, dim=1):
        out = model(token, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits.append(out.logits)
    torch.testing.assert_close(torch.cat(logits, 1), model(ids).logits, atol=1e-9, rtol=0)


# Small models, each built once.

VARIANTS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "groups and a static map": dict(compose_groups=2, compose_static=True),
    "no skip, shared keys and values": dict(compose_skip=False, compose_static=True, num_key_value_heads=2),
    "layer norm": dict(preset="tiny-dcformer"),
    "options": dict(preset="tiny-dcformer"),
}
"""The last has every option of the composer at another value than its default."""
MODELS = [(name, kind) for name, kind in product(COMPOSERS, VARIANTS) if kind != "options" or COMPOSERS[name].OPTIONS]
STAGES = ("pre", "post")


@pytest.fixture(scope="session")
def build(make_bridge: Any) -> Callable[..., Any]:
    """Builds a small model by composer and variant, in which every norm has a gain (and a bias)."""

    def make(name: str, variant: str) -> Any:
        changes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4} | VARIANTS[variant]
        preset = changes.pop("preset", "tiny-dcformer++")
        if variant == "options":
            changes["compose_options"] = {k: v for one in own_options(name) for k, v in one["compose_options"].items()}
        bridge = make_bridge(preset, compose=name, **changes)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for which, parameter in bridge.original_model.named_parameters():
                if "norm" in which:
                    noise = 0.3 * torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(noise if which.endswith("bias") else 1 + noise)
        return bridge

    return make


@pytest.fixture(scope="session")
def shared(build: Callable[..., Any]) -> Callable[..., Any]:
    return cache(build)


@pytest.fixture(params=MODELS, ids=lambda pair: f"{pair[0]}, {pair[1]}")
def model(request: pytest.FixtureRequest, shared: Callable[..., Any]) -> Any:
    return shared(*request.param)


@pytest.fixture(scope="session")
def text() -> str:
    return "Ruth has a violin. Carol has a kind of"


def require(model: Any, stage: str) -> None:
    if stage not in model.stages:
        pytest.skip(f"{model.model_config.compose!r} has no stage {stage!r}")


def log_probs(bridge: Any, ids: Any) -> Tensor:
    with torch.no_grad():
        return bridge(ids).log_softmax(-1)


def test_every_branch_has_its_hook(model: Any, text: str) -> None:
    found = model.run_with_cache(text)[1]
    for stage in model.stages:
        place = f"blocks.1.attn.{stage}.hook_"
        terms = [found[f"{place}{hook}"] for hook in TERMS if f"{place}{hook}" in found]
        torch.testing.assert_close(sum(terms), found[f"{place}out"], atol=1e-5, rtol=1e-5)
        assert model.hook_dict.keys() >= {f"{place}in", f"{place}out"}
        silent = [hook for hook in model.hook_dict if hook.startswith(place) and hook not in found]
        assert silent == [], "a hook that never fires"


def test_what_heads_write_is_made_of_what_they_have_read(model: Any, text: str) -> None:
    place, composer = "blocks.1.attn", composer_of(model, 1, model.stages[-1])
    if not composer.out_hooks():
        assert f"{place}.post.hook_read" not in model.hook_dict
        return
    found = model.run_with_cache(text)[1]
    z, read, v = (found[f"{place}.{name}"] for name in ("hook_z", "post.hook_read", "hook_v"))
    v = v.repeat_interleave(read.shape[2] // v.shape[2], dim=2)  # several heads may share their values
    torch.testing.assert_close(read, torch.einsum("bhts,bshd->bthd", found[f"{place}.hook_pattern"], v))
    torch.testing.assert_close(z, composer.finish(read, found[f"{place}.hook_in"]), atol=1e-6, rtol=1e-5)
    halved = [(f"{place}.post.hook_read", lambda tensor, hook: torch.cat([tensor[:, :-1], tensor[:, -1:] * 0], 1))]
    with torch.no_grad():
        edited = model.run_with_hooks(text, fwd_hooks=halved)
        assert (edited[0, -1] - model(text)[0, -1]).abs().max() > 1e-6


@pytest.mark.parametrize("pair", MODELS, ids=lambda pair: f"{pair[0]}, {pair[1]}")
def test_folding_changes_no_probability(pair: tuple[str, str], build: Any, text: str) -> None:
    bridge = build(*pair)
    ids = bridge.to_tokens(text)
    expected = log_probs(bridge, ids)
    bridge.enable_compatibility_mode(disable_warnings=True)
    assert torch.equal(bridge.blocks[1].ln1.original_component.weight, torch.ones(32)), "nothing was folded"
    torch.testing.assert_close(log_probs(bridge, ids), expected, atol=1e-5, rtol=0)


def test_the_maps_over_heads_are_composing(model: Any, text: str) -> None:
    found = model.run_with_cache(text)[1]
    for stage in model.stages:
        before, after = (found[f"blocks.1.attn.{stage}.hook_{end}"][0] for end in ("in", "out"))
        at_pair = dcinterp.composition_map(model, text, 1, stage, query=-1, key=3)
        bias = bias_of(composer_of(model, 1, stage).probe()).flatten()
        others = (f"blocks.1.attn.{stage}.hook_{term}" for term in (NEIGHBOURS, PREVIOUS))
        rest = bias + sum(found[name][0, :, -1, 3] for name in others if name in found)
        torch.testing.assert_close(before[:, -1, 3] @ at_pair.total, after[:, -1, 3] - rest, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sum(at_pair.parts.values()), at_pair.total)
        assert torch.equal(dcinterp.static_composition_map(model, 1, stage).total, at_pair.base)
    if "post" not in model.stages:
        return
    mean = dcinterp.mean_composition_map(model, [(text, "fruit")], 1, "post")
    maps = position_maps(model, model.to_tokens(text), 1, "post")
    by_query, by_key = (maps[f"{side}p"] + maps[f"{side}g"] for side in "qk")
    torch.testing.assert_close(mean.total, mean.base + by_query[-1] + by_key.mean(0), atol=1e-5, rtol=0)
    skip = before[:, -1].sum(-1) * composer_of(model, 1, "post").skip + bias * before.shape[-1]
    torch.testing.assert_close(mean.shared.sum(0), after[:, -1].sum(-1) - skip, atol=1e-5, rtol=0)


def test_a_breakdown_adds_up(model: Any, text: str) -> None:
    require(model, "post")
    terms = dcinterp.compose_breakdown(model, text, 1, query=-1, key=3)
    torch.testing.assert_close(sum(terms.branches.values()), terms.out, atol=1e-6, rtol=1e-5)
    for side, branch in (("query", "o_qp"), ("key", "o_kp")):
        torch.testing.assert_close(terms.shared(side).sum(0), terms.branches[branch], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, each in COMPOSERS.items() if each.HANDS_ON or not each.PAIRWISE])
def test_a_breakdown_of_pairs_that_read_others_is_refused(name: str, shared: Any, text: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' takes something from other pairs of tokens or from the previous"):
        dcinterp.compose_breakdown(shared(name, "as it comes"), text, 1, query=-1, key=3, stage="pre")


@pytest.mark.parametrize("stage", STAGES)
def test_edges_add_up_to_their_heads(stage: Any, model: Any, text: str) -> None:
    require(model, stage)
    scored = dcinterp.attribute_edges(
        model, text, "fruit", "animal", stage=stage, method="gradient", per_source=False, check=0
    )
    assert scored.heads.abs().max() > 0
    beyond = 0 if scored.beyond is None else scored.beyond.sum((1, 3))
    assert (scored.beyond is not None) == composer_of(model, 1, stage).reads_beyond
    torch.testing.assert_close(scored.scores.sum((1, 2)) + beyond, scored.heads, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_a_branch_is_taken_out(stage: str, model: Any, text: str) -> None:
    require(model, stage)
    units = list(all_units(model, "branch", stage))
    assert {BRANCHES[one.name].hook for one in units} == composer_of(model, 1, stage).existing() & set(HOOKS)
    with torch.no_grad():
        before = model(text)
    for one in (each for each in units if each.layer == 1):
        hook = f"blocks.1.attn.{stage}.hook_{BRANCHES[one.name].hook}"
        with torch.no_grad():
            expected = model.run_with_hooks(text, fwd_hooks=[(hook, lambda tensor, hook: tensor * 0)])
            with applied(model, one, text):
                got = model(text)
        torch.testing.assert_close(got, expected)
        assert (got - before).abs().max() > 1e-6


@pytest.mark.parametrize("stage", STAGES)
def test_an_edge_of_every_branch_is_taken_out(stage: str, model: Any, text: str) -> None:
    require(model, stage)
    ids = model.to_tokens(text)
    names = [f"blocks.1.attn.{stage}.hook_{end}" for end in ("in", "out")]
    found = model.run_with_cache(ids, names_filter=names)[1]
    maps = position_maps(model, ids, 1, stage) | {"skip": composer_of(model, 1, stage).base_map().float()}
    edges = {one.name: one for one in all_units(model, "edge", stage) if one.layer == 1}
    assert {BRANCHES[name].hook for name in edges} == composer_of(model, 1, stage).existing() & set(HOOKS)
    for name, one in edges.items():
        with torch.no_grad(), applied(model, one, ids):
            after = model.run_with_cache(ids, names_filter=names[1])[1][names[1]][0]
        weight = maps[name][..., one.head_from, one.head]
        weight = {"query": weight[..., None], "key": weight, "none": weight}[BRANCHES[name].side]
        expected = found[names[1]][0].clone()
        expected[one.head] -= found[names[0]][0, one.head_from] * weight
        torch.testing.assert_close(after, expected, atol=1e-5, rtol=1e-5)


def test_a_saved_model_is_verified(model: Any, tmp_path: Any) -> None:
    """Against the oracle: with taps, on the fast path and decoded with the cache."""
    model.save(tmp_path / "model")
    assert verify(tmp_path / "model", length=8).largest < 1e-5


def test_it_is_counted_and_described(model: Any) -> None:
    config = model.model_config
    composed = analytic_overhead(config, 16)
    described = dcinterp.describe(model)
    share = config.num_key_value_heads / config.num_attention_heads
    extra = composed.parameters * (10 + 2 * share) * config.hidden_size**2 * config.num_hidden_layers
    assert described.composition_parameters == round(extra)
    assert described.composition == composition_of(config)
    assert COMPOSERS[config.compose].describe(config) in card(config, 1, "small")


# What is not offered.


class Half(Composer):
    """Makes weights by a matrix that nobody names, and says nothing else."""

    name: ClassVar[str] = "half"
    OPTIONS: ClassVar[dict[str, Any]] = {"sharpness": 1.0}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.matrix = nn.Parameter(torch.empty(config.hidden_size, config.num_attention_heads))
        self.sharpness = self.options(config)["sharpness"]

    def initialise(self) -> None:
        nn.init.normal_(self.matrix)

    def weights(self, x_query: Tensor, x_key: Tensor) -> ComposeWeights:
        return ComposeWeights(w_kg=torch.tanh(self.sharpness * x_key @ self.matrix))


class Uneven(Half):
    """Says that other heads come out than go in."""

    name: ClassVar[str] = "uneven"
    keeps_heads: ClassVar[bool] = False


@pytest.fixture
def incomplete(monkeypatch: pytest.MonkeyPatch, build: Any) -> Iterator[Any]:
    for each in (Half, Uneven):
        monkeypatch.setitem(COMPOSERS, each.name, each)
    return lambda name: build(name, "layer norm")


def test_what_the_weights_tell_is_had_for_nothing(incomplete: Any, text: str) -> None:
    bridge = incomplete("half")
    at_pair = dcinterp.composition_map(bridge, text, 1, "post", query=-1, key=3)
    assert at_pair.kg.abs().max() > 0
    assert not at_pair.qp.any()
    assert composer_of(bridge, 1, "post").existing() == {"o_b", "o_kg", "w_kg"}
    assert dcinterp.describe(bridge).composition == (
        "scores (pre) and weights (post) composed by 'half' (sharpness 1.0)"
    )
    assert "composed by 'half'" in card(bridge.model_config, 1, "small")


def test_an_unnamed_map_is_not_folded_and_nothing_else_is(incomplete: Any, text: str) -> None:
    bridge = incomplete("half")
    ids = bridge.to_tokens(text)
    expected = log_probs(bridge, ids)
    with pytest.raises(UserError, match="its composer 'half' makes w_kg from the layer's input by something"):
        bridge.enable_compatibility_mode(disable_warnings=True)
    assert torch.equal(log_probs(bridge, ids), expected), "refused, but half folded"
    bridge.enable_compatibility_mode(fold_ln=False, disable_warnings=True)
    torch.testing.assert_close(log_probs(bridge, ids), expected, atol=1e-5, rtol=0)


def test_a_reader_that_is_not_linear_is_refused(incomplete: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "readers", lambda self: [nn.Identity()])
    with pytest.raises(UserError, match="its composer 'half' reads the layer's input by a Identity"):
        incomplete("half").enable_compatibility_mode(disable_warnings=True)


def test_cost_and_oracle_are_refused_by_name(incomplete: Any, tmp_path: Any) -> None:
    bridge = incomplete("half")
    with pytest.raises(UserError, match="The composer 'half' does not say what it costs; give it a method `cost`"):
        analytic_overhead(bridge.model_config, 16)
    bridge.save(tmp_path / "model")
    with pytest.raises(UserError, match=r"'half' does not say what it computes .* give it a method `written_out`"):
        verify(tmp_path / "model", length=8)


def test_maps_need_square_ones(incomplete: Any, text: str) -> None:
    bridge = incomplete("uneven")
    with pytest.raises(UserError, match="which the composer 'uneven' does not keep"):
        dcinterp.composition_map(bridge, text, 1, "post", query=-1, key=3)
    with pytest.raises(UserError, match="which the composer 'uneven' does not keep"):
        dcinterp.static_composition_map(bridge, 1, "post")
    with pytest.raises(UserError, match="which the composer 'uneven' does not keep"):
        dcinterp.attribute_edges(bridge, text, "fruit", layers=[1], method="gradient")
    with pytest.raises(UserError, match="which the composer 'uneven' does not keep"):
        dcinterp.intervene(bridge, text, "edge 1.post.kg.2>2 zero")
    assert dcinterp.intervene(bridge, text, "branch 1.post.kg zero").call is not None


def test_weights_are_needed_and_forward_is_taken() -> None:
    with pytest.raises(TypeError, match="abstract method"):
        type("Nothing", (Composer,), {})(build_config("dynamic"))
    with pytest.raises(TypeError, match="Other has a forward of its own, which only some paths would run"):
        type("Other", (Half,), {"forward": lambda self, a, w, taps=None: a})


def test_options_are_checked(incomplete: Any) -> None:
    assert build_config("half", compose_options={"sharpness": 2}).compose_options == {"sharpness": 2}
    for options, message in (
        ({"sharpnes": 2.0}, "compose_options has 'sharpnes', .* compose='half'; did you mean sharpness?"),
        ({"sharpness": "much"}, "compose_options has 'sharpness' = 'much'; compose='half' takes a float there"),
    ):
        with pytest.raises(UserError, match=message):
            build_config("half", compose_options=options)
    with pytest.raises(UserError, match="compose='none' has none"):
        build_config("none", compose_options={"sharpness": 2.0})
    again = DCFormerConfig.from_dict(build_config("half", compose_options={"sharpness": 2.0}).to_dict())
    assert again.compose_options == {"sharpness": 2.0}
    assert again.without_composition().compose_options == {}


def test_nothing_costs_nothing() -> None:
    assert analytic_overhead(build_config("none"), 16).flops == 0
    assert Cost() == Cost(0, 0, 0)


def refusal(act: Callable[..., Any], *arguments: Any) -> str:
    """With which sentence something is refused; empty where it is not."""
    try:
        act(*arguments)
    except UserError as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(("name", "options"), CONFIGS, ids=str)
def test_it_starts_at_the_identity_or_is_refused_by_name(name, options):
    """In a trained model that it is added to (dcinterp.compose): the logits stay, and gradients reach every tensor."""
    torch.manual_seed(0)
    composed = build_config(name, **options)
    base = DCFormerForCausalLM(composed.without_composition()).eval()
    ids = torch.tensor([[1, 2, 3, 4, 5, 1, 7]])
    fields = {"compose": name} | options
    if COMPOSERS[name].start_at_identity is Composer.start_at_identity:
        with pytest.raises(UserError, match=f"compose='{name}' cannot start at the identity.* one of .*dynamic"):
            add_composition(base, fields)
        return
    if refused := refusal(add_composition, base, fields):
        assert f"{name!r} cannot start at the identity (" in refused
        return
    model = add_composition(base, fields)
    torch.testing.assert_close(model(ids).logits, base(ids).logits, atol=1e-5, rtol=0)
    added = {n: p for n, p in model.named_parameters() if is_added(n)}
    reached: set[str] = set()
    optimizer = torch.optim.SGD(added.values(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        reached |= {n for n, p in added.items() if p.grad is not None and p.grad.any()}
        optimizer.step()
    bias = {n for n in added if n.endswith("pre.bias")}  # the softmax ignores what is equal for all keys
    assert reached >= added.keys() - bias
    assert added
