"""Edges over training on their pages: a run on a puzzle on the page Training, an experiment's seeds on Experiments."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import dcinterp
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    PuzzleSection,
    RecipeSection,
    TrainConfig,
)
from dcinterp.train.loop.run import train
from tests.app.opening import open_page

APP = Path(__file__).parents[2] / "app"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("page") / "puzzle"
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 0}
    train(
        TrainConfig(
            output=str(output),
            model=ModelSection(changes=sizes),
            data=DataSection(
                phases=(Phase(source="puzzle", steps=8, batch_size=4),), puzzle=PuzzleSection(options={"questions": 1})
            ),
            recipe=RecipeSection(learning_rate=3e-3),
            evaluation=EvaluationSection(every=4, validation_rows=4),
            save_every=2,
            keep_checkpoints=4,
            log_every=2,
        )
    )
    return output


def test_a_run_on_a_puzzle_has_curves_and_its_edges_can_be_measured(app, run, monkeypatch):
    monkeypatch.chdir(run.parent)
    open_page(app, "training", run=str(run))
    assert not app.exception
    assert not app.error
    assert "What it answers" in [each.value for each in app.subheader]
    assert not any("QK pattern" in caption.value for caption in app.caption)
    (start,) = [button for button in app.button if button.key == "start-training-edges"]
    dcinterp.load(str(run / "checkpoints/checkpoint-8"))  # imports what two threads would else import at once
    start.click().run()
    while any(button.label == "Cancel" for button in app.button):
        time.sleep(0.5)
        app.run()
    assert not app.exception
    assert not app.error
    assert any("replaced by its mean" in caption.value for caption in app.caption)


@pytest.mark.parametrize("folder", ["experiments/birth", "experiments/birth/replication"])
def test_the_seeds_of_an_experiment_and_of_its_repetition_can_be_walked_through(app, folder):
    found = dcinterp.edge_starts(folder)
    seed, step = found.seeds[1], int(found.step[2])
    open_page(app, "experiments", experiment="birth", seed=str(seed), checkpoint=str(step))
    assert not app.exception
    assert not app.error
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Loss"] == f"{float(found.loss[1, 2]):.3f} nats"
    assert shown["Right answers"] == f"{float(found.right[1, 2]):.0%}"
    main = found.edges.index(found.main[1])
    (value,) = [value for label, value in shown.items() if label.startswith("Without")]
    assert value == f"{float(found.effect[1, 2, main]):+.2f} nats"
