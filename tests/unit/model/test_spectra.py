"""Spectra of the heads' products against the matrices written out and scikit-learn's PCA."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA

from dcinterp.model.spectra import cumulative, effective_rank, variances


def written_out(left, right, reading):
    products = [q @ k.T for q, k in zip(left, right, strict=True)]
    return torch.cat(products, dim=1) if reading == "concatenated" else sum(products)


@pytest.mark.parametrize("reading", ["concatenated", "product"])
@pytest.mark.parametrize(("heads", "d_model", "d_head"), [(3, 11, 2), (5, 7, 4), (2, 6, 3)])
def test_agrees_with_scikit_learns_pca(reading, heads, d_model, d_head):
    generator = torch.Generator().manual_seed(heads)
    left, right = torch.randn(2, heads, d_model, d_head, generator=generator, dtype=torch.float64)
    oracle = PCA().fit(written_out(left, right, reading).numpy())
    found = variances(left, right, reading)
    assert len(found) == d_model
    assert torch.allclose(found, torch.from_numpy(oracle.explained_variance_), atol=1e-9)
    shares = torch.from_numpy(oracle.explained_variance_ratio_).cumsum(0)
    assert torch.allclose(cumulative(found), shares, atol=1e-9)


def test_without_centring_they_are_squared_singular_values():
    left, right = torch.randn(2, 3, 9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    singular = torch.linalg.svdvals(written_out(left, right, "concatenated"))
    assert torch.allclose(variances(left, right, centre=False), singular**2 / 8, atol=1e-9)


def test_two_heads_by_hand():
    """Head 0 maps direction 0 to direction 0, head 1 direction 1 to direction 0, half as strongly.

    Side by side their rows are (1, 0, 0, ...) and (0, ..., 0.5, 0, 0): two directions with 1 and 0.25. Their sum has
    the rows (1, 0, 0) and (0.5, 0, 0): one direction with 1.25.
    """
    left = torch.tensor([[[1.0], [0.0], [0.0]], [[0.0], [0.5], [0.0]]])
    right = torch.tensor([[[1.0], [0.0], [0.0]], [[1.0], [0.0], [0.0]]])
    apart = variances(left, right, "concatenated", centre=False) * 2
    together = variances(left, right, "product", centre=False) * 2
    assert torch.allclose(apart, torch.tensor([1.0, 0.25, 0.0]).double())
    assert torch.allclose(together, torch.tensor([1.25, 0.0, 0.0]).double())


def test_equal_heads_are_as_diverse_as_one():
    one = torch.randn(2, 1, 8, 3, generator=torch.Generator().manual_seed(2))
    single, repeated = (cumulative(variances(*(x.expand(n, -1, -1) for x in one))) for n in (1, 4))
    assert torch.allclose(single, repeated)


def test_effective_rank_counts_equal_directions():
    assert float(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))) == pytest.approx(3.0)
    assert float(effective_rank(torch.tensor([5.0, 0.0]))) == pytest.approx(1.0)
