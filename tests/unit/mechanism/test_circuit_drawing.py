"""Circuits as they are drawn: the drawing, the exported graph and a run of the model are the same numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

import dcinterp
from dcinterp import figures
from dcinterp.analysis.circuits.circuit_answers import ready_circuit
from dcinterp.mechanism.circuit_drawing import CircuitNotes, Shape, all_nodes, connected_edges, draw_circuit
from dcinterp.mechanism.circuit_file import SavedCircuit, read_notes, write_notes
from dcinterp.mechanism.circuit_graph import CircuitGraph
from dcinterp.mechanism.circuit_pairs import PairBatch
from dcinterp.mechanism.circuit_run import CircuitRun
from dcinterp.mechanism.circuit_scores import METHODS, Others, run_circuits
from dcinterp.support.errors import UserError

SET = "task0 n=4"
NOTES = CircuitNotes(
    pinned=("MLP 2", "logits"),
    groups=(("movers", ("L1H0", "L1H2")),),
    names={"L2H7": "reads the answer"},
)


@pytest.fixture(scope="module")
def scored(shipped):
    return dcinterp.circuit(shipped, SET, steps=1, held_out=True)


@pytest.fixture(scope="module")
def live(shipped):
    return ready_circuit(shipped, SET, held_out=True)


def kept_names(scored, kept):
    return [name for name, keep in zip(scored.edges, kept.tolist(), strict=True) if keep]


def test_drawing_graph_and_rerun_are_the_same_numbers(shipped, scored, live, tmp_path):
    taken_out = scored.table()["edge"][0]
    kept = scored.highest(40, [taken_out])
    assert int(kept.sum()) == 39
    drawing = scored.drawing(kept)
    score = dict(zip(scored.edges, scored.mean.tolist(), strict=True))
    # What is drawn is the circuit, edge by edge, with its scores ...
    assert {edge.name: edge.score for edge in drawing.edges} == {name: score[name] for name in kept_names(scored, kept)}
    # ... and so does the figure say, and the file.
    figure = figures.plot(scored, kind="drawing", size=40, switched=[taken_out])
    written = next(trace for trace in figure.data if trace.text is not None and "score" in str(trace.text[0])).text
    assert set(written) == {f"{edge.name}<br>score {edge.score:+.3f}" for edge in drawing.edges}
    graph = scored.to_attribution_graph(tmp_path / "graph.json", kept=kept, notes=NOTES)
    assert json.loads((tmp_path / "graph.json").read_text()) == graph
    parts = {part["name"]: part["weight"] for link in graph["links"] for part in link["edges"]}
    assert parts == {edge.name: edge.score for edge in drawing.edges}
    for link in graph["links"]:
        assert link["weight"] == pytest.approx(sum(part["weight"] for part in link["edges"]))
    # The drawn edges, read back from the file, are run: the model gives the numbers of the page.
    again = dcinterp.circuit_answers(shipped, SET, list(parts), held_out=True)
    assert torch.equal(again.alone, live.answer(kept).metric)
    assert again == dcinterp.circuit_answers(shipped, SET, list(parts), held_out=True, ready=live)
    whole = dcinterp.circuit_answers(shipped, SET, kept_names(scored, scored.kept), held_out=True, ready=live)
    assert torch.allclose(whole.alone, scored.alone, atol=1e-4)
    assert whole.faithfulness == pytest.approx(scored.faithfulness, abs=1e-4)
    assert whole.prompts == scored.prompts


def test_the_drawn_circuit_is_a_point_of_the_curve(shipped, scored, live):
    curve = dcinterp.faithfulness(shipped, SET, steps=1, draws=1)
    for point in (4, 5):
        kept = scored.highest(int(curve.kept[point]))
        found = dcinterp.circuit_answers(shipped, SET, kept_names(scored, kept), held_out=True, ready=live)
        assert found.faithfulness == pytest.approx(float(curve.f[0, point]), abs=1e-4)
        assert found.idle == int(curve.idle[point])


def test_the_graph_has_the_fields_of_the_viewers(scored):
    """Those of circuit-tracer's `graph_models.py`, and identifiers that fit together."""
    graph = scored.to_attribution_graph(notes=NOTES, slug="mine")
    assert set(graph) == {"metadata", "qParams", "nodes", "links"}
    metadata = graph["metadata"]
    assert (metadata["slug"], metadata["scan"], metadata["schema_version"]) == ("mine", "dcformer++", 1)
    assert metadata["transcoder_list"] == []
    assert "".join(metadata["prompt_tokens"]).replace(" ", "") == metadata["prompt"].replace(" ", "")
    ids = [node["node_id"] for node in graph["nodes"]]
    assert len(set(ids)) == len({node["jsNodeId"] for node in graph["nodes"]}) == len(ids)
    required = {"node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp", "influence"}
    last = len(metadata["prompt_tokens"]) - 1
    for node in graph["nodes"]:
        assert required <= set(node)
        assert node["ctx_idx"] == last
        layer, _, rest = node["node_id"].partition("_")
        assert (layer, rest.rpartition("_")[2]) == (node["layer"], str(last))
    (logits,) = [node for node in graph["nodes"] if node["is_target_logit"]]
    assert (logits["layer"], logits["feature_type"]) == ("4", "logit")
    assert logits["clerp"].endswith("(p=n/a)")  # the viewer reads a probability there
    # Cumulative, as in circuit-tracer: the largest node has its own share, the smallest all.
    through = {}
    for link in graph["links"]:
        for end in ("source", "target"):
            sizes = through.setdefault(link[end], {"source": 0.0, "target": 0.0})
            sizes[end] += sum(abs(part["weight"]) for part in link["edges"])
    largest = {node: max(sizes.values()) for node, sizes in through.items()}
    influence = {node["node_id"]: node["influence"] for node in graph["nodes"]}
    first = max(largest, key=largest.__getitem__)
    assert influence[first] == pytest.approx(largest[first] / sum(largest.values()))
    assert influence[min(largest, key=largest.__getitem__)] == pytest.approx(1)
    assert {end for link in graph["links"] for end in (link["source"], link["target"])} <= set(ids)
    named = {node["clerp"]: node["node_id"] for node in graph["nodes"]}
    assert graph["qParams"]["pinnedIds"] == [named["MLP 2"], logits["node_id"]]
    assert graph["qParams"]["supernodes"] == [["movers", named["L1H0"], named["L1H2"]]]
    assert "reads the answer" in named
    with pytest.raises(UserError, match="file in a folder that exists"):
        scored.to_attribution_graph("missing/graph.json")


