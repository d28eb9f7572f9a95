"""The shipped pair of models of source code: small, opened in full precision, with their logs, and as the docs say."""

from __future__ import annotations

import json

import pytest
import torch

import dcinterp
from dcinterp.analysis.training.training_edges import composition_edges, name_of
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.results.result import load_result
from dcinterp.train.config.recipe import read_config

PAIR = ("dcformer++-code", "transformer++-code")


@pytest.fixture(scope="module")
def composed():
    return dcinterp.load(PAIR[0])


def test_they_are_stored_in_half_precision_and_opened_in_full(composed):
    stored = [SHIPPED / name / "model.safetensors" for name in PAIR]
    assert sum(file.stat().st_size for file in stored) < 12 * 2**20
    assert dcinterp.describe(PAIR[0]).weights_bytes < 2.1 * dcinterp.describe(PAIR[0]).parameters
    assert next(composed.original_model.parameters()).dtype == torch.float32
    assert next(dcinterp.load(PAIR[0], dtype=torch.float16).original_model.parameters()).dtype == torch.float16


def test_they_were_trained_alike_on_the_same_text():
    first, second = (read_config(SHIPPED / name / "training.yaml") for name in PAIR)
    assert first.data == second.data
    assert first.data.text.digest
    assert first.recipe == second.recipe
    assert [c.model.preset for c in (first, second)] == ["tiny-dcformer++", "tiny-transformer++"]


def test_their_logs_are_read_by_name():
    for name in PAIR:
        losses = dcinterp.loss_curves(name)
        assert float(losses.validation_loss[-1]) < float(losses.validation_loss[0]) - 1
        assert dcinterp.training_diversity(name).step[-1] == losses.step[-1]
    strengths = dcinterp.training_strengths(PAIR[0])
    assert len(strengths.step) >= 15
    assert bool((strengths.strength[-1][:, :, 1:] > 0).any())
    edges = load_result(SHIPPED / PAIR[0] / "training_edges")
    assert edges.run == read_config(SHIPPED / PAIR[0] / "training.yaml").output == "runs/code-dcformer++"
    assert edges.step[-1] == strengths.step[-1]
    assert len(edges.sentences()) == 3


def test_each_puts_the_answer_first_in_six_of_the_seven_prompts(composed):
    for model, file in ((composed, PAIR[0]), (dcinterp.load(PAIR[1]), PAIR[1])):
        prompts = json.loads((SHIPPED / file / "prompts.json").read_text(encoding="utf-8"))
        found = [dcinterp.predict(model, each["prompt"], each["answer"]) for each in prompts]
        assert [each.rank == 1 for each in found].count(True) == len(prompts) - 1 == 6
        assert not any(each.warnings() for each in found)


def test_the_edges_that_ship_are_of_this_model(composed):
    edges = load_result(SHIPPED / PAIR[0] / "training_edges").edges
    assert set(edges) <= {name_of(edge) for edge in composition_edges(composed)}


def test_they_read_files_that_they_have_not_seen(composed):
    found = dcinterp.text_loss(composed, "python", other=PAIR[1], files=6, tokens=512)
    assert found.warnings() == []
    assert float(found.loss.max()) < 4.5, "of 8.3 when every token is as likely"
    nats = found.table().pivot(index="kind", columns="model", values="nats")[PAIR[0]]
    assert nats["repeated"] < nats["other"]
