"""What the declared examples of the analyses read: a sweep's table, and a run that logged its mechanism."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import dcinterp
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.train.loop.mechanism_log import branch_strengths, layer_variances


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every declared example can be run."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "runs/scaling").mkdir(parents=True)
    families = ("transformer++", "dcformer++")
    rows = [(f, c, (20 + len(f)) * c**-0.05) for f in families for c in (1e15, 4e15, 2e16)]
    pd.DataFrame(rows, columns=["family", "flops", "loss"]).to_csv(folder / "runs/scaling/results.csv", index=False)
    log = folder / "runs/my-run/watch"
    log.mkdir(parents=True)
    losses = [{"step": step, "tokens": 9 * step, "loss": 5.0 - step, "validation_loss": 5.5 - step} for step in (1, 2)]
    (log.parent / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses))
    model = dcinterp.read_model(SHIPPED / "dcformer++")
    strengths = branch_strengths(model, {"input_ids": torch.arange(5, 25).view(2, 10)})
    for step in (1, 2):
        seen = {"variances": layer_variances(model), "strengths": strengths}
        save_file(seen, log / f"step-{step:07d}.safetensors")
    return folder
