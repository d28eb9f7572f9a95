"""Every kind of result: frozen, labelled, saved and read back, tabulated and drawn."""

from __future__ import annotations

import dataclasses
import json
import re

import plotly.graph_objects as go
import pytest
import torch
from safetensors.torch import save_file

import dcinterp
from dcinterp import figures
from dcinterp.figures.base import export
from dcinterp.figures.base.describe import describe
from dcinterp.results.registry import ANALYSES
from dcinterp.results.result import Result, load_result
from dcinterp.support.errors import UserError
from dcinterp.train.loop.mechanism_log import branch_strengths, layer_variances

FAMILIES = ("transformer++", "dcformer++")


def watched(bridge, folder):
    """A folder with what two checkpoints of a run would have recorded of this model."""
    model = bridge.original_model
    (folder / "watch").mkdir(parents=True)
    for step in (1, 2):
        found = {
            "variances": layer_variances(model),
            "strengths": branch_strengths(model, {"input_ids": torch.arange(5, 25).view(2, 10)}),
        }
        save_file(found, folder / "watch" / f"step-{step:07d}.safetensors")
    losses = [{"step": step, "tokens": 9 * step, "loss": 5.0 - step, "validation_loss": 5.5 - step} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses))
    return str(folder)


@pytest.fixture(scope="module")
def made(make_bridge, prompt, tmp_path_factory):
    """What every analysis returns; a new one adds its call here."""
    bridge, tmp_path = make_bridge(), tmp_path_factory.mktemp("results")
    return [
        dcinterp.predict(bridge, prompt, "fruit"),
        dcinterp.attribute_heads(bridge, prompt, "fruit", "animal", steps=8, max_steps=8),
        dcinterp.attribute_edges(bridge, prompt, "fruit", "animal", steps=4, max_steps=4, check=2),
        dcinterp.attribute_edges_over(bridge, [(prompt, "fruit", "animal")], method="gradient", check=2),
        dcinterp.intervene(bridge, prompt, "head 1.3 zero", "fruit", "animal"),
        dcinterp.calibrate(bridge, [(prompt, "fruit", "animal")], "branch", methods=["gradient"]),
        dcinterp.compose_breakdown(bridge, prompt, 1, -1, 4),
        dcinterp.composition_map(bridge, prompt, 1, "post", -1, 4),
        dcinterp.attribute_heads_over(bridge, "task2 n=2", steps=4, max_steps=4),
        dcinterp.static_composition_map(bridge, 0, "pre"),
        dcinterp.mean_composition_map(bridge, "task2 n=2", 1),
        dcinterp.composition_importance(bridge, "task2 n=2", steps=4, max_steps=4),
        dcinterp.attention_rows(bridge, prompt, 1),
        dcinterp.attention_patterns(bridge, prompt, 1),
        dcinterp.task_accuracy(bridge, tasks="56,57", rows=1, examples=3),
        dcinterp.training_curves("dcformer++"),
        dcinterp.training_strengths(watched(bridge, tmp_path / "run")),
        dcinterp.training_diversity(str(tmp_path / "run")),
        dcinterp.loss_curves(str(tmp_path / "run")),
        dcinterp.scaling_fit([(f, c, (20 + len(f)) * c**-0.05) for f in FAMILIES for c in (1e15, 4e15, 2e16)]),
        dcinterp.ov_top_tokens(bridge, 1, 4, ["violin", "lime"]),
        dcinterp.ov_transformations(bridge, relations=["copy", "adj->opposite"], permutations=20),
        dcinterp.head_diversity(bridge, random_draws=1),
        dcinterp.compare_head_diversity(bridge),
        dcinterp.case_study(bridge, prompt, "fruit"),
        dcinterp.method_benchmark(["lend-by-kp"], methods=["attention weight", "random"], seeds=1, examples=1),
        dcinterp.branch_ablation(bridge, tasks="56", parts=["all"], rows=1, examples=3, resamples=10),
    ]


@pytest.fixture(scope="module")
def results(made):
    """One result of every kind."""
    return {type(result).__name__: result for result in reversed(made)}


def test_every_kind_is_covered_here(results):
    assert set(results) == set(Result.kinds)


def test_every_result_remembers_its_call(results):
    for result in results.values():
        assert result.call.analysis in ANALYSES
        assert json.loads(json.dumps(result.call.record()["arguments"])) == result.call.arguments
        assert all(isinstance(sentence, str) for sentence in result.banners())


def test_every_analysis_is_covered_here(made):
    assert {result.call.analysis for result in made} >= set(ANALYSES)


def test_frozen_detached_and_on_the_cpu(results):
    for result in results.values():
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.tokens = ()
        for tensor in result.tensors().values():
            assert not tensor.requires_grad
            assert tensor.device.type == "cpu"


def test_axes_name_every_axis_with_consistent_sizes(results):
    for result in results.values():
        assert set(result.AXES) == set(result.tensors())
        sizes: dict[str, int] = {}
        for name, axes in result.AXES.items():
            assert len(axes) == getattr(result, name).dim(), name
            for axis, size in zip(axes, getattr(result, name).shape, strict=True):
                assert sizes.setdefault(axis, size) == size, (name, axis)


