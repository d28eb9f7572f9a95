"""In a byte-level vocabulary the answer of a task is the word after a space, in every analysis."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dcinterp
from dcinterp.bridge import wrap
from dcinterp.mechanism.dataset import draw_examples
from dcinterp.model.build import build_model
from dcinterp.model.config import DCFormerConfig
from dcinterp.support.errors import UserError
from synthetic_tasks import vocabulary


@pytest.fixture(scope="module")
def asked() -> tuple[Any, Any]:
    """(bridge over a random model that is made to give one example's answer, the example)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=6000, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    words = list(vocabulary())
    core.train_from_iterator([" ".join(words)] * 3 + words * 3, trainer)
    end = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<|end|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **end)
    sizes = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    torch.manual_seed(0)
    model = build_model(DCFormerConfig.preset("tiny-dcformer++", vocab_size=len(tokenizer), **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    bridge = wrap(model, tokenizer)

    def number(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    examples = [example for example, _ in draw_examples("task0 n=12")]
    one = next(e for e in examples if len(number(e.answer)) == len(number(f" {e.answer}")) == 1)
    ids = torch.tensor([number(one.prompt)])
    _, cache = bridge.run_with_cache(ids, names_filter=["unembed.hook_in"])
    with torch.no_grad():
        bridge.unembed.original_component.weight[number(f" {one.answer}")[0]] = 3 * cache["unembed.hook_in"][0, -1]
    return bridge, one


def test_every_analysis_asks_about_the_token_that_the_text_has(asked):
    bridge, example = asked
    answer = f" {example.answer}"
    found = dcinterp.attribute_heads_over(bridge, [example], method="gradient")
    assert found.targets == (answer,)
    assert dcinterp.case_study(bridge, example, kind="zero").attribution.target == answer
    given = dcinterp.case_study(bridge, example, foil="vehicle", kind="zero").attribution
    assert (given.target, given.foil) == (answer, " vehicle")
    table = dcinterp.example_table(bridge, [example], steps=1)
    assert (table.answers, table.said, table.right.tolist()) == ((answer,), (answer,), [True])
    scored = dcinterp.circuit(bridge, [example], method="eap")
    assert float(scored.metric[0]) == pytest.approx(float(table.logit_difference[0]), abs=1e-3)
    assert float(scored.metric[0]) > 30
    answers = dcinterp.circuit_answers(bridge, [example], list(scored.edges))
    assert (answers.model_answers, answers.right) == ((answer,), 1)
    patched = dcinterp.patch_stream(bridge, example.prompt)
    assert patched.target == answer
    assert patched.foil.startswith(" ")


def test_an_answer_typed_without_its_space_is_warned_of(asked):
    bridge, example = asked
    for found in (
        dcinterp.generation_steps(bridge, example.prompt, example.answer, steps=1),
        dcinterp.logit_lens(bridge, example.prompt, example.answer),
        dcinterp.predict(bridge, example.prompt, example.answer),
    ):
        assert any("are different tokens of this model" in each for each in found.warnings()), found
    steps = dcinterp.generation_steps(bridge, example.prompt, example.answer, steps=1)
    assert f'That begins with " {example.answer}", which is another token than the answer' in steps.sentence()
    for found in (
        dcinterp.generation_steps(bridge, example.prompt, f" {example.answer}", steps=1),
        dcinterp.logit_lens(bridge, example.prompt, f" {example.answer}"),
    ):
        assert found.warnings() == []


def test_an_answer_of_ones_own_is_read_like_that_of_the_task(asked):
    bridge, example = asked
    assert dcinterp.patch_stream(bridge, example.prompt, target=example.answer).target == f" {example.answer}"
    foil = dcinterp.patch_stream(bridge, example.prompt).foil.strip()
    with pytest.raises(UserError, match="The answer to both prompts would be"):
        dcinterp.patch_stream(bridge, example.prompt, target=foil)


def test_a_space_that_a_tokenizer_puts_before_every_text_is_no_part_of_an_answer():
    from types import SimpleNamespace

    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    from dcinterp.mechanism.prompt import tokens_in_text

    letters = {letter: number for number, letter in enumerate(["<unk>", "▁", *"aeilm"])}
    words = letters | {"▁a": 7, "▁l": 8, "im": 9, "▁lim": 10, "▁lime": 11}
    merges = [("▁", "a"), ("▁", "l"), ("i", "m"), ("▁l", "im"), ("▁lim", "e")]
    core = Tokenizer(models.BPE(words, merges, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Replace("▁", " ")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    assert tokenizer("a lime")["input_ids"] == [7, 11]
    model: Any = SimpleNamespace(tokenizer=tokenizer, cfg=SimpleNamespace(default_prepend_bos=False))
    assert tokens_in_text(model, "lime") == (11,)
