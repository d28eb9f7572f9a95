r"""How many directions the heads of a layer use: spectra of their QK and OV products, as pure functions of weights.

A head's product is M_h = left_h right_h^T, [d_model, d_model] of rank d_head: left = W_Q and right = W_K for QK, left =
W_O^T and right = W_V for OV. A layer's heads are put together in one of three ways (`Reading`):

    "concatenated":  M = [M_1 M_2 ... M_H]      [d_model, head * d_model], the products side by side
    "stacked":       M = [M_1; M_2; ...; M_H]   [head * d_model, d_model], the products on top of each other
    "product":       M = sum_h M_h              the product of the concatenated projections (Cordonnier et al. 2020)

and the variances are those of M's principal components, its rows being the samples. M is never built: with the QR
decomposition right_h = Q_h T_h, M M^T = F F^T for F = [left_1 T_1^T ... left_H T_H^T], [d_model, head * d_head], and
the variances are the eigenvalues of the smaller Gram matrix of F. Of "stacked" it is M^T M = sum_h right_h (left_h^T
left_h) right_h^T, [d_model, d_model].
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.support.wide import wide

Reading = Literal["concatenated", "stacked", "product"]
READINGS: tuple[Reading, ...] = get_args(Reading)
OTHER_AXIS: dict[str, Reading] = {"concatenated": "stacked", "stacked": "concatenated"}
"""The same words, "the matrices are concatenated", along the other axis; the product has no axis to choose."""

HeadMatrix = Float[Tensor, "head d_model d_head"]


@torch.no_grad()
def variances(
    left: HeadMatrix, right: HeadMatrix, reading: Reading = "concatenated", *, centre: bool = True
) -> Float[Tensor, " component"]:
    """Variances along the principal components of a layer's products, largest first, in float64.

    Args:
        left: W_Q, or W_O with its two last axes swapped; d_head is the axis that the product sums over.
        right: W_K, or W_V, likewise.
        reading: how the heads are put together.
        centre: whether the mean row is taken off first, as principal component analysis does; otherwise these are the
            squared singular values (divided alike).

    Returns:
        d_model numbers, those beyond the rank zero. For the variance of samples they are divided by d_model - 1
        ("stacked": head * d_model - 1).

    Cost: one QR per head ("stacked": two products [d_model, d_head, d_model]) and one eigendecomposition of size
    min(d_model, head * d_head).
    """
    left, right = wide(left), wide(right)
    if reading == "stacked":
        return _stacked(left, right, centre)
    if centre:
        left = left - left.mean(1, keepdim=True)
    if reading == "product":
        # One head as wide as all together: its product is the sum of theirs.
        left, right = (x.permute(1, 0, 2).flatten(1)[None] for x in (left, right))
    triangle = torch.linalg.qr(right, mode="r").R
    factor = (left @ triangle.mT).permute(1, 0, 2).flatten(1)
    d_model = factor.shape[0]
    gram = factor @ factor.T if factor.shape[1] > d_model else factor.T @ factor
    found = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0) / max(d_model - 1, 1)
    return torch.nn.functional.pad(found, (0, d_model - len(found)))


def _stacked(left: HeadMatrix, right: HeadMatrix, centre: bool) -> Float[Tensor, " component"]:
    """The variances of the products on top of each other, the rows of all of them being the samples."""
    rows = left.shape[0] * left.shape[1]
    gram = (right @ (left.mT @ left) @ right.mT).sum(0)
    if centre:
        mean = (left.sum(1)[:, None] @ right.mT).sum((0, 1)) / rows
        gram = gram - rows * torch.outer(mean, mean)
    return torch.linalg.eigvalsh(gram).flip(0).clamp(min=0) / max(rows - 1, 1)


def cumulative(variances: Float[Tensor, "... component"]) -> Float[Tensor, "... component"]:
    """The share of the variance that the first 1, 2, 3, ... components capture; it ends at 1, and is 1 of none."""
    total = variances.sum(-1, keepdim=True)
    return torch.where(total > 0, variances.cumsum(-1) / total, 1.0)


def effective_rank(variances: Float[Tensor, "... component"]) -> Float[Tensor, " ..."]:
    """exp of the entropy of the variances' shares: how many components are in real use; 0 where nothing varies.

    Roy and Vetterli (2007) take the singular values, whose squares these are; by their shares the number is larger.
    """
    total = variances.sum(-1)
    share = torch.where(total[..., None] > 0, variances / total[..., None], 0.0)
    return torch.special.entr(share).sum(-1).exp() * (total > 0)
