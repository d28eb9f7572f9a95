"""Edges over checkpoints: the effects are those of interventions on the checkpoint's model, and starts are splits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import dcinterp
from dcinterp.mechanism.change_point import split
from dcinterp.mechanism.intervention_hooks import applied
from dcinterp.support.errors import UserError
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    PuzzleSection,
    RecipeSection,
    TrainConfig,
)
from dcinterp.train.data.held_out import held_out_documents
from dcinterp.train.loop.run import train

SIZES = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 0}


def tiny(output, preset="tiny-dcformer++", source="puzzle", keep=3) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(preset=preset, changes=SIZES),
        data=DataSection(
            phases=(Phase(source=source, steps=6, batch_size=4),), puzzle=PuzzleSection(options={"questions": 2})
        ),
        recipe=RecipeSection(learning_rate=3e-3),
        evaluation=EvaluationSection(every=6, answers_per_task=1, examples=(1,), validation_rows=4, watch=False),
        save_every=2,
        keep_checkpoints=keep,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("edges")
    train(tiny(output))
    return output


@pytest.fixture(scope="module")
def found(run):
    return dcinterp.training_edges(run, documents=3, reference=4)


def test_effects_are_those_of_interventions_on_the_checkpoint(run, found):
    assert found.step.tolist() == [2, 4, 6]
    assert len(found.edges) == 2 * (2 * 4 + 2 * 2)  # stages * (low-rank branches * pairs + gates * heads)
    documents = held_out_documents(run, 7)
    others = [ids for ids, _ in documents[3:]]
    for number, step in ((0, 2), (2, 6)):
        bridge = dcinterp.load(str(run / "checkpoints" / f"checkpoint-{step}"))
        for place in (0, 7, 13, 23):
            for row, (ids, labels) in enumerate(documents[:3]):
                before = loss(bridge, ids, labels)
                with applied(bridge, f"edge {found.edges[place]} mean", ids, reference=others):
                    after = loss(bridge, ids, labels)
                assert float(found.effect[number, place, row]) == pytest.approx(after - before, abs=1e-5)
                assert float(found.loss[number, row]) == pytest.approx(before, abs=1e-5)
    lost = found.right[:, None] - found.effect_right
    assert bool(((lost >= -1e-6) & (lost <= 1 + 1e-6)).all()), "what is left without an edge is a share"


def test_some_edges_at_some_checkpoints_are_those_of_all(run, found):
    names = [found.edges[place] for place in (9, 2)]
    some = dcinterp.training_edges(run, edges=names, every=1, documents=3, reference=4)
    assert some.edges == tuple(names)
    assert torch.allclose(some.effect, found.effect[:, [9, 2]], atol=1e-6)
    with pytest.raises(UserError, match="keeps 3 checkpoints, of which every=2 leaves 2, and 3 are needed"):
        dcinterp.training_edges(run, edges=names, every=2)
    with pytest.raises(UserError, match="There is no edge"):
        dcinterp.training_edges(run, edges=["9.post.qp.0>0"])


@torch.no_grad()
def loss(bridge, ids, labels) -> float:
    kept = labels.where(labels >= 0, -100)
    return float(torch.nn.functional.cross_entropy(bridge(ids)[0, :-1], kept[1:]))


def test_starts_are_splits_of_the_means(found):
    means = found.effect.double().mean(-1)
    place, explained = split(means)
    assert found.start.tolist() == found.step[place].tolist()
    rises = [means[at:, edge].mean() > means[:at, edge].mean() for edge, at in enumerate(place.tolist())]
    assert 0 < sum(map(bool, rises)) < len(rises), "some matter less after their split"
    expected = [share * bool(rise) for share, rise in zip(explained.tolist(), rises, strict=True)]
    assert found.explained.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.loss_start == int(found.step[split(found.loss.double().mean(-1, keepdim=True))[0]])
    assert bool((found.final_low <= found.final).all())
    assert bool((found.final <= found.final_high).all())


def test_it_is_said_drawn_saved_and_read(found, tmp_path):
    strongest = found.edges[found.strongest(1)[0]]
    assert f"`{strongest}` has the largest effect at the end" in found.sentences()[1]
    assert found.final_low[found.strongest(1)[0]] < 0
    assert found.sentences()[1].endswith("That it raises the loss is not shown, so it has no start.")
    sure = dataclasses.replace(found, final_low=found.final.abs() / 2, level=0.9)
    assert "It starts at step" in sure.sentences()[1]
    assert "(90 % interval " in sure.sentences()[1]
    assert "by 90 % intervals" in sure.sentences()[2]
    assert found.table()["edge"][0] == strongest
    figure = dcinterp.figures.plot(found, edges=2, checkpoint=1)
    assert [trace.name for trace in figure.data][:2] == ["loss", "start of loss"]
    assert len(figure.data) == 6
    effects, fall = found.effect.mean(-1)[:, found.strongest(2)], float(np.ptp(found.loss.mean(-1)))
    for size, axes in ((0.05, {"y", "y2"}), (0.5, {"y"})):
        sized = found.effect * size * fall / float(effects.abs().max())
        drawn = dcinterp.figures.plot(dataclasses.replace(found, effect=sized), edges=2)
        assert {trace.yaxis or "y" for trace in drawn.data} == axes
    found.save(tmp_path / "saved")
    assert type(found).load(tmp_path / "saved") == found


def test_a_curve_that_is_no_step_is_said_to_be_none(found):
    flat = dataclasses.replace(found, loss_explained=0.3, explained=torch.full_like(found.explained, 0.2))
    assert any("no one start" in line for line in flat.warnings())
    assert any("start means little" in line for line in flat.warnings())


def test_an_edge_that_came_to_matter_less_has_no_start(found):
    most = found.strongest(1)[0]
    fell = dataclasses.replace(
        found, final_low=found.final.abs() / 2, explained=found.explained.index_fill(0, torch.tensor(most), 0.0)
    )
    assert fell.sentences()[1].endswith("It mattered more before, so it has no start.")
    assert fell.table().loc[0, ["starts at step", "from", "to"]].isna().all()
    assert fell.table()["starts at step"].notna().sum() == int((fell.explained > 0).sum())


def test_documents_of_tasks_are_held_out_rows(tmp_path, tokenizer_folder):
    (tmp_path / "tokenizer").symlink_to(tokenizer_folder)
    from dcinterp.train.config.recipe import write_config

    write_config(tiny(tmp_path, source="tasks"), tmp_path / "config.yaml")
    documents = held_out_documents(tmp_path, 5)
    assert len(documents) == 5
    for ids, labels in documents:
        assert torch.equal(ids[0][labels >= 0], labels[labels >= 0])
        assert 0 < int((labels >= 0).sum()) < ids.shape[1]


def test_what_cannot_be_measured_is_refused(tmp_path, run):
    with pytest.raises(UserError, match="is no training run"):
        dcinterp.training_edges(tmp_path)
    train(tiny(tmp_path / "plain", preset="tiny-transformer++"))
    with pytest.raises(UserError, match="does not compose its heads"):
        dcinterp.training_edges(tmp_path / "plain", documents=2, reference=2)
    train(tiny(tmp_path / "few", keep=1))
    with pytest.raises(UserError, match="keeps 1 checkpoints, and 3 are needed"):
        dcinterp.training_edges(tmp_path / "few")


def test_a_loss_that_does_not_fall_has_no_start(found):
    risen = dataclasses.replace(found, loss_explained=0.0)
    assert risen.sentences()[0].endswith("of two levels the later is not the lower one, so it has no start.")
    assert not any("of the variance of the loss" in line for line in risen.warnings())
