"""What becomes of a hypothesis about a difference within each of a few models."""

from __future__ import annotations

import pandas as pd
from scipy.stats import binomtest

from dcinterp.bench.pooled_edges import two_decimals
from dcinterp.mechanism.statistics import bootstrap_interval


def least_models(error: float) -> int:
    """Models without which nothing is concluded: with fewer no sign test can agree."""
    return next(n for n in range(1, 99) if binomtest(n, n).pvalue <= error)


def sign_verdict(apart: pd.Series, of: str, error: float = 0.05) -> str:
    """The verdict on "above zero", which needs both the interval of the mean and a sign test, in Markdown.

    Args:
        apart: the difference in each model, at least `least_models(error)` of them.
        of: which models these are, in words.
        error: what each of the two may err.
    """
    values = apart.to_numpy(copy=True)
    low, high = (float(end) for end in bootstrap_interval(values, level=1 - error))
    above = int((values > 0).sum())
    signs = binomtest(above, len(values)).pvalue <= error
    says = "**supported**" if signs and low > 0 else "**refuted**" if signs and high < 0 else "**open**"
    interval = f"{values.mean():+.2f} [{low:+.2f}, {high:+.2f}] ({1 - error:.1%})"
    each = ", ".join(two_decimals(value, "+") for value in sorted(values))
    return f"{interval} over {of}, above zero in {above} of them; {says}. Model by model, in order: {each}."
