"""Results remember how they were made: the cell and the command line that they print make the same numbers."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dcinterp
from dcinterp import UserError
from dcinterp.analysis.answers.predict import Prediction
from dcinterp.checkpoints.fingerprint import fingerprint
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.cli import verbs
from dcinterp.results import registry
from dcinterp.results.call import Call, from_plain, plain
from dcinterp.results.options import parameter_types, parse
from dcinterp.results.registry import ANALYSES, analysis, require_result
from dcinterp.results.result import Result
from synthetic_tasks import generate

PROMPT = "There are a sweater, an elephant, a sweater. Which is not sweater? The"


@pytest.fixture
def loaded():
    return dcinterp.load("dcformer++")


def test_the_printed_cell_makes_the_same_result(loaded):
    result = dcinterp.compose_breakdown(loaded, PROMPT, 1, query=-1, key=6)
    scope: dict[str, object] = {}
    exec(result.call.python(), scope)
    again = scope["result"]
    assert again.call == result.call
    assert all(torch.equal(tensor, again.tensors()[name]) for name, tensor in result.tensors().items())


def test_the_printed_command_makes_the_same_result(loaded, tmp_path):
    result = dcinterp.predict(loaded, loaded.tokenizer(PROMPT)["input_ids"], loaded.tokenizer.vocab_size - 1, k=3)
    words = shlex.split(result.call.command())
    assert words[:2] == ["dcinterp", "analyze"]
    done = CliRunner().invoke(verbs, [*words[1:], "--save", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert dcinterp.load_result(tmp_path).call == result.call
    assert json.loads(done.stdout.splitlines()[-1])["top_tokens"] == list(result.top_tokens)


def test_only_what_differs_from_the_defaults_is_shown_but_all_is_kept(loaded):
    call = dcinterp.predict(loaded, PROMPT).call
    assert call.shown == ("prompt",)
    assert call.arguments == {"prompt": PROMPT, "answer": None, "at": -1, "k": 10}


def test_a_model_built_in_memory_is_no_snippet(bridge, prompt):
    call = dcinterp.predict(bridge, prompt).call
    assert not call.reproducible
    assert call.python() == call.command()
    assert "built in memory" in call.python()
    assert call.python().startswith("# ")
    assert len(call.python().splitlines()) == 1


def test_edited_weights_and_active_hooks_are_no_snippet(loaded):
    before = fingerprint(loaded)
    with loaded.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * 0)]):
        assert "hooks were active" in dcinterp.predict(loaded, PROMPT).call.python()
    assert dcinterp.predict(loaded, PROMPT).call.reproducible
    with torch.no_grad():
        loaded.blocks[1].attn.post.original_component.key.gate.weight[0, 0] += 1
    assert fingerprint(loaded) != before
    assert "weights were changed" in dcinterp.predict(loaded, PROMPT).call.python()


def test_a_hook_of_torch_is_no_snippet_and_what_the_libraries_hang_on_is(loaded):
    assert dcinterp.predict(loaded, PROMPT).call.reproducible
    assert dcinterp.predict(loaded, PROMPT).call.reproducible, "transformers hangs hooks of its own on in the first run"
    mlp = loaded.original_model.model.layers[1].mlp
    watch = mlp.register_forward_hook(lambda module, given, out: out * 0.5)
    assert "hooks were active" in dcinterp.predict(loaded, PROMPT).call.python()
    watch.remove()
    assert dcinterp.predict(loaded, PROMPT).call.reproducible


def test_a_model_that_drops_out_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    model.config.architectures = ["GPT2LMHeadModel"]
    bridge = dcinterp.load(model)
    bridge.train()
    with pytest.raises(UserError, match=r"in training mode, in which dropout changes every run; call eval\(\) on it"):
        dcinterp.predict(bridge, [5, 7, 9])
    bridge.eval()
    assert dcinterp.predict(bridge, [5, 7, 9]).top_ids.numel()


@pytest.mark.parametrize("whole", [np.int64(4), torch.tensor(4)])
def test_whole_numbers_of_other_libraries_are_whole_numbers(loaded, whole):
    ids = [5, 7, 9]
    assert dcinterp.predict(loaded, ids, whole).call == dcinterp.predict(loaded, ids, 4).call
    made, wanted = (dcinterp.attribute_heads(loaded, ids, each, method="gradient") for each in (whole, 4))
    assert torch.equal(made.scores, wanted.scores)
    assert made.call == wanted.call


def test_attributions_work_in_inference_mode(loaded):
    wanted = dcinterp.attribute_heads(loaded, [5, 7, 9], 4, 8, method="gradient")
    with torch.inference_mode():
        made = dcinterp.attribute_heads(loaded, torch.tensor([5, 7, 9]), 4, 8, method="gradient")
        assert torch.is_inference_mode_enabled()
    assert torch.allclose(made.scores, wanted.scores, atol=1e-5)


def test_the_fingerprint_is_that_of_the_weights():
    one, two, other = dcinterp.load("dcformer++"), dcinterp.load("dcformer++"), dcinterp.load("transformer++")
    assert fingerprint(one) == fingerprint(two) != fingerprint(other)
    double = dcinterp.load("dcformer++", dtype=torch.float64)
    assert fingerprint(double) != fingerprint(one)
    call = dcinterp.predict(double, PROMPT).call
    assert "dtype=torch.float64" in call.python()
    assert "--dtype float64" in call.command()


def test_a_replayed_result_comes_out_again(loaded, tmp_path):
    result = dcinterp.attribute_heads(loaded, PROMPT, "elephant", "sweater", steps=8, max_steps=8)
    report = dcinterp.replay(result.save(tmp_path / "scores"))
    assert report.same
    assert not report.weights_changed
    assert set(report.differences) == set(result.tensors())
    record = tmp_path / "scores" / "result.json"
    record.write_text(record.read_text().replace('"sweater"', '"an"'))
    changed = dcinterp.replay(tmp_path / "scores")
    assert not changed.same
    assert changed.differences["scores"] > 1e-3


def test_what_cannot_be_replayed_says_why(bridge, prompt, loaded, tmp_path):
    with pytest.raises(UserError, match="built in memory"):
        dcinterp.replay(dcinterp.predict(bridge, prompt).save(tmp_path / "memory"))
    result = dcinterp.predict(loaded, PROMPT)
    with pytest.raises(UserError, match="does not say how"):
        dcinterp.replay(result.with_call(None).save(tmp_path / "none"))
    with pytest.raises(UserError, match="no result at"):
        dcinterp.replay(tmp_path / "nowhere")


def test_examples_are_plain_data_and_come_back():
    example = generate("task2", 1, 0, examples=1)[0].examples[0]
    data = json.loads(json.dumps(plain([example, (1, "two", None)])))
    assert from_plain(data) == [example, [1, "two", None]]
    call = Call("predict", "x", "dcformer++", None, None, None, {"example": plain(example)}, ("example",))
    code = call.python().replace("bridge = dcinterp.load", "bridge = str").replace("dcinterp.predict", "dict")
    assert "from synthetic_tasks import Example, Fact" in code
    scope: dict[str, object] = {}
    exec(code.replace("    bridge,\n", ""), scope)
    assert scope["result"] == {"example": example}


def test_what_is_not_plain_is_refused():
    with pytest.raises(TypeError, match="no plain data"):
        plain(lambda: 1)


def test_unknown_analyses_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean attribute_heads"):
        ANALYSES["attribute_hads"]


def test_composition_is_asked_for_in_one_sentence(twin, prompt):
    with pytest.raises(UserError, match="needs heads that are composed"):
        dcinterp.compose_breakdown(twin, prompt, 0, -1, 0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("prompt", "2017 was", "2017 was"),
        ("prompt", "[5, 7]", [5, 7]),
        ("target", "2017", "2017"),
        ("target", "#12", 12),
        ("at", "-2", -2),
        ("tolerance", "0.5", 0.5),
    ],
)
def test_options_are_read_by_the_signature(name, text, value):
    types = parameter_types(ANALYSES["attribute_heads"].function)
    assert parse(name, types[name], text) == value


def test_options_that_fit_nothing_are_refused():
    types = parameter_types(ANALYSES["attribute_heads"].function)
    with pytest.raises(UserError, match="--at cannot be 'last'; it takes a whole number"):
        parse("at", types["at"], "last")


def test_every_analysis_is_a_command_with_its_help():
    for name in ANALYSES:
        done = CliRunner().invoke(verbs, ["analyze", name.replace("_", "-"), "--help"])
        assert done.exit_code == 0, name
        assert f"dcinterp analyze {name.replace('_', '-')}" in done.output


def test_a_path_is_written_as_its_text():
    found = dcinterp.loss_curves(SHIPPED / "dcformer++-code")
    assert not found.call.obstacle
    assert f"--run {shlex.quote(str(SHIPPED / 'dcformer++-code'))}" in found.call.command()


@dataclass(frozen=True)
class Made(Result, shared=True):
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"norm": ("layer", "head")}

    norm: torch.Tensor
    said: str = ""
    more: Any = None


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"norm": 3}, "returned a dict; an analysis returns a Result"),
        (Made(torch.zeros(3)), "norm is of shape"),
        (Made(torch.zeros(2, 3), said=3), "said is 3"),  # type: ignore[arg-type]
        (Made(torch.zeros(2, 3), more=torch.zeros(2)), "tensor 'more' has no place in AXES"),
    ],
)
def test_what_cannot_be_saved_is_refused_where_it_is_made(made, says):
    with pytest.raises(TypeError, match=f"^mine returned a .*{says}|^mine {says}"):
        require_result("mine", made)
    require_result("mine", Made(torch.zeros(2, 3), said="fine"))


def test_an_analysis_without_types_is_refused_where_it_is_declared():
    def mine(bridge, depth):
        return Made(torch.zeros(2, 3))

    mine.__annotations__ = {"return": "Made"}
    with pytest.raises(TypeError, match="mine says no type for 'depth'"):
        analysis(title="Mine")(mine)
    mine.__annotations__ = {"depth": "int"}
    with pytest.raises(TypeError, match="mine says no type for 'return'"):
        analysis(title="Mine")(mine)
    assert "mine" not in ANALYSES


def test_a_command_of_several_lines_is_not_shown_as_another_one(loaded):
    found = dcinterp.predict(loaded, "There are tea, meat, meat.\nWhich is not meat? The")
    assert "made by dcinterp.predict: see call.command()" in repr(found)
    assert "made by dcinterp.predict: dcinterp analyze predict dcformer++" in repr(dcinterp.predict(loaded, PROMPT))


@pytest.mark.parametrize("given", [{"layers": np.array([0])}, {"tolerance": np.float32(0.02)}])
def test_numbers_of_numpy_are_saved(loaded, tmp_path, given):
    made = dcinterp.attribute_edges(loaded, PROMPT, "elephant", "sweater", check=0, **given)
    assert dcinterp.load_result(made.save(tmp_path / "saved")).call == made.call


def test_half_precision_has_a_command(loaded):
    made = dcinterp.predict(dcinterp.load("dcformer++", dtype="float16"), PROMPT)
    done = CliRunner().invoke(verbs, [*shlex.split(made.call.command())[1:], "--json"])
    assert done.exit_code == 0, done.output


def test_an_analysis_of_ones_own_names_no_verb(loaded):
    @analysis(title="Mine", question="?", guide="analyses.md")
    def my_analysis(bridge, n: int = 3) -> Prediction:  # a bridge needs no annotation
        return dcinterp.predict(bridge, PROMPT, k=n)

    try:
        made = my_analysis(loaded, n=4)
    finally:
        del registry._registered["my_analysis"]
    assert made.call.command().startswith("# my_analysis of ")
    assert f"made by {__name__}.my_analysis" in repr(made)
