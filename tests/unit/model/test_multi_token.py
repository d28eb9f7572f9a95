"""Multi-token attention against its formula in float64, entry by entry, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcinterp.model.attention import ComposedAttention
from dcinterp.model.compose.base import Place
from dcinterp.model.compose.multi_token import MultiTokenCompose
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.model.kernels import fused, portable, select
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError

SIZES = dict(vocab_size=11, hidden_size=24, num_attention_heads=4, num_hidden_layers=2, intermediate_size=16)
SIZES |= dict(compose="multi-token", compose_groups=2)
TAPS = {"queries": 2, "keys": 4}


def config(**changes: Any) -> DCFormerConfig:
    return DCFormerConfig(**(SIZES | dict(compose_options=TAPS) | changes))


def random_model(**changes: Any) -> DCFormerForCausalLM:
    torch.manual_seed(0)
    model = DCFormerForCausalLM(config(**changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@torch.no_grad()
@pytest.mark.parametrize("norm", [False, True])
def test_scores_and_weights_are_those_of_the_formula(norm: bool) -> None:
    torch.manual_seed(0)
    built = config(position_type="learned", compose_options=TAPS | {"norm": norm})
    attention = ComposedAttention(built, 3).double()
    for parameter in attention.parameters():
        parameter.normal_(std=0.5)
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    q, k, v = (each[0] for each in attention.project(x))
    scores = {
        (h, t, s): float(q[h, t] @ k[h, s]) / math.sqrt(6) for h in range(4) for t in range(5) for s in range(t + 1)
    }
    weights = torch.zeros(4, 5, 5, dtype=torch.float64)
    for h in range(4):
        for t in range(5):
            row = []
            for s in range(t + 1):
                total = 0.0
                for other in (h // 2 * 2, h // 2 * 2 + 1):  # its group
                    share = float(attention.pre.heads.weight[h // 2, other % 2, h % 2])
                    for i in range(2):
                        for j in range(-2, 2):
                            tap = float(attention.pre.taps[other, i, j + 2])
                            total += share * tap * scores.get((other, t - i, s - j), 0.0)
                row.append(total)
            weights[h, t, : t + 1] = torch.tensor(row, dtype=torch.float64).softmax(0)
    mixed = torch.zeros_like(weights)
    for h in range(4):
        for other in (h // 2 * 2, h // 2 * 2 + 1):
            mixed[h] += attention.post.heads.weight[h // 2, other % 2, h % 2] * weights[other]
    z = mixed @ v
    if norm:
        depth = torch.tensor(0.8 - 0.6 * math.exp(-0.3 * 3)).item()  # held in float32
        z = z / torch.sqrt((z * z).mean(-1, keepdim=True) + built.norm_eps) * (1 - depth)
    out, pattern = attention(x, mask=Sight(), output_attentions=True)
    torch.testing.assert_close(pattern[0], mixed, atol=1e-10, rtol=0)
    torch.testing.assert_close(attention(x, mask=Sight())[0], out)
    torch.testing.assert_close(out, attention.write(z[None]), atol=1e-10, rtol=0)


def test_at_first_attention_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = DCFormerForCausalLM(config()).eval()
    plain = DCFormerForCausalLM(model.config.without_composition()).eval()
    plain.load_state_dict({name: model.state_dict()[name] for name in plain.state_dict()})
    ids = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_no_token_sees_a_later_one() -> None:
    model, ids = random_model(), torch.arange(8)[None]
    other = ids.clone()
    other[:, 5:] += 1
    before, after = model(ids).logits, model(other).logits
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 1e-3


def decoded(model: DCFormerForCausalLM, ids: Tensor, mask: Tensor) -> Tensor:
    past, logits, end = None, [], 0
    for step in (3, 1, 1, 2, 1):
        end += step
        out = model(ids[:, end - step : end], attention_mask=mask[:, :end], past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits.append(out.logits)
    return torch.cat(logits, 1)


@torch.no_grad()
@pytest.mark.parametrize("shared", [4, 2], ids="{} heads of keys".format)
def test_padding_and_the_cache_change_nothing(shared: int) -> None:
    """A padded text beside a longer one, whole and in steps, against the text alone."""
    model = random_model(num_key_value_heads=shared, compose_options={"queries": 3, "keys": 4})
    ids = torch.randint(0, 11, (2, 8))
    for text, real in ((slice(2, None), slice(2, None)), (slice(None, 6), slice(None, 6))):  # left, right
        mask = torch.zeros(2, 8, dtype=torch.long)
        mask[0, real], mask[1] = 1, 1
        alone = model(ids[:1, text]).logits[0]
        for padded in (model(ids, attention_mask=mask).logits, decoded(model, ids, mask)):
            torch.testing.assert_close(padded[0, real], alone, atol=1e-10, rtol=0)
            torch.testing.assert_close(padded[1], model(ids[1:]).logits[0], atol=1e-10, rtol=0)


class Largest(TorchDispatchMode):
    """Notes the most numbers that any tensor held which an operation gave."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = [x.numel() for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, Tensor)]
        self.numbers = max([self.numbers, *found])
        return out


