"""Every kind of result: frozen, labelled, saved and read back, tabulated and drawn."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
import torch

from dcinterp import figures
from dcinterp.figures.base import export
from dcinterp.figures.base.describe import SPOKEN, describe
from dcinterp.results.options import parameter_types, parse
from dcinterp.results.registry import ANALYSES
from dcinterp.results.result import Result, load_result
from dcinterp.support.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(make_bridge, runs):
    """What every analysis returns for the example of its declaration, on a random small model."""
    bridge = make_bridge(max_position_embeddings=256)
    with contextlib.chdir(runs):
        return [made_by(entry, bridge) for entry in ANALYSES.values()]


def made_by(entry, bridge):
    types = parameter_types(entry.function)
    given = {name: parse(name, types[name], text) for name, text in entry.example.items()}
    return entry.function(*[bridge] * entry.takes_model, **given)


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
        assert all(isinstance(sentence, str) for sentence in result.warnings())


def test_every_declaration_is_whole():
    for entry in ANALYSES.values():
        required = {name for name, parameter in entry.parameters.items() if parameter.default is parameter.empty}
        assert required <= set(entry.example) <= set(entry.parameters), f"{entry.name}: arguments of its example"
        assert entry.question.endswith("?"), f"{entry.name} says no question"
        assert (ROOT / "docs" / entry.guide).is_file(), f"{entry.name}: there is no guide docs/{entry.guide}"


def axes_of(result):
    """The axes of the tensors that a result has: what its model does not have is None."""
    return {name: axes for name, axes in result.AXES.items() if getattr(result, name) is not None}


def test_frozen_detached_and_on_the_cpu(results):
    for result in results.values():
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.tokens = ()
        for name, tensor in result.tensors().items():
            assert not tensor.requires_grad, (
                type(result).__name__,
                name,
                "compute it under torch.no_grad, or detach it",
            )
            assert tensor.device.type == "cpu", (type(result).__name__, name)


def test_axes_name_every_axis_with_consistent_sizes(results):
    for result in results.values():
        assert axes_of(result).keys() == result.tensors().keys()
        sizes: dict[str, int] = {}
        for name, axes in axes_of(result).items():
            assert len(axes) == getattr(result, name).dim(), name
            for axis, size in zip(axes, getattr(result, name).shape, strict=True):
                assert sizes.setdefault(axis, size) == size, (name, axis)


def test_dataframe_holds_every_number(results):
    for result in results.values():
        frame = result.to_dataframe()
        shared = max(result.AXES.values(), key=len)
        for name, axes in axes_of(result).items():
            tensor = getattr(result, name)
            if not set(axes) <= set(shared):
                # Numbers along an axis of their own (the top tokens of an intervention, say) have their own table.
                kind = type(result).__name__
                assert type(result).table is not Result.table, f"{kind} needs a table(): {name} has axes of its own"
                continue
            for row in (0, len(frame) // 2, len(frame) - 1):
                index = tuple(int(frame[axis][row]) for axis in axes)
                # A mean of one example has no interval: its ends are NaN in both.
                assert frame[name][row] == pytest.approx(float(tensor[index]), nan_ok=True)


def test_a_dataframe_of_one_tensor_has_its_axes_only(results):
    for result in results.values():
        for name, axes in axes_of(result).items():
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
        assert all(tensor in text for tensor in axes_of(result))
        assert f"made by dcinterp.{result.call.analysis}" in text
        assert all(sentence in text for sentence in result.sentences()[:2])
        assert not re.search(r"\b(\w+) \1 ", text.partition("rows of table(): ")[2]), "edge edge 1.post.kp.6>1"
        assert len(text) < 2000, (name, len(text))
        page = result._repr_html_()
        assert page.count("<tr") <= 9
        assert page.count("! ") >= len(result.warnings())
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
            if isinstance(trace, go.Heatmap):
                scale = (trace.zmin, trace.zmax, trace.colorscale)
                assert None not in scale, f"{name} {kind!r}: draw heatmaps with dcinterp.figures.base.grid.grid"
            if isinstance(trace, go.Heatmap) and trace.zmin < 0:
                assert trace.zmin == -trace.zmax, "signed data is symmetric around zero"


def test_every_figure_has_words_and_files(results):
    for name, kind in figures.kinds():
        figure = figures.plot(results[name], kind=kind)
        assert describe(figure).alternative, (name, kind)
        assert {trace.type for trace in figure.data} <= set(SPOKEN), f"{name} {kind!r}: no words for this kind of trace"
        drawn = export.images(figure)
        assert drawn["png"].startswith(b"\x89PNG"), (name, kind)
        assert b"<svg" in drawn["svg"], (name, kind)
    assert export.images(figure)["svg"] == drawn["svg"], "no date and no random names in it"
    page = export.page(results[name], figure)
    assert b"plotly" in page
    assert b'src="http' not in page, "the page must open offline"


def test_what_no_image_draws_is_refused():
    with pytest.raises(UserError, match="pie trace"):
        export.image(go.Figure(go.Pie(values=[1])))
    with pytest.raises(UserError, match="png or svg"):
        export.image(go.Figure(), "gif")


def test_unknown_figure_is_refused(results):
    with pytest.raises(UserError, match="There is no figure 'pie' of a Prediction; leave kind out"):
        figures.plot(results["Prediction"], kind="pie")
    with pytest.raises(
        UserError, match="kind='check' or kind='flow' or kind='map' or kind='sources', or leave kind out"
    ):
        figures.plot(results["EdgeAttribution"], kind="nonsense")
    with pytest.raises(UserError, match="give what an analysis returned"):
        figures.plot(object())
