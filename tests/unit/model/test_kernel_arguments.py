"""What `composed_attention` takes and refuses: the same in every implementation, and never memory that is not its own.

`python -m dcinterp.model.kernels.fuzz` runs longer what a slice of is run here; tests/sanitize_kernel.sh runs it under
AddressSanitizer.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import composed_attention, fused
from dcinterp.support.errors import UserError

IMPLEMENTATIONS = ["eager", "chunked", *(["fused"] if fused.available() else [])]
BATCH, HEADS, QUERIES, KEYS, WIDTH, RANK = 2, 4, 9, 11, 8, 3


@contextmanager
def unchecked() -> Iterator[None]:
    """Without the type checks of the tests, which would refuse first: people do not have them."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def _unchecked() -> Iterator[None]:
    with unchecked():
        yield


def random(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


def weights(**changes: Any) -> ComposeWeights:
    held: dict[str, Any] = {}
    for side, length in (("q", QUERIES), ("k", KEYS)):
        held |= {f"w_{side}{number}": random(BATCH, length, RANK, HEADS) / 2 for number in (1, 2)}
        held[f"w_{side}g"] = random(BATCH, length, HEADS)
    with unchecked():
        return ComposeWeights(**(held | {"static": random(HEADS, HEADS), "groups": 2} | changes))


def call(**changes: Any) -> dict[str, Any]:
    fits: dict[str, Any] = {
        "q": random(BATCH, HEADS, QUERIES, WIDTH),
        "k": random(BATCH, HEADS, KEYS, WIDTH),
        "v": random(BATCH, HEADS, KEYS, WIDTH) + 1,
        "pre": weights(),
        "post": weights(),
    }
    return fits | changes


def ones(*size: int) -> Tensor:
    return torch.ones(*size, dtype=torch.bool)


# What does not fit, and the beginning of the sentence.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "q of three axes": (call(q=random(HEADS, QUERIES, WIDTH)), r"q must be a dense tensor \[batch, head, query"),
    "q a list": (call(q=[1.0]), "q must be a dense tensor .*, not a list"),
    "q sparse": (call(q=random(2, 4, 9, 8).to_sparse()), "q must be a dense tensor"),
    "integers": (call(q=ones(2, 4, 9, 8).long()), "q must be float64, float32, bfloat16 or float16, not torch.int64"),
    "complex": (call(q=random(2, 4, 9, 8).cfloat()), "q must be float64"),
    "no heads": (call(q=random(2, 0, 9, 8)), "q must have at least one head"),
    "no width": (call(q=random(2, 4, 9, 0)), "q must have at least one head and a d_head"),
    "one batch of keys": (call(k=random(1, 4, 11, 8)), r"k must be .* = \[2, 4, 11, 8\], .*its shape is \(1, 4, 11"),
    "one batch of values": (call(v=random(1, 4, 11, 8)), r"v must be .* = \[2, 4, 11, 8\]"),
    "three heads": (call(k=random(2, 3, 11, 8), v=random(2, 3, 11, 8)), "k has 3 heads and q has 4; give as many, or"),
    "more heads": (call(k=random(2, 8, 11, 8), v=random(2, 8, 11, 8)), "k has 8 heads and q has 4"),
    "no heads of keys": (call(k=random(2, 0, 11, 8), v=random(2, 0, 11, 8)), "k has 0 heads and q has 4"),
    "other heads of values": (
        call(k=random(2, 2, 11, 8)),
        r"v must be \[batch, kv_head, key, d_head\] = \[2, 2, 11, 8\]",
    ),
    "narrow keys": (call(k=random(2, 4, 11, 7)), "k must be"),
    "wide values": (call(v=random(2, 4, 11, 9)), "v must be"),
    "fewer values": (call(v=random(2, 4, 10, 8)), "v must be"),
    "wider type": (call(k=random(2, 4, 11, 8).double()), "k is torch.float64 and q is torch.float32"),
    "other device": (call(k=random(2, 4, 11, 8).to("meta")), "k is on meta and q on cpu"),
    "stage": (call(pre={"w_q1": 1}), "pre must be ComposeWeights or None, not a dict"),
    "lone w_q1": (call(pre=weights(w_q2=None)), "pre.w_q1 comes without pre.w_q2"),
    "lone w_k2": (call(post=weights(w_k1=None)), "post.w_k2 comes without post.w_k1"),
    "groups 0": (call(pre=weights(groups=0)), "pre.groups must be an integer that divides the 4 heads, not 0"),
    "groups 3": (call(post=weights(groups=3)), "post.groups must be"),
    "groups True": (call(post=weights(groups=True)), "post.groups must be"),
    "skip 2": (call(post=weights(skip=2)), "post.skip must be True or False, not 2"),
    "ranks": (call(pre=weights(w_q2=random(2, 9, 2, 4))), r"pre.w_q2 must be .* = \[2, 9, 3, 4\]"),
    "ranks of sides": (
        call(post=weights(w_k1=random(2, 11, 9, 4), w_k2=random(2, 11, 9, 4))),
        r"post.w_k1 must be .* = \[2, 11, 3, 4\]",
    ),
    "queries of weights": (call(pre=weights(w_qg=random(2, 8, 4))), r"pre.w_qg must be \[batch, query, head\]"),
    "one query of weights": (call(pre=weights(w_qg=random(2, 1, 4))), r"pre.w_qg must be"),
    "keys of weights": (call(post=weights(w_kg=random(2, 12, 4))), r"post.w_kg must be"),
    "batch of weights": (call(post=weights(w_kg=random(3, 11, 4))), r"post.w_kg must be .*, or 1 for its batch"),
    "heads of weights": (call(post=weights(w_kg=random(2, 11, 3))), "post.w_kg must be"),
    "gate of four axes": (call(post=weights(w_kg=random(2, 11, 1, 4))), "post.w_kg must be"),
    "projection of three": (call(pre=weights(w_q1=random(2, 9, 4))), r"pre.w_q1 must be .* = \[2, 9, 3, 4\]"),
    "static": (call(post=weights(static=random(4, 3))), r"post.static must be \[head_from, head_to\] = \[4, 4\]"),
    "conv of three axes": (
        call(pre=weights(conv=random(4, 2, 3))),
        r"pre.conv must be \[head, head of its group",
    ),
    "conv of other groups": (call(post=weights(conv=random(4, 4, 2, 3))), "post.conv must be"),
    "conv without taps": (call(pre=weights(conv=random(4, 2, 0, 3))), "pre.conv must have at least one tap"),
    "short scores before": (
        call(pre=weights(previous=random(4, 4), before=random(2, 4, 9, 10))),
        r"pre.before must be \[batch, head, query, key\] = \[2, 4, 9, 11\], or 1 for its batch",
    ),
    "type of weights": (call(pre=weights(w_q1=random(2, 9, 3, 4).double())), "pre.w_q1 is torch.float64"),
    "float mask": (call(mask=torch.ones(2, 1, 9, 11)), "mask must be a boolean tensor"),
    "mask of two axes": (call(mask=ones(9, 11)), r"mask must be .*; its shape is \(9, 11\)"),
    "mask of heads": (call(mask=ones(2, 4, 9, 11)), "mask must be"),
    "mask of another batch": (call(mask=ones(3, 1, 9, 11)), "mask must be"),
    "short mask": (call(mask=ones(2, 1, 9, 10)), r"mask must be .* = \[2, 1, 9, 11\]"),
    "mask elsewhere": (call(mask=ones(2, 1, 9, 11).to("meta")), "mask is on meta"),
    "causal": (call(causal=1), "causal must be True or False, not 1"),
    "window 0": (call(causal=True, window=0), "window=0 needs causal=True"),
    "window 2.5": (call(causal=True, window=2.5), "window must be an integer"),
    "causal, fewer keys": (
        call(q=random(2, 4, 12, 8), pre=None, post=None, causal=True),
        "causal=True makes the queries the last .* 12 queries and k has 11 keys",
    ),
}


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "auto"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str, implementation: Any) -> None:
    arguments, said = REFUSED[name]
    with pytest.raises(UserError, match=f"^{said}"):
        composed_attention(**arguments, implementation=implementation)


