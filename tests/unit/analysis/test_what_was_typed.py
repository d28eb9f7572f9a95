"""What a person types is read as it stands: answers, baselines, shapes that hooks return, padding."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import dcinterp
import synthetic_tasks
from dcinterp.analysis.intervention.intervene import InterventionEffect
from dcinterp.checkpoints.describe import describe
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.mechanism.objective import answer_tokens
from dcinterp.mechanism.prompt import decoded
from dcinterp.support.errors import UserError

SOURCE = "def add(left, right):\n    return ("


@pytest.fixture(scope="module")
def of_code():
    return dcinterp.load("dcformer++-code")


@pytest.fixture(scope="module")
def example():
    return synthetic_tasks.generate("task56", 1, seed=2, examples=1, split="held-out")[0].examples[0]


@pytest.mark.parametrize("answer", ["left.", " left.", "rightmost", " rightmost"])
def test_an_answer_of_several_tokens_is_read_as_it_is_written(of_code, answer):
    tokens = answer_tokens(of_code, answer)
    assert len(tokens) > 1
    assert decoded(of_code, tokens) == answer
    found = dcinterp.generation_steps(of_code, SOURCE, answer, steps=1)
    logits = of_code(torch.cat([of_code.to_tokens(SOURCE), torch.tensor([tokens[:-1]])], 1))
    chances = logits[0, -len(tokens) :].softmax(-1)
    by_hand = torch.stack([row[token] for row, token in zip(chances, tokens, strict=True)])
    torch.testing.assert_close(found.answer_probability, by_hand.detach(), rtol=1e-4, atol=1e-7)


def test_the_written_begins_with_its_own_first_tokens(of_code):
    said = dcinterp.generation_steps(of_code, SOURCE, "left.", steps=3).sentence()
    assert 'goes on with "left.' in said
    assert "does not begin with" not in said


def test_two_tokens_that_differ_in_their_spaces_are_told_apart_in_an_effect(of_code):
    prompt = "def add(left, right):\n    return left +"
    effect: InterventionEffect = dcinterp.intervene(of_code, prompt, "head 3.0 zero", "right", "left")
    assert effect.answer_before == " right"
    assert 'answered ␣right and still answers ␣right. The logit of "right"' in effect.sentence()


def test_an_expected_answer_is_not_called_the_right_one(shipped, example):
    typed = dcinterp.case_study(shipped, example.prompt, "beetle").steps[0].sentence
    assert "is wrong by the expected answer" in typed
    assert "right answer" not in typed
    assert "which is right" in dcinterp.case_study(shipped, example.prompt, example.answer).steps[0].sentence


def test_a_text_whose_source_is_not_followed_says_so(shipped, example):
    text, given = (dcinterp.case_study(shipped, each, *more) for each, *more in ((example.prompt, "taxi"), (example,)))
    assert given.beside_source == ""
    assert text.beside_source == "taxi"
    assert any('whose source is "taxi"' in line for line in text.remarks())
    assert not dcinterp.case_study(shipped, example.prompt, "taxi", key=given.key).beside_source


def test_logits_of_several_tokens_have_a_scale_each(shipped, example):
    found = dcinterp.direct_logit_attribution(shipped, example.prompt, "elephant taxi")
    assert len(found.scales) == 2
    assert 'The logits of the 2 tokens of "elephant taxi", each behind those before it, sum to' in found.sentence()
    assert "scales of the final norm held at" in found.sentence()


def test_a_kind_of_baseline_is_not_a_prompt(shipped, example):
    for word in ("mean", "zero"):
        with pytest.raises(UserError, match=f"baseline is a counterfactual prompt, and '{word}' is none"):
            dcinterp.attribute_heads(shipped, example.prompt, "taxi", baseline=word)


def test_what_a_vocabulary_lacks_is_not_advised():
    pairing = dcinterp.load("dcformer++-pairing")
    for several in ("skip", "first"):
        with pytest.raises(UserError, match="lacks the words of the relations"):
            dcinterp.ov_transformations(pairing, multi_token=several)
    with pytest.raises(UserError, match="a list of prompts or choose the kind 'zero'"):
        dcinterp.intervene(pairing, [5, 6, 7], "branch 1.post.added mean", 5, 6)


@pytest.mark.parametrize("cut", [lambda t: t[..., :1], lambda t: t[:, :, :1], lambda t: t[:, -1:]])
def test_a_hook_that_changes_the_shape_of_a_tap_is_named(shipped, example, cut):
    for tap in ("w_k1", "o_qp"):
        name = f"blocks.2.attn.post.hook_{tap}"
        with pytest.raises(UserError, match=f"A hook at {name} returned the shape"):
            shipped.run_with_hooks(example.prompt, fwd_hooks=[(name, lambda t, hook: cut(t))])


def test_ids_that_are_padded_in_front_are_masked(shipped, example):
    texts = [example.prompt, "There are a taxi."]
    ids = shipped.to_tokens(texts, padding_side="left")
    assert int(ids[1, 0]) == shipped.tokenizer.pad_token_id
    torch.testing.assert_close(shipped(ids)[1, -1], shipped(texts[1])[0, -1], rtol=1e-4, atol=1e-4)
    _, cache = shipped.run_with_cache(ids)
    pattern = cache["blocks.0.attn.hook_pattern"][1, :, -1]
    assert float(pattern[:, : int((ids[1] == ids[1, 0]).sum())].abs().max()) == 0


def test_the_copies_of_joint_matrices_are_no_parameters():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    assert describe(dcinterp.load(model)).parameters == model.num_parameters()


def test_a_right_answer_given_as_its_id_is_right(shipped, example):
    number = int(answer_tokens(shipped, example.answer)[0])
    assert "which is right" in dcinterp.case_study(shipped, example.prompt, number).steps[0].sentence


@pytest.mark.parametrize("ids", [np.array([True, False]), torch.tensor([True]), [True, 5], [np.True_, 5]])
def test_true_is_no_token_id(shipped, ids):
    with pytest.raises(UserError, match="list of token ids"):
        dcinterp.predict(shipped, ids)


def test_a_folder_of_several_types_is_described(tmp_path):
    shutil.copytree(SHIPPED / "transformer++", tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    name = max(tensors, key=lambda each: -tensors[each].numel())
    tensors[name] = tensors[name].to(torch.bfloat16)
    save_file(tensors, file, metadata={"format": "pt"})
    assert describe(tmp_path / "m").layers == describe("transformer++").layers
