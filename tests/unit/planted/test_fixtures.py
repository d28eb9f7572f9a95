"""Models with known circuits, for people who have nothing but torch and TransformerLens."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
import torch

from dcinterp import UserError
from dcinterp.planted.circuits import FORMER
from dcinterp.planted.fixtures import FOLDER, fixtures, load_fixture, stated_of, trained
from dcinterp.planted.stated import STATED, Asked, Stated, stated


def test_loading_one_imports_nothing_of_the_app():
    program = """import sys
from dcinterp.planted.fixtures import load_fixture
load_fixture("share-by-kp heads=8").pairs(1)
print([name for name in ("streamlit", "plotly", "pandas", "transformer_lens") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("name", trained())
def test_a_shipped_model_keeps_to_its_circuit(name):
    """The marks that its file states are measured again, on other prompts."""
    from dcinterp.bench.trained_truth import ENOUGH_QUIET, ENOUGH_RIGHT, check_truth
    from dcinterp.mechanism.circuit_run import CircuitRun

    folder = FOLDER / name
    assert (folder / "model.safetensors").stat().st_size < 300_000
    assert stated_of(name) == STATED[name]
    assert json.loads((folder / "circuit.json").read_text(encoding="utf-8"))["marks"]["interchange"] >= ENOUGH_RIGHT
    marks = check_truth(stated_of(name), CircuitRun(load_fixture(name).bridge()), rows=200, seed=5)
    assert min(marks.accuracy, marks.interchange) >= ENOUGH_RIGHT - 0.01  # 200 prompts: one or two by chance
    assert marks.outside <= ENOUGH_QUIET + 0.01


def test_pairs_ask_alike_and_find_elsewhere():
    for name in ("share-by-kp heads=8", trained()[0]):
        fixture = load_fixture(name)
        pairs = fixture.pairs(4, seed=1)
        assert len(pairs) == 4
        for pair in pairs:
            a, b = (
                fixture.tokenizer(t, add_special_tokens=False)["input_ids"] for t in (pair.prompt, pair.counterfactual)
            )
            assert len(a) == len(b)
            assert a != b
            assert pair.answer != pair.foil
            with torch.no_grad():
                found = fixture.model(torch.tensor([a])).logits[0, -1].argmax()
            assert fixture.tokenizer.decode(found) == pair.answer
        assert fixture.pairs(4, seed=1) == pairs != fixture.pairs(4, seed=2)


def test_names_and_cases_are_checked():
    assert {"chain", *trained()} <= set(fixtures())
    with pytest.raises(UserError, match="no fixture 'lookup-post-kq'"):
        load_fixture("lookup-post-kq")
    with pytest.raises(UserError, match="no fixture ''"):
        load_fixture("")
    with pytest.raises(UserError, match="has no case 'green'; it has 'class', 'colour', 'copy'"):
        load_fixture("share-by-qp", case="green")
    assert load_fixture("share-by-qp", case="copy").edges != load_fixture("share-by-qp", case="class").edges
    with pytest.raises(UserError, match="no stated circuit 'lookup'"):
        stated("lookup")


def test_the_high_level_model_by_hand():
    one = Asked("lookup", (0, 2, 4, 1), (3, 3, 4, 0), 2, "")
    assert one.prompt == "<bos> k0v3 k2v3 k4v4 k1v0 ?k2"
    assert (one.places(), one.answer(), one.answer({0: 3})) == ([1], "a3", "a0")
    assert Asked("choose", (0, 2, 4, 1), (3, 3, 4, 0), 4, "b").answer() == "b4"
    # k2 leads to the fact with key 3, whose value is 0; with the first hop at place 0, to the fact with key 1.
    chain = Asked("chain", (0, 1, 2, 3), (1, 2, 3, 0), 2, "")
    assert (chain.places(), chain.answer()) == ([2, 3], "a0")
    assert (chain.places({0: 0}), chain.answer({0: 0}), chain.answer({1: 1})) == ([0, 1], "a2", "a2")


@pytest.mark.parametrize("name", STATED)
def test_a_stated_circuit_is_written_and_read_and_asks_what_it_can_answer(name):
    circuit = stated(name)
    assert Stated.from_json(circuit.to_json()) == circuit
    draw = random.Random(0)
    for _ in range(20):
        asked = circuit.draw(draw)
        assert len(set(asked.keys)) == len(asked.keys)
        assert all(0 <= place < len(asked.keys) for place in asked.places())
    for hop in circuit.hops:
        assert hop.layer < circuit.layers
        assert (hop.head_from == hop.head_to) == (hop.branch in ("qg", "kg"))  # a gate is a head's own


def test_names_of_models_with_settings():
    name = trained()[0]
    with pytest.raises(UserError, match=f"{name} is a trained model and has no settings; leave out seed=3"):
        load_fixture(f"{name} seed=3")
    assert load_fixture(f"{name},").name == name
    old, new = next(iter(FORMER.items()))
    assert load_fixture(f"{old} heads=8").edges == load_fixture(f"{new} heads=8").edges
    with pytest.raises(UserError, match="sets seed twice"):
        load_fixture("share-by-kp seed=1 seed=2")
