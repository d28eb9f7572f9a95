"""When edges start to matter in `birth`: how starts and lags are counted, and what its script says."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from experiment_scripts import FOLDER, script

import dcinterp


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
