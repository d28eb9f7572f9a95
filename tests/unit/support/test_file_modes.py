"""What is written can be read by those whom the umask lets read it: a colleague, on a shared disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.checkpoints.layouts import write_foreign
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.train.config.recipe import DataSection, EvaluationSection, ModelSection, Phase, TrainConfig
from dcinterp.train.loop.run import train


@pytest.fixture(autouse=True)
def group_may_read() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The mode of every safetensors file under a folder, by name."""
    found = {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in folder.rglob("*.safetensors")}
    assert found
    return found


def test_a_saved_result(tmp_path: Path) -> None:
    result = Prediction(
        tokens=("a", "b"),
        position=1,
        top_tokens=("c",),
        answer="c",
        answer_id=2,
        rank=1,
        answer_probability=0.5,
        top_ids=torch.tensor([2]),
        probability=torch.tensor([0.5]),
        logit=torch.tensor([1.0]),
    )
    result.save(tmp_path / "said")
    result.save(tmp_path / "said")
    assert set(modes(tmp_path).values()) == {"0o640"}


def test_a_model_in_either_layout(tmp_path: Path) -> None:
    model = build_model(DCFormerConfig.preset("tiny-dcformer++"))
    model.save_pretrained(tmp_path / "ours", max_shard_size="20KB")
    write_foreign(model, tmp_path / "released", "dcformer")
    found = modes(tmp_path)
    assert len(found) > 2, "shards too"
    assert set(found.values()) == {"0o640"}


def test_everything_of_a_training(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    train(
        TrainConfig(
            output=str(tmp_path),
            model=ModelSection(changes=sizes),
            data=DataSection(phases=(Phase(source="pairs", steps=2, batch_size=2),)),
            evaluation=EvaluationSection(every=2, answers_per_task=1, examples=(1,)),
            save_every=1,
        )
    )
    found = modes(tmp_path)
    assert {name.split("/")[0] for name in found} == {"model", "checkpoints", "watch"}
    assert set(found.values()) == {"0o640"}