def alone() -> ComposeWeights:
    """Weights with a batch of one."""
    return weights().with_dynamic(lambda _, w: w[:1].clone())


UNEVEN = torch.rand(QUERIES, KEYS, generator=torch.Generator().manual_seed(0)) < 0.5
FITS: dict[str, dict[str, Any]] = {
    "weights of one batch": call(pre=alone(), post=alone()),
    "one of each": call(mask=UNEVEN[None, None]),
    "one query": call(mask=UNEVEN[None, None, :1].expand(2, -1, -1, -1).clone()),
    "one key": call(mask=UNEVEN[None, None, :, :1]),
    "one number": call(mask=~ones(1, 1, 1, 1)),
    "shared heads": call(k=random(2, 2, 11, 8), v=random(2, 2, 11, 8) + 1),
    "one head for all": call(k=random(2, 1, 11, 8), v=random(1, 1, 11, 8).expand(2, 1, 11, 8), causal=True),
    "repeated heads": call(k=random(2, 1, 11, 8).expand(2, 4, 11, 8), v=random(1, 1, 1, 8).expand(2, 4, 11, 8)),
    "every other number": call(k=random(2, 4, 11, 16)[..., ::2], q=random(2, 4, 18, 8)[:, :, ::2]),
    "turned": call(q=random(8, 9, 4, 2).permute(3, 2, 1, 0), v=random(2, 4, 8, 11).transpose(2, 3)),
    "negated when read": call(
        q=random(2, 4, 9, 8).cfloat().mul(1j).conj().imag,
        pre=weights(w_qg=random(2, 9, 4).cfloat().mul(1j).conj().imag),
    ),
    "endless window": call(causal=True, window=10**30),
    "no batch": call(
        q=random(0, 4, 9, 8), k=random(0, 4, 11, 8), v=random(0, 4, 11, 8),
        pre=weights().with_dynamic(lambda _, w: w[:0]), post=alone(),
    ),
    "no queries": call(q=random(2, 4, 0, 8), pre=None, post=None),
    "no keys": call(k=random(2, 4, 0, 8), v=random(2, 4, 0, 8), pre=None, post=None),
    "more queries than keys": call(q=random(2, 4, 30, 8), pre=None, post=None, mask=ones(1, 1, 30, 11)),
}  # fmt: skip


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("name", FITS)
def test_what_fits_is_the_equation(name: str, implementation: Any, grad: bool) -> None:
    """With and without gradients, which is the kernel's other function for a few queries."""
    outs = []
    for which in ("eager", implementation):
        arguments = dict(FITS[name])
        leaves = [arguments["q"].detach().requires_grad_(grad), *(arguments[x].detach() for x in ("k", "v"))]
        if arguments["pre"] is not None and grad:
            gate = arguments["pre"].w_kg.clone().requires_grad_()
            arguments["pre"] = ComposeWeights(**(vars(arguments["pre"]) | {"w_kg": gate}))
            leaves.append(gate)
        out = composed_attention(**(arguments | {"q": leaves[0]}), implementation=which)
        wanted = [x for x in leaves if x.requires_grad]
        found = torch.autograd.grad(out.sin().sum(), wanted) if grad else ()
        outs.append((out.detach(), *found))
    for got, want in zip(*outs, strict=True):
        torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("queries", [1, QUERIES])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS[1:])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["q", "k", "v", "pre.w_q1", "pre.w_kg", "post.w_qg", "post.w_k2", "post.static"])
