"""Path patching against passes written by hand: one to make the receiver's new value, one that uses it."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp.analysis.intervention.patch_path import PathPatching
from dcinterp.bridge import wrap
from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.support.errors import UserError

CLEAN, OTHER = [3, 4, 5, 6, 7], [3, 4, 9, 6, 2]
SENDER = "blocks.0.attn.hook_z"


@pytest.fixture(scope="module")
def composed(make_bridge):
    return make_bridge(hidden_size=32, num_attention_heads=4, intermediate_size=48).double()


def read(bridge, ids, names, hooks=()):
    with torch.no_grad(), bridge.hooks(fwd_hooks=list(hooks)):
        return bridge.run_with_cache(torch.tensor([ids]), names_filter=list(names))[1]


def difference(bridge, ids, hooks):
    with torch.no_grad():
        logits = bridge.run_with_hooks(torch.tensor([ids]), fwd_hooks=list(hooks))
    return float(logits[0, -1, 8] - logits[0, -1, 11])


def written_change(bridge, layer, head, before, after):
    """What a head writes more, from its z in two runs."""
    heads = bridge.cfg.n_heads
    w_o = bridge.original_model.model.layers[layer].self_attn.o_proj
    weight = getattr(w_o, "original_component", w_o).weight.unflatten(1, (heads, -1))
    return (after - before)[:, :, head] @ weight[:, head].T


def add(change):
    return lambda tensor, hook: tensor + change


def put(value, head=None):
    def hook_fn(tensor, hook):
        if head is None:
            return value
        tensor = tensor.clone()
        tensor[:, :, head] = value[:, :, head]
        return tensor

    return hook_fn


def raised(change, head):
    """Adds to one head's matrix."""

    def hook_fn(tensor, hook):
        tensor = tensor.clone()
        tensor[:, head] += change
        return tensor

    return hook_fn


def share_of(patched: PathPatching, name: str) -> float:
    return float(patched.logit_difference[patched.edges.index(name)])


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_an_edge_into_a_head_is_two_passes_by_hand(composed, direction):
    run, source = (OTHER, CLEAN) if direction == "denoising" else (CLEAN, OTHER)
    mine, theirs = (read(composed, ids, [SENDER])[SENDER] for ids in (run, source))
    change = written_change(composed, 0, 1, mine, theirs)
    # First pass: layer 1 reads the change everywhere. Second: only the receiver has the value that it got there.
    changed = [("blocks.1.hook_resid_pre", add(change))]
    for side in "qkv":
        name = f"blocks.1.attn.hook_{side}"
        new = read(composed, run, [name], changed)[name]
        byhand = difference(composed, run, [(name, put(new, 2))])
        found = dcinterp.patch_path(composed, CLEAN, f"L1H2.{side}", OTHER, 8, 11, direction=direction, batch_size=5)
        assert share_of(found, f"L0H1 -> L1H2.{side}") == pytest.approx(byhand, abs=1e-5)
        # The embedding's edge and the MLP's are among them, and all together are the whole input of the receiver.
        assert found.edges[0] == f"embedding -> L1H2.{side}"
        assert f"MLP 0 -> L1H2.{side}" in found.edges
        whole = read(composed, source, [name])[name]
        all_of_it = difference(composed, run, [(name, put(whole, 2))])
        share = (all_of_it - found.corrupted) / (found.clean - found.corrupted)
        assert found.together == pytest.approx(share, abs=1e-5)
    names = [f"blocks.1.attn.post.hook_{w}" for w in ("w_q1", "w_q2", "w_k1", "w_k2", "w_qg", "w_kg")]
    new = read(composed, run, names, changed)
    byhand = difference(composed, run, [(name, put(new[name])) for name in names])
    found = dcinterp.patch_path(composed, CLEAN, "L1 post weights", OTHER, 8, 11, direction=direction)
    assert share_of(found, "L0H1 -> L1 post weights") == pytest.approx(byhand, abs=1e-5)
    assert found.effect[found.edges.index("L0H1 -> L1 post weights")].abs() > 1e-4


