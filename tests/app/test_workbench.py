"""The parts that the pages share, on their own."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
import time
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import dcinterp
from dcinterp import figures

APP = Path(__file__).parents[2] / "app"


@pytest.fixture(autouse=True)
def workbench(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))


@pytest.fixture(scope="module")
def patterns(shipped):
    return dcinterp.attention_patterns(shipped, "There are a pear, a car, a car. Which is not car? The", 1)


def test_every_term_that_a_page_uses_is_in_the_glossary():
    from workbench.glossary import TERMS

    used = set()
    for path in APP.rglob("*.py"):
        for call in re.findall(r"\btip\(([^)]*)\)", path.read_text(encoding="utf-8")):
            used |= set(re.findall(r'"([^"]+)"', call))
        for call in re.findall(r"heading\(\d+, ([^)]*)\)", path.read_text(encoding="utf-8")):
            used |= set(re.findall(r'"([^"]+)"', call))
    assert used <= set(TERMS), used - set(TERMS)
    assert len(used) > 20


def test_no_text_of_a_downloaded_table_is_a_formula_to_a_spreadsheet():
    from workbench.view import for_spreadsheets

    table = pd.DataFrame({"token": ["=1+1", "@home", "-", " the", "+49"], "score": [-0.5, 1.0, 2.0, 3.0, 4.0]})
    made = for_spreadsheets(table)
    assert made["token"].tolist() == ["'=1+1", "'@home", "-", " the", "+49"]
    told = for_spreadsheets(pd.DataFrame({"-x": ["-1", "+0.5%", "->a", "-2+3"]}))
    assert told.to_dict("list") == {"'-x": ["-1", "+0.5%", "'->a", "'-2+3"]}, "numbers stay, names of columns do not"
    assert made["score"].tolist() == table["score"].tolist(), "numbers stay numbers"


@pytest.mark.parametrize(
    ("former", "term"), [("lending", "sharing"), ("Twin", "counterfactual"), ("lead", "logit difference")]
)
def test_the_glossary_finds_a_term_by_its_former_name(former, term):
    from workbench.glossary import TERMS, find_terms

    assert find_terms(former)[term] == TERMS[term]
    assert former.lower() not in f"{term} {TERMS[term]}".lower()
    assert list(find_terms("")) == sorted(TERMS, key=str.lower)
    assert find_terms("no such term") == {}


@pytest.mark.parametrize(
    ("key", "former", "word"),
    [
        ("circuit", "lend-by-kp", "share-by-kp"),
        ("twin", "asked", "question"),
        ("show", "lent", "shared"),
        ("model", "planted:lend-by-qp,noise=0.01,seed=3", "planted:share-by-qp,noise=0.01,seed=3"),
        ("model", "planted:lend-by-kp", "planted:share-by-kp"),
        ("model", "lend-by-kp", "lend-by-kp"),
        ("twin", "lent", "lent"),
    ],
)
def test_a_value_of_an_older_link_is_translated_for_its_own_input(key, former, word):
    from workbench.links import current_word

    assert current_word(key, former) == word


def test_the_canvas_gets_the_numbers_of_the_figure(patterns):
    import base64

    import numpy as np

    from workbench.heatmap import is_heatmap, payload

    figure = figures.plot(patterns, head=2, selected=(4, 3))
    assert is_heatmap(figure)
    sent = payload(figure)
    z = np.frombuffer(base64.b64decode(sent["z"]), dtype=np.float32).reshape(sent["rows"], sent["columns"])
    np.testing.assert_allclose(z[4, 3], float(patterns.composed[2, 4, 3]), rtol=1e-6)
    assert np.isnan(z[3, 4])
    assert sent["selected"] == [4, 3, 1, 1], "row, column, and how many of each the frame spans"
    assert sent["x"] == [str(name) for name in figure.layout.xaxis.ticktext]


def test_the_canvas_gets_whole_words(shipped):
    from workbench.heatmap import payload

    figure = figures.plot(dcinterp.logit_lens(shipped, "There are a pear, a car, a car. Which is not car? The"))
    figure.data[0].update(text=[["cut…"]], customdata=[["a long word"]])
    sent = payload(figure)
    assert sent["words"]
    assert sent["text"] == [["a long word"]]


def test_results_are_kept_within_a_bound(patterns):
    from workbench.analyses import ResultCache, weight

    size = weight(patterns)
    assert size > sum(t.element_size() * t.nelement() for t in patterns.tensors().values())
    cache = ResultCache(limit=3 * size + size // 2)
    for number in range(5):
        cache.put(str(number), patterns)
    assert len(cache) == 3
    assert cache.bytes <= cache.limit
    assert cache.get("0") is None
    assert cache.get("2") is patterns
    cache.put("5", patterns)
    assert cache.get("2") is patterns, "what was used last stays"
    assert cache.get("3") is None


def test_a_figure_is_drawn_once_for_what_it_shows(patterns, monkeypatch):
    from workbench import drawings

    monkeypatch.setattr(drawings, "KEPT", 3)
    first = drawings.drawn(patterns, "", "light", {"head": 0})
    assert drawings.drawn(patterns, "", "light", {"head": 0}) is first
    others = [drawings.drawn(patterns, "", look, {"head": head}) for look, head in (("dark", 0), ("light", 1))]
    assert all(other.figure != first.figure for other in others)
    for head in (2, 3):
        drawings.drawn(patterns, "", "light", {"head": head})
    assert drawings.drawn(patterns, "", "light", {"head": 0}) is not first, "the oldest gave way"
    assert len(drawings._kept) <= 3


def test_a_drawing_is_not_taken_for_that_of_another_result(patterns):
    import copy

    from workbench import drawings

    gone = copy.copy(patterns)
    old = drawings.drawn(gone, "", "light", {"head": 0})
    ((key, entry),) = [(key, entry) for key, entry in drawings._kept.items() if entry[0]() is gone]
    del gone
    drawings._kept[(id(patterns), *key[1:])] = entry
    assert drawings.drawn(patterns, "", "light", {"head": 0}) is not old


def test_downloads_hold_the_result(patterns, tmp_path):
    import pandas as pd

    from workbench.view import file_name, parquet, python_cell, unclicked, zipped

    archive = zipfile.ZipFile(io.BytesIO(zipped(patterns)))
    archive.extractall(tmp_path)
    folder = tmp_path / file_name(patterns)
    again = dcinterp.load_result(folder)
    assert again.composed.equal(patterns.composed)
    frame = pd.read_parquet(io.BytesIO(parquet(patterns)))
    assert len(frame) == patterns.composed.numel()
    scope: dict = {}
    exec(python_cell(patterns, {"kind": "", "head": 3}), scope)
    assert scope["result"].composed.equal(patterns.composed)
    assert unclicked("Click a cell, or move, to follow it. Rows share. Click a row. Blue.") == "Rows share. Blue."


def test_long_work_lets_others_use_the_model():
    from workbench.analyses import Turn

    lock, turns = threading.RLock(), []
    turn = Turn(lock, lambda: None)

    def other():
        with lock:
            turns.append("other")

    with turn:
        step = turn.polite(lambda *_: None)
        thread = threading.Thread(target=other)
        thread.start()
        time.sleep(0.05)
        assert not turns, "the model is held while a unit of work runs"
        for _ in range(200):
            step(1, 2)
            if turns:
                break
        assert turns == ["other"]
    thread.join()


def test_workbench_modules_import_torch_only_when_needed():
    import subprocess

    code = (
        f"import sys; sys.path.insert(0, {str(APP)!r}); "
        "import workbench.view, workbench.inputs, workbench.jobs, workbench.intervention_form, workbench.training; "
        "print([m for m in ('torch', 'transformers', 'transformer_lens') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "[]", out.stdout + out.stderr


class State(dict):
    __getattr__, __setattr__ = dict.__getitem__, dict.__setitem__


@pytest.mark.parametrize(
    ("text", "word", "after"),
    [
        ("<bos> Bob topaz", "Ann", "<bos> Bob topaz Ann"),
        ("a11=2 rule7 ", "A", "a11=2 rule7 A"),
        ("Ruth has a lime", ".", "Ruth has a lime."),
        ("The beer is Sarah", "'s", "The beer is Sarah's"),
        ("", "Ruth", "Ruth"),
    ],
)
def test_a_word_that_is_clicked_leaves_the_text_as_it_is(monkeypatch, text, word, after):
    from workbench import inputs

    monkeypatch.setattr(inputs.st, "session_state", state := State({"text": text, "known-word": word}))
    inputs.append_word()
    assert state == {"text": after, "known-word": None}


def test_a_model_is_read_again_when_its_files_change(tmp_path):
    from workbench import models

    (tmp_path / "pytorch_model.bin").write_bytes(b"1")
    os.utime(tmp_path / "pytorch_model.bin", ns=(1, 1))
    before = models.stamp(str(tmp_path))
    assert before == models.stamp(f"own:{tmp_path}") != 0
    (tmp_path / "config.json").write_text("{}")
    os.utime(tmp_path / "config.json", ns=(2, 2))
    assert models.stamp(f"own:{tmp_path}") != before
