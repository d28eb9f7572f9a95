"""Circuits: the gated run against the model itself, against hooks written by hand, and its derivatives."""

from __future__ import annotations

import pytest
import torch

from dcinterp.mechanism.branches import NAMES
from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.mechanism.circuit_pairs import PairBatch, batches, ranked_and_measured, read_pairs
from dcinterp.mechanism.circuit_run import CircuitRun, Cut
from dcinterp.mechanism.circuit_scores import METHODS, REMOVED, Others, removal, run_circuits
from dcinterp.mechanism.edge_rules import RULES, EdgeQuestion
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.presets import presets
from dcinterp.support.errors import UserError

HEADS, LENGTH = 4, 6
SMALL = {"hidden_size": 32, "num_attention_heads": HEADS, "intermediate_size": 48}
MODELS = {
    "plain": ("tiny-transformer++", {}),
    "plain, biases": ("tiny-transformer", {}),
    "parallel": ("tiny-pythia", {}),
    "composed": ("tiny-dcformer++", {}),
    "composed, biases": ("tiny-dcformer", {}),
    "composed, parallel": ("tiny-dcpythia", {}),
    "static, in groups": ("tiny-dcformer++", {"compose_static": True, "compose_groups": 2}),
    "before only, shared keys": ("tiny-dcformer++", {"compose_stages": ("pre",), "num_key_value_heads": 2}),
    "with a norm after": ("tiny-differential", {}),
    "over other pairs": ("tiny-multi-token", {"compose_options": {"queries": 2, "keys": 3}, "compose_groups": 1}),
    "over other pairs, in groups": ("tiny-multi-token", {"compose_groups": 2}),
}


@pytest.fixture(scope="module")
def make_run(make_bridge):
    """A run of a small random model in float64, and a pair of prompts for it."""

    def make(kind):
        preset, changes = MODELS[kind]
        bridge = make_bridge(preset, **SMALL, **changes).double()
        with torch.no_grad():
            for name, parameter in bridge.original_model.named_parameters():
                if name.endswith(("bias", "taps", "heads.weight")):
                    parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
        ids, other = torch.randint(3, 120, (2, 2, LENGTH), generator=torch.Generator().manual_seed(2))
        target, foil = torch.tensor([[5, 6], [7, 8]])
        return CircuitRun(bridge), PairBatch(ids, other, target, foil, (0, 1))

    return make


def other_values(run, batch):
    return Others(run, [], "counterfactual").of(batch)


def gates(run, batch, value=1.0):
    return torch.full((len(batch.ids), run.graph.size), value, dtype=torch.float64)


def patched(run, batch, name):
    """m of every pair with one edge patched."""
    kept = torch.ones(1, run.graph.size)
    kept[0, run.graph.find(name)] = 0
    return run_circuits(run, batch, other_values(run, batch), kept)[0]


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_all_edges_are_the_model_and_none_are_the_counterfactual_run(make_run, kind):
    run, batch = make_run(kind)
    other = other_values(run, batch)
    clean, changed = (run.bridge(ids)[:, -1] for ids in (batch.ids, batch.other))
    assert (clean - changed).abs().max() > 0.1
    for kept, logits in ((1.0, clean), (0.0, changed)):
        found, _ = run(batch.ids, Cut(gates(run, batch, kept), other))
        assert torch.allclose(found, logits, rtol=0, atol=1e-11)


def test_the_number_of_edges(make_run):
    plain, composed = make_run("plain")[0].graph, make_run("composed")[0].graph
    readers = 3 * HEADS
    stream = readers * (1 + 1 + HEADS + 1) + (1 + HEADS) + (2 + 2 * HEADS) + (3 + 2 * HEADS)
    assert plain.size == stream + 2 * HEADS
    # Two more readers a layer, and for each stage skip and two gates, and two maps from every head to every head.
    assert composed.size == stream + 2 * (1 + 1 + HEADS + 1) + 2 * 2 * (3 * HEADS + 2 * HEADS**2)
    assert len(set(composed.names)) == composed.size
    with pytest.raises(UserError, match=r"did you mean .*L0H1 -> L1H2\.q"):
        composed.find("L0H1 -> L1H2.Q")