def key_map(bridge, ids, stage, head_from, head_to):
    """The share that branch kp gives, by key: sum over r of w_k1[s, r, from] w_k2[s, r, to]."""
    names = [f"blocks.1.attn.{stage}.hook_{w}" for w in ("w_k1", "w_k2")]
    w1, w2 = read(bridge, ids, names).values()
    return (w1[..., head_from] * w2[..., head_to]).sum(-1)[:, None, :]


def test_a_path_through_composition_is_a_pass_for_every_edge_by_hand(composed):
    """From a head of layer 0 into a key, its scores, its attention, by kp to another head, and to the logits."""
    scores, weights, z = "blocks.1.attn.pre.hook_in", "blocks.1.attn.post.hook_in", "blocks.1.attn.hook_z"
    run, source = OTHER, CLEAN
    before = read(composed, run, [SENDER, scores, weights, z])
    change = written_change(composed, 0, 1, before[SENDER], read(composed, source, [SENDER])[SENDER])
    key = read(composed, run, ["blocks.1.attn.hook_k"], [("blocks.1.hook_resid_pre", add(change))])
    new = read(composed, run, [scores], [("blocks.1.attn.hook_k", put(key["blocks.1.attn.hook_k"], 2))])[scores]
    own = (new - before[scores])[:, 2]
    # Masked scores are -inf in both.
    own = torch.where(own.isfinite(), own, torch.zeros_like(own))
    new = read(composed, run, [weights], [("blocks.1.attn.pre.hook_out", raised(own, 2))])[weights]
    borrowed = key_map(composed, run, "post", 2, 3) * (new - before[weights])[:, 2]
    new = read(composed, run, [z], [("blocks.1.attn.post.hook_out", raised(borrowed, 3))])[z]
    change = written_change(composed, 1, 3, before[z], new)
    byhand = difference(composed, run, [("ln_final.hook_in", add(change))])
    path = ["L1H2 -> L1H2 (pre skip)", "L1H2 -> L1H3 (post kp)", "L1H3 -> logits"]
    found = dcinterp.patch_path(composed, CLEAN, "L1H2.k", OTHER, 8, 11, through=path)
    assert share_of(found, "L0H1 -> L1H2.k") == pytest.approx(byhand, abs=1e-6)
    assert abs(byhand - found.corrupted) > 1e-7
    assert found.through == tuple(path)


def test_along_a_composition_edge_the_other_prompts_attention_goes(composed):
    name = "blocks.1.attn.post.hook_in"
    mine, theirs = (read(composed, ids, [name])[name] for ids in (OTHER, CLEAN))
    change = key_map(composed, OTHER, "post", 0, 3) * (theirs - mine)[:, 0]
    byhand = difference(composed, OTHER, [("blocks.1.attn.post.hook_out", raised(change, 3))])
    found = dcinterp.patch_path(composed, CLEAN, "L1H3", OTHER, 8, 11)
    assert share_of(found, "L1H0 -> L1H3 (post kp)") == pytest.approx(byhand, abs=1e-6)
    assert set(found.edges) == {edge.name for edge in CircuitGraph.of(composed).edges if edge.nodes[1] == "L1H3"}


def test_what_is_no_receiver_or_no_path_is_refused(composed, foreign):
    with pytest.raises(UserError, match=r"no receiver 'L1H2.Q'.*did you mean.*L1H2\.q"):
        dcinterp.patch_path(composed, CLEAN, "L1H2.Q", OTHER, 8, 11)
    with pytest.raises(UserError, match=r"The path comes to L1H2.k, .* does not begin there; choose one such as"):
        dcinterp.patch_path(composed, CLEAN, "L1H2.k", OTHER, 8, 11, through=["L1H3 -> logits"])
    with pytest.raises(UserError, match="Circuits are computed for decoders of dcinterp"):
        dcinterp.patch_path(foreign("gpt2"), CLEAN, "logits", OTHER, 8, 11)


def test_an_earlier_position_is_read_there(model):
    bridge = wrap(model())
    found = dcinterp.patch_path(bridge, [*CLEAN, 9], "logits", [*OTHER, 9], 8, 11, at=4)
    assert found.logit_difference.tolist() == pytest.approx(
        dcinterp.patch_path(bridge, CLEAN, "logits", OTHER, 8, 11).logit_difference.tolist(), abs=1e-5
    )
    assert found.together == pytest.approx(1, abs=1e-4)
