"""Hooks: names, shapes, when they materialise, and that interventions act on the forward pass and on gradients."""

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import dcinterp
from dcinterp.bridge import DCBridge, wrap
from dcinterp.mechanism.intervention_hooks import applied
from dcinterp.model.compose.branch_table import DYNAMIC_WEIGHTS, HOOKS
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

Make = Callable[..., DCBridge]
TAPS = [f"{stage}.hook_{tap}" for stage in ("pre", "post") for tap in ("in", *HOOKS, *DYNAMIC_WEIGHTS, "out")]
FAMILIES = [
    "tiny-dcformer++",
    "tiny-transformer++",
    "tiny-dcformer",
    "tiny-transformer",
    "tiny-dcpythia",
    "tiny-pythia",
]


@pytest.mark.parametrize("family", FAMILIES)
def test_wrapping_changes_no_logit(family: str, raw: Callable[..., DCFormerForCausalLM], ids: Tensor) -> None:
    with torch.no_grad():
        expected = raw(family)(ids).logits
        torch.testing.assert_close(wrap(raw(family))(ids), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_hooks_are_found_as_transformer_lens_finds_them(
    family: str, raw: Callable[..., DCFormerForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = wrap(raw(family))
    monkeypatch.setattr(DCBridge, "_scan_existing_hooks", TransformerBridge._scan_existing_hooks)
    theirs = wrap(raw(family))
    assert [(key, hook.name) for key, hook in ours._hook_registry.items()] == [
        (key, hook.name) for key, hook in theirs._hook_registry.items()
    ]
    for bridge in (ours, theirs):
        assert all(bridge._hook_registry[key] is bridge.hook_dict[key] for key in bridge._hook_registry)


def test_the_26_taps_of_a_layer_and_their_shapes(bridge: Make, ids: Tensor) -> None:
    _, cache = bridge().run_with_cache(ids)
    assert len(TAPS) == 26
    batch, pos, heads, rank = 2, 7, 4, 2
    for layer in range(2):
        for tap in TAPS:
            shape = tuple(cache[f"blocks.{layer}.attn.{tap}"].shape)
            name = tap.split("hook_")[1]
            if name in ("w_qg", "w_kg"):
                assert shape == (batch, pos, heads)
            elif name.startswith("w_"):
                assert shape == (batch, pos, rank, heads)
            else:
                assert shape == (batch, heads, pos, pos)


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        (dict(compose_key_wise=False), {"o_kp", "o_kg", "w_k1", "w_k2", "w_kg"}),
        (dict(compose_query_wise=False), {"o_qp", "o_qg", "w_q1", "w_q2", "w_qg"}),
        (dict(compose_gate=False), {"o_qg", "o_kg", "w_qg", "w_kg"}),
        (dict(compose_projection=False), {"o_qp", "o_kp", "w_q1", "w_q2", "w_k1", "w_k2"}),
        (dict(compose_skip=False), {"o_b"}),
        (dict(compose_skip=False, compose_static=True), set()),
        (dict(compose="static"), {*HOOKS, *DYNAMIC_WEIGHTS} - {"o_b"}),
    ],
)
def test_a_branch_that_the_model_lacks_has_no_hook(changes: dict[str, Any], absent: set[str], bridge: Make) -> None:
    known = set(bridge(**changes).hook_dict)
    for tap in (*HOOKS, *DYNAMIC_WEIGHTS):
        assert (f"blocks.0.attn.post.hook_{tap}" in known) == (tap not in absent), tap


def test_a_stage_that_the_model_lacks_has_no_hooks(bridge: Make) -> None:
    assert not any(".attn.pre." in name for name in bridge(compose_stages=("post",)).hook_dict)
    assert not any(".pre." in name or ".post." in name for name in bridge("tiny-transformer++").hook_dict)


def test_the_cached_tensors_fit_together(bridge: Make, ids: Tensor) -> None:
    model = bridge()
    _, cache = model.run_with_cache(ids)
    for layer in range(2):
        at = {tap: cache[f"blocks.{layer}.attn.{tap}"] for tap in TAPS}
        for stage in ("pre", "post"):
            total = sum(at[f"{stage}.hook_{b}"] for b in HOOKS)
            assert (total - at[f"{stage}.hook_out"]).abs().max() < 1e-6 * max(1, total.abs().max())
        scores, pattern = cache[f"blocks.{layer}.attn.hook_attn_scores"], cache[f"blocks.{layer}.attn.hook_pattern"]
        causal = torch.ones(7, 7).tril().bool()
        assert torch.equal(scores[..., causal], at["pre.hook_out"][..., causal])
        torch.testing.assert_close(scores.softmax(-1), at["post.hook_in"])
        assert torch.equal(at["post.hook_out"], pattern)
        v, z = cache["v", layer], cache["z", layer]
        torch.testing.assert_close(torch.einsum("bhts,bshd->bthd", pattern, v), z)
        torch.testing.assert_close(torch.einsum("bthd,hdm->btm", z, model.W_O[layer]), cache["attn_out", layer])
        q, k = cache["rot_q", layer], cache["rot_k", layer]
        torch.testing.assert_close(torch.einsum("bthd,bshd->bhts", q, k) / 8**0.5, at["pre.hook_in"])


def test_nothing_materialises_unless_somebody_listens(
    bridge: Make, ids: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dcinterp.model import attention
    from dcinterp.model.compose import base

    calls: dict[str, int] = {"pattern": 0, "tapped": 0}
    pattern, compose = attention.ComposedAttention.pattern, base.compose
    monkeypatch.setattr(
        attention.ComposedAttention,
        "pattern",
        lambda *args: (calls.__setitem__("pattern", calls["pattern"] + 1), pattern(*args))[1],
    )
    monkeypatch.setattr(
        base,
        "compose",
        lambda a, w, taps: (calls.__setitem__("tapped", calls["tapped"] + (taps is not None)), compose(a, w, taps))[1],
    )
    model = bridge()

    def counted(**kwargs: Any) -> dict[str, int]:
        calls.update(pattern=0, tapped=0)
        model.run_with_cache(ids, **kwargs)
        return dict(calls)

    model(ids)
    assert calls == {"pattern": 0, "tapped": 0}
    assert counted(names_filter="blocks.1.hook_resid_post") == {"pattern": 0, "tapped": 0}
    assert counted(names_filter="blocks.1.attn.hook_z") == {"pattern": 0, "tapped": 0}
    assert counted(names_filter="blocks.1.attn.hook_pattern") == {"pattern": 1, "tapped": 0}
    assert counted(names_filter="blocks.1.attn.post.hook_o_qp") == {"pattern": 1, "tapped": 1}
    assert counted() == {"pattern": 2, "tapped": 4}


def test_listeners_of_plain_torch_count_too(bridge: Make, ids: Tensor) -> None:
    model, seen = bridge(), []
    handle = model.blocks[0].attn.pre.hook_o_kp.register_forward_hook(lambda *args: seen.append(args[2].shape))
    model(ids)
    handle.remove()
    model(ids)
    assert seen == [(2, 4, 7, 7)]


@pytest.mark.parametrize("stage", ["pre", "post"])
@pytest.mark.parametrize("branch", HOOKS)
def test_zeroing_a_branch_removes_it_from_the_arithmetic(
    stage: str, branch: str, raw: Callable[..., DCFormerForCausalLM], ids: Tensor
) -> None:
    """The hook on the left, a model without the branch's parameters (or without the skip) on the right."""
    removed = raw()
    part = getattr(removed.model.layers[1].self_attn, stage)
    with torch.no_grad():
        if branch == "o_b":
            part.config = copy(part.config)
            part.config.compose_skip = False
        else:
            side = part.query if branch[2] == "q" else part.key
            (side.gate.weight if branch.endswith("g") else side.up).zero_()
        expected, untouched = removed(ids).logits, raw()(ids).logits
        hooked = wrap(raw()).run_with_hooks(
            ids, fwd_hooks=[(f"blocks.1.attn.{stage}.hook_{branch}", lambda t, hook: t * 0)]
        )
    scale = expected.abs().max()
    assert (hooked - expected).abs().max() < 1e-6 * max(1, scale)
    assert (untouched - expected).abs().max() > 1e-3


@pytest.mark.parametrize("tap", TAPS)
def test_every_tap_acts_on_the_forward_pass_and_on_gradients(tap: str, bridge: Make, ids: Tensor) -> None:
    """The gradient at the tap predicts what a small change there does to the loss (finite differences, float64)."""
    model, name = bridge(), f"blocks.0.attn.{tap}"
    model.original_model.double()
    g = torch.Generator().manual_seed(1)
    _, cache = model.run_with_cache(ids, names_filter=name)
    direction = torch.randn(cache[name].shape, generator=g, dtype=torch.float64)
    readout = torch.randn(2, 7, 29, generator=g, dtype=torch.float64)
    gradients: list[Tensor] = []

    def value(step: float) -> Tensor:
        return (model.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook: t + step * direction)]) * readout).sum()

    with model.hooks(bwd_hooks=[(name, lambda grad, hook: gradients.append(grad.clone()))]):
        (model(ids) * readout).sum().backward()
    predicted = (gradients[0] * direction).sum()
    with torch.no_grad():
        measured = (value(1e-5) - value(-1e-5)) / 2e-5
    assert measured.abs() > 1e-6
    torch.testing.assert_close(predicted, measured, rtol=1e-4, atol=1e-6)