@torch.no_grad()
def test_a_patched_edge_of_the_stream_is_a_hook_on_the_readers_own_input(make_run):
    run, batch = make_run("plain")
    bridge = run.bridge
    bridge.set_use_attn_result(True)
    bridge.set_use_split_qkv_input(True)
    name = "blocks.0.attn.hook_result"
    outs = [bridge.run_with_cache(ids, names_filter=[name])[1][name][:, :, 1] for ids in (batch.ids, batch.other)]
    change = outs[1] - outs[0]

    def put(tensor, hook, head=None):
        tensor = tensor.clone()
        if head is None:
            return tensor + change
        tensor[:, :, head] += change
        return tensor

    for side in "qkv":
        hooks = [(f"blocks.1.attn.hook_{side}_input", lambda t, hook: put(t, hook, 2))]
        byhand = batch.metric(bridge.run_with_hooks(batch.ids, fwd_hooks=hooks)[:, -1])
        assert torch.allclose(patched(run, batch, f"L0H1 -> L1H2.{side}"), byhand, rtol=0, atol=1e-11), side
    hooks = [("ln_final.hook_in", lambda t, hook: put(t, hook))]
    byhand = batch.metric(bridge.run_with_hooks(batch.ids, fwd_hooks=hooks)[:, -1])
    assert torch.allclose(patched(run, batch, "L0H1 -> logits"), byhand, rtol=0, atol=1e-11)
    hooks = [("blocks.1.ln2.hook_in", lambda t, hook: put(t, hook))]
    byhand = batch.metric(bridge.run_with_hooks(batch.ids, fwd_hooks=hooks)[:, -1])
    assert torch.allclose(patched(run, batch, "L0H1 -> MLP 1"), byhand, rtol=0, atol=1e-11)


@pytest.mark.parametrize("stage", ["pre", "post"])
@torch.no_grad()
def test_a_patched_composition_edge_is_a_hook_on_the_composed_matrix(make_run, stage):
    run, batch = make_run("composed")
    prefix = f"blocks.1.attn.{stage}.hook_"
    names = [f"{prefix}{tap}" for tap in ("in", "w_q1", "w_q2", "w_k1", "w_k2", "w_qg", "w_kg")]
    clean, other = (run.bridge.run_with_cache(ids, names_filter=names)[1] for ids in (batch.ids, batch.other))
    change = other[f"{prefix}in"] - clean[f"{prefix}in"]
    w = {name: clean[f"{prefix}{name}"] for name in ("w_q1", "w_q2", "w_k1", "w_k2", "w_qg", "w_kg")}
    f, t = 2, 1
    added = {
        "skip": (f, f, change[:, f]),
        "qp": (f, t, change[:, f] * (w["w_q1"][..., f] * w["w_q2"][..., t]).sum(-1)[:, :, None]),
        "kp": (f, t, change[:, f] * (w["w_k1"][..., f] * w["w_k2"][..., t]).sum(-1)[:, None, :]),
        "qg": (f, f, change[:, f] * w["w_qg"][:, :, None, f]),
        "kg": (f, f, change[:, f] * w["w_kg"][:, None, :, f]),
    }
    for kind, (source, target, part) in added.items():

        def put(out, hook, target=target, part=part):
            out = out.clone()
            out[:, target] += part
            return out

        logits = run.bridge.run_with_hooks(batch.ids, fwd_hooks=[(f"{prefix}out", put)])
        found = patched(run, batch, f"L1H{source} -> L1H{target} ({stage} {kind})")
        assert torch.allclose(found, batch.metric(logits[:, -1]), rtol=0, atol=1e-11), kind


