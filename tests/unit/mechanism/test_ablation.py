"""The kinds of ablation: their table, and that what is refused is refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch

from dcinterp import UserError
from dcinterp.mechanism.ablation import ABLATIONS, DEFAULT, Kind, replacement
from dcinterp.mechanism.interventions import KINDS

DOCS = Path(__file__).parents[3] / "docs"


def test_one_table_is_behind_lines_signatures_and_documentation():
    assert tuple(ABLATIONS) == get_args(Kind)
    assert next(iter(ABLATIONS)) == DEFAULT
    assert KINDS[: len(ABLATIONS)] == tuple(ABLATIONS)
    page = (DOCS / "analyses" / "causal.md").read_text(encoding="utf-8")
    for kind in ABLATIONS.values():
        assert f"| `{kind.name}` | {kind.put} | {kind.removes} |" in page


def test_the_prompt_itself_is_no_donor_and_a_seed_gives_the_same_donors(bridge):
    prompts = [bridge.to_tokens(text) for text in ("Ruth has a violin.", "Carol has a beetle.", "Ronald has a taxi.")]
    tap = "blocks.0.attn.hook_z"
    values = replacement(bridge, [tap], "resample", prompts, seed=3)
    chosen = values.choose(prompts[0][0])
    assert chosen.min() >= prompts[0].shape[1], "the first prompt fills the first positions of the pool"
    assert torch.equal(chosen, replacement(bridge, [tap], "resample", prompts, seed=3).choose(prompts[0][0]))
    several = {tuple(replacement(bridge, [tap], "resample", prompts, seed=n).choose(prompts[0][0])) for n in range(8)}
    assert len(several) > 1
    longer = torch.cat([prompts[0], prompts[1]], 1)
    assert len(values.at(longer)[tap]) == longer.shape[1]
    assert values.unmatched.without > 0, "no other prompt is that long"


@pytest.mark.parametrize(
    ("tap", "kind", "message"),
    [
        ("blocks.0.attn.hook_z", "average", "no kind of ablation"),
        ("blocks.0.attn.hook_y", "mean", "no hook"),
        ("blocks.0.attn.post.hook_in", "mean", "between positions"),
        ("blocks.0.attn.post.hook_o_b", "resample", "same for every token"),
        ("blocks.0.hook_mlp_out", "rotate", "no heads to rotate"),
        ("blocks.0.attn.hook_z", "mean", "give reference="),
    ],
)
def test_what_cannot_be_is_refused(bridge, tap, kind, message):
    with pytest.raises(UserError, match=message):
        replacement(bridge, [tap], kind)