def test_what_is_not_finite_spreads_as_in_the_equation(
    where: str, value: float, implementation: Any, queries: int
) -> None:
    """The last key is one that no query sees: of it, values and weights of `post` spread too, for 0 * NaN is NaN."""
    for spot in (0, -1):
        stages = {s: weights(groups=4) for s in ("pre", "post")}
        cut = {
            s: w.with_dynamic(lambda name, x: x[:, -queries:].clone() if name.startswith("w_q") else x.clone())
            for s, w in stages.items()
        }
        arguments = call(**cut, mask=(torch.arange(KEYS) < KEYS - 1).expand(1, 1, queries, KEYS))
        arguments["q"] = arguments["q"][:, :, -queries:].clone()
        stage, _, name = where.partition(".")
        place = getattr(arguments[stage], name) if name else arguments[stage]
        if name == "static":
            place[0, 1] = value
        elif name.endswith("g"):
            place[0, spot, 1] = value
        else:
            place[(0, spot, 1, 1) if name else (0, 1, spot, 1)] = value
        outs = [composed_attention(**arguments, implementation=i) for i in ("eager", implementation)]
        assert torch.equal(outs[0].isfinite(), outs[1].isfinite())


def test_a_row_of_scores_without_a_finite_one_is_the_equation() -> None:
    """Minus infinity everywhere it may look: the equation then attends to what is masked."""
    arguments = call(pre=None, post=None, mask=torch.arange(KEYS).expand(1, 1, QUERIES, KEYS) < 3)
    arguments["k"] = arguments["k"].abs()
    arguments["q"][0, 1, 2] = -float("inf")
    outs = [composed_attention(**arguments, implementation=i) for i in IMPLEMENTATIONS]  # type: ignore[arg-type]
    assert outs[0][0, 1, 2].isfinite().all()
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0])


@pytest.mark.usefixtures("warm_python")
def test_random_calls_right_and_wrong() -> None:
    """Fifteen seconds of the fuzz. In a process of its own: a memory error would take this one along."""
    code = "import sys; from dcinterp.model.kernels import fuzz; print(fuzz.run(1, 4000, seconds=15))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout.replace("'", '"'))
    assert min(counts.values()) >= 1
    assert sum(counts.values()) >= 40


def test_the_fuzz_sees_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from dcinterp.model.kernels import fuzz

    def off(*args: Any, implementation: str, **kwargs: Any) -> Tensor:
        out = composed_attention(*args, implementation=implementation, **kwargs)  # type: ignore[arg-type]
        return out * 1.01 if implementation == "chunked" else out

    monkeypatch.setattr(fuzz, "composed_attention", off)
    with pytest.raises(fuzz.Failure, match="chunked is off by"):
        fuzz.run(1, 100)
