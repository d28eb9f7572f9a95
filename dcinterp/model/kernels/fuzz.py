"""Random calls of `composed_attention`, right and wrong ones, on every implementation, against the equation.

    python -m dcinterp.model.kernels.fuzz --cases 2000 --seed 1

Of each call it asks that all implementations refuse it in the same sentence, or that none does; that what was made to
fit is not refused, and what was broken is; that values and gradients are those of the equation in float64; and that
with NaN or infinity in an input the same numbers of the output are finite. `--only N` runs case N alone. The kernel
runs in this process: a memory error ends it, and `--verbose` has then named the case.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dcinterp.model.compose.branches import DYNAMIC_WEIGHTS, ComposeWeights
from dcinterp.model.kernels import fused, portable
from dcinterp.model.kernels.reference import reference_attention
from dcinterp.model.kernels.select import composed_attention
from dcinterp.support.errors import UserError

log = logging.getLogger(__name__)

# Largest error of values, relative to the largest one, and of each gradient, relative to the norm of all gradients.
TOLERANCE = {torch.float64: (1e-10, 1e-9), torch.float32: (3e-5, 3e-4)}
HALF = 0.2
"""The same of half precisions, where the portable implementations round at every step."""
STRANGE = (float("nan"), float("inf"), -float("inf"))
WEIGHTS = (*DYNAMIC_WEIGHTS, "static", "bias", "conv", "previous", "before")
SIZES = ("WHOLE_NUMBERS", "CHUNK_NUMBERS", "BLOCK_NUMBERS", "FEW_PAIRS")
"""What the portable path goes by when it parts the work."""


class Failure(Exception):
    """An implementation did what it must not."""


@dataclass
class Call:
    """The arguments of one call, and what was done to them."""

    arguments: dict[str, Any]
    strange: bool = False
    broken: list[str] = field(default_factory=list)
    must_fail: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Everything that may have a gradient, by name."""
        found = {name: self.arguments[name] for name in ("q", "k", "v")}
        for stage in ("pre", "post"):
            found |= {f"{stage}.{name}": getattr(self.arguments[stage], name, None) for name in WEIGHTS}
        return {name: x for name, x in found.items() if isinstance(x, Tensor)}

    def change(self, name: str, value: Any) -> None:
        """Put `value` in the place that `tensors` calls `name`."""
        stage, _, weight = name.partition(".")
        self.arguments[stage] = replace(self.arguments[stage], **{weight: value}) if weight else value


