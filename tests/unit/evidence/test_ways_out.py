"""By which ways layer 0's letter goes on, and what a verdict on one of them needs."""

import pandas as pd
import pytest

from dcinterp.evidence.sign_verdict import sign_verdict
from dcinterp.evidence.ways_out import CHANGE, OTHER_WAY, QUERY, WAYS, beside_the_largest, largest_ways, ways_table
from dcinterp.support.errors import UserError

LOGITS, VALUE = "L0 -> logits", "L0 -> L1 value"


def shares(**ways: list[float]) -> pd.DataFrame:
    """[seed, group], of ways by a short name."""
    named = {"query": QUERY, "logits": LOGITS, "value": VALUE}
    return pd.DataFrame({named[way]: values for way, values in ways.items()})


def rows_of(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a measurement with these shares."""
    long = table.melt(ignore_index=False, var_name="group", value_name="share").reset_index(names="seed")
    return long.assign(arm="plain", part="seen", change=CHANGE)


def test_the_largest_other_way_is_that_of_the_same_model():
    found = beside_the_largest(shares(query=[0.6, 0.3], logits=[0.2, 0.5], value=[0.4, 0.1]), QUERY, WAYS)
    assert found[OTHER_WAY].tolist() == [0.4, 0.5]
    assert found[QUERY].tolist() == [0.6, 0.3]
    with pytest.raises(ValueError, match="lacks the share"):
        beside_the_largest(shares(query=[0.6, 0.3], logits=[0.2, None]), QUERY, WAYS)


def test_a_share_that_a_model_lacks_is_no_verdict():
    asked = {"trained": 8, "seeds": 8}
    with pytest.raises(UserError, match=r"Seeds \[7\] have no share of 'L0 -> L1 query'"):
        sign_verdict(shares(query=[0.6] * 7 + [None], logits=[0.1] * 8), QUERY, LOGITS, **asked)
    with pytest.raises(UserError, match="have no share of 'L0 -> L1 qury'"):
        sign_verdict(shares(query=[0.6] * 8), "L0 -> L1 qury", 0.5, **asked)


def test_models_are_counted_by_their_largest_way_and_those_without_one():
    rows = rows_of(shares(query=[0.6, 0.7, 0.1, 0.04], logits=[0.2, 0.5, 0.4, 0.1]))
    assert largest_ways(rows, "plain", "seen", WAYS) == "- plain: L1 query in 2, logits in 1, none with 15% in 1"
    assert largest_ways(rows, "DCMHA", "seen", WAYS) == "- DCMHA: no model was asked"
    table = ways_table(rows, {"plain": 5, "DCMHA": 3}, "seen", (QUERY, VALUE))
    assert table.splitlines()[0] == "| to | plain: 4 of 5 | DCMHA: 0 of 3 |"
    assert table.splitlines()[2:] == ["| L1 query | 0.36 [0.04, 0.70] |  |", "| L1 value |  |  |"]


def test_models_without_a_difference_have_no_sign():
    """Five below and five at zero: a sign test of ten would take the ties for models below."""
    table = shares(query=[0.2, 0.3, 0.1, 0.25, 0.15] + [0.5] * 5, logits=[0.5] * 10)
    told = sign_verdict(table, QUERY, LOGITS, trained=10, seeds=10)
    assert "above zero in 0 of them; **open**" in told


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_models_that_are_all_the_same_have_no_verdict(share):
    told = sign_verdict(shares(query=[share] * 10), QUERY, 0.5, trained=10, seeds=10)
    assert told == f"{share - 0.5:+.2f} in all of 10 of 10 models, so that there is no interval; no verdict."


def test_the_sign_test_may_err_more_than_the_interval():
    """One of nine models has the other sign: a sign test at 5 % agrees, and one at 1.25 % does not."""
    table = shares(query=[0.14, 0.5, 0.6, 0.55, 0.4, 0.45, 0.65, 0.5, 0.35], logits=[0.15] * 9)
    asked = {"trained": 9, "seeds": 9, "error": 0.0125}
    assert "above zero in 8 of them; **open**" in sign_verdict(table, QUERY, LOGITS, **asked)
    assert "above zero in 8 of them; **supported**" in sign_verdict(table, QUERY, LOGITS, sign_error=0.05, **asked)
    few = sign_verdict(table[:5], QUERY, LOGITS, sign_error=0.05, signs=True, **asked)
    assert few == "5 of 9 models could be asked, above zero in 4 of them; fewer than 6, so nothing is concluded."
