"""What becomes of a hypothesis about a difference within each of a few models."""

from __future__ import annotations

import pandas as pd
from scipy.stats import binomtest

from dcinterp.evidence.intervals import interval_text, two_decimals
from dcinterp.evidence.verdict_words import NO_VERDICT, OPEN, REFUTED, SUPPORTED, marked
from dcinterp.mechanism.statistics import bootstrap_interval, without_width
from dcinterp.support.errors import UserError


def least_models(error: float) -> int:
    """Models without which nothing is concluded: with fewer no sign test can agree."""
    return next(n for n in range(1, 99) if binomtest(n, n).pvalue <= error)


def sign_verdict(
    shares: pd.DataFrame,
    way: str,
    other: str | float,
    *,
    trained: int,
    seeds: int,
    error: float = 0.05,
    sign_error: float | None = None,
    signs: bool = False,
) -> str:
    """The verdict on "the share of one way minus that of another, or minus a number, is above zero", in Markdown.

    It needs both the interval of the mean and a sign test; there is none before all seeds are trained, nor with fewer
    than `least_models`.

    Args:
        shares: [seed, group] of `shares_of`, of the models that could be asked.
        way, other: the two groups; of the second a number may stand for every share.
        trained, seeds: how many models there are, and how many there will be.
        error: what each of the two tests may err.
        sign_error: what the sign test may, where that is another.
        signs: whether to count the signs where there are too few models.

    Raises:
        UserError: a model that was asked lacks a share of one of the two.
    """
    if trained < seeds:
        return f"interim, {trained} of {seeds} seeds; {NO_VERDICT}."
    own = shares.reindex(columns=[way, other] if isinstance(other, str) else [way])
    if own.isna().any(axis=None):
        lacks = next(column for column in own if own[column].isna().any())
        seeds = own.index[own[lacks].isna()].tolist()
        raise UserError(
            f"Seeds {seeds} have no share of {lacks!r}; take their rows out of the table of what was measured, and "
            "measure them again."
        )
    values = (own[way] - (own[other] if isinstance(other, str) else other)).to_numpy(copy=True)
    of, above, below = f"{len(values)} of {trained} models", int((values > 0).sum()), int((values < 0).sum())
    sign_error = error if sign_error is None else sign_error
    if len(values) < (least := least_models(sign_error)):
        counted = f", above zero in {above} of them" if signs else ""
        return f"{of} could be asked{counted}; fewer than {least}, so nothing is concluded."
    low, high = (float(end) for end in bootstrap_interval(values, level=1 - error))
    # Ties have no sign, as in `sign_test`.
    signs_differ = above + below > 0 and binomtest(above, above + below).pvalue <= sign_error
    if without_width(low, high):
        return f"{values.mean():+.2f} in all of {of}, so that there is no interval; {NO_VERDICT}."
    # Both tests have to say it of the same side: a few large values may carry the mean.
    more, fewer = (signs_differ and side for side in (above > below, below > above))
    word = SUPPORTED if more and low > 0 else REFUTED if fewer and high < 0 else OPEN
    interval = f"{interval_text(values.mean(), low, high, '+', decimals=2)} ({1 - error:.1%})"
    each = ", ".join(two_decimals(value, "+") for value in sorted(values))
    return f"{interval} over {of}, above zero in {above} of them; {marked(word)}. Model by model, in order: {each}."
