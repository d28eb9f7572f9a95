"""Activation patching: all is the other run, nothing is the same run, and TransformerLens finds the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformer_lens import patching

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.mechanism.head_sites import STANDARD, head_sites
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled

CLEAN, OTHER = [3, 4, 5, 6, 7], [3, 4, 9, 6, 2]
FAMILIES = {
    "composed": ("tiny-dcformer++", {}),
    "grouped-query": ("tiny-dcformer++", {"num_key_value_heads": 2}),
    "parallel": ("tiny-dcpythia", {}),
    "gated": ("tiny-gated", {}),
}


def logit_difference(logits: torch.Tensor) -> torch.Tensor:
    return logits[0, -1, 8] - logits[0, -1, 11]


@pytest.mark.parametrize(
    ("family", "direction"), [*((family, "denoising") for family in FAMILIES), ("composed", "noising")]
)
def test_everything_is_the_other_run_and_nothing_is_the_same(model, family, direction):
    preset, changes = FAMILIES[family]
    bridge = wrap(model(preset, **changes))
    patched = dcinterp.patch_stream(bridge, CLEAN, OTHER, 8, 11, direction=direction, batch_size=7)
    whole, nothing = (1.0, 0.0) if direction == "denoising" else (0.0, 1.0)
    f = [float(logit_difference(bridge(torch.tensor([ids])).detach())) for ids in (CLEAN, OTHER)]
    assert (patched.clean, patched.corrupted) == pytest.approx(f)
    torch.testing.assert_close(patched.all_positions[0], torch.full((2,), whole), atol=1e-6, rtol=0)
    # Nothing differs before position 2, and nothing reaches the answer from an earlier position of the last layer.
    torch.testing.assert_close(patched.share[:, :, :2], torch.full((3, 2, 2), nothing), atol=1e-6, rtol=0)
    torch.testing.assert_close(patched.share[2, 1, :4], torch.full((4,), nothing), atol=1e-6, rtol=0)
    assert (patched.share[0] - nothing).abs().max() > 0.05
    assert patched.effect[0, 0, 0] == pytest.approx(0, abs=1e-6)
    heads = dcinterp.patch_heads(bridge, CLEAN, OTHER, 8, 11, direction=direction, sites=["z", "k"])
    torch.testing.assert_close(heads.all_heads[0], patched.all_positions[1], atol=1e-6, rtol=0)
    if family == "grouped-query":
        assert torch.equal(heads.share[1, :, 0], heads.share[1, :, 1])
        assert not torch.equal(heads.share[1, :, 1], heads.share[1, :, 2])


@pytest.mark.parametrize("preset", ["tiny-transformer++", "tiny-dcformer++"])
def test_the_functions_of_transformer_lens_find_the_same(model, preset):
    bridge = wrap(model(preset))
    clean, other = torch.tensor([CLEAN]), torch.tensor([OTHER])
    with torch.no_grad():
        logits, cache = bridge.run_with_cache(clean)
        base = logit_difference(bridge(other))
        whole = logit_difference(logits) - base

        def metric(out: torch.Tensor) -> torch.Tensor:
            return (logit_difference(out) - base) / whole

        ours: Any = dcinterp.patch_stream(bridge, CLEAN, OTHER, 8, 11)
        for number, site in enumerate(ours.sites[: 3 if preset == "tiny-transformer++" else 1]):
            theirs = getattr(patching, f"get_act_patch_{site}")(bridge, other, cache, metric)
            torch.testing.assert_close(ours.share[number], theirs, atol=1e-5, rtol=1e-4, check_dtype=False)
        ours = dcinterp.patch_heads(bridge, CLEAN, OTHER, 8, 11, sites=list(STANDARD))
        for number, site in enumerate(ours.sites[: None if preset == "tiny-transformer++" else 1]):
            name = {"z": "out"}.get(site, site)
            theirs = getattr(patching, f"get_act_patch_attn_head_{name}_all_pos")(bridge, other, cache, metric)
            torch.testing.assert_close(ours.share[number], theirs, atol=1e-5, rtol=1e-4, check_dtype=False)


def test_branches_and_weights_are_what_the_same_intervention_by_hand_does(model):
    bridge = wrap(model())
    sites = [site for site in head_sites(bridge) if "." in site]
    assert len(sites) == 2 * (5 + 6)
    ours = dcinterp.patch_heads(bridge, CLEAN, OTHER, 8, 11, sites=sites)
    ids = torch.tensor([OTHER])
    with torch.no_grad():
        _, cache = bridge.run_with_cache(torch.tensor([CLEAN]))
        for number, site in enumerate(sites):
            stage, name = site.split(".")
            hook = f"blocks.1.attn.{stage}.hook_{'o_b' if name == 'skip' else name if 'w_' in name else f'o_{name}'}"

            def put(tensor: torch.Tensor, hook: Any, weight: bool = "w_" in name) -> torch.Tensor:
                out = tensor.clone()
                where = (..., 2) if weight else (slice(None), 2)
                out[where] = cache[hook.name][where]
                return out

            value = logit_difference(bridge.run_with_hooks(ids, fwd_hooks=[(hook, put)]))
            assert float(ours.logit_difference[number, 1, 2]) == pytest.approx(float(value), abs=1e-6), site
    assert (ours.logit_difference - ours.corrupted).abs().amax((1, 2)).min() > 1e-5, "every site does something"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_other_peoples_models(foreign, family):
    bridge = copy.deepcopy(foreign(family))
    with torch.no_grad():  # at their initial size the weights hardly tell tokens apart
        for weight in bridge.original_model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    patched = dcinterp.patch_stream(bridge, [5, 6, 7, 4], [5, 9, 7, 3], 8, 11)
    torch.testing.assert_close(patched.all_positions[0], torch.ones(2), atol=1e-3, rtol=0)
    heads = dcinterp.patch_heads(bridge, [5, 6, 7, 4], [5, 9, 7, 3], 8, 11)
    assert heads.sites == STANDARD
    torch.testing.assert_close(heads.all_heads[4], patched.all_positions[1], atol=1e-3, rtol=0)
    assert (heads.effect.abs().amax((1, 2)) > 1e-4).all()


def test_a_task_brings_its_counterfactual_and_answers(bridge, prompt):
    from synthetic_tasks import corrupt, solve

    made = corrupt(solve(prompt).example(), "question", tokenizer=bridge.tokenizer)
    shown = "\n< Ruth has a lime. >. Ruth has a kind of fruit\n"
    patched = dcinterp.patch_stream(bridge, shown + prompt, batch_size=512)
    assert (patched.target, patched.foil) == ("fruit", made.answer)
    given = dcinterp.patch_stream(
        bridge, shown + prompt, shown + made.corrupt.prompt, "fruit", made.answer, batch_size=512
    )
    assert torch.equal(patched.share, given.share)
    assert sum("|" in label for label in patched.labels("pos") or ()) == 1
    assert "To the prompt the model answers" in " ".join(patched.warnings())


def test_bad_pairs_are_one_sentence(bridge, prompt):
    for other, says in (
        ("Ruth has a violin.", "give two prompts with as many tokens"),
        (prompt, "are the same"),
    ):
        with pytest.raises(UserError, match=says):
            dcinterp.patch_stream(bridge, prompt, other, "fruit", "animal")
    with pytest.raises(UserError, match="not one of the tasks"):
        dcinterp.patch_stream(bridge, "Ruth has a violin.")
    with pytest.raises(UserError, match="almost the same"):
        # The answer is read at a position before the tokens that differ.
        dcinterp.patch_stream(bridge, CLEAN, OTHER, 8, 11, at=1)
    with pytest.raises(UserError, match=r"no site 'post\.qq'"):
        dcinterp.patch_heads(bridge, CLEAN, OTHER, 8, 11, sites=["post.qq"])
    with pytest.raises(UserError, match="direction"):
        dcinterp.patch_stream(bridge, CLEAN, OTHER, 8, 11, direction="sideways")  # type: ignore[arg-type]


def test_the_cost_is_said_first_and_the_work_can_be_cancelled(bridge):
    said: list[tuple[int, int, str]] = []

    def stop(done: int, total: int, message: str = "") -> None:
        said.append((done, total, message))
        if done:
            raise Cancelled

    with pytest.raises(Cancelled):
        dcinterp.patch_stream(bridge, CLEAN, OTHER, 8, 11, batch_size=4, progress=stop)
    assert said[0] == (0, 36, "36 rows of 5 tokens forward, each from its layer on: at most 180 tokens")
    assert said[1][0] == 4


def test_a_fact_that_changes_its_place_has_a_foil(make_bridge):
    prompt = "< Ruth has a lime. Karen has a dog. John has a pear. >. Karen has a kind of"
    found = dcinterp.patch_stream(make_bridge(), prompt, change="position")
    assert found.target != found.foil
    assert found.corrupted_target == found.target, "the answer stays"
    assert not any(f'not "{found.foil.strip()}"' in sentence for sentence in found.warnings())
    with pytest.raises(UserError, match="counterfactual"):
        dcinterp.patch_stream(make_bridge(), CLEAN, OTHER, 8, 11, change="nothing")


def test_scores_that_go_beside_the_stream_are_warned_of(make_bridge):
    prompt, other = [5, 9, 11, 3], [5, 8, 11, 3]
    for compose, said in (("dense-collaboration", 1), ("dynamic", 0)):
        found = dcinterp.patch_stream(make_bridge(compose=compose), prompt, other, 4, 7)
        assert sum("beside the stream" in each for each in found.warnings()) == said
        assert found.all_positions[0, 0] == pytest.approx(1, abs=1e-4)
