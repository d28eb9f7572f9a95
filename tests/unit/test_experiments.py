"""The runners of experiments do what their protocols say: sides, order, sizes; the runs themselves take hours."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import dcinterp
from dcinterp.analysis.training.compare_arms import ArmComparison
from dcinterp.bridge import wrap
from dcinterp.evidence import arm_circuits
from dcinterp.evidence.intervals import interval_text
from dcinterp.evidence.page import page_of
from dcinterp.evidence.questions import asked_of, compositional_recall, find_block, lookup, pairing
from dcinterp.evidence.questions.recombination import asked_first, questions
from dcinterp.evidence.trained_models import folder_option, read_measured
from dcinterp.evidence.verdicts import comparison
from dcinterp.mechanism.circuit_pairs import Pair
from dcinterp.mechanism.head_maps import branch_map
from dcinterp.model.added_composition import add_composition, is_added
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment import digests, read_table
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource
from dcinterp.train.data.puzzles.lookup import Lookup
from dcinterp.train.data.puzzles.pairing import Pairing

HELD_OUT = {f"task{number}" for number in (4, 5, 18, 19, 32, 33, 54, 55, 68, 69)}
"""Tasks that `recombination_tasks` trains no model on."""
FOLDER = Path(__file__).parents[2] / "experiments"


def script(experiment: str, name: str) -> Any:
    """A script of an experiment as a module."""
    spec = importlib.util.spec_from_file_location(f"{experiment}_{name}", FOLDER / experiment / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def command_of(experiment: str) -> str:
    """That makes the words on circuits again."""
    return f"python experiments/{experiment}/circuits.py"


@pytest.fixture(scope="module")
def runner() -> Any:
    """experiments/smollm2_composition/run.py as a module."""
    return script("smollm2_composition", "run")


def test_every_experiment_has_a_protocol_and_a_runner():
    folders = [path for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert folders
    assert all((folder / "protocol.md").is_file() for folder in folders)
    assert all((folder / "run.py").is_file() or (folder / "experiment.yaml").is_file() for folder in folders)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*/experiment.yaml")), ids=lambda file: file.parent.name)
def test_an_experiment_can_be_run_and_its_page_is_what_its_table_says(file):
    """Every arm is a model that can be built; the page is made again, to the letter."""
    experiment = read_experiment(file)
    for arm in experiment.arms:
        section = experiment.run("final", arm, {}, experiment.seeds[0]).config.model
        assert DCFormerConfig.preset(section.preset, **section.changes).num_hidden_layers > 0
    page = FOLDER.parent / "docs" / "experiments" / f"{file.parent.name}.md"
    table = read_table(experiment)
    if not len(table) or not (table["stage"] == "final").any():
        assert not page.is_file(), "a page without a run"
        return
    made = table.set_index("name")["digest"]
    runs = [run for run in experiment.tuning_runs() + experiment.final_runs(table) if run.name in made.index]
    assert [run.name for run in runs if made[run.name] not in digests(run)] == [], "a new key of configs; see ADDED"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(page_of(experiment, page.with_suffix(".svg").name), encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert text == page_of(experiment, page.with_suffix(".svg").name)
    assert all((page.parent / picture).is_file() for picture in re.findall(r"\]\((\S+\.svg)\)", text))


def test_a_file_is_on_one_side_in_the_shares_of_the_protocol(runner):
    sides = [runner.side_of(f"file{number}.py") for number in range(4000)]
    assert sides == [runner.side_of(f"file{number}.py") for number in range(4000)]
    for side, share in (("test", 0.2), ("tuning", 0.1), ("training", 0.7)):
        assert sides.count(side) / len(sides) == pytest.approx(share, abs=0.02)


def test_all_arms_read_the_same_stretches(runner):
    files = {name: torch.arange(500) + 1000 * number for number, name in enumerate(("a.py", "b.py", "c.py"))}
    read = [runner.stretch(files, 0, step) for step in range(20)]
    assert all(torch.equal(ids, runner.stretch(files, 0, step)) for step, ids in enumerate(read))
    assert all(ids.shape == (1, runner.ROW) and bool((ids.diff() == 1).all()) for ids in read), "of one file"
    assert len({int(ids[0, 0]) for ids in read}) > 10
    assert not torch.equal(read[0], runner.stretch(files, 1, 0))


def test_lora_has_at_least_the_parameters_of_the_composition(runner):
    small: dict[str, Any] = dict(vocab_size=11, hidden_size=24, num_attention_heads=4, num_key_value_heads=2)
    base = DCFormerForCausalLM(DCFormerConfig(compose="none", num_hidden_layers=2, intermediate_size=16, **small))
    size = sum(p.numel() for name, p in add_composition(base, {}).named_parameters() if is_added(name))
    per_rank = 2 * ((24 + 24) + 2 * (24 + 12) + (24 + 24))  # layers, and q, k and v, o
    rank = runner.lora_rank(base, size)
    assert (rank - 1) * per_rank < size <= rank * per_rank


def test_the_rate_rises_and_falls_as_the_protocol_says(runner):
    shares = [runner.rate_share(step, 100) for step in range(100)]
    assert shares[9] == 1.0
    assert shares[:10] == sorted(shares[:10])
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] == pytest.approx(0.1, abs=0.01)


def test_the_branch_that_costs_most_is_counted_by_seed():
    module = script("recombination", "mechanism")
    rows = [
        {"seed": seed, "part": part, "kind": kind, "seen": seen, "held-out": seen / 2}
        for seed in range(3)
        for part, kind, seen in (
            ("intact", "", 1.0),
            ("post.qp", "mean", 0.3 + 0.1 * seed),
            ("post.kp", "mean", 0.45),
            ("all", "mean", 0.1),
            ("post.kp", "zero", 0.0),
        )
    ]
    text = module.summary(pd.DataFrame(rows))
    assert "of 3 seeds: by its mean `post.qp` in 2, `post.kp` in 1 (0.550 to 0.700 each); by zero" in text
    none = "(all the same, so no interval)"
    assert f"| post.kp | mean | -0.550 {none} | -0.275 {none} |" in text
    assert "| post.qp | mean | -0.600" in text


def test_what_composition_does_is_printed_from_its_table():
    module, folder = script("recombination", "mechanism"), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), options=" --folder experiments/pairing")
    assert (folder / "more.md").read_text(encoding="utf-8").strip() == text.strip()


@pytest.mark.parametrize("name", ["rates", "first_asked"])
def test_the_words_on_pairing_are_those_of_the_tables(name):
    module, folder = script("pairing", name), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), read_experiment(folder))
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == text


def test_the_words_on_images_are_those_of_the_table():
    """The mean over images is that over seeds, since every model is asked of the same images."""
    module, folder = script("digits_longer", "by_image"), FOLDER / "digits_longer"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment)
    found = dcinterp.compare_arms(str(folder))
    for arm, mean in zip(found.arms, found.mean, strict=True):
        assert float(module.shares(rows, arm).mean()) == pytest.approx(float(mean), abs=1e-4)


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


@pytest.fixture
def circuits() -> Any:
    """experiments/recombination/circuits.py as a module."""
    return script("recombination", "circuits")


@pytest.mark.parametrize("part", ["seen", "held-out"])
@pytest.mark.parametrize("change", ["key", "letter", "key and letter", "relation"])
def test_a_question_and_its_counterfactual_differ_in_one_thing(tmp_path, part, change):
    source = PuzzleSource(PuzzleSection(name="recombination"), tmp_path)
    pairs = source.puzzle.pairs(part)
    documents = source.held_out(part, 40)["input_ids"]

    def answer_of(prompt: str) -> tuple[str, str]:
        """(the letter that is found, the letter that is said), and that the question is of this part."""
        *facts, relation, key = prompt.split()[1:]
        (fact,) = (fact.split("-") for fact in facts if key in fact.split("-"))
        assert (fact.index(key), int(relation)) in pairs
        return fact[2], "ABCDEFGH"[("ABCDEFGH".index(fact[2]) + int(relation)) % 8]

    for ids, (prompt, answer, other, foil) in zip(documents, questions(source, part, change, 40), strict=True):
        assert source.tokenizer(prompt, add_special_tokens=False)["input_ids"] == ids[:7].tolist(), "as in training"
        assert answer == answer_of(prompt)[1] == source.tokenizer.convert_ids_to_tokens(int(ids[7]))
        assert foil != answer
        first, second = prompt.split(), other.split()
        differ = [at for at in range(7) if first[at] != second[at]]
        if change in ("key", "relation"):
            assert differ == [6 if change == "key" else 5]
        else:
            assert len(differ) == 2 + (change == "key and letter")
            assert max(differ) == (6 if change == "key and letter" else max(differ[:2]))
        if change == "key and letter":
            assert answer_of(other) == answer_of(prompt)
        else:
            assert foil == answer_of(other)[1]


def test_the_words_on_circuits_are_those_of_the_table(circuits):
    rows = pd.read_csv(FOLDER / "recombination" / "circuits.csv")
    experiment = read_experiment(FOLDER / "recombination")
    written = (FOLDER / "recombination" / "more-circuits.md").read_text(encoding="utf-8")
    assert written == circuits.summary(rows, experiment)
    for _, own in rows.groupby("arm"):
        assert set(own["seed"]) == set(experiment.seeds)
    assert (rows["share"].notna() == (rows["seen"] >= experiment.solved_at)).all()


def test_questions_on_blocks_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: one block alone holds both letters, its last is the answer, and little differs."""
    section = read_experiment(FOLDER / "find_block").config["data"]["puzzle"]
    source = PuzzleSource(PuzzleSection(**section), tmp_path)
    documents = {tuple(ids[:28].tolist()) for ids in source.held_out("seen", 160)["input_ids"]}

    def blocks_and_answer(prompt: str) -> tuple[list[str], str]:
        told, asked = prompt.removeprefix("<bos> . ").split(" # ")
        blocks = told.split(" . ")
        (held,) = [block for block in blocks if set(asked.split()) <= set(block.split())]
        return blocks, held.split()[-1]

    found = find_block.questions(source, 20)
    assert [len(found[change]) for change in find_block.CHANGES] == [20] * 4
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            assert (answer, its_answer) == (blocks_and_answer(prompt)[1], blocks_and_answer(other)[1])
            assert answer != its_answer
            differ = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            if change == "answer":
                assert len(differ) == 2
                assert all(at % 6 == 0 for at in differ), "the last letters of two blocks"
                assert blocks_and_answer(prompt)[0] != blocks_and_answer(other)[0]
            else:
                assert differ == {"both": [26, 27], "first": [26], "second": [27]}[change]


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


