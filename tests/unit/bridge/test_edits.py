"""An edit does what it says wherever it is made: in place or not, before a fork, on a stage itself, in another run."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dcinterp
from dcinterp.bridge import DCBridge, wrap
from dcinterp.bridge.cache import DCActivationCache
from dcinterp.bridge.foreign import ForeignActivationCache
from dcinterp.model.compose.dynamic import DynamicCompose
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError

Make = Callable[..., DCBridge]
OFF = ("hook_result", "hook_q_input", "hook_k_input", "hook_v_input", "hook_attn_in")


def halved_in_place(x: Tensor, hook: Any) -> Tensor:
    return x.mul_(0.5)


def halved(x: Tensor, hook: Any) -> Tensor:
    return x * 0.5


def differing(bridge: Any, ids: Tensor, names: list[str]) -> list[str]:
    """The hooks at which the two edits give other logits."""
    found = []
    for name in names:
        logits = [bridge.run_with_hooks(ids, fwd_hooks=[(name, edit)]) for edit in (halved_in_place, halved)]
        if (logits[0] - logits[1]).abs().max() > 1e-5:
            found.append(name)
    return found


@pytest.mark.filterwarnings("ignore:A forward hook edited")
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("family", ["tiny-dcformer++", "tiny-dcformer", "tiny-dcpythia", "tiny-transformer++"])
def test_an_edit_in_place_is_the_edit_of_a_new_tensor(family: str, without: Any, bridge: Make, ids: Tensor) -> None:
    wrapped = bridge(family)
    wrapped.set_use_hook_mlp_in(True)
    with without():
        _, cache = wrapped.run_with_cache(ids)
        names = [name for name, value in cache.items() if value.is_floating_point() and not name.endswith(OFF)]
        assert {"blocks.1.hook_mlp_in", "blocks.0.ln1.hook_scale", "ln_final.hook_normalized"} <= set(names)
        assert differing(wrapped, ids, names) == []


@pytest.mark.filterwarnings("ignore:A forward hook edited")
def test_also_after_folding_and_in_a_copy(bridge: Make, ids: Tensor) -> None:
    wrapped = bridge()
    wrapped.enable_compatibility_mode(disable_warnings=True)
    names = ["blocks.1.ln1.hook_normalized", "blocks.0.ln2.hook_in", "ln_final.hook_scale", "blocks.0.attn.q.hook_in"]
    with torch.no_grad():
        assert differing(wrapped, ids, names) == []
        assert differing(copy.deepcopy(wrapped), ids, names) == []


@pytest.mark.filterwarnings("ignore:A forward hook edited")
@pytest.mark.parametrize("family", ["llama", "gpt2", "neox"])
def test_also_in_models_of_other_people(family: str, foreign: Callable[[str], Any]) -> None:
    model = foreign(family)
    model.set_use_hook_mlp_in(True)
    ids = torch.tensor([[3, 14, 15, 9]])
    try:
        with torch.no_grad():
            names = [f"blocks.1.ln1.hook_{what}" for what in ("normalized", "scale")]
            assert differing(model, ids, [*names, "ln_final.hook_normalized", "blocks.0.hook_mlp_in"]) == []
    finally:
        model.set_use_hook_mlp_in(False)


def test_a_hook_on_a_stage_itself_is_called(raw: Callable[..., DCFormerForCausalLM], bridge: Make, ids: Tensor) -> None:
    wrapped, model = bridge(), raw()
    inside: Any = wrapped.blocks[1].attn.post
    with torch.no_grad():
        for run, stages in (
            (wrapped, [inside, inside.original_component]),
            (lambda x: model(x).logits, [model.model.layers[1].self_attn.post, model.model.layers[0].self_attn.pre]),
        ):
            before = run(ids)
            for stage in stages:
                handle = stage.register_forward_hook(lambda module, args, out: out * 0)
                assert (run(ids) - before).abs().max() > 1e-2
                handle.remove()
            torch.testing.assert_close(run(ids), before, atol=0, rtol=0)


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_a_run_inside_a_hook_leaves_the_outer_one_alone(which: str, bridge: Make, ids: Tensor) -> None:
    wrapped = bridge()
    wrapped.set_use_split_qkv_input(True)
    ran: list[Tensor] = []

    def look(x: Tensor, hook: Any) -> None:
        if not ran:
            ran.append(x)
            wrapped(ids)

    with torch.no_grad():
        expected = wrapped(ids)
        found = wrapped.run_with_hooks(ids, fwd_hooks=[(f"blocks.1.hook_{which}_input", look)])
    assert len(ran) == 1
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_an_edit_before_a_fork_is_warned_about(bridge: Make, ids: Tensor) -> None:
    wrapped = bridge()
    wrapped.set_use_split_qkv_input(True)
    with pytest.warns(UserWarning, match=r"attention does not read blocks\.1\.attn\.hook_in: an edit there would"):
        found = wrapped.run_with_hooks(ids, fwd_hooks=[("blocks.1.attn.hook_in", halved)])
    torch.testing.assert_close(found, wrapped(ids))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough, and a cache only reads
        wrapped.run_with_hooks(ids, fwd_hooks=[("blocks.0.ln1.hook_out", halved)])
        wrapped.run_with_cache(ids)


@pytest.mark.parametrize("name", ["blocks.1.ln1.hook_out", lambda name: name == "blocks.1.ln1.hook_out"])
def test_so_is_one_that_is_given_by_position_or_by_a_function(bridge: Make, ids: Tensor, name: Any) -> None:
    wrapped = bridge()
    wrapped.set_use_split_qkv_input(True)
    with pytest.warns(UserWarning, match=r"attention does not read blocks\.1\.ln1\.hook_out"):
        wrapped.run_with_hooks(ids, [(name, halved)])


@pytest.mark.parametrize(
    "name",
    ["attn.hook_z", "hook_attn_out", "hook_mlp_out", "mlp.hook_post", "attn.hook_pattern", "attn.hook_attn_scores"],
)
def test_a_hook_keeps_shape_and_type(bridge: Make, ids: Tensor, name: str) -> None:
    wrapped, at = bridge(), f"blocks.1.{name}"
    with pytest.raises(UserError, match=r"A hook at blocks\.1.* returned the shape"):
        wrapped.run_with_hooks(ids, [(at, lambda x, hook: x[:, -1:])])
    with pytest.raises(UserError, match="returned float64 in place of a tensor of float32"):
        wrapped.run_with_hooks(ids, [(at, lambda x, hook: x.double())])


def test_names_are_checked_wherever_they_stand(bridge: Make, ids: Tensor) -> None:
    wrapped, wrong = bridge(), "blocks.1.attn.post.hook_o_pk"
    for call in (
        lambda: wrapped.run_with_cache(ids, True, False, ["blocks.1.attn.hook_z", wrong]),
        lambda: wrapped.run_with_hooks(ids, [(wrong, halved)]),
        lambda: wrapped.get_caching_hooks([wrong]),
        lambda: wrapped.add_caching_hooks(wrong),
    ):
        with pytest.raises(UserError, match=f"There is no hook '{wrong}' in this model; did you mean"):
            call()
    with pytest.raises(UserError, match=r"names with that in them are blocks\.0\.attn\.post\.hook_o_kp"):
        wrapped.run_with_cache(ids, names_filter="o_kp")
    assert list(wrapped.run_with_cache(ids, True, False, ("blocks.1.attn.hook_z",))[1])


def test_a_hook_behind_the_last_layer_that_runs_is_an_error(bridge: Make, ids: Tensor) -> None:
    wrapped = bridge()
    later = "blocks.1.attn.hook_z comes after stop_at_layer=1, and nothing would reach it"
    with pytest.raises(UserError, match=later):
        wrapped.run_with_cache(ids, stop_at_layer=1, names_filter=["blocks.1.attn.hook_z"])
    with pytest.raises(UserError, match=later):
        wrapped.run_with_hooks(ids, stop_at_layer=1, fwd_hooks=[("blocks.1.attn.hook_z", halved)])
    wrapped.run_with_hooks(ids, stop_at_layer=1, fwd_hooks=[("blocks.0.attn.hook_z", halved)])
    _, cache = wrapped.run_with_cache(ids, stop_at_layer=99, names_filter="ln_final.hook_out")
    assert "ln_final.hook_out" in cache, "the whole model runs"


def test_hooks_may_come_from_an_iterator_and_a_copy_is_another_bridge(bridge: Make, ids: Tensor) -> None:
    wrapped, name = bridge(), "blocks.1.attn.hook_z"
    expected = wrapped.run_with_hooks(ids, fwd_hooks=[(name, halved)])
    torch.testing.assert_close(wrapped.run_with_hooks(ids, zip([name], [halved], strict=True)), expected)
    with wrapped.hooks(zip([name], [halved], strict=True)):
        torch.testing.assert_close(wrapped(ids), expected)
    torch.testing.assert_close(copy.copy(wrapped)(ids), wrapped(ids))


def test_a_bridge_says_how_it_gets_into_another_process(bridge: Make) -> None:
    with pytest.raises(UserError, match=r"cannot be pickled.*save\(folder\)"):
        pickle.dumps(bridge())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_middle_of_the_stream_of_other_people_is_patched_as_by_transformer_lens(
    family: str, foreign: Callable[[str], Any]
) -> None:
    model, clean, corrupted = foreign(family), torch.tensor([[3, 14, 15, 9]]), torch.tensor([[3, 14, 15, 7]])
    with torch.no_grad():
        logits, cache = model.run_with_cache(clean)
        name, at = "blocks.1.hook_resid_mid", -1

        def patch(x: Tensor, hook: Any) -> Tensor:
            x[:, at] = cache[name][:, at]
            return x

        found = model.run_with_hooks(corrupted, fwd_hooks=[(name, patch)])
    torch.testing.assert_close(found[:, -1], logits[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("compose", sorted(COMPOSERS))
def test_dynamic_weights_of_every_way_are_edited_in_place(compose: str, bridge: Make, ids: Tensor) -> None:
    """Also where gradients are taken, in which torch lets nobody write to some views."""
    wrapped = bridge(compose=compose)
    names = [name for name in wrapped.hook_dict if ".hook_w_" in name]
    assert differing(wrapped, ids, names) == []


def test_a_refused_folding_of_weights_from_inference_mode(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.inference_mode():
        wrapped = wrap(raw())
        monkeypatch.setattr(DynamicCompose, "readers", lambda self: [])
        with pytest.raises(UserError, match="fold_ln=False"):
            wrapped.enable_compatibility_mode(disable_warnings=True)
        with pytest.raises(UserError, match="load the model again"):
            wrapped.save("nowhere")


def test_a_part_of_a_cache_refuses_what_the_whole_refuses(bridge: Make, ids: Tensor, foreign: Any) -> None:
    _, cache = bridge().run_with_cache(ids)
    part = cache.apply_slice_to_batch_dim(0)
    assert type(part) is DCActivationCache
    assert not part.has_batch_dim
    with pytest.raises(UserError, match="would ignore the gain of the final norm"):
        part.logit_attrs(part.decompose_resid(-1), tokens=1, has_batch_dim=False)
    _, theirs = foreign("llama").run_with_cache(torch.tensor([[1, 2], [3, 4]]))
    assert type(theirs.apply_slice_to_batch_dim(1)) is ForeignActivationCache


def test_names_of_hooks_are_checked_in_models_of_other_people(foreign: Callable[[str], Any]) -> None:
    model, ids = foreign("gpt2"), torch.tensor([[1, 2]])
    right, wrong = "blocks.0.attn.hook_pattern", "blocks.0.attn.hook_patern"
    with pytest.raises(UserError, match=r"no hook 'blocks\.0\.attn\.hook_patern'.*hook_pattern"):
        model.run_with_cache(ids, names_filter=[right, wrong])
    with pytest.raises(UserError, match="no hook"):
        model.run_with_hooks(ids, fwd_hooks=[(wrong, halved)])
    with pytest.raises(UserError, match="no hook"), model.hooks(fwd_hooks=[(wrong, halved)]):
        pass
    assert list(model.run_with_cache(ids, names_filter=[right])[1].cache_dict) == [right]


def test_a_hook_that_is_off_is_not_cached_as_nothing(bridge: Make, ids: Tensor) -> None:
    wrapped = bridge()
    with pytest.raises(UserError, match=r"is off, as use_attn_result is False; call set_use_attn_result\(True\)"):
        wrapped.run_with_cache(ids, names_filter="blocks.1.attn.hook_result")
    wrapped.set_use_attn_result(True)
    assert wrapped.run_with_cache(ids, names_filter="blocks.1.attn.hook_result")[1].cache_dict


def test_a_copy_after_a_run_with_gradients(foreign: Callable[[str], Any]) -> None:
    model, ids = foreign("gpt2"), torch.tensor([[1, 2, 3]])
    expected = model(ids).detach()
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(ids).detach(), expected, atol=0, rtol=0)


def test_what_was_refused_may_be_asked_otherwise(bridge: Make, ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = bridge()
    with monkeypatch.context() as patch:
        patch.setattr(DynamicCompose, "readers", lambda self: [])
        with pytest.raises(UserError, match="fold_ln=False"):
            wrapped.enable_compatibility_mode(disable_warnings=True)
        wrapped.enable_compatibility_mode(fold_ln=False, disable_warnings=True)
    assert float(wrapped(ids).detach().mean(-1).abs().max()) < 1e-5, "the unembedding is centred"
    with pytest.raises(UserError, match="folded for analysis"):
        wrapped.save("nowhere")


def test_a_saved_bridge_reads_the_same_tokens(tmp_path: Any) -> None:
    text = "There are tea, meat, meat. Which is not meat? The"
    for name in ("dcformer++", "transformer++-code"):
        model = dcinterp.load(name)
        for each in (model, copy.deepcopy(model)):
            each.save(tmp_path / name)
            again = dcinterp.load(tmp_path / name)
            assert again.cfg.default_prepend_bos is model.cfg.default_prepend_bos
            assert again.to_tokens(text).tolist() == model.to_tokens(text).tolist()
