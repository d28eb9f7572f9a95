"""Composed attention, and which of its implementations computes it."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool
from torch import Tensor

from dcinterp.model.compose.branches import ComposeWeights
from dcinterp.model.kernels import fused
from dcinterp.model.kernels.arguments import settle_arguments
from dcinterp.model.kernels.bias import add_biases
from dcinterp.model.kernels.gradients import transformed
from dcinterp.model.kernels.portable import all_finite, chunked_or_equation, equation_in_chunks, finite
from dcinterp.model.kernels.reference import KeyHeads, QueryHeads, reference_attention
from dcinterp.model.mask import Sight
from dcinterp.support.errors import UserError, nearest

Implementation = Literal["auto", "eager", "chunked", "fused", "triton"]
log = logging.getLogger(__name__)

ENVIRONMENT = "DCINTERP_ATTENTION"
"""The environment variable that says what "auto" means."""


def composed_attention(
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None = None,
    post: ComposeWeights | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    mask: Bool[Tensor, "#batch 1 #query #key"] | None = None,
    implementation: Implementation = "auto",
) -> QueryHeads:
    """Compose_post(softmax(mask(Compose_pre(q k^T / sqrt(d_head))))) v.

    Args:
        q: [batch, head, query, d_head], float64, float32, bfloat16 or float16.
        k, v: [batch, head, key, d_head], or fewer heads, a divisor of those of `q`: each then serves as many
            consecutive heads of `q` (grouped-query attention), and is not repeated in memory.
        pre, post: weights of the two stages (`ComposeWeights`, [batch or 1, query or key, rank, head], all of the type
            of `q`, one rank a stage); None for a stage that does not exist.
        causal: the queries are the last positions of the keys' axis, and see no key after themselves. There must be
            at least as many keys as queries.
        window: with `causal`, how many keys a query sees, its own included.
        mask: True where a query may look, in addition; any of its axes may have size 1. A query that may look nowhere
            attends evenly.
        implementation: "fused" (C++, float32 inside for half precisions), "chunked" (portable, any device), "eager"
            (as the equation reads, memory quadratic in the length), or "auto": `$DCINTERP_ATTENTION` if that is set,
            else fused where it can be, else chunked. "triton" is experimental and only ever runs when named.

    Batch, query and key may be empty. Nothing else broadcasts; composition is over the heads of `q`. Where q, k, v or
    the weights hold NaN or infinity, the same numbers of the output are finite in every implementation (except
    "chunked" away from a CPU and "triton").

    Raises:
        UserError: there is no such implementation, it cannot run here, or an argument does not fit the others; the
            message names it and what it must be.
    """
    pre, post, window, mask = settle_arguments(q, k, v, pre, post, causal=causal, window=window, mask=mask)
    chosen = _choose(implementation, q)
    if chosen != "eager" and any(stage is not None and stage.reads_beyond() for stage in (pre, post)):
        require_portable(implementation)
        chosen = "chunked"
    if q.shape[0] == 0 or q.shape[2] == 0 or k.shape[2] == 0:
        chosen = "eager"  # nothing to compute, and what an empty sum is, the equation says
    sight = Sight(causal, window, mask)
    if chosen == "eager":
        return reference_attention(q, k, v, pre, post, sight.dense(q.shape[2], k.shape[2], q.device))
    if _scannable(q) and _bias_says_where_nan_goes(q, k, v, pre, post):
        return equation_in_chunks(q, k, v, pre, post, sight=sight)
    before, after = (None if stage is None else stage.without_bias() for stage in (pre, post))
    return add_biases(_run(chosen, q, k, v, before, after, sight), v, pre, post, sight)


def _bias_says_where_nan_goes(
    q: QueryHeads, k: KeyHeads, v: KeyHeads, pre: ComposeWeights | None, post: ComposeWeights | None
) -> bool:
    """Whether a bias is not finite itself, or all that a stage adds to inputs that are not: then 0 * NaN is missing."""
    biased = [(stage, stage.bias) for stage in (pre, post) if stage is not None and stage.bias is not None]
    if not all(finite(bias) for _, bias in biased):
        return True
    alone = any(not stage.skip and stage.static is None and not [*stage.dynamic()] for stage, _ in biased)
    return alone and not all_finite(q, k, v, pre, post)


def _run(
    chosen: str,
    q: QueryHeads,
    k: KeyHeads,
    v: KeyHeads,
    pre: ComposeWeights | None,
    post: ComposeWeights | None,
    sight: Sight,
) -> QueryHeads:
    """One of the fast paths, which know of no bias."""
    rule: dict[str, Any] = dict(causal=sight.causal, window=sight.window, mask=sight.allowed)
    if chosen == "fused":
        return fused.fused_attention(q, k, v, pre, post, **rule)
    if chosen == "triton":
        from dcinterp.model.kernels.triton_kernel import triton_attention  # needs the package triton

        return triton_attention(q, k, v, pre, post, **rule)
    return chunked_or_equation(q, k, v, pre, post, sight=sight, scan=_scannable(q))


def require_portable(implementation: str) -> None:
    """For scores that are made of more than those of their own pair: the portable path has them, the kernels do not.

    Raises:
        UserError: a kernel is asked for by name.
    """
    if implementation not in ("auto", "eager", "chunked"):
        raise UserError(
            f"The attention implementation {implementation!r} composes the scores of one pair and one layer alone, and "
            'this model reads others too; choose "auto", "chunked" or "eager".'
        )
    if implementation == "auto" and not torch.compiler.is_compiling():
        _say_once("The fused kernel composes the scores of one pair; the portable path computes what reads others too.")


def require_equation(implementation: str) -> None:
    """For scores that a layer hands on to the next, which only "eager" shows.

    Raises:
        UserError: another implementation is asked for by name.
    """
    if implementation not in ("auto", "eager"):
        raise UserError(
            f"The attention implementation {implementation!r} shows its scores to nobody, and layers of this model "
            'read those of the layer before; choose "auto" or "eager".'
        )
    if implementation == "auto" and not torch.compiler.is_compiling():
        _say_once("Scores that are handed from layer to layer are computed as the equation reads, without a kernel.")


@cache
def _say_once(sentence: str) -> None:
    log.warning(sentence)


def check_implementation(name: str) -> None:
    """Raises:
    UserError: `name` is no implementation; the message suggests one.
    """
    if not isinstance(name, str) or name not in get_args(Implementation):
        raise UserError(
            f"There is no attention implementation {name!r}; {nearest(str(name), get_args(Implementation))}"
        )


def _choose(implementation: str, q: Tensor) -> str:
    name = implementation
    if name == "auto":
        name = os.environ.get(ENVIRONMENT) or "auto"
    check_implementation(name)
    if name == "auto":
        # A graph may run on another machine: it gets the operator, which looks for the kernel when it runs.
        return "fused" if _fusible(q) and (torch.compiler.is_compiling() or fused.available()) else "chunked"
    if name == "fused" and not (q.device.type == "cpu" and fused.available()):
        raise UserError(
            "The fused attention kernel needs a CPU tensor and a C++ compiler (g++ or clang++) for its first use; "
            'choose implementation="chunked" or "auto".'
        )
    # The kernel has no rule for them, and forward-mode derivatives would be dropped without a word.
    return "chunked" if name == "fused" and transformed() else name


def fused_here(implementation: str, q: Tensor) -> bool:
    """Whether the C++ may compute what belongs to attention like `q`, by the implementation that is asked for."""
    name = (os.environ.get(ENVIRONMENT) or "auto") if implementation == "auto" else implementation
    return name in ("auto", "fused") and not torch.compiler.is_compiling() and _fusible(q) and fused.available()


def _fusible(q: Tensor) -> bool:
    """Whether the kernel may see this tensor: not on other devices, nor inside transforms that it has no rule for."""
    return q.device.type == "cpu" and not transformed()


def _scannable(q: Tensor) -> bool:
    """Whether Python may look at numbers: elsewhere it would wait for a device, or break a graph."""
    return not torch.compiler.is_compiling() and _fusible(q)