def test_questions_on_lookups_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: one item alone has the value, and the rule makes the answer of its letter."""
    source = PuzzleSource(PuzzleSection(**read_experiment(FOLDER / "lookup").config["data"]["puzzle"]), tmp_path)
    documents = {tuple(ids[:7].tolist()) for ids in source.held_out("seen", 80)["input_ids"]}
    rules, seen, (held, letter) = source.puzzle.rules(), source.puzzle.pairs("seen"), source.puzzle.table

    def meant_and_answer(prompt: str) -> tuple[int, str]:
        _, *facts, named, rule = prompt.split()
        (attribute, value), number = map(int, named.removeprefix("a").split("=")), int(rule.removeprefix("rule"))
        assert seen[attribute, number]
        items = [int(fact.removeprefix("item")) for fact in facts]
        assert len(set(letter[items])) == len(items)
        (item,) = [each for each in items if held[each, attribute] == value]
        return item, "ABCDEFGH"[rules[number][letter[item]]]

    found = lookup.questions(source, 20)
    assert [len(found[change]) for change in lookup.CHANGES] == [20] * 3
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            (item, own), (its_item, its_own) = meant_and_answer(prompt), meant_and_answer(other)
            assert (answer, its_answer) == (own, its_own)
            assert answer != its_answer
            (differs,) = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            assert (item == its_item) == (change == "relation")
            assert differs in {"item": [5], "relation": [6], "letter": [1, 2, 3, 4]}[change]


def test_a_lookup_without_its_attribute_is_right_in_a_quarter_or_a_little_more():
    module, experiment = script("lookup", "floors"), read_experiment(FOLDER / "lookup")
    puzzle = Lookup(**experiment.config["data"]["puzzle"]["options"])
    for part in puzzle.PARTS:
        random_letter, random_item, likeliest, random_relation = module.floors(puzzle, part, 2000).values()
        assert (random_letter, random_item) == (0.125, 0.25)
        assert 0.28 < likeliest < 0.32
        assert 0.2 < random_relation < 0.27


def test_the_relation_of_a_lookup_is_asked_against_one_half():
    module, experiment = script("lookup", "circuits"), read_experiment(FOLDER / "lookup")

    def told(share: float, seeds: int = 10) -> str:
        rows = [
            {"seed": seed, "change": change, "group": way, "share": share + 0.01 * seed}
            for seed in range(seeds)
            for change in lookup.CHANGES
            for way in module.WAYS
        ]
        return module.summary(pd.DataFrame(rows).assign(arm=module.ARM, part="seen"), experiment)

    assert "above zero in 10 of them; **supported**" in told(0.6)
    assert "above zero in 0 of them; **refuted**" in told(0.1)
    assert "interim, 9 of 10 seeds; no verdict" in told(0.6, seeds=9)


@pytest.mark.parametrize(
    ("name", "options", "first"),
    [
        ("lookup", "", "+0.49"),
        ("lookup_longer", " --folder experiments/lookup_longer", "+0.50"),
        ("lookup_mechanisms", " --folder experiments/lookup_mechanisms", "+0.50"),
    ],
)
def test_the_ways_through_models_of_lookups_are_those_of_the_tables(name, options, first):
    folder, circuits = FOLDER / name, script("lookup", "circuits")
    experiment, rows = read_experiment(folder), pd.read_csv(folder / "circuits.csv")
    told = arm_circuits.summary(
        rows, experiment, lookup.CHANGES, command_of("lookup"), options, note=arm_circuits.TESTED
    )
    assert (folder / "more-circuits.md").read_text(encoding="utf-8") == told
    assert "no hypothesis hangs on it" not in told
    found = circuits.summary(rows, experiment, options)
    assert (folder / circuits.TEXT_FILE).read_text(encoding="utf-8") == found
    assert f"another *relation*: the share of *L0 -> L1 post weights* minus one half): {first}" in found


@pytest.mark.parametrize(
    ("name", "runs"), [("lookup", 60), ("lookup_longer", 60), ("lookup_mechanisms", 70), ("lookup_schedule", 80)]
)
def test_what_lookups_learnt_over_training_is_that_of_the_tables(name, runs):
    """Every model is there, and its accuracy at the last step is that of the table of runs."""
    folder, learning = FOLDER / name, script("lookup", "learning")
    experiment, options = read_experiment(folder), "" if name == "lookup" else f" --folder experiments/{name}"
    steps = pd.read_csv(folder / learning.TABLE)
    assert (folder / learning.TEXT_FILE).read_text(encoding="utf-8") == learning.summary(steps, experiment, options)
    final = read_table(experiment).query("stage == 'final'")
    ends = steps[steps["step"] == steps.groupby("arm")["step"].transform("max")]
    last = ends.merge(final, left_on=["arm", "seed"], right_on=["arm", "recipe.seed"])
    assert len(last) == len(final) == runs
    for part in ("seen", "held-out"):
        assert (last[part] - last[f"accuracy 1 {part}"]).abs().max() < 1e-4


def test_an_arm_that_still_learns_is_told_from_one_that_does_not():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if arm == "DCMHA" and step > 500 + seed else step / 4000}
        for arm in experiment.arms
        for seed in (0, 1)
        for step in range(250, 2001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    (dcmha,), (plain,) = ([line for line in lines if line.startswith(f"| {arm} |")] for arm in ("DCMHA", "plain"))
    assert dcmha == "| DCMHA | 0.125 | 0.960 | 0.960 | 0.960 | +0.000 | 750 [750, 750] | 2 of 2 |  |"
    assert plain == "| plain | 0.125 | 0.250 | 0.375 | 0.500 | +0.125 | none | 0 of 2 | 2 of 2 |"


def test_an_arm_is_compared_with_ours_of_the_same_ending():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup_schedule")
    first = {"DCMHA": 250, "DCMHA late": 750, "plain wider": 500, "plain wider late": 500}
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if step >= first.get(arm, 1000) else 0.5}
        for arm in experiment.arms
        for seed in (0, 1)
        for step in range(250, 1001, 250)
    ]
    text = module.summary(pd.DataFrame(rows), experiment)
    assert "For other arms that end in *late*, *DCMHA late* stands for *DCMHA*." in text
    last = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in text.splitlines()}
    assert (last["plain wider"], last["plain wider late"]) == ("2 of 2", "0 of 2")
    assert (last["talking heads"], last["talking heads late"]) == ("2 of 2", "2 of 2")
    assert (last["DCMHA"], last["DCMHA late"]) == ("", "")


def test_an_arm_that_lacks_a_seed_is_compared_in_the_others():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if arm == "DCMHA" else 0.5}
        for arm in experiment.arms
        for seed in range(3 if arm == "DCMHA" else 2)
        for step in range(250, 1001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    assert next(line for line in lines if line.startswith("| plain |")).endswith("| none | 0 of 2 | 2 of 2 |")
    assert next(line for line in lines if line.startswith("| DCMHA |")).endswith("| 3 of 3 |  |")


def test_an_arm_that_comes_there_at_the_same_step_is_not_later():
    module, experiment = script("lookup", "learning"), read_experiment(FOLDER / "lookup")
    came = {"DCMHA": (1000, 750), "plain": (1000, 1000), "plain wider": (750, None)}
    rows = [
        {"arm": arm, "seed": seed, "step": step, "seen": 0.96 if to is not None and step >= to else 0.5}
        for arm in experiment.arms
        for seed, to in enumerate(came.get(arm, (None, None)))
        for step in range(250, 2001, 250)
    ]
    lines = module.summary(pd.DataFrame(rows), experiment).splitlines()
    earlier = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in lines if "+0.000" in line
    }
    assert earlier == {
        "plain": "1 of 2, 1 at the same step",
        "plain wider": "1 of 2",
        "plain with MLP": "2 of 2",
        "plain open": "2 of 2",
        "talking heads": "2 of 2",
        "DCMHA": "",
    }


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


def test_questions_on_keys_of_two_parts_differ_in_what_the_change_says(tmp_path):
    """Read anew from the prompts: one fact alone has both parts, and its value is the answer."""
    section = read_experiment(FOLDER / "compositional_recall").config["data"]["puzzle"]
    source = PuzzleSource(PuzzleSection(**section), tmp_path)
    documents = {tuple(ids[:16].tolist()) for ids in source.held_out("seen", 20)["input_ids"]}

    def answer_of(prompt: str) -> str:
        told, asked = prompt.removeprefix("<bos> ").split(" ? ")
        words = told.split()
        (value,) = (words[at] for at in range(0, len(words), 3) if words[at + 1 : at + 3] == asked.split())
        return value

    found = compositional_recall.questions(source, 20)
    assert [len(found[change]) for change in compositional_recall.CHANGES] == [20] * 4
    for change, rows in found.items():
        for prompt, answer, other, its_answer in rows:
            assert tuple(source.tokenizer(prompt, add_special_tokens=False)["input_ids"]) in documents
            assert (answer, its_answer) == (answer_of(prompt), answer_of(other))
            assert answer != its_answer
            differ = [at for at, (a, b) in enumerate(zip(prompt.split(), other.split(), strict=True)) if a != b]
            if change == "value":
                assert len(differ) == 2
                assert max(differ) < 13
            else:
                assert differ == {"first": [14], "second": [15], "both": [14, 15]}[change]


@pytest.mark.parametrize("asked", ["find_block", "pairing", "compositional_recall", "recombination"])
def test_the_words_on_circuits_of_other_seeds_are_those_of_the_table(asked):
    folder, module = FOLDER / asked, script(asked, "circuits")
    place, table = folder / "replication", folder / "replication.csv"
    rows, experiment = pd.read_csv(place / "circuits.csv"), read_experiment(folder, table=table)
    told = (
        module.summary
        if asked in ("find_block", "recombination")
        else partial(arm_circuits.summary, changes=module.CHANGES, command=command_of(asked))
    )
    option = f" --table experiments/{asked}/replication.csv"
    assert (place / "more-circuits.md").read_text(encoding="utf-8") == told(rows, experiment, options=option)
    final = pd.read_csv(table).query("stage == 'final'")
    keys = ["arm", "seed"], ["arm", "recipe.seed"]
    accuracy = rows.drop_duplicates(["arm", "seed"]).merge(final, left_on=keys[0], right_on=keys[1])
    assert len(accuracy) == {"find_block": 10, "recombination": 50}.get(asked, len(final))
    assert (accuracy["seen"] - accuracy["accuracy 1 seen"]).abs().max() < 0.005, "these are the models of the table"


def test_the_words_on_circuits_by_the_command_are_those_of_the_table():
    table = FOLDER / "birth" / "replication.csv"
    rows, experiment = read_measured(table.with_suffix("") / "circuits.csv"), read_experiment(table.parent, table=table)
    command = "dcinterp experiment circuits experiments/birth --table experiments/birth/replication.csv"
    told = arm_circuits.summary(rows, experiment, asked_of(experiment).changes, command, note=arm_circuits.NEUTRAL)
    assert (table.with_suffix("") / "more-circuits.md").read_text(encoding="utf-8") == told
    models = rows.drop_duplicates(["arm", "seed"]).set_index(["arm", "seed"])["seen"]
    runs = read_table(experiment).set_index(["arm", "recipe.seed"])["accuracy 1 seen"]
    assert len(models) == len(runs) == 20
    assert (models - runs).abs().max() < 0.005, "these are the models of the table"


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
    rows.loc[(rows["group"] == way) & (rows["change"] == "relation"), "share"] = share
    text = module.summary(rows, experiment)
    assert "are all supported: **not made**" in text
    assert next(line for line in text.splitlines() if line.startswith(f"- **{says}**")).count("**refuted**") == 1


@pytest.mark.parametrize("asked", ["find_block", "pairing"])
def test_models_none_of_which_learnt_it_make_no_tables(asked):
    module, experiment = script(asked, "circuits"), read_experiment(FOLDER / asked)
    arms = ("multi-token", "plain") if asked == "find_block" else ("plain", "DCMHA")
    rows = pd.DataFrame([{"arm": arm, "seed": seed, "seen": 0.5} for arm in arms for seed in (0, 1)])
    told = getattr(module, "summary", partial(arm_circuits.summary, changes=pairing.CHANGES, command=command_of(asked)))
    text = told(rows, experiment)
    assert (
        "0 of 2 seeds reach 95%" if asked == "find_block" else "0 of 2 seeds of plain and 0 of 2 seeds of DCMHA"
    ) in text
    assert "| edges |" not in text


@pytest.mark.parametrize(
    ("name", "code"), [("lookup", "circuits"), ("pairing_routes", "routes"), ("recombination_heads", "circuits")]
)
def test_verdicts_on_models_none_of_which_learnt_it_conclude_nothing(name, code):
    module, experiment = script(name, code), read_experiment(FOLDER / name)
    arms = module.arms_asked(experiment) if name == "recombination_heads" else list(experiment.arms)
    rows = pd.DataFrame([{"arm": arm, "seed": seed, "seen": 0.5} for arm in arms for seed in experiment.seeds])
    text = module.summary(rows, experiment)
    assert "0 of 10 models could be asked; fewer than" in text
    assert not any(f"**{word}**" in text for word in ("supported", "refuted", "open"))


def test_the_words_on_blocks_are_those_of_the_table():
    module, folder = script("find_block", "circuits"), FOLDER / "find_block"
    rows, experiment = pd.read_csv(folder / "circuits.csv"), read_experiment(FOLDER / "find_block")
    assert (folder / "more-circuits.md").read_text(encoding="utf-8") == module.summary(rows, experiment)
    assert set(rows["seed"]) == set(experiment.seeds)


def test_starts_of_edges_are_counted_from_those_of_the_loss_and_of_right_answers_by_branch():
    module, step, rises = script("birth", "measure"), torch.arange(100, 1001, 100), torch.zeros(5, 10, 4)
    for s in range(5):
        rises[s, 6:, 0] = 1.0  # splits at step 700, in all
        rises[s, 2:, 1] = 0.5 if s else 0.01  # at 300, where the first model's is worth too little
        rises[s, 8:, 2] = 1.0 if s < 3 else 0.0  # in three models
        rises[s, :, 3] = 0.9 + torch.tensor([0.0, 0.3, -0.3] * 3 + [0.0])  # no step
    edges = ("0.pre.qp.0>0", "0.pre.qp.0>1", "1.post.kg.0>0", "1.post.qg.0>0")
    loss = torch.cat([torch.full((5, 4), 2.0), torch.zeros(5, 6)], 1)  # splits at 500
    right = torch.cat([torch.zeros(5, 1), torch.ones(5, 9)], 1)  # at 200
    found = SimpleNamespace(seeds=tuple(range(5)), edges=edges, step=step, loss=loss, right=right, effect=rises)
    first, *others = module.by_branch(found).splitlines()[2:]
    cells = [cell.split(" [")[0] for cell in first.strip("| ").split(" | ")]
    # Starts at 700 in one model, and at 700 and 300 in four.
    assert cells == ["`0.pre.qp`", "9", "5", "540", "4", "-40", "0", "-340"]
    assert others == ["| `1.post.kg` | 3 | 3 |  | 0 |  | 0 |  |", "| `1.post.qg` | 0 | 0 |  | 0 |  | 0 |  |"]


def test_the_words_on_runs_made_again_are_those_of_the_table():
    module, folder = script("recombination", "again"), FOLDER / "recombination"
    rows, experiment = pd.read_csv(folder / "again.csv"), read_experiment(folder)
    text = (folder / "more-again.md").read_text(encoding="utf-8")
    assert text == module.summary(rows, experiment)
    assert rows.groupby(["arm", "attention"])["seed"].agg(set).eq(set(experiment.seeds)).all()
    same = (
        pd.read_csv(folder / "circuits.csv")
        .drop_duplicates(["arm", "seed"])
        .merge(rows[rows["attention"] == "auto"], on=["arm", "seed"])
    )
    assert len(same) == 20
    assert (same["seen_x"] - same["seen_y"]).abs().max() < 1e-3, "circuits are those of these models"


def test_the_words_on_starts_are_those_of_the_tables():
    """Made again to the letter; and a curve of two levels is split where its second begins, wherever it is cut."""
    module = script("birth", "measure")
    found = dcinterp.edge_starts(str(FOLDER / "birth"))
    assert (FOLDER / "birth" / "more.md").read_text(encoding="utf-8") == module.summary(found)
    again = FOLDER / "birth" / "replication"
    told = module.summary(dcinterp.edge_starts(str(again)), " --table experiments/birth/replication.csv")
    assert (again / "more.md").read_text(encoding="utf-8") == told
    late = torch.where(found.step >= 800, 1.0, 0.0)
    main = [found.edges.index(edge) for edge in found.main]
    effect = found.effect.clone()
    effect[torch.arange(len(main)), :, main] = late
    loss = torch.where(found.step >= 600, 0.5, 2.0).expand_as(found.loss)
    made = dataclasses.replace(found, effect=effect, loss=loss)
    assert module.lags_until(made, 2000).tolist() == [-200.0] * len(main)
    assert module.lags_until(made, 1000).tolist() == [-200.0] * len(main)


@pytest.mark.parametrize(("solved", "said"), [(0, "of no model"), (2, "-480, -440"), (6, "-340 [")])
def test_lags_of_models_that_learnt_the_task_are_told_however_few_these_are(solved, said):
    module = script("birth", "measure")
    found = dcinterp.edge_starts(str(FOLDER / "birth"))
    right = found.right.clone()
    right[:, -1] = (torch.arange(len(right)) < solved).float()
    line = next(line for line in module.checks(dataclasses.replace(found, right=right)) if "below 95%" in line)
    assert f"Without the {10 - solved} models" in line
    assert said in line


def test_a_split_that_goes_the_wrong_way_is_no_start():
    """Of a loss that rises and an edge that matters less and less."""
    module, up = script("birth", "measure"), torch.tensor([0.0] * 5 + [1.0] * 5)[:, None].expand(10, 4).contiguous()
    edge, step = torch.stack([up, up.flip(0)], 1), torch.arange(100, 1001, 100)
    found = SimpleNamespace(
        step=step,
        loss=up,
        right=up,
        effect=edge,
        effect_right=edge,
        edges=("a", "b"),
        level=0.95,
        final_low=edge[-1, :, 0],
    )
    row = module.row_of(0, found)
    assert row["main"] == "a"
    assert [row[f"{name}_explained"] for name in ("loss", "right", "main", "main_right")] == [0.0, 1.0, 1.0, 1.0]


def test_a_route_is_concluded_where_interval_and_signs_agree():
    module, experiment = script("recombination_heads", "circuits"), read_experiment(FOLDER / "recombination_heads")
    assert module.least_models(module.error_rate(experiment)) == 7
    assert module.arms_asked(read_experiment(FOLDER / "recombination_mlp")) == [
        "DCMHA 8",
        "plain 8",
        "DCMHA 64",
        "plain 64",
    ]

    def of(differences: list[float], trained: int = 10) -> str:
        shares = [
            {"seed": seed, "part": "seen", "change": module.CHANGE, "group": group, "share": share}
            for seed, difference in enumerate(differences)
            for group, share in ((module.POST_WEIGHTS, 0.4 + difference), (module.QUERY, 0.4))
        ]
        rows = pd.DataFrame([*shares, *({"seed": seed} for seed in range(len(differences), trained))])
        return module.verdict("4", rows.assign(arm="DCMHA 4"), experiment)

    many = [0.3, 0.4, 0.5, 0.4, 0.35, 0.45, 0.4]
    assert of(many[:6]).endswith("6 of 10 models could be asked; fewer than 7, so nothing is concluded.")
    order, back = "+0.30, +0.35, +0.40, +0.40, +0.40, +0.45, +0.50.", "-0.50, -0.45, -0.40, -0.40, -0.40, -0.35, -0.30."
    each = "Model by model, in order: "
    assert of(many).endswith(f"over 7 of 10 models, above zero in 7 of them; **supported**. {each}{order}")
    assert of([-each for each in many]).endswith(f"above zero in 0 of them; **refuted**. {each}{back}")
    assert of([*many, -0.01]).endswith(f"above zero in 7 of them; **open**. {each}-0.01, {order}")
    assert of([*many, -0.001]).endswith(f"{each}+0.00, {order}")
    assert of(many, trained=8).endswith("interim, 8 of 10 seeds; no verdict.")


def test_questions_that_come_again_do_not_count_as_first_asked(tmp_path):
    """By words: the fact that a key names and the relation, which no earlier question of the document has both."""
    source = PuzzleSource(PuzzleSection(name="recombination"), tmp_path)
    for part, share in (("seen", 0.07), ("held-out", 0.19)):
        documents = source.held_out(part, 100)
        left = asked_first(documents)
        assert left["input_ids"] is documents["input_ids"]
        repeats = 0
        for ids, labels in zip(documents["input_ids"], left["labels"], strict=True):
            words, asked = source.tokenizer.convert_ids_to_tokens(ids.tolist()), []
            for at in range(7, len(words), 3):
                (fact,) = [each for each in words[1:5] if words[at - 1] in each.split("-")]
                assert (int(labels[at]) >= 0) == ((fact, words[at - 2]) not in asked)
                repeats += (fact, words[at - 2]) in asked
                asked.append((fact, words[at - 2]))
        assert repeats / 800 == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(
    ("name", "asked", "text"),
    [
        ("circuits", "recombination_heads", "more-circuits.md"),
        ("circuits", "recombination_mlp", "more-circuits.md"),
        ("first_asked", "recombination_heads", "more-first-asked.md"),
        ("first_asked", "recombination_mlp", "more-first-asked.md"),
        ("rates", "recombination_heads", "more.md"),
    ],
)
def test_the_words_on_recombination_are_those_of_the_tables(name, asked, text):
    module, folder = script("recombination_heads", name), FOLDER / asked
    rows, experiment = pd.read_csv(folder / f"{name}.csv"), read_experiment(folder)
    option = folder_option(folder, FOLDER / "recombination_heads")
    options = {"options": option} if option else {}
    assert (folder / text).read_text(encoding="utf-8") == module.summary(rows, experiment, **options)


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("*/mechanism.csv")), ids=lambda file: file.parent.name)
def test_the_words_on_mechanisms_are_those_of_the_tables(folder):
    module, option = script("recombination", "mechanism"), folder_option(folder.parent, FOLDER / "recombination")
    if (again := folder.parent / "replication" / folder.name).is_file():
        table = f" --table experiments/{folder.parent.name}/replication.csv"
        told = module.summary(pd.read_csv(again), options=option + table)
        assert (again.parent / "more.md").read_text(encoding="utf-8") == told
    assert (folder.parent / "more.md").read_text(encoding="utf-8") == module.summary(
        pd.read_csv(folder), options=option
    )


def test_the_words_on_first_askings_are_those_of_the_table():
    module, folder = script("pairing", "first_asked"), FOLDER / "pairing"
    text = module.summary(pd.read_csv(folder / module.TABLE), read_experiment(folder))
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "asked",
    [
        "recombination_tasks",
        "recombination_tasks_two_heads",
        "recombination_tasks_eight_heads",
        "recombination_tasks_mechanisms",
    ],
)
@pytest.mark.parametrize("name", ["by_combination", "circuits"])
def test_the_words_on_the_tasks_are_those_of_the_tables(name, asked):
    module, folder = script("recombination_tasks", name), FOLDER / asked
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    option = folder_option(folder, FOLDER / "recombination_tasks")
    options = {"options": option} if option and name == "by_combination" else {}
    assert (folder / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary(rows, experiment, **options)


def test_seeds_in_which_no_arm_learnt_the_tasks_make_no_row():
    module, folder = script("recombination_tasks", "by_combination"), FOLDER / "recombination_tasks"
    rows, experiment = pd.read_csv(folder / module.TABLE), read_experiment(folder)
    text = module.summary(rows, replace(experiment, solved_at=1.01))
    assert "In no\nseed has every arm 101% of the tasks seen." in text
    assert "nan" not in text


def test_the_words_on_heads_are_those_of_three_tables():
    module = script("recombination_tasks_eight_heads", "heads")
    text = module.summary()
    assert (FOLDER / "recombination_tasks_eight_heads" / module.TEXT_FILE).read_text(encoding="utf-8") == text
    assert "| 2 | 10 of 10 | 4 | 2.8% | " in text
    assert "| 4 | 6 of 6 | 4 | 4.6% | " in text


@pytest.mark.parametrize(
    ("edge", "groups"),
    [
        ("embedding -> L0H1.q", ("tokens -> L0 query", "all -> queries")),
        ("MLP 0 -> L2H1.v", ("layers -> L2 value", "all -> values")),
        ("L0H1 -> L1 post weights", ("layers -> L1 post weights", "all -> weights", "all -> post weights")),
        ("embedding -> L1 pre weights", ("tokens -> L1 pre weights", "all -> weights", "all -> pre weights")),
        ("L1H0 -> L1H1 (post qp)", ("L1 post mixed heads", "mixed heads", "post between heads")),
        ("L1H1 -> L1H1 (post static)", ("L1 post mixed heads", "mixed heads")),
        ("L1H0 -> L1H0 (pre skip)", ()),
        ("L0H1 -> MLP 1", ("all -> MLP 1",)),
        ("L1H1 -> logits", ("L1 -> logits",)),
    ],
)
def test_the_ways_of_the_tasks_pool_edges_by_reader(edge, groups):
    assert script("recombination_tasks", "circuits").ways(edge) == groups


def test_the_relation_is_asked_of_six_of_six_models():
    module, experiment = script("recombination_tasks", "circuits"), read_experiment(FOLDER / "recombination_tasks")
    for part in module.settings(experiment)[1]:
        numbers = {f"task{number}" for number in module.tasks_of(experiment, part)}
        assert bool(numbers & HELD_OUT) == (numbers <= HELD_OUT) == part.endswith("held-out")

    def of(apart: list[float]) -> str:
        rows = [
            {"seed": seed, "part": module.ORDINALS, "change": module.RELATION, "group": group, "share": share}
            for seed, each in enumerate(apart)
            for group, share in ((module.ROUTE, 0.2 + each), (module.OTHER, 0.2))
        ]
        rows += [{"seed": seed} for seed in range(len(apart), 6)]
        return module.verdict(pd.DataFrame(rows).assign(arm="DCMHA"), experiment)

    assert "above zero in 6 of them; **supported**" in of([0.1, 0.12, 0.09, 0.11, 0.1, 0.1])
    assert "above zero in 5 of them; **open**" in of([0.1, 0.12, 0.09, 0.11, 0.1, -0.01])
    assert "above zero in 0 of them; **refuted**" in of([-0.1, -0.12, -0.09, -0.11, -0.1, -0.1])
    assert of([0.1] * 5).endswith(
        "5 of 6 models could be asked, above zero in 5 of them; fewer than 6, so nothing is concluded."
    )


def test_what_came_again_is_a_side_of_zero():
    """H1 was open and H5 no test, so of them the side is named; H2 was below zero and H4 above."""
    module, experiment = script("find_block", "other_seeds"), read_experiment(FOLDER / "find_block")
    first, asked = comparison(experiment, None), [*experiment.hypotheses, module.ADDED]
    assert (FOLDER / "find_block" / module.TEXT_FILE).read_text(encoding="utf-8") == module.summary()
    other = dataclasses.replace(first, values=1 - first.values)
    alike = dataclasses.replace(first, values=first.values[:1].expand_as(first.values))

    def says(second: ArmComparison, level: float = 0.95) -> list[str]:
        return [module.row_of(each, first, second, level)[-1] for each in asked]

    assert says(first) == ["not shown", *["came again"] * 3, "above zero"]
    assert says(first, 0.99) == ["not shown", *["did not come again"] * 2, "came again", "above zero"]
    assert says(other) == ["not shown", *["the other sign"] * 3, "below zero"]
    assert says(alike) == ["not shown", *["did not come again"] * 3, "not shown"]


def test_every_hypothesis_is_shown_at_both_levels():
    """On the runs of `parts`, which has the same hypotheses and fewer seeds."""
    module, experiment = script("parts_longer", "verdicts"), read_experiment(FOLDER / "parts")
    found, text = comparison(experiment, None), module.summary(experiment)
    apart = found.by_seed(["plain"], ["all"])
    narrow, wide = (interval_text(*found.between(["plain"], ["all"], level), sign="+") for level in (0.95, 0.99))
    assert f"| H1: plain minus all | {narrow} | {wide} | {int((apart > 0).sum())} of {len(apart)} |" in text
    assert narrow != wide
    assert len([line for line in text.splitlines() if line.startswith("| H")]) == len(experiment.hypotheses)
    with pytest.raises(UserError, match=r"5 of 6 seeds"):
        module.summary(dataclasses.replace(experiment, seeds=(*experiment.seeds, 99)))


def test_a_gain_is_told_from_better_learning():
    """Of two arms over six seeds; three of the four conditions fail one by one."""
    module, experiment = (
        script("recombination_tasks_mechanisms", "learnt"),
        read_experiment(FOLDER / "recombination_tasks"),
    )
    asked, found = experiment.hypotheses[0], comparison(experiment, None)

    def of(plain: list[float], apart: list[float]) -> ArmComparison:
        values = torch.tensor([plain, [0.0] * 6, [one + more for one, more in zip(plain, apart, strict=True)]])
        return dataclasses.replace(found, values=values)

    def says(left_out: list[float], seen: list[float], plain: float = 0.97, level: float = 0.98) -> list[str]:
        return module.row_of(asked, of([0.5] * 6, left_out), of([plain] * 6, seen), 0.95, level)[3:]

    near, above = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01], [0.1, 0.2, 0.1, 0.2, 0.1, 0.2]
    assert says(above, near)[1:] == ["6", "+0.150", "+0.002", "yes"]
    assert says(above, [0.001, 0.0011, 0.001, 0.0012, 0.001, 0.0011])[-1] == "no", "better on tasks seen, in all seeds"
    assert says(above, [0.2, -0.0, -0.01, 0.0, 0.01, -0.01])[-1] == "no", "better on tasks seen, in the mean"
    assert says(above, [0.0] * 4 + [-0.4] * 2)[1:] == ["4", "+0.150", "+0.000", "yes"]
    assert says(above, [0.0] * 3 + [-0.4] * 3)[1:] == ["3", "+0.133", "+0.000", "too few"]
    assert says(above, near, plain=0.5)[1:] == ["0", "", "", "too few"]
    assert says([-each for each in above], near)[-1] == "no finding"
    assert says([-each for each in above], near, plain=0.5)[-1] == "too few", "whatever the difference is"
    low, high = found.between(asked.arms, asked.baselines, 0.98)[1:]
    assert module.row_of(asked, found, found, 0.95, 0.98)[2] == f"[{low:+.3f}, {high:+.3f}]"
    others = [0.01, 0.02, 0.01, 0.02, 0.9, 0.9], [0.01, 0.0, 0.01, 0.0, -0.5, -0.5]
    assert says(*others)[-1] == "no finding"
    assert says(*others, level=0.5)[-1] == "no", "of other seeds"
    text = module.summary(experiment)
    assert "H1: DCMHA minus plain | +0.067" in text
    assert f"one family of {len(experiment.hypotheses)}" in text
    found = dataclasses.replace(found, planned=9)
    assert says(above, near)[-1] == "", "seeds are missing"


def test_maps_that_no_token_makes_have_no_way_through_weights():
    """Of the 74 tasks; a share of 0.00 there would be a reading of what is not."""
    module, folder = script("recombination_tasks", "circuits"), FOLDER / "recombination_tasks_mechanisms"
    rows = pd.read_csv(folder / "circuits.csv")
    text = module.summary(rows, read_experiment(folder))
    by_arm = dict(each.split("\n", 1) for each in text.split("### ")[1:])
    assert {arm: "weights |" in table for arm, table in by_arm.items()} == {
        "DCMHA": True,
        "plain": False,
        "talking heads": False,
        "head convolution": False,
        "differential": False,
    }
    assert text.count("*all -> weights* 0.") == 1, "and in the lines of means"


def test_what_a_difference_leans_on_is_what_is_left_without_a_part_of_it(monkeypatch):
    module, folder = script("recombination_tasks_mechanisms", "leans_on"), FOLDER / "recombination_tasks_mechanisms"
    experiment, rows = read_experiment(folder), pd.read_csv(folder / "by_combination.csv")
    text = module.summary(rows, experiment)
    assert text == (folder / "more-leans-on.md").read_text(encoding="utf-8")
    one, seed = experiment.config["data"]["holdout"][0], experiment.seeds[0]
    monkeypatch.setattr(module, "RESAMPLES", 100)
    planted = rows.assign(right=0.0)  # a gain in one combination of one seed, over all arms but that of H1
    planted.loc[(rows["arm"] == "talking heads") & (rows["combination"] == one) & (rows["seed"] == seed), "right"] = 1.0
    lines = module.summary(planted, experiment).splitlines()
    first = {line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in lines if line.startswith("| ")}
    assert first[one].startswith("+0.000")
    assert all(first[each].startswith("+0.025") for each in experiment.config["data"]["holdout"][1:])
    assert first[str(seed)].startswith("+0.200; +0.000")


def test_two_sizes_are_shown_side_by_side():
    module = script("parts_four_layers", "both_sizes")
    two, four = (dcinterp.compare_arms(str(FOLDER / name)) for name in ("parts", "parts_four_layers"))
    text = module.summary(two, four)
    assert text == (FOLDER / "parts_four_layers" / "more.md").read_text(encoding="utf-8")
    arms = [arm for arm in four.arms if not arm.startswith("plain")]
    assert module.alike(two, two, arms) == pytest.approx(1.0)
    assert module.alike(two, dataclasses.replace(two, difference=-two.difference), arms) == pytest.approx(-1.0)


def test_every_page_of_an_experiment_is_in_the_contents():
    """A second's check of what the whole site's build finds after a minute."""
    docs = FOLDER.parent / "docs"
    listed = (docs / "index.md").read_text(encoding="utf-8").splitlines()
    assert [file.stem for file in (docs / "experiments").glob("*.md") if f"experiments/{file.stem}" not in listed] == []


def test_a_named_way_is_held_against_the_largest_other_and_maps_of_no_token_have_no_weights():
    """Of other seeds alone; an arm whose maps are the same for all tokens has no way through dynamic weights."""
    module, folder = script("recombination", "circuits"), FOLDER / "recombination"
    again = read_experiment(folder, table=folder / "replication.csv")
    rows = pd.read_csv(folder / "replication" / "circuits.csv")
    text = module.one_way(rows, again)
    (table, *_) = text.split("On `seen`:\n\n")[1].split("\n\n")
    cells = {
        line.split("|")[1].strip(): [each.strip() for each in line.split("|")[2:-1]] for line in table.splitlines()
    }
    assert [bool(each) for each in cells["L1 post weights"]] == [False, False, False, False, True]
    assert all(cells["L1 query"])
    fewer = rows[~((rows["arm"] == "plain") & rows["seed"].isin([470, 471, 472, 473, 474]))]
    assert "(in plain, *L0 -> L1 query* minus the largest other way is above zero): interim, 5 of 10" in module.one_way(
        fewer, again
    )
    assert "## By which way" not in module.summary(pd.read_csv(folder / "circuits.csv"), read_experiment(folder))
