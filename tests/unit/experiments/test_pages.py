"""Every experiment has a protocol, its arms can be built, and its page is what its table says."""

from __future__ import annotations

import os
import re

import pytest
from experiment_scripts import FOLDER

from dcinterp.evidence.page import page_of
from dcinterp.model.config import DCFormerConfig
from dcinterp.train.control.experiment import digests, read_table
from dcinterp.train.control.experiment_file import read_experiment


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


def test_every_page_of_an_experiment_is_in_the_contents():
    """A second's check of what the whole site's build finds after a minute."""
    docs = FOLDER.parent / "docs"
    listed = (docs / "index.md").read_text(encoding="utf-8").splitlines()
    assert [file.stem for file in (docs / "experiments").glob("*.md") if f"experiments/{file.stem}" not in listed] == []
