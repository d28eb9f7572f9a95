"""Random weights and real norms around a planted circuit."""

from __future__ import annotations

import pytest
import torch

from dcinterp.planted import plant, read_plant, tokenizer
from dcinterp.planted.background import SHIPPED, SIZE


def size(x: torch.Tensor) -> float:
    return float(x.float().pow(2).mean().sqrt())


def test_the_sizes_are_those_of_the_shipped_model(shipped):
    from dcinterp.mechanism.dataset import draw_examples

    example = draw_examples("same-person n=1")[0]
    with torch.no_grad():
        cache = shipped.run_with_cache(getattr(example, "prompt", None) or example[1])[1]
    at = {name: size(cache[f"blocks.1.attn.hook_{name}"]) for name in ("q", "k", "v", "z")}
    stream, middle = (size(cache[f"blocks.1.hook_resid_{where}"]) for where in ("pre", "mid"))
    at["attention"] = size(cache["blocks.1.hook_attn_out"]) / stream
    at["mlp"] = size(cache["blocks.1.hook_mlp_out"]) / stream
    weights = cache["blocks.1.attn.post.hook_w_q2"], cache["blocks.1.attn.pre.hook_w_q2"]
    at["w_2"] = sum(size(each) for each in weights) / 2
    at["gate"] = size(cache["blocks.1.attn.pre.hook_w_qg"])
    assert middle > stream
    assert at == {name: pytest.approx(value, rel=0.25) for name, value in SHIPPED.items()}


def test_the_background_is_there_and_the_circuit_is_the_same():
    planted = plant("share-by-pre-qp", background=0.02, seed=1)
    plain = plant("share-by-pre-qp", seed=1)
    assert read_plant("share-by-pre-qp background=0.02 seed=1").knobs == planted.knobs
    examples = planted.examples(40)
    assert planted.roles == plain.roles
    assert planted.accuracy(examples) > 0.9
    assert planted.model.config.norm_eps < 1e-5
    x = planted.model.model.embed_tokens.weight
    assert x.norm(dim=-1).tolist() == [pytest.approx(SIZE, rel=0.02)] * len(x)
    # Every matrix that was zero is not zero any more.
    for name, parameter in planted.model.named_parameters():
        assert parameter.detach().abs().max() > 0, name
    # The norms give the circuit back what it wrote: the asked name still has about unit size.
    inputs = []
    planted.model.model.layers[1].input_layernorm.register_forward_hook(lambda m, x, out: inputs.append(out))
    words = tokenizer()(examples[0].prompt, add_special_tokens=False)["input_ids"]
    planted.model(torch.tensor([words]))
    last = words[-1]
    channel = int(plain.model.model.embed_tokens.weight[last].argmax())
    assert float(inputs[0][0, -1, channel]) == pytest.approx(1, abs=0.15)
