"""What every way of composing heads must hold, over all that are registered, each with its options."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dcinterp.model.compose import BRANCHES, COMPOSERS, DYNAMIC_WEIGHTS, branches
from dcinterp.model.config import ComposeKind, DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels.portable import mix_heads

COMPOSING = [name for name, composer in COMPOSERS.items() if composer is not None]
OPTIONS = [
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
BATCH, HEADS, POS, WIDTH = 2, 8, 5, 48


@pytest.fixture(params=list(product(COMPOSING, OPTIONS)), ids=str)
def config(request: pytest.FixtureRequest) -> DCFormerConfig:
    name, options = request.param
    return DCFormerConfig(
        vocab_size=11, hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1, intermediate_size=32,
        compose=name, **options,
    )  # fmt: skip


@pytest.fixture
def module(config: DCFormerConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    built = COMPOSERS[config.compose](config).double()  # type: ignore[misc]
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) / parameter.shape[-1] ** 0.5)
    return built


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, POS, WIDTH, generator=g, dtype=torch.float64)
    return torch.randn(BATCH, HEADS, POS, POS, generator=g, dtype=torch.float64), x


def test_the_registry_and_the_config_name_the_same() -> None:
    from typing import get_args

    assert set(COMPOSERS) == set(get_args(ComposeKind))


def test_shape_and_branches(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, x = inputs
    weights = module.weights(x, x)
    out = module(a, weights)
    assert out.shape == a.shape
    terms = branches(a, weights)
    assert set(terms) <= set(BRANCHES)
    torch.testing.assert_close(sum(terms.values()), out, atol=1e-10, rtol=0)
    torch.testing.assert_close(mix_heads(a, weights), out, atol=1e-10, rtol=0)


def test_taps_see_and_replace_what_exists(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, x = inputs
    seen: list[str] = []

    def tap(name: str) -> Any:
        return lambda t: (seen.append(name), t)[1]

    names = ("in", "out", *BRANCHES, *DYNAMIC_WEIGHTS)
    taps = SimpleNamespace(**{f"hook_{name}": tap(name) for name in names})
    weights = module.weights(x, x)
    torch.testing.assert_close(module(a, weights, taps), module(a, weights), atol=1e-12, rtol=0)
    expected = ["in", *(name for name, _ in weights.dynamic()), *branches(a, weights), "out"]
    assert seen == expected
    taps.hook_out = lambda t: t * 0
    assert not module(a, weights, taps).any()


def test_a_pair_depends_on_its_own_positions_only(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    """What makes composing causal: A'[:, t, s] reads A[:, t, s], x_t and x_s, and nothing else."""
    a, x = inputs
    before = module(a, module.weights(x, x))
    changed = x.clone()
    changed[:, 3] += 1
    after = module(a, module.weights(changed, changed))
    untouched = [t for t in range(POS) if t != 3]
    assert torch.equal(after[:, :, untouched][..., untouched], before[:, :, untouched][..., untouched])
    b = a.clone()
    b[:, :, 1, 4] += 1
    moved = (module(b, module.weights(x, x)) - before).abs().amax((0, 1)) > 0
    assert moved.nonzero().tolist() == [[1, 4]]


def test_zero_stays_zero(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Post-composition needs no mask: where no head attends, no composed head does."""
    a, x = inputs
    a = a.tril()
    assert not module(a, module.weights(x, x)).triu(1).any()


def test_the_gradient_reaches_every_parameter(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, x = inputs
    module(a, module.weights(x, x)).pow(2).sum().backward()
    assert [n for n, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_zero_parameters_are_the_identity_or_nothing(module: Any, inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    a, x = inputs
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    out = module(a, module.weights(x, x))
    assert torch.equal(out, a if module.skip else a * 0)


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
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("name", COMPOSING)
@pytest.mark.parametrize("options", [dict(), dict(compose_skip=False, compose_static=True)], ids=["skip", "no skip"])
def test_every_branch_has_its_hook(name: str, options: dict[str, Any], make_bridge: Any, prompt: str) -> None:
    bridge = make_bridge(compose=name, **options)
    cache = bridge.run_with_cache(prompt)[1]
    for stage in ("pre", "post"):
        place = f"blocks.1.attn.{stage}.hook_"
        terms = [cache[f"{place}{branch}"] for branch in BRANCHES if f"{place}{branch}" in cache]
        torch.testing.assert_close(sum(terms), cache[f"{place}out"], atol=1e-5, rtol=1e-5)
        assert bridge.hook_dict.keys() >= {f"{place}in", f"{place}out"}
        silent = [hook for hook in bridge.hook_dict if hook.startswith(place) and hook not in cache]
        assert silent == [], "a hook that never fires"