def test_hooks_leave_nothing_behind(bridge: Make, ids: Tensor) -> None:
    model = bridge()
    before = model(ids)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda t, hook: t * 0)]):
        assert not torch.equal(model(ids), before)
    with pytest.raises(ZeroDivisionError):
        model.run_with_hooks(ids, fwd_hooks=[("blocks.0.attn.post.hook_out", lambda t, hook: 1 / 0)])
    assert torch.equal(model(ids), before)


def test_an_in_place_edit_of_o_b_stays_in_o_b(bridge: Make, ids: Tensor) -> None:
    def wipe(t: Tensor, hook: Any) -> None:
        with torch.no_grad():
            t.zero_()

    model, name = bridge(), "blocks.0.attn.post.hook_o_b"
    with torch.no_grad():
        in_place = model.run_with_hooks(ids, fwd_hooks=[(name, wipe)])
        replaced = model.run_with_hooks(ids, fwd_hooks=[(name, lambda t, hook: torch.zeros_like(t))])
    assert torch.equal(in_place, replaced)


@pytest.mark.parametrize("family", ["tiny-dcformer++", "tiny-transformer"])
def test_an_edit_of_resid_mid_edits_the_stream(family: str, bridge: Make, ids: Tensor) -> None:
    """Adding d to the stream after attention must add d to what leaves the block, beside the MLP's answer to it."""
    model = bridge(family)
    with torch.no_grad():
        _, plain = model.run_with_cache(ids)
        d = torch.randn_like(plain["resid_mid", 0])
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_mid", lambda t, hook: t + d)]):
            _, edited = model.run_with_cache(ids)
    torch.testing.assert_close(edited["mlp_out", 0] + plain["resid_mid", 0] + d, edited["resid_post", 0])


