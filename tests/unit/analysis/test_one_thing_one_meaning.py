"""The same argument means the same in every analysis, and an empty or odd one is refused by its name."""

from __future__ import annotations

import pytest

import dcinterp
from dcinterp import figures
from dcinterp.bridge.hook_catalogue import list_hooks
from dcinterp.cli import main
from dcinterp.support.errors import UserError

PROMPT = "There are tea, meat, meat. Which is not meat? The"


@pytest.fixture(scope="module")
def shipped():
    return dcinterp.load("dcformer++")


def test_another_model_is_loaded_with_the_type_of_the_first():
    """Or a model would differ from itself, by rounding alone."""
    bridge = dcinterp.load("dcformer++-code", dtype="bfloat16")
    found = dcinterp.text_loss(bridge, "python", other="dcformer++-code", files=2, tokens=60)
    first, second = found.loss.tolist()
    assert first == second


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda m: dcinterp.ov_transformations(m, relations=[]), "There are no relations to score"),
        (lambda m: dcinterp.branch_ablation(m, tasks="56", rows=1, parts=[]), "There are no parts to ablate"),
        (lambda m: dcinterp.calibrate(m, "same-person n=1", "branch", methods=[]), "There are no methods to compare"),
        (
            lambda m: dcinterp.patch_heads(m, PROMPT, change="questoin"),
            "There is no change of the counterfactual 'questoin'",
        ),
        (lambda m: dcinterp.patch_heads(m, PROMPT, "question"), "'question' is a kind; give change='question'"),
        (lambda m: dcinterp.patch_heads(m, PROMPT, "tea", "meat"), "the counterfactual comes before the target"),
        (lambda m: list_hooks("dcformer++"), "list_hooks takes a model, and this is 'dcformer\\+\\+'"),
        (lambda m: list_hooks(m, layer="1"), "layer is '1'; it must be a whole number"),
    ],
)
def test_what_means_nothing_is_refused_by_its_name(shipped, call, says):
    with pytest.raises(UserError, match=says):
        call(shipped)


def test_a_negative_layer_counts_from_the_last(shipped):
    found = dcinterp.branch_ablation(shipped, tasks="56", rows=1, kind="zero", parts=["-1.post", "2.post"])
    assert found.accuracy[1].equal(found.accuracy[2])
    edges = dcinterp.attribute_edges(shipped, PROMPT, "tea", "meat", method="gradient", check=0, layers=[0, 2])
    last = figures.plot(edges, kind="map", layer=-1)
    assert last.data[0].z.tolist() == figures.plot(edges, kind="map", layer=2).data[0].z.tolist()
    with pytest.raises(UserError, match="Layer -3 was not scored"):
        figures.plot(edges, kind="map", layer=-3)


def test_the_prompt_of_an_answer_of_several_tokens_ends_before_the_answer(shipped):
    pairs = [("Thomas has a violin. Thomas has a kind of", "musical instrument")]
    for made in (
        dcinterp.attribute_edges_over(shipped, pairs, method="gradient", control="none", check=0),
        dcinterp.composition_importance(shipped, pairs, method="gradient"),
    ):
        assert made.prompts[0].endswith("a kind of")


def test_a_frame_names_the_tokens_of_its_numbers(shipped):
    frame = dcinterp.logit_lens(shipped, PROMPT, k=2).to_dataframe("top_ids")
    assert frame["token"].tolist() == shipped.tokenizer.convert_ids_to_tokens(frame["top_ids"].tolist())


def test_a_gap_is_measured_by_the_tolerance_that_was_asked_for(shipped):
    few = {"method": "ig", "steps": 2, "max_steps": 2, "check": 0}
    strict = dcinterp.attribute_edges(shipped, PROMPT, "tea", "meat", tolerance=1e-6, **few)
    loose = dcinterp.attribute_edges(shipped, PROMPT, "tea", "meat", tolerance=0.9, **few)
    assert any("The integral misses" in each for each in strict.warnings())
    assert not any("The integral misses" in each for each in loose.warnings())


def test_a_mark_that_is_nowhere_is_refused(shipped):
    breakdown = dcinterp.compose_breakdown(shipped, PROMPT, layer=1, query=-1, key=2)
    with pytest.raises(UserError, match="There is no head 8"):
        figures.plot(breakdown, selected=8)
    rows = dcinterp.attention_rows(shipped, PROMPT, layer=1)
    with pytest.raises(UserError, match="There is no key 99"):
        figures.plot(rows, head=1, key=99)


def test_the_rows_of_a_pass_can_be_given_on_the_command_line(capsys):
    said = ["analyze", "attribute-edges", "dcformer++", "--prompt", PROMPT, "--target", "tea", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*said, "--method", "gradient", "--check", "0", "--batch-size", "4"])
    assert not ended.value.code
    assert "batch_size" not in capsys.readouterr().out, "which changes no result, so that no record has it"


@pytest.mark.parametrize(
    ("analysis", "there", "not_there"),
    [("attribute-edges", ["--batch-size"], ["--progress"]), ("case-study", [], ["--strongest", "--direct"])],
)
def test_what_no_text_can_hold_is_no_option(capsys, analysis, there, not_there):
    with pytest.raises(SystemExit):
        main(["analyze", analysis, "--help"])
    said = capsys.readouterr().out
    assert all(each in said for each in there)
    assert not any(each in said for each in not_there)