@pytest.mark.parametrize("kind", ["over other pairs", "over other pairs, in groups"])
@torch.no_grad()
def test_a_patched_edge_over_other_pairs_is_a_hook_on_the_composed_scores(make_run, kind):
    """All offsets of the convolution together, of one head into one head, with hidden scores read as zero."""
    run, batch = make_run(kind)
    prefix, f, t = "blocks.1.attn.pre.hook_", 3, 2
    clean, other = (run.bridge.run_with_cache(ids, names_filter=[f"{prefix}in"])[1] for ids in (batch.ids, batch.other))
    change = (other[f"{prefix}in"] - clean[f"{prefix}in"])[:, f].tril()
    composer = run.bridge.original_model.model.layers[1].self_attn.original_component.pre.original_component
    taps, mixed = composer.taps[f], composer.heads.head_map()[f, t]
    part = torch.zeros_like(change)
    for query in range(LENGTH):
        for key in range(query + 1):
            for back, row in enumerate(taps):
                for place, tap in enumerate(row):
                    i, j = query - back, key - (place - len(row) // 2)
                    if i >= 0 and 0 <= j <= i and (i, j) != (query, key):
                        part[:, query, key] += mixed * tap * change[:, i, j]
    assert part.abs().max() > 0.01

    def put(out, hook):
        out = out.clone()
        out[:, t] += part
        return out

    logits = run.bridge.run_with_hooks(batch.ids, fwd_hooks=[(f"{prefix}out", put)])
    found = patched(run, batch, f"L1H{f} -> L1H{t} (pre kq)")
    assert torch.allclose(found, batch.metric(logits[:, -1]), rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_patched_edge_into_dynamic_weights_changes_these_alone(make_run):
    run, batch = make_run("composed")
    bridge, prefix = run.bridge, "blocks.1.attn.post.hook_"
    bridge.set_use_attn_result(True)
    names = ["blocks.0.attn.hook_result", "blocks.1.hook_in"]
    clean, other = (bridge.run_with_cache(ids, names_filter=names)[1] for ids in (batch.ids, batch.other))
    stream = clean[names[1]] + (other[names[0]] - clean[names[0]])[:, :, 3]
    normed = bridge.blocks[1].ln1.original_component(stream)
    made = dict(bridge.blocks[1].attn.post.original_component.weights(normed, normed).dynamic())
    hooks = [(f"{prefix}{name}", lambda t, hook, new=new: new) for name, new in made.items()]
    byhand = batch.metric(bridge.run_with_hooks(batch.ids, fwd_hooks=hooks)[:, -1])
    assert torch.allclose(patched(run, batch, "L0H3 -> L1 post weights"), byhand, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", ["composed, parallel", "static, in groups", "over other pairs, in groups"])
def test_eap_is_the_derivative_of_patching(make_run, kind):
    run, batch = make_run(kind)
    other = other_values(run, batch)
    scores = METHODS["eap"](run, batch, other, 1)
    last = {edge.kind: place for place, edge in enumerate(run.graph.edges)}
    step = 1e-5
    for place in [*last.values(), run.graph.find("L0H1 -> L1H2.k"), run.graph.find("embedding -> L1 pre weights")]:
        at = gates(run, batch)
        ends = []
        for move in (step, -step):
            at[:, place] = 1 + move
            with torch.no_grad():
                ends.append(batch.metric(run(batch.ids, Cut(at, other))[0]))
        assert torch.allclose(scores[:, place], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-8)


def test_eap_of_a_plain_model_agrees_with_transformer_lens_hooks(make_run):
    run, batch = make_run("plain")
    bridge, graph = run.bridge, run.graph
    bridge.set_use_attn_result(True)
    bridge.set_use_split_qkv_input(True)
    wanted, inputs = "blocks.0.attn.hook_result", [f"blocks.1.attn.hook_{side}_input" for side in "qkv"]
    with torch.no_grad():
        clean, other = (
            bridge.run_with_cache(ids, names_filter=[wanted])[1][wanted] for ids in (batch.ids, batch.other)
        )
    seen = {}

    def keep(tensor, hook):
        tensor = tensor.detach().requires_grad_()
        seen[hook.name] = tensor
        return tensor

    # The readers' inputs are leaves: what reaches m through them does so at layer 1, as for every reader there.
    logits = bridge.run_with_hooks(batch.ids, fwd_hooks=[(name, keep) for name in inputs])
    gradients = torch.autograd.grad(batch.metric(logits[:, -1]).sum(), [seen[name] for name in inputs])
    scores = METHODS["eap"](run, batch, other_values(run, batch), 1)
    for side, gradient in zip("qkv", gradients, strict=True):
        byhand = torch.einsum("bpud,bpvd->buv", clean - other, gradient)
        for u in range(HEADS):
            for v in range(HEADS):
                found = scores[:, graph.find(f"L0H{u} -> L1H{v}.{side}")]
                assert torch.allclose(found, byhand[:, u, v], rtol=0, atol=1e-11)


def test_exact_scores_are_single_patches_and_eap_ig_averages_gradients(make_run):
    run, batch = make_run("composed")
    other = other_values(run, batch)
    exact = METHODS["exact"](run, batch, other, 1)
    with torch.no_grad():
        whole = batch.metric(run(batch.ids)[0])
    for name in ("L0H1 -> L1H2.v", "L1H0 -> L1H3 (post kp)", "MLP 1 -> logits"):
        assert torch.allclose(exact[:, run.graph.find(name)], whole - patched(run, batch, name), atol=1e-11)
    # From a prompt to itself every difference is zero, so that no method finds anything.
    same = PairBatch(batch.ids, batch.ids, batch.target, batch.foil, (0, 1))
    for method in METHODS.values():
        assert method(run, same, other_values(run, same), 2).abs().max() < 1e-12
    # The last layer's output meets the logits through the final norm alone: one path, one average.
    place = run.graph.find("MLP 1 -> logits")
    found, start, end = METHODS["eap-ig"](run, batch, other, 3)[:, place], run.embed(batch.other), run.embed(batch.ids)
    total = torch.zeros(2, dtype=torch.float64)
    change = (run(batch.ids)[1].written - other.written)[-1, :, -1]
    for at, weight in (((1 - 0.6**0.5) / 2, 5 / 18), (0.5, 8 / 18), ((1 + 0.6**0.5) / 2, 5 / 18)):
        with torch.no_grad():
            final = run(batch.ids, embedded=start + at * (end - start))[1].written.sum(0)[:, -1]
        final.requires_grad_()
        norm, unembed = run.bridge.ln_final.original_component, run.bridge.original_model.lm_head
        metric = batch.metric(unembed(norm(final)))
        total += weight * (torch.autograd.grad(metric.sum(), final)[0] * change).sum(-1)
    assert torch.allclose(found, total, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["plain", "parallel"])
def test_scores_by_gates_add_up_to_the_whole_difference(make_run, kind):
    run, batch = make_run(kind)
    found = METHODS["gates"](run, batch, other_values(run, batch), 24)
    with torch.no_grad():
        clean, changed = (batch.metric(run(ids)[0]) for ids in (batch.ids, batch.other))
    assert ((found.sum(1) - (clean - changed)).abs() < 1e-4 * found.abs().sum(1)).all()


def test_what_removing_an_edge_does_is_that_of_attribute_edges(make_run):
    run, batch = make_run("composed")
    pairs = [slice(0, 1), slice(1, 2)]
    found = removal(run, batch)
    assert found[:, [i for i, edge in enumerate(run.graph.edges) if edge.kind == "stream"]].eq(0).all()
    for row, part in enumerate(pairs):
        target, foil = batch.target[row], batch.foil[row]
        for stage in ("pre", "post"):
            m = lambda x, t=target, f=foil: x[:, -1, t] - x[:, -1, f]  # noqa: E731
            ask = EdgeQuestion(run.bridge, batch.ids[part], m, stage, (0, 1), gaps=False)
            slopes, _ = RULES["relp"].slopes(ask)
            states = ask.states(batch.ids[part])
            for layer in (0, 1):
                table = slopes[layer].edges(states[layer]).sum(-1)
                for group in run.graph.composition(layer, stage):
                    f, t = zip(*group.pairs, strict=True)
                    expected = table[NAMES.index(group.kind)][list(f), list(t)].to(found)
                    assert torch.allclose(found[row, group.start : group.start + group.size], expected, atol=1e-6)


def test_what_both_prompts_share_comes_behind_what_differs_and_before_what_does_nothing(make_run):
    run, batch = make_run("composed")
    other = other_values(run, batch)
    gates, both = METHODS["gates"](run, batch, other, 3), METHODS["gates-relp"](run, batch, other, 3)
    changed = (both - gates).abs() > 0
    assert changed.any()
    assert not changed.all()
    largest = gates.abs().amax(1, keepdim=True).expand_as(gates)
    share = both.abs() / largest
    assert (share[changed] <= REMOVED).all()
    assert (share[changed] > REMOVED / 2).all()
    assert (both.abs() >= gates.abs()).all()
    assert both[changed].sign().eq(removal(run, batch)[changed].sign()).all()
    assert not changed[:, [i for i, edge in enumerate(run.graph.edges) if edge.kind == "stream"]].any()


def test_edges_off_every_path_from_the_embedding_to_the_logits(make_run):
    graph = make_run("composed")[0].graph
    on = ["embedding -> L0H1.v", "L0H1 -> L1H2.q", "L1H2 -> L1H3 (pre kp)", "L1H3 -> L1H0 (post qp)", "L1H0 -> logits"]
    off = ["L0H2 -> L1H2.q", "L1H2 -> L1H1 (pre kp)", "embedding -> L1H1.v", "L1H3 -> logits"]
    kept = torch.zeros(graph.size, dtype=torch.bool)
    kept[[graph.find(name) for name in on + off]] = True
    assert {graph.names[i] for i in graph.connected(kept).nonzero()[:, 0].tolist()} == set(on)


def test_pairs_have_one_length_and_two_answers(shipped):
    pairs, without = read_pairs(shipped, "task0,task30 n=6 seed=1")
    assert len(pairs) + without == 6
    for pair in pairs:
        assert pair.ids.shape == pair.other.shape
        assert pair.target != pair.foil
    assert sorted(place for batch in batches(pairs, 2) for place in batch.places) == list(range(len(pairs)))
    own = ("The dog is an", "animal", "The apple is an", "fruit")
    (pair,), _ = read_pairs(shipped, [own])
    (batch,) = batches([pair], 4)
    logits = shipped(pair.ids)[:, -1]
    chosen = [shipped.tokenizer.convert_tokens_to_ids(word) for word in ("animal", "fruit")]
    assert batch.metric(logits)[0] == logits[0, chosen[0]] - logits[0, chosen[1]]
    with pytest.raises(UserError, match="has another length"):
        read_pairs(shipped, [("The dog is an", "animal", "The apple", "fruit")])
    with pytest.raises(UserError, match="not a valid pair"):
        read_pairs(shipped, [("The dog is an", "animal")])
    with pytest.raises(UserError, match="no counterfactual 'position' with another answer"):
        read_pairs(shipped, "task0 n=2", "position")


def test_a_model_that_is_not_ours_is_refused(own_model):
    import dcinterp

    with pytest.raises(UserError, match="decoders of dcinterp"):
        CircuitGraph.of(dcinterp.load(own_model("gpt2")))


OTHERS = set(COMPOSERS) - {"dynamic"}
COMPOSED = [name for name in presets() if name.startswith("tiny-") and DCFormerConfig.preset(name).compose in OTHERS]


@pytest.mark.parametrize("preset", COMPOSED)
def test_every_way_of_composing_has_its_circuit_or_is_refused_by_name(make_bridge, preset):
    """With all edges kept the run is the model, and with none the other run; or there is a sentence."""
    bridge = make_bridge(preset).double()
    if preset in ("tiny-fishformer", "tiny-dense-collaboration"):
        with pytest.raises(UserError, match=repr(bridge.original_model.config.compose)):
            CircuitRun(bridge)
        return
    run = CircuitRun(bridge)
    ids, other = torch.randint(3, 120, (2, 1, LENGTH), generator=torch.Generator().manual_seed(2))
    _, values = run(other)
    gates = torch.stack([torch.ones(run.graph.size), torch.zeros(run.graph.size)]).double()
    logits, _ = run(ids.expand(2, -1), Cut(gates, values))
    torch.testing.assert_close(logits, torch.cat([bridge(ids)[:, -1], bridge(other)[:, -1]]), atol=1e-9, rtol=0)


def test_pairs_that_share_a_prompt_repeat_each_other(make_bridge):
    bridge = make_bridge()
    p, c, d, other = [3, 4, 5], [3, 4, 6], [3, 4, 7], [8, 9, 10]
    given = [(p, 11, c, 13), (p, 11, d, 14), (c, 13, p, 11), (other, 11, [8, 9, 12], 13)]
    pairs, _ = read_pairs(bridge, given)
    assert len({pair.repeats for pair in pairs}) == 2
    ranked, measured = ranked_and_measured(pairs)
    assert sorted([len(ranked), len(measured)]) == [1, 3]
    with pytest.raises(UserError, match="share all their facts"):
        ranked_and_measured(pairs[:3])
