"""What is asked of trained models counts whole answers."""

from __future__ import annotations

import pytest
import torch

from dcinterp.bench.trained_models import right_answers
from dcinterp.train.data.batches import NOT_SCORED


def test_an_answer_of_several_tokens_is_right_as_a_whole():
    """Two answers of two tokens; of the second one token alone is right."""
    ids = torch.tensor([[1, 5, 6, 2, 7, 8]])
    labels = torch.tensor([[NOT_SCORED, 5, 6, NOT_SCORED, 7, 8]])
    said = torch.tensor([[5, 6, 0, 7, 9, 0]])
    logits = torch.nn.functional.one_hot(said, 10).float()
    assert right_answers(lambda _: logits, {"input_ids": ids, "labels": labels}) == pytest.approx(0.5)
