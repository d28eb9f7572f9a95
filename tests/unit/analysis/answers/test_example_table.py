"""Examples as a table: right or wrong by the model itself, and the scores of `circuit` for each example alone."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp.mechanism.circuit_graph import CircuitGraph
from synthetic_tasks import generate

EXAMPLES = [generate("task0", 1, seed, examples=1, split="held-out")[0].examples[0] for seed in range(3)]


@torch.no_grad()
def test_correctness_and_m_are_the_models_own_and_the_parts_those_of_circuit(shipped):
    found = dcinterp.example_table(shipped, EXAMPLES, steps=2)
    assert found.numbers == tuple(i for i in range(3) if i in found.numbers)
    graph = CircuitGraph.of(shipped)
    for row, number in enumerate(found.numbers):
        prediction = dcinterp.predict(shipped, found.prompts[row])
        assert found.said[row] == prediction.top_tokens[0].strip()
        assert bool(found.right[row]) == (found.said[row] == found.answers[row])
        alone = dcinterp.circuit(shipped, [EXAMPLES[number]], steps=2)
        assert float(found.logit_difference[row]) == pytest.approx(float(alone.metric[0]), abs=1e-3)
        score = dict(zip(alone.edges, alone.mean.tolist(), strict=True))
        assert float(found.edge_score[row]) == pytest.approx(score[found.edges[row]], abs=1e-3)
        between = [e.name for e in graph.edges if e.kind != "stream" and e.source != e.target]
        assert max(between, key=lambda name: abs(score[name])) == found.edges[row]
        leaving = sum(score[e.name] for e in graph.edges if e.kind == "stream" and e.source == found.heads[row])
        assert float(found.head_score[row]) == pytest.approx(leaving, abs=1e-3)
    assert f"of {len(found.numbers)} answers are right" in found.sentence()


def test_without_composition_the_main_edge_is_one_of_the_stream(twin):
    found = dcinterp.example_table(twin, EXAMPLES, steps=1)
    assert len(found.table()) == len(found.numbers)
    assert all("->" in edge for edge in found.edges)