def test_composition_leads_upwards_in_its_layer_and_groups_are_one_node(scored):
    drawing = scored.drawing()
    for edge in drawing.edges:
        source, target = drawing.node(edge.source), drawing.node(edge.target)
        assert source.y < target.y, edge.name
        if edge.kind != "stream":
            assert source.layer == target.layer
            assert target.y - source.y == 1
    grouped = scored.drawing(notes=NOTES)
    group = grouped.node("movers")
    members = [drawing.node(name) for name in ("L1H0", "L1H2")]
    assert group.x == sum(node.x for node in members) / 2
    assert not {"L1H0", "L1H2"} & {node.name for node in grouped.nodes}
    assert grouped.node("L2H7").label == "reads the answer"
    assert grouped.node("MLP 2").pinned
    at_members = sum(bool({"L1H0", "L1H2"} & {edge.source, edge.target}) for edge in drawing.edges)
    assert sum("movers" in (edge.source, edge.target) for edge in grouped.edges) == at_members > 0


@pytest.mark.parametrize("preset", ["tiny-transformer++", "tiny-dcpythia"])
def test_what_names_say_of_a_model_is_what_the_graph_says(make_bridge, preset):
    graph = CircuitGraph.of(make_bridge(preset, num_key_value_heads=2))
    shape = Shape.of(graph.edges)
    assert (shape.layers, shape.heads, shape.kv_heads) == (graph.layers, graph.heads, graph.kv_heads)
    assert shape.stages == graph.stages
    kept = torch.rand(graph.size, generator=torch.Generator().manual_seed(0)) < 0.2
    assert connected_edges(graph.edges, kept.tolist()) == graph.connected(kept).tolist()
    drawing = draw_circuit(graph.edges, [1.0] * graph.size, [True] * graph.size)
    assert {edge.index for edge in drawing.edges} == set(range(graph.size))
    assert {node.name for node in drawing.nodes} == set(all_nodes(graph.edges))
    assert len({(node.x, node.y) for node in drawing.nodes}) == len(drawing.nodes), "no node hides another"


WRONG_FIELDS = (
    ("size", None, "no field 'size'"),
    ("size", "40", "size is '40'"),
    ("size", -1, "must be at least 1"),
    ("size", 1e30, "size is 1e"),
    ("switched", "L0H0", "must be a list of texts"),
    ("names", {"L1H6": 5}, "must be text"),
    ("groups", [["a"]], "no field 'name'"),
    ("edges", [{"name": "x", "score": "high"}], "score is 'high'"),
    ("edges", [{"name": "x", "score": math.nan}], "score of 'x' is nan"),
    ("edges", [{"name": "x", "score": 10**400}], "score is 1000"),
    ("edges", [{"name": "x", "score": 1}] * 2, "the same name"),
    ("arguments", {"examples": ["task0"]}, r"arguments.examples is \['task0'\]"),
)


