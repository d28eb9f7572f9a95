"""An exported circuit held to circuit-tracer itself: its models of the file, and the code by which its viewer reads it.

    pip download --no-deps circuit-tracer==0.5.0 && unzip circuit_tracer-*.whl -d FOLDER
    DCINTERP_CIRCUIT_TRACER=FOLDER pytest tests/parity/test_circuit_tracer.py

It is not installed: only these two of its files are read, and they need no more than pydantic and Node.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dcinterp
from dcinterp.mechanism.circuit_drawing import CircuitNotes

FRONTEND = Path(os.environ.get("DCINTERP_CIRCUIT_TRACER", "")) / "circuit_tracer" / "frontend"
pytestmark = pytest.mark.skipif(
    not (FRONTEND / "graph_models.py").is_file(), reason="set DCINTERP_CIRCUIT_TRACER to its unpacked wheel"
)

READ = """
const d3 = {
  max: (rows, of) => rows.map(of).filter(x => !isNaN(x)).reduce((a, b) => Math.max(a, b), -Infinity),
  sum: (rows, of) => rows.map(of).reduce((a, b) => a + b, 0),
  sort: (rows, of) => [...rows].sort((a, b) => of(a) - of(b)),
  nestBy: (rows, of) => {
    const groups = new Map()
    rows.forEach(row => groups.set(of(row), [...(groups.get(of(row)) ?? []), row]))
    return [...groups.values()]
  },
}
const window = {}, util = { params: { get: () => null, set: () => null }, ppToken: x => x }
globalThis.d3 = d3; globalThis.window = window; globalThis.util = util
const fs = require("fs")
eval(fs.readFileSync(process.argv[1], "utf8"))
const data = JSON.parse(fs.readFileSync(process.argv[2], "utf8"))
const prune = process.argv[3] ? { pruningThreshold: process.argv[3] } : {}
window.utilCg.formatData(data, { pinnedIds: [], ...prune }).then(read => console.log(JSON.stringify({
  nodes: read.nodes.map(d => ({ id: d.nodeId, row: d.streamIdx, clerp: d.clerp })),
  links: read.links.map(d => [d.sourceNode.nodeId, d.targetNode.nodeId, d.weight]),
})))
"""


@pytest.fixture(scope="module")
def graph(shipped):
    notes = CircuitNotes(pinned=("MLP 2",), groups=(("movers", ("L1H0", "L1H2")),))
    return dcinterp.circuit(shipped, "task0 n=4", steps=1).to_attribution_graph(notes=notes)


def test_its_models_take_the_file_and_lose_nothing_of_theirs(graph):
    spec = importlib.util.spec_from_file_location("graph_models", FRONTEND / "graph_models.py")
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    read = models.Model(**graph)
    assert [node.model_dump() for node in read.nodes] == graph["nodes"]
    assert read.qParams.model_dump() == graph["qParams"]
    metadata = read.metadata.model_dump()
    assert {name: graph["metadata"][name] for name in metadata} == metadata
    for link in graph["links"]:
        assert models.Link(**link).weight == link["weight"]
    for node in graph["nodes"]:
        if node["feature_type"] not in ("logit", "token embeddings"):
            layer, number, at = map(int, node["node_id"].split("_"))
            own = models.Node.feature_node(layer, at, number)
            for name in ("node_id", "feature", "layer", "ctx_idx", "jsNodeId"):
                assert getattr(own, name) == node[name]


def test_its_viewer_reads_the_file(graph, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node to run the viewer's code")
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(graph), encoding="utf-8")

    def read(*prune: str) -> dict:
        code = FRONTEND / "assets" / "attribution_graph" / "util-cg.js"
        done = subprocess.run([node, "-e", READ, str(code), str(file), *prune], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole = read()
    assert {each["id"] for each in whole["nodes"]} == {each["node_id"] for each in graph["nodes"]}
    expected = {(link["source"], link["target"]): link["weight"] for link in graph["links"]}
    assert {(a, b): weight for a, b, weight in whole["links"]} == expected
    rows = {each["id"]: each["row"] for each in whole["nodes"]}
    assert rows[next(name for name in rows if name.startswith("E_"))] == 0
    assert max(rows.values()) == rows["4_0_" + next(iter(rows)).rpartition("_")[2]]
    # Pruned, the nodes with the most of the circuit stay.
    left = {each["id"] for each in read("0.5")["nodes"]}
    assert 1 < len(left) < len(rows)
    kept = {each["node_id"] for each in graph["nodes"] if each["influence"] <= 0.5 or each["feature_type"] == "logit"}
    assert left == kept