POSITION_AXES = {"pre.hook_o_qp": 2, "post.hook_in": 2, "pre.hook_w_q1": 1, "post.hook_w_kg": 1, "hook_pattern": 2}


@pytest.mark.parametrize("name", [*POSITION_AXES, "hook_rot_q", "hook_q", "hook_z", "hook_attn_scores"])
def test_a_position_slice_slices_queries(name: str, bridge: Make, ids: Tensor) -> None:
    model, name, axis = bridge(), f"blocks.1.attn.{name}", POSITION_AXES.get(name, 2 if "scores" in name else 1)
    _, whole = model.run_with_cache(ids, names_filter=name)
    _, part = model.run_with_cache(ids, names_filter=name, pos_slice=(2, 5))
    torch.testing.assert_close(part[name], whole[name].narrow(axis, 2, 3))


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [
        ("blocks.1.attn.post.hook_o_pk", "blocks.1.attn.post.hook_o_kp"),
        ("blocks.0.hook_resid_pots", "blocks.0.hook_resid_post"),
    ],
)
def test_a_misspelt_name_suggests_the_nearest(wrong: str, suggestion: str, bridge: Make, ids: Tensor) -> None:
    model, right = bridge(), "blocks.0.attn.hook_z"
    hook = (wrong, lambda t, hook: t)
    attempts: list[Callable[[], Any]] = [
        lambda: model.run_with_cache(ids, names_filter=wrong),
        lambda: model.run_with_cache(ids, names_filter=[right, wrong]),
        lambda: model.run_with_cache(ids, names_filter=(right, wrong)),
        lambda: model.run_with_hooks(ids, fwd_hooks=[hook]),
        lambda: model.run_with_hooks(ids, bwd_hooks=[(right, lambda t, hook: t), hook]),
        lambda: model.hooks(fwd_hooks=[hook]).__enter__(),
        lambda: model.add_hook(wrong, lambda t, hook: t),
    ]
    for attempt in attempts:
        with pytest.raises(UserError, match=f"There is no hook '{wrong}' in this model; did you mean .*{suggestion}"):
            attempt()


