"""What version 0.1 wrote stays good: its saved results load, draw and replay, its share links restore their views.

The fixture, and how version 0.1 made it, is described in tests/fixtures/v0.1/README.md. Nothing here imports a module
whose place or name may change; where a later version calls an input or a value otherwise, say so in `INPUTS` and
`VALUES`: the links keep the old words.
"""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import time
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import numpy as np
import pytest

import dcinterp

FIXTURE = Path(__file__).parents[1] / "fixtures" / "v0.1"
APP = Path(__file__).parents[2] / "app"
RESULTS: dict[str, Any] = json.loads((FIXTURE / "results.json").read_text(encoding="utf-8"))
ADDRESSES: dict[str, Any] = json.loads((FIXTURE / "links.json").read_text(encoding="utf-8"))
LINKS: list[dict[str, Any]] = ADDRESSES["links"]

INPUTS: dict[str, dict[str, str]] = {
    "/edges": {"method": "edge_rule"},
    "/glossary": {"search": "term"},
    "/interventions": {"part": "units"},
    "/planted": {"question": "planted_example", "seed": "roles_seed"},
    "/tasks": {"by": "group_by"},
}
"""{page: {name of an input in the links of 0.1: the key of its widget now}}, of those that were renamed."""

VALUES: dict[str, dict[str, str]] = {
    "circuit": {"lend-by-kp": "share-by-kp", "lend-by-qp": "share-by-qp"},
    "model": {
        "planted:lend-by-kp,noise=0.01,redundancy=1,rank=2,seed=3": (
            "planted:share-by-kp,noise=0.01,redundancy=1,rank=2,seed=3"
        ),
    },
    "part": {"query_low_rank": "qp", "query_gate": "qg", "key_low_rank": "kp", "key_gate": "kg"},
    "show": {"lent": "shared"},
    "twin": {"asked": "question"},
}
"""{name of an input in the links of 0.1: {value of 0.1: value now}}, of those that were renamed."""

INTERVALS = {"attribution 4", "composition 1", "composition 2", "composition 4", "tasks 2", "tasks 3", "tasks 4"}
"""Links whose figures and tables hold intervals. Those of 0.1 were too narrow, so that their numbers are others now."""