def test_dataframe_holds_every_number(results):
    for result in results.values():
        frame = result.to_dataframe()
        shared = max(result.AXES.values(), key=len)
        for name, axes in result.AXES.items():
            tensor = getattr(result, name)
            if not set(axes) <= set(shared):
                # Numbers along an axis of their own (the top tokens of an intervention, say) have their own table.
                assert type(result).table is not Result.table, (type(result).__name__, name)
                continue
            for row in (0, len(frame) // 2, len(frame) - 1):
                index = tuple(int(frame[axis][row]) for axis in axes)
                assert frame[name][row] == pytest.approx(float(tensor[index]))


def test_a_dataframe_of_one_tensor_has_its_axes_only(results):
    for result in results.values():
        for name, axes in result.AXES.items():
            if axes:
                frame = result.to_dataframe(name)
                assert len(frame) == getattr(result, name).numel()
                wanted = {*axes, *(other for other, its in result.AXES.items() if its == axes)}
                assert {c for c in frame.columns if not str(c).endswith("_label") and c != "token"} == wanted
    with pytest.raises(UserError, match="did you mean scores"):
        results["EdgeAttribution"].to_dataframe("score")


def test_at_the_prompt_a_result_is_a_few_lines(results):
    for name, result in results.items():
        text = repr(result)
        assert text.startswith(f"{name}: ")
        assert all(tensor in text for tensor in result.AXES)
        assert f"made by dcinterp.{result.call.analysis}" in text
        assert result.sentence() in text
        assert not re.search(r"\b(\w+) \1 ", text.partition("rows of table(): ")[2]), "edge edge 1.post.kp.6>1"
        assert len(text) < 2000, (name, len(text))
        page = result._repr_html_()
        assert page.count("<tr") <= 9
        assert page.count("! ") >= len(result.banners())
    effect = results["InterventionEffect"]
    assert f"so the effect is {effect.effect:+z.2f}: the change" in repr(effect)
    assert "so the effect is" in effect._repr_html_()


def test_results_are_equal_by_value(results, tmp_path):
    for name, result in results.items():
        again = load_result(result.save(tmp_path / name))
        assert result == again
        assert hash(result) == hash(again)
        assert [again].index(result) == 0
        changed, tensor = next((n, t) for n, t in result.tensors().items() if t.numel())
        other = dataclasses.replace(result, **{changed: tensor.double() + 1})
        assert result != other
    assert len({type(result) for result in results.values()}) == len(set(results.values()))
    assert results["EdgeAttribution"] != results["Prediction"]


def assert_equal(mine, theirs, where):
    """Equal field by field, through tensors, tuples and the results inside a result."""
    assert type(mine) is type(theirs), where
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype, where
        assert torch.allclose(mine, theirs, rtol=0, atol=0, equal_nan=True), where
    elif isinstance(mine, tuple):
        assert len(mine) == len(theirs), where
        for number, pair in enumerate(zip(mine, theirs, strict=True)):
            assert_equal(*pair, f"{where}[{number}]")
    elif dataclasses.is_dataclass(mine):
        for field in dataclasses.fields(mine):
            assert_equal(getattr(mine, field.name), getattr(theirs, field.name), f"{where}.{field.name}")
    else:
        assert mine == theirs, where


def test_saved_and_read_back(results, tmp_path):
    for name, result in results.items():
        assert_equal(result, load_result(result.save(tmp_path / name)), name)


def test_only_a_result_of_the_kind_is_written_over(results, tmp_path):
    edges, heads = results["EdgeAttribution"], results["HeadAttribution"]
    folder = edges.save(tmp_path / "edges")
    assert edges.save(folder) == folder, "a cell may be run again"
    with pytest.raises(UserError, match="holds a EdgeAttribution, not a HeadAttribution"):
        heads.save(folder)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        heads.save(tmp_path / "work")
    with pytest.raises(UserError, match="is a file"):
        heads.save(tmp_path / "work" / "notes.txt")
    (folder / "result.json").write_text("{")
    heads.save(folder)


def test_reading_what_is_no_result_is_refused(results, tmp_path):
    with pytest.raises(UserError, match="no result at"):
        load_result(tmp_path / "missing")
    folder = next(iter(results.values())).save(tmp_path / "damaged")
    (folder / "tensors.safetensors").write_bytes(b"not tensors")
    with pytest.raises(UserError, match="damaged"):
        load_result(folder)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_draws(results, theme):
    for name, kind in figures.kinds():
        figure = figures.plot(results[name], kind=kind, theme=theme)
        assert isinstance(figure, go.Figure)
        assert figure.data
        for trace in figure.data:
            if isinstance(trace, go.Heatmap) and trace.zmin < 0:
                assert trace.zmin == -trace.zmax, "signed data is symmetric around zero"


def test_every_figure_has_words_and_files(results):
    for name, kind in figures.kinds():
        figure = figures.plot(results[name], kind=kind)
        assert describe(figure).alternative, (name, kind)
        assert export.image(figure, "png").startswith(b"\x89PNG"), (name, kind)
        assert b"<svg" in export.image(figure, "svg"), (name, kind)
    page = export.page(results[name], figure)
    assert b"plotly" in page
    assert b'src="http' not in page, "the page must open offline"


def test_what_no_image_draws_is_refused():
    with pytest.raises(UserError, match="pie trace"):
        export.image(go.Figure(go.Pie(values=[1])))
    with pytest.raises(UserError, match="png or svg"):
        export.image(go.Figure(), "gif")


def test_unknown_figure_is_refused(results):
    with pytest.raises(UserError, match="There is no figure 'pie' of a Prediction; choose"):
        figures.plot(results["Prediction"], kind="pie")
    with pytest.raises(
        UserError, match="kind='check' or kind='flow' or kind='map' or kind='sources' or leave kind out"
    ):
        figures.plot(results["EdgeAttribution"], kind="nonsense")
    with pytest.raises(UserError, match="figures exist for "):
        figures.plot(object())