def test_a_filter_function_that_matches_nothing_warns(bridge: Make, ids: Tensor) -> None:
    with pytest.warns(UserWarning, match="filter function selects none of the"):
        bridge().run_with_cache(ids, names_filter=lambda name: name.endswith("hook_o_pk"))


@pytest.mark.parametrize("name", ["dcformer++", "transformer++"])
@pytest.mark.parametrize("hook", ["hook_z", "hook_q", "hook_v", "hook_pattern"])
def test_a_hook_may_change_a_head_in_place(name, hook):
    bridge = dcinterp.load(name)
    prompt = "< Ruth has a revolver . Kevin has a jersey ."

    def in_place(value, hook):
        value[:, :, 2] = 0
        return value

    def in_a_copy(value, hook):
        return in_place(value.clone(), hook)

    logits, expected = (
        bridge.run_with_hooks(prompt, fwd_hooks=[(f"blocks.1.attn.{hook}", act)]) for act in (in_place, in_a_copy)
    )
    assert logits.requires_grad
    torch.testing.assert_close(logits, expected)
    assert not torch.allclose(logits, bridge(prompt))


P = "< Kevin has meat. Robert has jeans. Donald has wine. >. Kevin owns a kind of"


def test_what_goes_past_hooks_says_so_and_backward_hooks_are_hooks():
    bridge = dcinterp.load("dcformer++")
    other = P.replace("Kevin owns", "Donald owns")
    with (
        bridge.hooks(fwd_hooks=[("blocks.2.hook_mlp_out", lambda value, hook: value * 0.3)]),
        pytest.raises(UserError, match="Hooks are active"),
    ):
        dcinterp.patch_path(bridge, P, "logits", other, "food", "drink")
    assert dcinterp.patch_path(bridge, P, "logits", other, "food", "drink").together == pytest.approx(1, abs=1e-3)
    with bridge.hooks(bwd_hooks=[("blocks.1.attn.hook_pattern", lambda gradient, hook: gradient * 0)]):
        assert "hooks were active" in dcinterp.predict(bridge, P).call.obstacle
    assert not dcinterp.predict(bridge, P).call.obstacle


def test_interventions_of_one_prompt_are_not_applied_to_several():
    bridge = dcinterp.load("dcformer++")
    with applied(bridge, "head 2.3 zero", P):
        bridge(P)
        with pytest.raises(UserError, match="of one prompt, and this run is of 2"):
            bridge([P, P])


@pytest.mark.parametrize(("prompt", "foil"), [(P, "drink"), ("Kevin owns a kind of", None)])
def test_a_case_study_of_any_foil_is_read_again(tmp_path, prompt, foil):
    found = dcinterp.case_study(dcinterp.load("dcformer++"), prompt, answer="food", foil=foil)
    assert dcinterp.load_result(found.save(tmp_path / "saved")) == found


def test_a_misspelt_option_of_a_run_is_refused(bridge: Make, ids: Tensor) -> None:
    model = bridge()
    double = [("blocks.0.hook_in", lambda tensor, hook: 2 * tensor)]
    with pytest.raises(UserError, match=r"no option 'fwd_hook'; did you mean fwd_hooks"):
        model.run_with_hooks(ids, fwd_hook=double)
    with pytest.raises(UserError, match=r"no option 'name_filter'; did you mean names_filter"):
        model.run_with_cache(ids, name_filter="blocks.0.hook_in")
    with pytest.raises(UserError, match=r"no option 'return_typ'; did you mean return_type"):
        model(ids, return_typ="loss")
    for run in (model, model.run_with_cache):
        with pytest.raises(UserError, match=r"^This run has no option 'fwd_hooks', which is one of run_with_hooks\.$"):
            run(ids, fwd_hooks=double)
    with torch.no_grad():
        expected = model(ids)
        assert torch.equal(model(ids, use_cache=False, output_hidden_states=True, logits_to_keep=0), expected)
