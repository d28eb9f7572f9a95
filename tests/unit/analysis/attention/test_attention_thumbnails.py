"""Small attention matrices: the large ones, or their largest entries."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp import figures
from dcinterp.analysis.attention.attention_thumbnails import largest
from dcinterp.support.errors import UserError

PROMPT = list(range(3, 15))


def test_with_one_token_in_a_cell_they_are_the_whole_matrices(bridge, twin):
    seen = dcinterp.attention_thumbnails(bridge, PROMPT)
    assert seen.block == 1
    for layer in range(2):
        whole = dcinterp.attention_patterns(bridge, PROMPT, layer)
        torch.testing.assert_close(seen.weights[layer], whole.weights)
        torch.testing.assert_close(seen.composed[layer], whole.composed)
    part = dcinterp.attention_thumbnails(bridge, PROMPT, first=4, window=5)
    torch.testing.assert_close(part.composed, seen.composed[:, :, 4:9, 4:9])
    assert part.labels("key") == list(seen.tokens[4:9])
    plain = dcinterp.attention_thumbnails(twin, PROMPT)
    assert not plain.composes
    assert torch.equal(plain.weights, plain.composed)


def test_several_tokens_in_a_cell_leave_the_largest_entry(bridge):
    whole = dcinterp.attention_thumbnails(bridge, PROMPT).composed
    pooled = dcinterp.attention_thumbnails(bridge, PROMPT, cells=5)
    assert pooled.block == 3
    assert pooled.composed.shape == (*whole.shape[:2], 4, 4)
    own = whole[1, 2, 6:9, 3:6].flatten()
    assert pooled.composed[1, 2, 2, 1] == own[own.abs().argmax()]
    assert pooled.cell_names()[1] == f"{pooled.tokens[3]} … {pooled.tokens[5]}"
    by_hand = largest(torch.tensor([[[1.0, 0, 0], [-3.0, 2.0, 0], [0.5, 0.25, -0.125]]]), 2)
    assert by_hand.tolist() == [[[-3.0, 0.0], [0.5, -0.125]]]


def test_long_prompts_fit_on_a_screen(make_bridge):
    bridge = make_bridge(max_position_embeddings=512, hidden_size=32, num_attention_heads=4)
    seen = dcinterp.attention_thumbnails(bridge, [5, 6, 7, 8] * 128)
    assert seen.composed.shape == (2, 4, 64, 64)
    assert seen.block == 8
    assert figures.plot(seen).layout.height < 1000


def test_bad_input_is_one_sentence(bridge):
    with pytest.raises(UserError, match="First position"):
        dcinterp.attention_thumbnails(bridge, PROMPT, first=99)
    with pytest.raises(UserError, match="choose both, weights or composed"):
        figures.plot(dcinterp.attention_thumbnails(bridge, PROMPT), which="z")
