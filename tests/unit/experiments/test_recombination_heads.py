"""Verdicts and words of `recombination_heads` and of `recombination_mlp`, which shares its scripts."""

from __future__ import annotations

import pandas as pd
import pytest
from experiment_scripts import FOLDER, script

from dcinterp.evidence.questions.recombination import asked_first
from dcinterp.evidence.trained_models import folder_option
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource


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