def test_notes_and_files_are_read_back(scored):
    nodes = all_nodes(scored.edge_list)
    notes = read_notes(write_notes(NOTES), nodes, ["MLP 2 -> logits"])
    assert notes == dataclasses.replace(NOTES, switched=("MLP 2 -> logits",))
    saved = SavedCircuit("dcformer++", {"examples": SET}, 40, notes, {"MLP 2 -> logits": 1.5})
    assert SavedCircuit.from_json(saved.to_json()) == saved
    for text, words in (
        ("pin L9H9", "no node 'L9H9'"),
        ("dance", "is not a note; write 'pin L1H6'"),
        ("group a: L1H0\ngroup b: L1H0", "L1H0 is in two groups"),
        ("group L1H6: L1H0", "cannot be called 'L1H6'"),
    ):
        with pytest.raises(UserError, match=words):
            read_notes(text, nodes)
    for text in ("{", "[]", "{}", saved.to_json().replace("dcinterp circuit", "other")):
        with pytest.raises(UserError, match="not a saved circuit"):
            SavedCircuit.from_json(text)
    for field, wrong, words in WRONG_FIELDS:
        record = json.loads(saved.to_json())
        if wrong is None:
            del record[field]
        else:
            record[field] = wrong
        with pytest.raises(UserError, match=f"not a saved circuit .*{words}"):
            SavedCircuit.from_json(json.dumps(record))
    for text in (saved.to_json().replace("{", '{"size": 3,', 1), f'{{"kind": {"[" * 900}{"]" * 900}}}'):
        with pytest.raises(UserError, match=r"not a saved circuit \(it (gives 'size' twice|is nested too deep)"):
            SavedCircuit.from_json(text)
    with pytest.raises(UserError, match="later version"):
        SavedCircuit.from_json(saved.to_json().replace('"version": 1', '"version": 9'))
    with pytest.raises(UserError, match="no edge 'L0H0'"):
        scored.highest(3, ["L0H0"])


def test_scores_over_activations_add_up_for_every_source(make_bridge):
    """All edges of one source together: what m loses when they are patched, to the error of the integral."""
    bridge = make_bridge(hidden_size=32, num_attention_heads=4, intermediate_size=48).double()
    ids, other = torch.randint(3, 120, (2, 2, 6), generator=torch.Generator().manual_seed(2))[:, :1]
    run, batch = CircuitRun(bridge), PairBatch(ids, other, *torch.tensor([[5], [7]]), (0,))
    values = Others(run, [], "counterfactual").of(batch)
    scores = METHODS["eap-ig-activations"](run, batch, values, 10)
    sources = run.graph.by_source
    assert list(sources) == ["embedding", "L0 pre", "L0 post", "L0", "MLP 0", "L1 pre", "L1 post", "L1", "MLP 1"]
    kept = torch.ones(1 + len(sources), run.graph.size)
    for row, own in zip(kept[1:], sources.values(), strict=True):
        row[own] = 0
    found = run_circuits(run, batch, values, kept)
    for row, (source, own) in zip(found[1:], sources.items(), strict=True):
        # Between two random embeddings the norm of the first layer turns sharply.
        off = 0.05 if source == "embedding" else 5e-4
        assert torch.allclose(scores[:, own].sum(1), found[0] - row, rtol=1e-2, atol=off), source
    assert (found[0] - found[1:]).abs().max() > 1e-2


def test_an_edge_into_a_shared_value_is_drawn_to_the_heads_that_it_serves(make_bridge):
    graph = CircuitGraph.of(make_bridge("tiny-transformer++", num_hidden_layers=2, num_key_value_heads=2))
    each = graph.heads // 2
    kept = [name in ("embedding -> L0H1.v", f"L0H{graph.heads - 1} -> logits") for name in graph.names]
    drawing = draw_circuit(graph.edges, [1.0] * graph.size, kept)
    served = {edge.target for edge in drawing.edges if edge.source == "embedding"}
    assert served == {f"L0H{head}" for head in range(each, graph.heads)}
    assert all(edge.connected for edge in drawing.edges if edge.target in (f"L0H{graph.heads - 1}", "logits"))
