"""The runner of `smollm2_composition` does what its protocol says: sides, order, sizes; its runs take hours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experiment_scripts import FOLDER, script

from dcinterp.model.added_composition import add_composition, is_added
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.errors import UserError


@pytest.fixture(scope="module")
def runner() -> Any:
    """experiments/smollm2_composition/run.py as a module."""
    return script("smollm2_composition", "run")


def test_a_file_is_on_one_side_in_the_shares_of_the_protocol(runner):
    sides = [runner.side_of(f"file{number}.py") for number in range(4000)]
    assert sides == [runner.side_of(f"file{number}.py") for number in range(4000)]
    for side, share in (("test", 0.2), ("tuning", 0.1), ("training", 0.7)):
        assert sides.count(side) / len(sides) == pytest.approx(share, abs=0.02)


def test_all_arms_read_the_same_stretches(runner):
    files = {name: torch.arange(500) + 1000 * number for number, name in enumerate(("a.py", "b.py", "c.py"))}
    read = [runner.stretch(files, 0, step) for step in range(20)]
    assert all(torch.equal(ids, runner.stretch(files, 0, step)) for step, ids in enumerate(read))
    assert all(ids.shape == (1, runner.ROW) and bool((ids.diff() == 1).all()) for ids in read), "of one file"
    assert len({int(ids[0, 0]) for ids in read}) > 10
    assert not torch.equal(read[0], runner.stretch(files, 1, 0))


def test_lora_has_at_least_the_parameters_of_the_composition(runner):
    small: dict[str, Any] = dict(vocab_size=11, hidden_size=24, num_attention_heads=4, num_key_value_heads=2)
    base = DCFormerForCausalLM(DCFormerConfig(compose="none", num_hidden_layers=2, intermediate_size=16, **small))
    size = sum(p.numel() for name, p in add_composition(base, {}).named_parameters() if is_added(name))
    per_rank = 2 * ((24 + 24) + 2 * (24 + 12) + (24 + 24))  # layers, and q, k and v, o
    rank = runner.lora_rank(base, size)
    assert (rank - 1) * per_rank < size <= rank * per_rank


def test_a_run_that_has_not_ended_is_not_studied(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER / "smollm2_composition"))
    module = script("smollm2_composition", "case_studies")
    with pytest.raises(UserError, match="no trained composition of seed 1"):
        module.ended_run(tmp_path, 1, 150)
    run = tmp_path / "composition-seed1-rate0.001-steps150.pt"
    torch.save({"trained": {"w": torch.ones(2)}, "losses": [2.0] * 8}, run)
    with pytest.raises(UserError, match=r"is at step 8 of 150; let run.py go on"):
        module.ended_run(tmp_path, 1, 150)
    torch.save({"trained": {"w": torch.ones(2)}, "losses": [2.0] * 150}, run)
    found, trained = module.ended_run(tmp_path, 1, 150)
    assert (found, trained["w"].tolist()) == (run, [1.0, 1.0])
    torch.save({"losses": []}, tmp_path / "composition-seed1-rate0.0003-steps150.pt")
    with pytest.raises(UserError, match="2 trained compositions, at several rates, of seed 1"):
        module.ended_run(tmp_path, 1, 150)


def test_the_rate_rises_and_falls_as_the_protocol_says(runner):
    shares = [runner.rate_share(step, 100) for step in range(100)]
    assert shares[9] == 1.0
    assert shares[:10] == sorted(shares[:10])
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] == pytest.approx(0.1, abs=0.01)
