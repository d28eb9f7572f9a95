"""The logit lens: its last depth is the model, and each depth is the model whose later blocks write nothing."""

from __future__ import annotations

import pytest
import torch

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.support.errors import UserError

IDS = [3, 4, 5, 6, 7, 3]


def check_output(bridge, ids, **options):
    lens = dcinterp.logit_lens(bridge, ids, 8, 11, **options)
    with torch.no_grad():
        logits = bridge(torch.tensor([ids]))[0].float()
    chances = logits.softmax(-1)
    torch.testing.assert_close(lens.target_probability[-1], chances[:, 8], check_dtype=False)
    torch.testing.assert_close(
        lens.logit_difference[-1], logits[:, 8] - logits[:, 11], check_dtype=False, atol=1e-5, rtol=1e-4
    )
    torch.testing.assert_close(lens.probability[-1], chances.topk(5).values, check_dtype=False)
    assert torch.equal(lens.top_ids[-1, :, 0], logits.argmax(-1))
    assert lens.target_rank[-1].tolist() == [int((row > row[8]).sum()) + 1 for row in logits]
    assert float(lens.divergence[-1].max()) < 1e-6
    assert lens.unexplained < 1e-5
    return lens


@pytest.mark.parametrize("preset", ["tiny-dcformer++", "tiny-dcformer", "tiny-dcpythia"])
def test_the_last_depth_is_the_output_and_a_depth_the_model_without_later_blocks(model, preset):
    bridge = wrap(model(preset))
    lens = check_output(bridge, IDS)
    assert lens.depths == ("the embedding", "layer 0", "the output")

    def nothing(out, hook):
        return torch.zeros_like(out)

    silent = [(f"blocks.1.hook_{name}", nothing) for name in ("attn_out", "mlp_out")]
    with torch.no_grad(), bridge.hooks(fwd_hooks=silent):
        logits = bridge(torch.tensor([IDS]))[0]
    torch.testing.assert_close(lens.logit_difference[1], logits[:, 8] - logits[:, 11], atol=1e-10, rtol=0)
    expected = (logits.softmax(-1), lens.divergence[1])
    whole = bridge(torch.tensor([IDS]))[0].detach().log_softmax(-1)
    kl = (whole.exp() * (whole - expected[0].log())).sum(-1)
    torch.testing.assert_close(expected[1], kl, atol=1e-9, rtol=0)


def test_between_attention_and_mlp(model):
    bridge = wrap(model())
    lens = dcinterp.logit_lens(bridge, IDS, 8, 11, attention=True)
    assert lens.depths == ("the embedding", "attention 0", "layer 0", "attention 1", "the output")
    with torch.no_grad():
        out = bridge.run_with_hooks(
            torch.tensor([IDS]), fwd_hooks=[("blocks.1.hook_mlp_out", lambda out, hook: torch.zeros_like(out))]
        )[0]
    torch.testing.assert_close(lens.logit_difference[3], out[:, 8] - out[:, 11], atol=1e-10, rtol=0)
    with pytest.raises(UserError, match="read the same stream"):
        dcinterp.logit_lens(wrap(model("tiny-dcpythia")), IDS, attention=True)


@pytest.mark.parametrize("family", ["gpt2", "llama", "neox"])
def test_other_peoples_models(foreign, family):
    bridge = foreign(family)
    check_output(bridge, [5, 6, 7])
    if family == "neox":
        with pytest.raises(UserError, match="read the same stream"):
            dcinterp.logit_lens(bridge, [5, 6, 7], attention=True)
    else:
        assert len(dcinterp.logit_lens(bridge, [5, 6, 7], attention=True).depths) == 5


def test_by_default_the_models_own_answer_against_its_runner_up(bridge, prompt):
    lens = dcinterp.logit_lens(bridge, prompt)
    best = dcinterp.predict(bridge, prompt)
    assert (lens.target, lens.foil) == best.top_tokens[:2]
    assert lens.target_rank[-1, -1] == 1
    assert float(lens.logit_difference[-1, -1]) == pytest.approx(float(best.logit[0] - best.logit[1]), abs=1e-5)
    assert 'puts "' in lens.sentence()
    early = dcinterp.logit_lens(bridge, prompt, best.top_tokens[-1].strip())
    assert "does not put" in early.sentence()


def test_one_token_of_an_answer_of_several_is_followed_and_said(foreign):
    bridge = foreign("llama")
    lens = dcinterp.logit_lens(bridge, "Ruth has", "blueberries")
    assert "takes several tokens" in lens.warnings()[0]
    assert dcinterp.logit_lens(bridge, "Ruth has", 9).warnings() == []