WIDGETS = (
    *("selectbox", "segmented_control", "number_input", "text_input", "text_area", "toggle", "multiselect"),
    *("select_slider", "pills", "radio", "checkbox", "slider"),
)
NUMBERS_OF_A_TRACE = ("x", "y", "z", "error_x", "error_y", "link")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A copy of the run folders: results and links name them as seen from here, and nothing writes to the fixture."""
    folder = tmp_path_factory.mktemp("v0.1")
    shutil.copytree(FIXTURE / "runs", folder / "runs")
    return folder


@pytest.fixture
def here(monkeypatch, place, as_served, loaded_once) -> Path:
    monkeypatch.chdir(place)
    return place


# Results


def test_every_analysis_has_a_result():
    calls = {dcinterp.load_result(FIXTURE / "results" / name).call.analysis for name in RESULTS}
    assert {name for name in RESULTS if "-" not in name} <= calls
    assert {path.name for path in (FIXTURE / "results").iterdir()} == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_of_0_1_loads_and_draws(name):
    result = dcinterp.load_result(FIXTURE / "results" / name)
    told = RESULTS[name]
    assert type(result).__name__ == told["kind"]
    assert sum(tensor.numel() for tensor in result.tensors().values()) == told["entries"]
    total = sum(float(tensor.double().nan_to_num().sum()) for tensor in result.tensors().values())
    assert total == pytest.approx(told["sum"], rel=1e-5, abs=1e-5)
    assert len(result.to_dataframe())
    assert repr(result)
    assert result.call.python()
    assert result.call.command()
    for kind in (kind for drawn, kind in dcinterp.figures.kinds() if drawn == told["kind"]):
        assert dcinterp.figures.plot(result, kind=kind).data, kind


@pytest.mark.parametrize("name", [name for name, told in RESULTS.items() if told["reproducible"]])
def test_a_result_of_0_1_replays(here, monkeypatch, name):
    if name == "task_accuracy":  # 0.1 put a first token before the rows, which the models never saw in training
        monkeypatch.setattr(import_module("synthetic_tasks.evaluate"), "opens_texts", lambda model: True)
    report = dcinterp.replay(FIXTURE / "results" / name)
    assert report.changed == ()
    assert not report.weights_changed
    assert not any(name.endswith(("low", "high")) for name in report.differences), "intervals of 0.1 are left alone"
    if not report.same:
        # A processor with other instructions rounds otherwise, and what is rounding error itself (the gap of an
        # attribution that is complete, say) is then another number: seen beside the whole result it is still nothing.
        saved, again = tensors(report.saved), tensors(report.again)
        scale = max(float(t.double().nan_to_num().abs().max()) for t in saved.values() if t.numel())
        far = {
            key: float((t.double() - again[key].double()).nan_to_num().abs().max())
            for key, t in saved.items()
            if report.differences.get(key, 0) > report.tolerance
        }
        assert max(far.values()) <= 1e-3 * scale, (scale, far)


def test_the_code_of_a_result_of_0_1_names_what_was_its_default():
    """0.1 set parts to zero and compared with the runner-up, and its calls did not say so."""
    for name, said in (
        ("case_study", ("--kind zero", "--contrast runner-up")),
        ("branch_ablation", ("--kind zero",)),
        ("composition_importance", ("--kind zero",)),
    ):
        call = dcinterp.load_result(FIXTURE / "results" / name).call
        assert all(option in call.command() for option in said), name
        assert 'kind="zero"' in call.python()


def tensors(result: Any, prefix: str = "") -> dict[str, Any]:
    """All tensors of a result and of the results inside it, by the names that a replay gives them."""
    found = {prefix + name: tensor for name, tensor in result.tensors().items()}
    for name, part in vars(result).items():
        if hasattr(part, "tensors"):
            found |= tensors(part, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("name", [name for name, told in RESULTS.items() if not told["reproducible"]])
def test_a_result_of_0_1_that_cannot_be_made_again_says_why(name):
    assert not dcinterp.load_result(FIXTURE / "results" / name).call.reproducible
    with pytest.raises(dcinterp.UserError, match=r"from its record|in memory"):
        dcinterp.replay(FIXTURE / "results" / name)


@pytest.mark.parametrize("name", ["attribute_edges", "attribute_edges_over-none"])
def test_code_of_0_1_says_a_default_that_changed(name):
    call = dcinterp.load_result(FIXTURE / "results" / name).call
    assert call.arguments["method"] == "ig" or "method" in call.shown
    assert f'method="{call.arguments["method"]}"' in call.python()
    assert f"--method {call.arguments['method']}" in call.command()


# Links


def opened(link: str) -> Any:
    """The app as somebody sees it who follows a link such as "/edges?layer=1", in a session of their own."""
    from streamlit.testing.v1 import AppTest
    from streamlit.util import calc_hash

    page, _, query = link.replace("{here}", quote(os.getcwd(), safe="")).partition("?")
    app = AppTest.from_file(str(APP / "streamlit_app.py"), default_timeout=300)
    for key, values in parse_qs(query, keep_blank_values=True).items():
        app.query_params[key] = values if len(values) > 1 else values[0]
    # A browser asks for a page by the path of its address. AppTest opens files only: this is what it does inside.
    app._page_hash = calc_hash(page.strip("/"))
    return app.run()


def done(app: Any, work: str, seconds: float = 120) -> None:
    """Press the button of this key, unless its work is known already, and run the page until the work is over."""
    for button in (button for button in app.button if button.key == work):
        button.click().run()
    until = time.monotonic() + seconds
    while any(button.label == "Cancel" for button in app.button):
        assert time.monotonic() < until, "the work does not end"
        time.sleep(0.05)
        app.run()


def values(app: Any) -> dict[str, tuple[str, str]]:
    """{key: (value, label)} of every input, the value as an address holds it."""
    found = {}
    for kind in WIDGETS:
        for widget in getattr(app, kind):
            given = widget.value if isinstance(widget.value, list | tuple) else [widget.value]
            found[str(widget.key)] = (", ".join(map(str, given)).replace(os.getcwd(), "{here}"), widget.label)
    return found


def shown(app: Any) -> list[list[float]]:
    """What every figure and table holds, in six numbers: entries, missing ones, sum, size, order, chosen cell."""
    found = []
    for chart in app.get("plotly_chart"):
        for trace in json.loads(chart.proto.spec)["data"]:
            numbers = np.concatenate([_numbers(trace.get(name)) for name in NUMBERS_OF_A_TRACE])
            found.append([*_digest(numbers), 0])
    for drawn in app.get("bidi_component"):
        told = json.loads(drawn.proto.json or "{}")
        if "z" in told:
            cells = np.frombuffer(base64.b64decode(told["z"]), np.float32)
            row, column, *size = told["selected"] or (-1, -1)
            found.append([*_digest(cells), row * 1000 + column + sum(size) / 1000])
    for table in (*app.dataframe, *app.table):
        numbers = table.value.select_dtypes("number").to_numpy(dtype=float).ravel()
        found.append([*_digest(numbers), len(table.value)])
    return found


def _numbers(given: Any) -> np.ndarray:
    if isinstance(given, dict) and "bdata" in given:
        return np.frombuffer(base64.b64decode(given["bdata"]), given["dtype"]).astype(float)
    if isinstance(given, dict):
        return np.concatenate([np.zeros(0), *(_numbers(each) for each in given.values())])
    if isinstance(given, list):
        return np.array(
            [
                n
                for each in given
                for n in (_numbers(each) if isinstance(each, list | dict) else [each])
                if isinstance(n, int | float) and not isinstance(n, bool)
            ],
            dtype=float,
        )
    return np.zeros(0)


def _digest(numbers: np.ndarray) -> list[float]:
    known = np.nan_to_num(numbers.astype(float))
    order = known @ np.arange(1, len(known) + 1) / max(1, len(known))
    sums = [float(known.sum()), float(np.abs(known).sum()), float(order)]
    return [len(known), int(np.isnan(numbers).sum()), *(float(f"{number:.4g}") for number in sums)]


def alike(one: list[float], other: list[float]) -> bool:
    """Whether two figures hold the same numbers, to rounding: the sums are compared as shares of the sizes.

    Below a size of 1e-4 the rounding of the logits themselves, 1e-7, is the larger share; it depends on the processor.
    """
    size = max(1e-4, one[3], other[3])
    return all(
        math.isclose(a, b, rel_tol=1e-6) if at in (0, 1, 5) else abs(a - b) <= 2e-3 * size
        for at, (a, b) in enumerate(zip(one, other, strict=True))
    )


def sized_alike(one: list[float], other: list[float]) -> bool:
    """Whether two figures hold as many numbers, and frame the same cell or have as many rows; or all but the intervals.

    Two examples with the same facts count as one, of which there is no interval to draw.
    """
    return (one[0] == other[0] and one[5] == other[5]) or one[2:4] == other[2:4]


@pytest.mark.parametrize("told", LINKS, ids=[told["name"] for told in LINKS])
def test_a_link_of_0_1_restores_its_view(monkeypatch, here, told):
    monkeypatch.syspath_prepend(str(APP))
    if told["work"]:
        # The link shows what is known already: somebody else on this server has done the work.
        done(opened(told["link"]), told["work"])
    app = opened(told["link"])
    assert not app.exception
    assert [error.value for error in app.error] == []
    assert [warning.value for warning in app.warning if warning.icon == ":material/link_off:"] == []
    found = values(app)
    for key, value in told["values"].items():
        now = INPUTS.get(told["link"].partition("?")[0], {}).get(key, key)
        assert now in found, f"the input {key} of the link has no widget"
        assert found[now][0] == VALUES.get(key, {}).get(value, value), key
    figures = shown(app)
    same = alike if told["name"] not in INTERVALS else lambda one, other: alike(one, other) or sized_alike(one, other)
    missing = [each for each in told["figures"] if not any(same(each, figure) for figure in figures)]
    assert missing == [], figures


@pytest.mark.parametrize("page", ADDRESSES["inputs"])
def test_the_links_hold_every_word_of_every_input(page):
    """Of an input with a few words to choose from every word, of the others something beside the default."""
    links = [told for told in LINKS if told["link"].partition("?")[0] == page]
    for key, words in ADDRESSES["inputs"][page].items():
        assert any(key in told["changed"] for told in links), key
        assert set(words) <= {told["values"].get(key) for told in links}, key
