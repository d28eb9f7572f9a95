"""lm-evaluation-harness, where it is installed, takes our models without glue."""

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

pytest.importorskip("lm_eval", reason="lm_eval is an optional extra")


def test_log_likelihoods_are_ours(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate("<pad> <unk> <bos> <eos> Ruth has a lime fruit animal".split())}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **special)
    model = DCFormerForCausalLM(DCFormerConfig.preset("tiny-dcformer++", vocab_size=len(words))).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    harness = HFLM(pretrained=str(tmp_path), device="cpu", batch_size=2)
    asked = [
        Instance("loglikelihood", {}, arguments=("Ruth has a", f" {word}"), idx=i)
        for i, word in enumerate(("fruit", "animal"))
    ]
    found = [score for score, _ in harness.loglikelihood(asked)]
    with torch.no_grad():
        ids = tokenizer("Ruth has a", return_tensors="pt").input_ids
        expected = model(ids).logits[0, -1].log_softmax(-1)
    assert found == pytest.approx([expected[words["fruit"]].item(), expected[words["animal"]].item()], abs=1e-5)
