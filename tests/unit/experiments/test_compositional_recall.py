"""Questions of `compositional_recall`."""

from __future__ import annotations

from experiment_scripts import FOLDER

from dcinterp.evidence.questions import compositional_recall
from dcinterp.train.config.recipe import PuzzleSection
from dcinterp.train.control.experiment_file import read_experiment
from dcinterp.train.data.puzzle_source import PuzzleSource


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
