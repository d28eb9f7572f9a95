"""lm-evaluation-harness, where it is installed, takes our models without glue."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM

needs_harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm_eval is an optional extra")


@needs_harness
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


TASK = """
task: kinds
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@needs_harness
def test_the_verb_runs_a_local_task_on_a_shipped_model(tmp_path, capsys, monkeypatch):
    """lm_eval never imports dcinterp: without the verb it does not know the model type."""
    import synthetic_tasks
    from dcinterp.cli import main

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (row,) = synthetic_tasks.generate("task2", 1, seed=0, examples=4, split="held-out")
    documents = []
    for example in row.examples:
        choices = ["fruit", "animal", example.answer]
        documents.append({"prompt": example.prompt, "choices": choices, "answer": 2})
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in documents))
    (tmp_path / "kinds.yaml").write_text(TASK.replace("DATA", str(data)))
    arguments = ["--model", "hf", "--model_args", "pretrained=dcformer++", "--tasks", "kinds", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main(["lm-eval", "run", *arguments, "--include_path", str(tmp_path)])
    assert not ended.value.code
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "acc" in line and "kinds" in line]
    assert re.search(r"\|\s*(1|1\.0*|0\.75\d*)\|", line), line


def test_the_verb_without_the_harness_says_what_to_install(capsys, monkeypatch):
    from dcinterp.cli import lm_eval, main

    monkeypatch.setattr(lm_eval, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["lm-eval", "run", "--tasks", "x"])
    assert ended.value.code == 2
    assert "pip install 'dcinterp[lm-eval]'" in capsys.readouterr().err
