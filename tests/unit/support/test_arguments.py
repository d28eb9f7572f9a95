"""Arguments of the wrong type are refused at the border, each in one sentence that names the parameter."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from dcinterp.results.registry import ANALYSES
from dcinterp.support.arguments import require_fitting
from dcinterp.support.errors import UserError
from dcinterp.support.ranges import Count

Way = Literal["q", "k"]


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (1, int),
        (np.int64(1), int),
        (torch.tensor(1), int),
        (1, float),
        (np.float32(0.5), float),
        (None, int | None),
        ("q", Way),
        ("q", Way | None),
        ((1, 2), Sequence[int]),
        (range(2), Sequence[int] | None),
        ({"a", "b"}, Sequence[str]),
        ([1, 2], str | Tensor),
        (torch.zeros(2), Tensor),
        ([object()], Sequence[Any]),
        (object(), Any),
    ],
)
def test_what_fits_passes(value, annotation):
    require_fitting("it", value, annotation)


@pytest.mark.parametrize(
    ("value", "annotation", "wanted"),
    [
        (1.5, int | None, "a whole number or None"),
        (True, int, "a whole number"),
        (torch.tensor(1.5), int, "a whole number"),
        ("x", float, "a number"),
        (1, Way | None, "'q', 'k' or None"),
        (1, Literal[True], "True"),
        ("ab", Sequence[str], "a list of texts"),
        (b"x", str | Sequence[int], "text or a list of whole numbers"),
        ({}, Sequence[int], "a list of whole numbers"),
        ([1, [2]], Sequence[int], "a list of whole numbers"),
        (torch.tensor(1.5), Sequence[Any], "a list"),
        (object(), str | Tensor, "text or a Tensor"),
        pytest.param(10**400, float, "a number", id="too large for a float"),
        ([1], Sequence[Way], "a list of 'q' or 'k'"),
    ],
)
def test_what_does_not_fit_is_named(value, annotation, wanted):
    with pytest.raises(UserError) as refusal:
        require_fitting("it", value, annotation)
    assert str(refusal.value).startswith("it is ")
    assert str(refusal.value).endswith(f"; it must be {wanted}.")


def test_the_nearest_word_is_named():
    with pytest.raises(UserError, match=r"There is no stage 'posts'; did you mean post\?"):
        require_fitting("stage", "posts", Literal["pre", "post"])


def test_the_nearest_word_of_a_list_is_named():
    require_fitting("sites", ["k", "q"], Sequence[Way] | None)
    with pytest.raises(UserError, match=r"sites has 'qq'; did you mean q\?"):
        require_fitting("sites", ["k", "qq"], Sequence[Way] | None)


def test_ranges_hold_after_types():
    with pytest.raises(UserError, match="at least 1"):
        require_fitting("steps", 0, Count)
    with pytest.raises(UserError, match="steps is -5; it must be at least 1"):
        require_fitting("steps", np.int64(-5), Count)
    with pytest.raises(UserError, match="steps is 0; it must be at least 1"):
        require_fitting("steps", torch.tensor(0), Count)
    with pytest.raises(UserError, match="whole number"):
        require_fitting("steps", "many", Count)


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_judges_its_arguments(name, shipped):
    analysis, alien = ANALYSES[name], object()
    for parameter in analysis.parameters:
        with pytest.raises(UserError, match=f"^{parameter} is <object"):
            require_fitting(parameter, alien, analysis.types[parameter])
    model = (shipped,) if analysis.takes_model else ()
    with pytest.raises(UserError, match=" is <object"):
        analysis.function(*model, **dict.fromkeys(analysis.parameters, alien))


@pytest.mark.parametrize("model", ["dcformer++", None])
def test_something_that_is_no_model_is_refused(model):
    with pytest.raises(UserError, match="takes a model with hooks first"):
        ANALYSES["attribute_heads"].function(model, "John has", "a")
