"""Composed attention on a GPU: every implementation beside plain attention, in one run.

    python -m dcinterp.bench.gpu --rounds 5 > docs/gpu-bench.jsonl

docs/kernel.md shows such a file (`table`). Times are medians between two events of the device, memory is the most that
was allocated at once. The baseline is `scaled_dot_product_attention` of torch, which composes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import composed_attention
from dcinterp.support.text import markdown_table

SHAPES = ((8, 8, 512, 32), (8, 8, 2048, 32))
"""Batch, heads, positions, d_head."""


def stage(batch: int, heads: int, positions: int, dtype: torch.dtype, rank: int = 2) -> ComposeWeights:
    """Weights of one stage with all four branches."""

    def random(*size: int) -> Tensor:
        return (torch.randn(*size, device="cuda") / heads**0.5).to(dtype).requires_grad_()

    maps: dict[str, Any] = {f"w_{side}{n}": random(batch, positions, rank, heads) for side in "qk" for n in (1, 2)}
    return ComposeWeights(**maps, w_qg=random(batch, positions, heads), w_kg=random(batch, positions, heads))


def median_time(run: Callable[[], object], rounds: int) -> float:
    """Milliseconds of one run, after one that does not count."""
    run()
    times = []
    for _ in range(rounds):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return median(times)


def measure(shape: tuple[int, int, int, int], dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """A line for each implementation, forward alone and with the way back.

    Args:
        shape: batch, heads, positions, d_head.
        dtype: of all tensors.
        rounds: times that count.

    Returns:
        For each the shape, type, what was run, the name, milliseconds, those over plain attention's, and MiB; in place
        of the last three why it cannot run.
    """
    batch, heads, positions, _ = shape
    q, k, v = (torch.randn(*shape, device="cuda").to(dtype).requires_grad_() for _ in range(3))
    pre, post = (stage(batch, heads, positions, dtype) for _ in range(2))
    leaves = [q, k, v, *(w for s in (pre, post) for _, w in s.dynamic())]

    def attend(name: str) -> Tensor:
        if name == "plain":
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        return composed_attention(q, k, v, pre, post, causal=True, implementation=name)  # type: ignore[arg-type]

    def both(name: str) -> None:
        wanted = leaves[:3] if name == "plain" else leaves
        torch.autograd.grad(attend(name), wanted, torch.ones_like(q))

    def forward(name: str) -> None:
        with torch.no_grad():
            attend(name)

    lines: list[dict[str, Any]] = []
    for what, go in (("forward", forward), ("forward and backward", both)):
        baseline = float("nan")
        for name in ("plain", "chunked", "eager", "triton"):
            line: dict[str, Any] = {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "what": what}
            line["name"] = name
            try:
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
                time = median_time(lambda go=go, name=name: go(name), rounds)  # type: ignore[misc]
                baseline = time if name == "plain" else baseline
                peak = torch.cuda.max_memory_allocated() - held
                line |= {"ms": round(time, 3), "ratio": round(time / baseline, 2), "peak MiB": round(peak / 2**20)}
            except Exception as error:  # no memory, or of Triton's compiler no shared memory for so many heads
                line["cannot"] = f"{type(error).__name__}: {error}".partition("\n")[0][:120]
            lines.append(line)
    return lines


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Lines that `main` has written, after the first, as a Markdown table: times, ratios to plain attention, memory."""
    rows = []
    for line in lines:
        batch, heads, positions, width = line["shape"]
        shape = f"{batch} x {heads} heads x {positions:,} x {width}"
        cells = (
            ["cannot", "", ""]
            if "cannot" in line
            else [f"{line['ms']:g}", f"{line['ratio']:g}", f"{line['peak MiB']:,}"]
        )
        rows.append([shape, line["dtype"], line["what"], line["name"], *cells])
    return markdown_table(["shape", "type", "what", "attention", "ms", "times plain", "peak MiB"], rows)


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    if not torch.cuda.is_available():
        raise SystemExit("dcinterp.bench.gpu needs a GPU, and torch sees none; `dcinterp bench` times a CPU.")
    from triton import __version__ as triton

    gpu = torch.cuda.get_device_name()
    say({"gpu": gpu, "torch": torch.__version__, "triton": triton, "rounds": rounds})
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for line in measure(shape, dtype, rounds):
                say(line)


if __name__ == "__main__":
    main()