class Maker:
    """Random calls; the seed says everything."""

    def __init__(self, seed: int) -> None:
        self.g = torch.Generator().manual_seed(seed)

    def number(self, low: int, high: int) -> int:
        """From `low` up to and including `high`."""
        return int(torch.randint(low, high + 1, (), generator=self.g))

    def pick(self, *options: Any) -> Any:
        return options[self.number(0, len(options) - 1)]

    def chance(self, share: float) -> bool:
        return float(torch.rand((), generator=self.g)) < share

    def call(self) -> Call:
        """A call that fits, in three of eight cases then broken."""
        self.dtype = self.pick(torch.float32, torch.float32, torch.float64, self.pick(torch.bfloat16, torch.float16))
        self.batch, self.heads = self.number(1, 3), self.pick(1, 2, 3, 4, 6, 8, 17)
        queries = self.pick(1, self.number(1, 4), self.number(1, 45))
        keys = queries + self.pick(0, 0, self.number(0, 90))
        causal = self.chance(0.5)
        if not causal and self.chance(0.3):
            keys = self.number(1, 40)
        if self.chance(0.06):
            self.batch, queries, keys = self.pick((0, queries, keys), (self.batch, 0, keys), (self.batch, 0, 0))
        if self.chance(0.03) and not causal:
            keys = 0
        self.queries, self.keys, width = queries, keys, self.pick(1, 3, 8, 16, self.number(1, 33))
        shared = self.pick(self.heads, *(n for n in range(1, self.heads + 1) if self.heads % n == 0))
        arguments = {
            "q": self.tensor(self.batch, self.heads, queries, width),
            "k": self.tensor(self.batch, shared, keys, width),
            "v": self.tensor(self.batch, shared, keys, width),
            "pre": self.stage(),
            "post": self.stage(),
            "causal": causal,
            "window": self.pick(None, 1, self.number(1, 9), 10**30) if causal else None,
            "mask": self.mask(),
        }
        call = Call(arguments)
        if self.chance(0.15) and self.dtype in TOLERANCE and self.batch * queries * keys:
            self.poison(call)
        elif self.chance(0.4):
            for _ in range(self.pick(1, 1, 2)):
                self.break_one(call)
        return call

    def tensor(self, *size: int) -> Tensor:
        """Numbers of order one, laid out in memory in one of the ways that tensors can be."""
        x = torch.randn(*size, generator=self.g, dtype=torch.float64).to(self.dtype)
        how = self.number(0, 6)
        if how == 1 and len(size) > 2:  # position-major, as the projections of a model are
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        elif how == 2:  # every other number of a larger tensor
            x = torch.stack([x, torch.full_like(x, float("nan"))], dim=-1)[..., 0]
        elif how == 3:  # one axis repeated, stride 0
            axis = self.number(0, len(size) - 1)
            if size[axis]:
                x = x.narrow(axis, 0, 1).clone().expand(size)
        elif how == 4:  # inside of a larger one, at an odd address
            larger = torch.full([n + 3 for n in size], float("nan"), dtype=self.dtype)
            inside = larger[tuple(slice(1, n + 1) for n in size)]
            x = inside.copy_(x)
        elif how == 5 and self.dtype in TOLERANCE:  # a view that is negated when it is read
            x = torch.complex(torch.zeros_like(x), -x).conj().imag
        if self.chance(0.6):
            return x.requires_grad_() if x.is_leaf else x.detach().requires_grad_()
        return x.detach()

    def stage(self) -> ComposeWeights | None:
        if self.chance(0.25):
            return None
        rank, held = self.pick(0, 1, 2, 2, 3, 5), {}
        for side, length in (("q", self.queries), ("k", self.keys)):
            if self.chance(0.6):
                for number in (1, 2):
                    held[f"w_{side}{number}"] = self.tensor(self.pick(1, self.batch), length, rank, self.heads)
            if self.chance(0.5):
                held[f"w_{side}g"] = self.tensor(self.pick(1, self.batch), length, self.heads)
        if self.chance(0.3):
            held["static"] = self.tensor(self.heads, self.heads)
        if self.chance(0.2):
            held["bias"] = self.tensor(self.heads)
        groups = self.pick(1, *(n for n in range(1, self.heads + 1) if self.heads % n == 0))
        if self.chance(0.15):
            held["conv"] = self.tensor(self.heads, self.heads // groups, self.number(1, 4), self.number(1, 5))
        if self.chance(0.1):
            held["previous"] = self.tensor(self.heads, self.heads)
            held["before"] = self.tensor(self.pick(1, self.batch), self.heads, self.queries, self.keys)
        # Small weights: what ill-conditioned sums lose is not what this looks for.
        small = {
            name: (x.detach() / self.heads**0.5 / 2).requires_grad_(x.requires_grad)
            if self.chance(0.5) and x.numel()
            else x
            for name, x in held.items()
        }
        return ComposeWeights(**small, skip=self.chance(0.8), groups=groups)

    def mask(self) -> Tensor | None:
        if self.chance(0.6):
            return None
        sizes = [self.pick(1, self.batch), 1, self.pick(1, self.queries, self.queries), self.pick(1, *[self.keys] * 3)]
        mask = torch.rand(*sizes, generator=self.g) < self.pick(0.7, 0.1)
        return mask.transpose(2, 3).contiguous().transpose(2, 3) if self.chance(0.3) else mask

    def poison(self, call: Call) -> None:
        """NaN or infinity in one or two places of one or two tensors."""
        call.strange = True
        for _ in range(self.pick(1, 2)):
            name, x = self.pick(*call.tensors().items())
            if x.numel() == 0:
                continue
            y = x.detach().clone()
            for _ in range(self.pick(1, 2)):
                y[tuple(self.number(0, n - 1) for n in y.shape)] = self.pick(*STRANGE)
            call.change(name, y.requires_grad_(x.requires_grad))

    def break_one(self, call: Call) -> None:
        """One thing that does not fit; in a few of them it may still happen to fit."""
        kind = self.pick("shape", "shape", "shape", "type", "dims", "pair", "groups", "window", "mask", "mask", "value")
        tensors = call.tensors()
        if not tensors:
            return
        name, x = self.pick(*tensors.items())
        if call.broken and (kind in call.broken or name in ("q", "k") or kind in ("shape", "type")):
            return  # a second change could mend the first
        stage = self.pick("pre", "post")
        w = call.arguments[stage] if isinstance(call.arguments[stage], ComposeWeights) else None
        if kind == "shape" and x.dim():
            axis, n = self.number(0, x.dim() - 1), self.pick(0, 1, 2, 3, 5, 50)
            size = [*x.shape]
            one = name.partition(".")[2] in (*DYNAMIC_WEIGHTS, "before")
            spread = one and axis == 0 and n in (1, self.batch)
            taps = name.endswith("conv") and axis > 1 and n
            fits = n == size[axis] or spread or taps
            size[axis] = n
            call.change(name, torch.randn(size, generator=self.g).to(x.dtype))
            # The shape of q and k says what fits, and with nothing beside them another one may.
            call.must_fail |= not fits and name not in ("q", "k")
        elif kind == "type":
            to = self.pick(torch.int64, torch.int32, torch.bool, torch.complex64, torch.float64, torch.float16, "meta")
            call.must_fail |= to not in (self.dtype, x.dtype)
            call.change(name, x.detach().to(to))
        elif kind == "dims" and x.dim() and x.device.type == "cpu":
            flat = x.flatten() if x.dim() > 1 else x[None, None]
            call.change(name, self.pick(x[0] if len(x) else x[None], x[None], flat, x.to_sparse(), x.tolist()))
            call.must_fail = True
        elif kind == "pair" and w is not None:
            there = [n for n in ("w_q1", "w_q2", "w_k1", "w_k2") if getattr(w, n) is not None]
            if there and not call.broken:
                call.change(f"{stage}.{self.pick(*there)}", None)
                call.must_fail = True
        elif kind == "groups" and w is not None:
            groups = self.pick(0, -1, self.heads + 1, 1.0, True, None, "2", 2 * self.heads)
            call.arguments[stage] = replace(w, groups=groups)
            call.must_fail |= not call.broken
        elif kind == "window":
            call.arguments |= {"window": self.pick(0, -3, 2.0, True, "3", torch.tensor(2)), "causal": True}
            call.must_fail = True
        elif kind == "mask":
            sizes = [self.batch, 1, self.queries, self.keys]
            made = torch.ones(sizes)
            bad = self.pick(
                made,
                made.long(),
                made.bool().flatten(0, 1),
                made.bool().flatten(0, 2),
                made.bool()[None],
                made.tolist(),
            )
            if self.chance(0.5):
                axis, n = self.number(0, 3), self.pick(0, 2, 3, 7)
                call.must_fail |= n != sizes[axis] and not call.broken
                sizes[axis] = n
                bad = torch.ones(sizes, dtype=torch.bool)
            else:
                call.must_fail = True
            call.arguments["mask"] = bad
        elif kind == "value":
            which = self.pick("q", "k", "v", "pre", "post", "causal")
            call.arguments[which] = self.pick(3, "x", [1.0], 1.5)
            call.must_fail = True
        else:
            return
        call.broken.append(kind)


def check(call: Call) -> str:
    """What became of the call: "refused", "strange" or "computed".

    Raises:
        Failure: an implementation did what it must not.
    """
    beyond = [w for w in map(call.arguments.get, ("pre", "post")) if isinstance(w, ComposeWeights) and w.reads_beyond()]
    # The kernel refuses what reads other pairs; asked for nothing by name, the call goes another way.
    names = [name if name != "fused" or not beyond else "auto" for name in _implementations()]
    outcomes = {name: _attempt(call, name) for name in names}
    refusals = {str(out) if isinstance(out, UserError) else None for out in outcomes.values()}
    if len(refusals) != 1:
        raise Failure(f"not all implementations refused it: {refusals}")
    refused = refusals.pop()
    if refused is not None:
        if not call.broken:
            raise Failure(f"it fits and was refused: {refused}")
        if not refused.startswith(("q ", "k ", "v ", "pre", "post", "mask", "window", "causal")):
            raise Failure(f"a refusal that names no argument: {refused}")
        return "refused"
    if call.must_fail:
        raise Failure(f"{call.broken} was not refused")
    eager = outcomes["eager"]
    for name, out in outcomes.items():
        if out.shape != eager.shape or out.dtype != eager.dtype:
            raise Failure(f"{name} gives {out.dtype} {tuple(out.shape)}, eager {eager.dtype} {tuple(eager.shape)}")
        if call.strange and not torch.equal(out.isfinite(), eager.isfinite()):
            raise Failure(f"{name} is finite at {int(out.isfinite().sum())}, eager at {int(eager.isfinite().sum())}")
    if call.strange:
        return "strange"
    _compare(call, outcomes)
    return "computed"


def _implementations() -> list[str]:
    return ["eager", "chunked", *(["fused"] if fused.available() else [])]


def _attempt(call: Call, implementation: str) -> Any:
    try:
        return composed_attention(**call.arguments, implementation=implementation)  # type: ignore[arg-type]
    except UserError as refusal:
        return refusal
    except Exception as error:
        raise Failure(f"{implementation} raised {type(error).__name__}: {error}") from error


def _compare(call: Call, outcomes: dict[str, Tensor]) -> None:
    """Values, and gradients where there are some, against the equation in float64 over plain copies."""
    leaves = call.tensors()
    wide = {name: x.detach().double().clone().requires_grad_() for name, x in leaves.items()}
    want = _equation(call, wide)
    grads = [name for name, x in leaves.items() if x.requires_grad]
    upstream = torch.randn(want.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slopes = _slopes(want, [wide[name] for name in grads], upstream)
    # A gradient that is nearly zero is what cancelled: it counts beside the others, and beside the output.
    scale = max([float(g.norm()) for g in slopes], default=0.0) + float(want.detach().norm())
    for name, out in outcomes.items():
        exact = TOLERANCE.get(out.dtype)
        values, gradients = exact or ((2e-2, None) if name == "fused" else (HALF, None))
        most = float(want.detach().abs().max()) if want.numel() else 0.0
        worst = float((out.detach() - want.detach()).abs().max()) if want.numel() else 0.0
        if not worst <= values * most + 1e-300 and not (exact is None and most > 1e4):
            raise Failure(f"{name} is off by {worst:.3g} of {most:.3g}")
        if not grads or gradients is None:
            continue
        found = _slopes(out, [leaves[n] for n in grads], upstream.to(out.dtype))
        for leaf, got, slope in zip(grads, found, slopes, strict=True):
            worst = float((got - slope).norm()) if got.shape == slope.shape else float("inf")
            if not worst <= gradients * scale + 1e-300:
                raise Failure(f"{name}: the gradient of {leaf} is off by {worst:.3g} of {scale:.3g}")


def _slopes(out: Tensor, leaves: list[Tensor], upstream: Tensor) -> list[Tensor]:
    if not leaves or not out.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def _equation(call: Call, wide: dict[str, Tensor]) -> Tensor:
    q, k = wide["q"], wide["k"]
    stages: list[ComposeWeights | None] = []
    for stage in ("pre", "post"):
        w = call.arguments[stage]
        held: dict[str, Any] = {name: wide.get(f"{stage}.{name}") for name in WEIGHTS}
        for name in DYNAMIC_WEIGHTS:
            if held[name] is not None:
                held[name] = held[name].expand(len(q), *held[name].shape[1:])
        stages.append(None if w is None else ComposeWeights(**held, skip=w.skip, groups=w.groups))
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.ones(len(q), 1, queries, keys, dtype=torch.bool)
    if call.arguments["mask"] is not None:
        mask = mask & call.arguments["mask"]
    if call.arguments["causal"]:
        window = call.arguments["window"] or keys
        ahead = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)[None]
        mask = mask & (ahead >= 0) & (ahead < min(window, keys + 1))
    return reference_attention(q, k, wide["v"], stages[0], stages[1], mask)


def run(seed: int, cases: int, seconds: float | None = None, only: int | None = None) -> dict[str, int]:
    """Try `cases` calls, or as many as start within `seconds` of processor time; say what became of them.

    Raises:
        Failure: with the number of the case; the first one ends it.
    """
    end = None if seconds is None else time.process_time() + seconds
    counts = {"computed": 0, "strange": 0, "refused": 0}
    usual, threads = {name: getattr(portable, name) for name in SIZES}, torch.get_num_threads()
    try:
        for number in range(cases) if only is None else [only]:
            if end is not None and time.process_time() > end:
                break
            maker = Maker(seed * 1_000_003 + number)
            call = maker.call()
            log.debug("case %d: %s", number, _Shown(call))
            # Chunks of 16 queries and blocks of a few, which otherwise only long inputs have; one thread, or two.
            small = dict.fromkeys(SIZES, 0) | {"BLOCK_NUMBERS": {"cpu": maker.pick(0, 2000)}}
            _resize(maker.pick(usual, small, usual | {"FEW_PAIRS": 0}))
            torch.set_num_threads(maker.pick(1, 2))
            try:
                counts[check(call)] += 1
            except Failure as failure:
                raise Failure(f"case {number} of seed {seed}: {failure}; {_Shown(call)}") from failure
    finally:
        _resize(usual)
        torch.set_num_threads(threads)
    return counts


def _resize(sizes: dict[str, Any]) -> None:
    for name, size in sizes.items():
        setattr(portable, name, size)


class _Shown:
    """A call in a line, written only when somebody reads it."""

    def __init__(self, call: Call) -> None:
        self.call = call

    def __str__(self) -> str:
        def shown(x: Any) -> str:
            if isinstance(x, Tensor):
                return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{'g' if x.requires_grad else ''}"
            if isinstance(x, ComposeWeights):
                held = {name: getattr(x, name) for name in (*WEIGHTS, "skip", "groups")}
                return f"({', '.join(f'{n}={shown(y)}' for n, y in held.items() if y is not None)})"
            return f"{x!r:.40}"

        extra = [" strange"] * self.call.strange + [f" broken: {self.call.broken}"] * bool(self.call.broken)
        return ", ".join(f"{name}={shown(x)}" for name, x in self.call.arguments.items()) + "".join(extra)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dcinterp.model.kernels.fuzz", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="start no case after so many seconds of processor time")
    parser.add_argument("--only", type=int, metavar="N", help="run case N alone")
    parser.add_argument("--verbose", action="store_true", help="name each case before it runs")
    asked = parser.parse_args(arguments)
    logging.basicConfig(level=logging.DEBUG if asked.verbose else logging.INFO, format="%(message)s", stream=sys.stdout)
    faulthandler.enable()
    try:
        counts = run(asked.seed, asked.cases, asked.seconds, asked.only)
    except Failure as failure:
        log.error("%s", failure)
        return 1
    log.info(
        "%d cases over %s: %s", sum(counts.values()), ", ".join(_implementations()),
        ", ".join(f"{n} {what}" for what, n in counts.items()),
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
