"""Questions and floors of `pairing`, the routes of `pairing_routes`, and what their scripts say."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from experiment_scripts import FOLDER, command_of, script

from dcinterp.bridge import wrap
from dcinterp.evidence import arm_circuits
from dcinterp.evidence.questions import pairing
from dcinterp.mechanism.circuit_pairs import Pair
from dcinterp.mechanism.head_maps import branch_map
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.pairing import Pairing


def test_what_composition_does_is_printed_from_its_table():
    module, folder = script("recombination", "mechanism"), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), options=" --folder experiments/pairing")
    assert (folder / "more.md").read_text(encoding="utf-8").strip() == text.strip()


@pytest.mark.parametrize("name", ["rates", "first_asked"])
def test_the_words_on_pairing_are_those_of_the_tables(name):
    module, folder = script("pairing", name), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), read_experiment(folder))
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == text


def test_the_other_half_of_a_key_is_never_right():
    module = script("pairing", "floors")
    for part in ("seen", "held-out"):
        shares = module.floors(Pairing(), part, 300)
        assert shares["finds by a random half, with the right relation"] == 0.5
        assert shares["finds by the other half, with the right relation"] == 0
        assert (shares["says the answer of an earlier question about the same fact and relation"] == 0) == (
            part == "held-out"
        )
        left = shares["takes, of the two facts, one whose answer was not yet said after the relation"]
        assert left == pytest.approx(0.75 if part == "held-out" else 0.6, abs=0.06)


def test_questions_on_pairings_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: the half that counts names one fact, and the rule makes the answer of its letter."""
    source = PuzzleSource(PuzzleSection(**read_experiment(FOLDER / "pairing").config["data"]["puzzle"]), tmp_path)
    documents = {tuple(ids[:8].tolist()) for ids in source.held_out("seen", 160)["input_ids"]}
    rules, seen = source.puzzle.rules(), source.puzzle.pairs("seen")

    def meant_and_answer(prompt: str) -> tuple[list[str], str]:
        _, *facts, half, rule, key = prompt.split()
        side, number = ("colour", "thing").index(half), int(rule[-1])
        assert (side, number) in seen
        (fact,) = (fact.split("-") for fact in facts if fact.split("-")[side] == key.split("-")[side])
        return fact, "ABCDEFGH"[rules[number]["ABCDEFGH".index(fact[2])]]

    found = pairing.questions(source, 20)
    assert [len(found[change]) for change in pairing.CHANGES] == [20] * 4
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            (fact, own), (its_fact, its_own) = meant_and_answer(prompt), meant_and_answer(other)
            assert (answer, its_answer) == (own, its_own)
            assert answer != its_answer
            differ = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            assert (fact[:2] == its_fact[:2]) == (change in ("relation", "letter"))
            assert len(differ) == 2 if change == "letter" else differ == [{"half": 5, "relation": 6, "fact": 7}[change]]
    rules = {change: {(p.split()[6], o.split()[6]) for p, _, o, _ in rows} for change, rows in found.items()}
    assert len(rules["relation"]) > 6, "many relations in the place of many"
    assert all(own == its for own, its in rules["fact"] | rules["half"] | rules["letter"])


@torch.no_grad()
def test_an_exchanged_map_is_that_of_the_other_prompt():
    """Own numbers change nothing; all of the other prompt's are as its weights by their hooks; parts lie between."""
    module = script("pairing_routes", "routes")
    config = DCFormerConfig.preset(
        "tiny-transformer++",
        compose="dynamic",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        vocab_size=20,
    )
    torch.manual_seed(0)
    bridge = wrap(DCFormerForCausalLM(config).eval())
    for name, parameter in bridge.original_model.named_parameters():
        if "attn" in name:
            parameter.mul_(20)
    ids, other = torch.randint(20, (2, 1, 3, 6))
    pairs = [
        Pair(one[None], its[None], target=1, foil=2, kind="", prompt="", counterfactual="", repeats=n)
        for n, (one, its) in enumerate(zip(ids[0], other[0], strict=True))
    ]
    taps = [f"{module.TAP}w_{name}" for name in ("q1", "q2", "qg")]
    clean, own = bridge.run_with_cache(ids[0], names_filter=taps)
    others, its = bridge.run_with_cache(other[0], names_filter=taps)
    made = branch_map([own[each] for each in taps[:2]], 1), own[taps[2]]
    torch.testing.assert_close(module._mapped(bridge, ids[0], *made), clean, atol=1e-4, rtol=0)
    hooks = [(tap, lambda weights, hook: its[hook.name]) for tap in taps]
    by_hooks = bridge.run_with_hooks(ids[0], fwd_hooks=hooks)
    assert (by_hooks - clean).abs().max() > 0.01
    metric = [float((logits[:, -1, 1] - logits[:, -1, 2]).mean()) for logits in (clean, others, by_hooks)]
    shares = module.map_shares(bridge, pairs)
    assert shares[module.MAP] == pytest.approx((metric[0] - metric[2]) / (metric[0] - metric[1]), abs=1e-3)
    assert shares[module.MAP_BETWEEN] != pytest.approx(shares[module.MAP], abs=1e-3)
    assert shares[module.MAP_OWN] != pytest.approx(shares[module.MAP], abs=1e-3)


@pytest.mark.parametrize(
    ("edge", "groups"),
    [
        ("L1H0 -> L1H1 (post qp)", ("L1 post qp", "between")),
        ("L1H1 -> L1H1 (post qp)", ("L1 post qp", "own")),
        ("L1H2 -> L1H2 (post skip)", ("L1 post skip", "own")),
        ("L1H0 -> L1H1 (pre qp)", ("L1 pre qp",)),
        ("L0H0 -> L0H1 (post kp)", ("L0 post kp",)),
    ],
)
def test_edges_of_the_last_composition_are_between_heads_or_a_heads_own(edge, groups):
    module = script("pairing_routes", "routes")
    named = {"between": module.BETWEEN, "own": module.OWN}
    assert module.parts_of(edge) == tuple(named.get(group, group) for group in groups)


def test_the_words_on_routes_are_those_of_the_tables():
    module, folder = script("pairing_routes", "routes"), FOLDER / "pairing_routes"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment)
    told = arm_circuits.summary(
        pd.read_csv(folder / arm_circuits.TABLE),
        experiment,
        pairing.CHANGES,
        command=command_of("pairing"),
        options=" --folder experiments/pairing_routes",
        note=arm_circuits.TESTED,
    )
    assert (folder / arm_circuits.TEXT_FILE).read_text(encoding="utf-8") == told
    assert "no hypothesis hangs on it" not in told
    assert set(rows["seed"]) == set(experiment.seeds)


@pytest.mark.parametrize(
    ("way", "share", "says"), [("L0 -> L1 post weights", 0.3, "M1"), ("map of a head's own", 0.9, "M2")]
)
def test_the_claim_on_routes_needs_every_verdict(way, share, says):
    module, folder = script("pairing_routes", "routes"), FOLDER / "pairing_routes"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    assert "are all supported: **made**" in module.summary(rows, experiment)
    changed = (rows["group"] == way) & (rows["change"] == "relation")
    rows.loc[changed, "share"] = share + 0.001 * (rows.loc[changed, "seed"] % 10)
    text = module.summary(rows, experiment)
    assert "are all supported: **not made**" in text
    assert next(line for line in text.splitlines() if line.startswith(f"- **{says}**")).count("**refuted**") == 1


def test_the_words_on_first_askings_are_those_of_the_table():
    module, folder = script("pairing", "first_asked"), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), read_experiment(folder))
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == text
