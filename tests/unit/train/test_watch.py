"""What is recorded of a model's inside: true of the trained model, dropped when a run goes back, and cheap."""

from __future__ import annotations

import json
import time

import pytest
import torch

import dcinterp
from dcinterp.model.build import build_model
from dcinterp.model.compose.branch_table import HOOKS
from dcinterp.model.compose.registry import COMPOSERS
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.spectra import cumulative
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.config.recipe import DataSection, EvaluationSection, ModelSection, Phase, RecipeSection, TrainConfig
from dcinterp.train.loop.mechanism_log import branch_strengths, layer_variances
from dcinterp.train.loop.run import train


def tiny(output, **changes) -> TrainConfig:
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    return TrainConfig(
        output=str(output),
        model=ModelSection(changes=sizes | changes),
        data=DataSection(phases=(Phase(source="pairs", steps=6, batch_size=8),)),
        recipe=RecipeSection(learning_rate=3e-3),
        evaluation=EvaluationSection(every=6, answers_per_task=1, examples=(1,)),
        save_every=2,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    output = tmp_path_factory.mktemp("watched")
    train(tiny(output))
    return output


def test_strengths_are_those_of_the_hooks(bridge):
    """Independent route: TransformerLens's hooks on every branch of the same model and tokens."""
    model = bridge.original_model
    ids = torch.randint(5, 50, (3, 9))
    found = branch_strengths(model, {"input_ids": ids})
    names = [f"blocks.{layer}.attn.{stage}.hook_{b}" for layer in (0, 1) for stage in ("pre", "post") for b in HOOKS]
    inputs = [f"blocks.{layer}.attn.{stage}.hook_in" for layer in (0, 1) for stage in ("pre", "post")]
    _, cache = bridge.run_with_cache(ids, names_filter=[*names, *inputs])
    seen = torch.ones(9, 9).tril()
    for layer in (0, 1):
        for number, stage in enumerate(("pre", "post")):
            place = f"blocks.{layer}.attn.{stage}.hook_"
            size = (cache[f"{place}in"].abs() * seen).sum()
            for at, branch in enumerate(HOOKS):
                expected = (cache[f"{place}{branch}"].abs() * seen).sum() / size
                torch.testing.assert_close(found[number, layer, at], expected.cpu(), rtol=1e-4, atol=1e-6)
    assert float(found[..., HOOKS.index("o_b")].max()) == pytest.approx(1.0)


@pytest.mark.parametrize("compose", COMPOSERS)
def test_every_way_of_composing_is_watched(compose):
    """Also those whose terms are no branches: multi-token's o_kq, dense collaboration's o_prev."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2}
    model = build_model(DCFormerConfig(vocab_size=50, max_position_embeddings=16, compose=compose, **sizes)).eval()
    found = branch_strengths(model, {"input_ids": torch.randint(5, 50, (3, 9))})
    assert found.shape == (2, 2, len(HOOKS))
    assert not found.isinf().any()


def test_a_plain_model_has_no_strengths(twin):
    assert branch_strengths(twin.original_model, {"input_ids": torch.ones(1, 4, dtype=torch.long)}).isnan().all()


def test_the_last_checkpoint_is_the_trained_model(run):
    strengths, diversity = dcinterp.training_strengths(run), dcinterp.training_diversity(run)
    assert strengths.step.tolist() == diversity.step.tolist() == [2, 4, 6]
    model = dcinterp.read_model(run / "model")
    torch.testing.assert_close(diversity.cumulative[-1], cumulative(layer_variances(model)))
    assert not torch.equal(diversity.cumulative[0], diversity.cumulative[-1])
    assert diversity.cumulative[..., -1].allclose(torch.ones(()))
    assert not strengths.strength.isnan().any()
    assert strengths.to_dataframe()["branch_label"].unique().tolist() == list(HOOKS)


def test_going_back_drops_what_lies_ahead(tmp_path):
    def stop(done, total, message=""):
        if done == 5:
            raise Cancelled

    with pytest.raises(Cancelled):
        train(tiny(tmp_path / "run"), progress=stop)
    (tmp_path / "run" / "watch" / "step-0000099.safetensors").write_bytes(b"ahead")
    train(tiny(tmp_path / "run"), resume=True)
    assert dcinterp.training_strengths(tmp_path / "run").step.tolist() == [2, 4, 6]


def test_nothing_watched_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=r"evaluation\.watch"):
        dcinterp.training_strengths(tmp_path)


def test_watching_costs_little(run):
    """One look against one step of the default small run: below 5 % of the steps between two checkpoints."""
    timings = json.loads((run / "timings.json").read_text())
    assert 0 < timings["watching"] < timings["seconds"]
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", vocab_size=260, num_hidden_layers=2)
    model, ids = build_model(config), torch.randint(0, 260, (8, 128))

    def seconds(work) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    step = min(seconds(lambda: model(ids, labels=ids).loss.backward()) for _ in range(2))
    look = min(seconds(lambda: (layer_variances(model), branch_strengths(model, {"input_ids": ids}))) for _ in range(2))
    assert look < 0.05 * 250 * step, (look, step)
