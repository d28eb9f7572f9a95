"""Planted models answer everything, their answers need what the truth says, and wrong requests end in a sentence."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from dcinterp import UserError
from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.planted import circuits, plant, read_plant, together, tokenizer
from dcinterp.planted.words import COLOUR, KIND, SPECIAL_TOKENS, TOKEN_ID

KNOBS = [{}, {"redundancy": 2}, {"redundancy": 3}, {"rank": 3}, {"circuits": 4}, {"heads": 16, "rank": 2}]


def answer_by_reading(text: str, circuit: str = "") -> str:
    """What a person answers, written without looking at the circuits."""
    _, *words = text.split()
    facts, question, asked = words[:6], words[6], words[7:]
    has = dict(zip(facts[::2], facts[1::2], strict=True))
    things = [has[name] for name in asked]
    if circuit == "inhibition":
        return KIND[things[0]]
    if circuit in ("chain", "backup"):
        (other,) = (thing for thing in has.values() if thing != things[0] and KIND[thing] == KIND[things[0]])
        return COLOUR[other]
    if circuit in ("gate-by-kg", "gate-by-pre-kg") and KIND[things[0]] == "fruit":
        return COLOUR[things[0]]
    if question == "both":
        shared = {KIND[things[0]], COLOUR[things[0]]} & {KIND[things[1]], COLOUR[things[1]]}
        (word,) = shared
        return word
    if question in ("kind", "class", "type"):
        return KIND[things[0]]
    return COLOUR[things[0]] if question == "colour" else things[0]


@pytest.mark.parametrize(
    ("name", "knobs"),
    [(name, knobs) for name in circuits() for knobs in KNOBS if name in together() or "circuits" not in knobs],
    ids=str,
)
def test_without_noise_every_answer_is_right(name, knobs):
    planted = plant(name, seed=4, **knobs)
    examples = planted.examples(60)
    assert planted.accuracy(examples) == 1
    for example in examples:
        assert answer_by_reading(example.prompt, name) == example.target
        assert example.foil != example.target
    assert {example.question for example in examples} == set(circuits()[name].QUESTIONS)


def test_noise_hurts_and_is_the_same_for_the_same_seed():
    examples = plant("share-by-kp").examples(60)
    loud = plant("share-by-kp", noise=0.2).accuracy(examples)
    assert loud < 0.9
    one, again, other = (plant("share-by-kp", noise=0.01, seed=seed).model for seed in (1, 1, 2))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_the_branch_that_is_planted_is_the_one_the_answers_need():
    """Without its dynamic weights a circuit is at chance; without those of the other branches it is not touched."""
    for name, branch, weight in (
        ("share-by-kp", "o_kp", "key.up"),
        ("share-by-qp", "o_qp", "query.up"),
        ("gate-by-qg", "o_qg", "query.gate"),
        ("many-to-one", "o_kp", "key.up"),
        ("gate-by-kg", "o_kg", "key.gate"),
        ("inhibition", "o_qp", "query.up"),
    ):
        planted = plant(name)
        examples = planted.examples(40)
        assert bool(planted.truth(examples[0]).branches[1, HOOKS.index(branch)])
        for part in ("query.up", "key.up", "query.gate", "key.gate"):
            model = plant(name).model
            tensors = dict(model.named_parameters())
            with torch.no_grad():
                found = [k for k in tensors if "layers.1.self_attn.post" in k and part in k]
                assert found
                tensors[found[0]].zero_()
            assert (replace(planted, model=model).accuracy(examples) == 1) == (part != weight), (name, part)


def test_the_truth_names_the_roles():
    planted = plant("gate-by-qg", seed=2)
    example = next(e for e in planted.examples(20) if e.question == "type")
    truth = planted.truth(example)
    (active,), (silenced,) = (planted.roles["gate-by-qg"][role] for role in ("classifier", "copier"))
    assert truth.edges[1, HOOKS.index("o_qg"), silenced, silenced] == 1
    assert truth.edges[1, HOOKS.index("o_b"), silenced, silenced] == -1
    assert truth.output[1, active] == 1
    assert truth.output[1, silenced] == 0, "a silenced head has no effect"
    assert truth.attention[1, silenced]
    with pytest.warns(DeprecationWarning, match="finds is called attention now"):
        assert truth.finds.equal(truth.attention)
    assert int(truth.edges.ne(0).sum()) == 2 + 3


def test_words_are_one_token_each():
    words = tokenizer()
    prompt = plant("many-to-one").examples(1)[0].prompt
    ids = words(prompt, add_special_tokens=False)["input_ids"]
    assert ids == [TOKEN_ID[word] for word in prompt.split()]
    assert words.unk_token_id not in ids
    assert set(SPECIAL_TOKENS.values()) <= set(TOKEN_ID)


def test_a_line_says_what_to_plant():
    same = plant("share-by-qp", noise=0.01, rank=2, seed=5)
    for text in ("share-by-qp noise=0.01 rank=2 seed=5", "share-by-qp,seed=5, rank=2,noise=0.01"):
        read = read_plant(text)
        assert (read.knobs, read.seed) == (same.knobs, same.seed)
        assert all(torch.equal(p, q) for p, q in zip(read.model.parameters(), same.model.parameters(), strict=True))
    with pytest.raises(UserError, match="'rank' is not a valid setting"):
        read_plant("share-by-qp rank")
    with pytest.raises(UserError, match="no knob 'circuit'"):
        read_plant("share-by-qp circuit=3")
    with pytest.raises(UserError, match="64 bits"):
        read_plant(f"share-by-qp seed={10**30}")


def test_load_plants_too():
    import dcinterp

    bridge = dcinterp.load("planted:share-by-qp,seed=3")
    example = plant("share-by-qp", seed=3).examples(1)[0]
    answer = dcinterp.predict(bridge, example.prompt, example.target)
    assert answer.top_tokens[0] == example.target
    assert bridge.source == "planted:share-by-qp,seed=3"
    with pytest.raises(UserError, match="no planted circuit"):
        dcinterp.load("planted:share-by-magic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"circuit": "share-by-kq"}, "did you mean"),
        ({"circuit": "share-by-kp", "nois": 0.1}, "no knob 'nois'; did you mean noise"),
        ({"circuit": "share-by-kp", "noise": -1}, "noise is -1"),
        ({"circuit": "share-by-kp", "rank": 0}, "rank is 0"),
        ({"circuit": "share-by-qp", "redundancy": 4}, "need 16 heads, but there are 12"),
        ({"circuit": "share-by-kp", "redundancy": 7}, "give more heads"),
        ({"circuit": "share-by-kp", "circuits": 9}, "only 4 kinds"),
        ({"circuit": "chain", "circuits": 2}, "needs a model of its own"),
        ({"circuit": "chain", "redundancy": 7}, "need 14 heads, but there are 12"),
        ({"circuit": "chain", "background": 1.5}, "background is 1.5; it is a share of the shipped model's sizes"),
        ({"circuit": "share-by-kp", "heads": 4}, "at least 8"),
        ({"circuit": "share-by-kp", "heads": 10**8}, "heads is 100000000; a planted model has at most 64"),
        ({"circuit": "share-by-kp", "rank": 10**8}, "rank is 100000000; a planted model has at most 16"),
        ({"circuit": "share-by-kp", "heads": 64, "rank": 16, "circuits": 4}, "at most 50,000,000; give a smaller rank"),
    ],
)
def test_refuses_with_a_sentence(arguments, message):
    with pytest.raises(UserError, match=message):
        plant(**arguments)


def test_a_circuit_that_is_added_does_not_change_which_share_a_model(monkeypatch):
    kinds = sys.modules["dcinterp.planted.circuits"]  # its name is taken by the function
    before = kinds.together()
    added = {"a-new-one": kinds.circuits()["share-by-kp"]} | dict(kinds.circuits())
    monkeypatch.setattr(kinds, "circuits", lambda: added)
    assert kinds.together() == (*before, "a-new-one")