@pytest.mark.parametrize("shared", [4, 2], ids="{} heads of keys".format)
def test_long_texts_go_the_portable_way_and_say_so_once(
    shared: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In chunks of sixteen queries, values and gradients are those of the equation, and no whole matrix is made."""
    monkeypatch.setattr(portable, "WHOLE_NUMBERS", 0)
    monkeypatch.setattr(portable, "CHUNK_NUMBERS", 0)
    monkeypatch.delenv(select.ENVIRONMENT, raising=False)
    select._say_once.cache_clear()
    model, ids = random_model(num_key_value_heads=shared), torch.randint(0, 11, (1, 100))
    results, largest = [], []
    for implementation in ("eager", "auto", "chunked"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with Largest() as seen:
            loss = model(ids, labels=ids, use_cache=False).loss
            loss.backward()
        largest.append(seen.numbers)
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            torch.testing.assert_close(got, want, atol=1e-10, rtol=1e-8)
    assert max(largest[1:]) < 4 * 100 * 100 / 2 < largest[0]
    said = [record.message for record in caplog.records if "portable path" in record.message]
    assert said == [
        "The fused kernel composes the scores of one pair; the portable path computes what reads others too."
    ]


@pytest.mark.skipif(not fused.available(), reason="no C++ compiler here")
@pytest.mark.parametrize("windows", [(None,), (3, None)])
def test_a_convolution_of_one_tap_is_a_map_over_heads_and_takes_the_kernel(windows: tuple[int | None, ...]) -> None:
    model = random_model(compose_options={"queries": 1, "keys": 1}, attention_windows=windows)
    ids = torch.arange(9)[None]
    logits = {}
    for implementation in ("eager", "fused"):
        model.set_attn_implementation(implementation)
        logits[implementation] = model(ids).logits
    torch.testing.assert_close(logits["fused"], logits["eager"], atol=1e-10, rtol=0)


def test_what_it_cannot_do_is_refused() -> None:
    for options in (TAPS, {"queries": 2, "keys": 1}, {"queries": 1, "keys": 2}):
        with pytest.raises(UserError, match="which local layers hide; leave attention_windows out"):
            config(attention_windows=(4, None), compose_options=options)
    config(attention_windows=(4, None), compose_stages=("post",))
    with pytest.raises(UserError, match="'queries' = 0; a convolution has at least one tap"):
        config(compose_options={"queries": 0})
    model = random_model()
    model.set_attn_implementation("triton")
    with pytest.raises(UserError, match="'triton' composes the scores of one pair and one layer alone"):
        model(torch.zeros(2, 3, dtype=torch.long))
    assert not hasattr(MultiTokenCompose(config()).place(Place(0, "post")), "taps")
