"""`dcinterp experiment`: any difference between arms, and the lists over all experiments."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dcinterp.analysis.training.compare_arms import compare_arms
from dcinterp.cli import verbs
from dcinterp.support.errors import UserError

LOOKUP = str(Path(__file__).parents[3] / "experiments" / "lookup_schedule")
LATE = ["--arm", "talking heads late", "--baseline", "talking heads"]
runner = CliRunner()


def shown(*options: str) -> str:
    done = runner.invoke(verbs, ["experiment", "show", LOOKUP, *options], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_any_difference_is_printed_by_every_measure_at_any_level():
    seen, new = shown(*LATE).splitlines()
    says = "talking heads late minus talking heads: +0.131 [+0.106, +0.148] at 95 %, over 10 seeds"
    assert seen == f"accuracy on pairs seen in training, {says}"
    assert new.startswith("accuracy on pairs never seen together, talking heads late minus talking heads: +0.141 [")
    low, high = compare_arms(LOOKUP).between(["talking heads late"], ["talking heads"], 0.99)[1:]
    assert f"[{low:+.3f}, {high:+.3f}] at 99 %" in shown(*LATE, "--level", "0.99")


def test_several_arms_are_taken_by_their_mean():
    text = shown(*LATE, "--arm", "DCMHA late")
    assert "the mean of talking heads late and DCMHA late minus that of talking heads: " in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (LATE[:2], "need each other"),
        (["--level", "0.99"], "--level is of the intervals"),
        ([*LATE, "--arm", "talking heads"], "'talking heads' is on both sides"),
        ([*LATE, "--json"], "prints whole comparisons"),
        (
            ["--arm", "talking heads", "--baseline", "plain wide"],
            "There is no arm 'plain wide'; did you mean plain wider",
        ),
    ],
)
def test_what_is_no_difference_is_one_sentence(options, says):
    with pytest.raises(UserError, match=says):
        shown(*options)
