"""Analyses that can go to the workers of a cluster: the result is that of one process, whoever made which example."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
from concurrent.futures import CancelledError, Executor, Future
from typing import Any

import cloudpickle
import pytest
import torch

import dcinterp
from dcinterp.results import on_cluster
from dcinterp.results.on_cluster import Handing, Work, analyse_on, make_units
from dcinterp.results.registry import ANALYSES
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled

IN_UNITS = [name for name, entry in ANALYSES.items() if entry.in_units]
SMALL: dict[str, Any] = {"examples": "same-person n=3", "steps": 2, "max_steps": 2}


class Apart(Executor):
    """Workers that know nothing but what they are sent, as in other processes; the last part is made first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], bytes]] = []
        self.sent: list[list[str]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.sent.append(args[-1])
        self.waiting.append((future, cloudpickle.dumps((fn, args, kwargs))))
        return future

    def work(self) -> None:
        while self.waiting:
            future, call = self.waiting.pop()
            fn, args, kwargs = cloudpickle.loads(call)
            future.set_result(cloudpickle.loads(cloudpickle.dumps(fn(*args, **kwargs))))


class KilledWorker(Exception):
    """As Dask's is called."""


@pytest.fixture
def tiny(make_bridge, monkeypatch) -> Any:
    """A model that every worker finds under any name."""
    bridge = make_bridge(num_hidden_layers=1)
    monkeypatch.setattr(on_cluster, "_model", lambda name, dtype, tokenizer, stamp: bridge)
    return bridge


def arguments(name: str) -> dict[str, Any]:
    """A quick call of the analysis, over more than one unit."""
    taken = ANALYSES[name].parameters
    more: dict[str, Any] = {"calibrate": {"part": "branch"}, "mean_composition_map": {"layer": 0}}.get(name, {})
    if name == "task_accuracy":
        return {"tasks": "task2,task3,task10", "rows": 1, "examples": 2}
    if name == "text_loss":
        return {"files": 4, "tokens": 50}
    return {key: value for key, value in SMALL.items() if key in taken} | more


Told = list[tuple[int, int]]
"""How much of how much was done, call by call."""


def assert_one_bar(told: Told) -> None:
    """One total from beginning to end, nothing taken back, and all of it done."""
    assert [total for _, total in told] == [told[0][1]] * len(told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("name", IN_UNITS)
def test_the_result_is_that_of_one_process(name, tiny):
    pool = Apart()
    chosen = arguments(name)
    told: dict[str, Told] = {"there": [], "here": []}

    def work(done: int, total: int, message: str = "") -> None:
        told["there"].append((done, total))
        pool.work()

    spread = Work(name, "tiny", chosen).run(Handing(pool, 1, Work(name, "tiny", chosen), work))
    assert len({unit for part in pool.sent for unit in part}) >= 3
    assert max(map(len, pool.sent)) <= 2
    here = ANALYSES[name].function(
        tiny, **chosen, progress=lambda done, total, message="": told["here"].append((done, total))
    )
    for calls in told.values():
        assert_one_bar(calls)
    for field in dataclasses.fields(here):
        one, other = getattr(spread, field.name), getattr(here, field.name)
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)
        else:
            assert one == other, field.name
    assert spread.call == here.call


def test_every_analysis_that_says_so_makes_its_units_with_all_once():
    for name, entry in ANALYSES.items():
        module = inspect.getmodule(inspect.unwrap(entry.function))
        called = {
            node.func.id
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert entry.in_units == bool(called & {"all_once", "score_examples"}), name


def test_cancelling_ends_what_waits(tiny):
    pool, work = Apart(), Work("mean_composition_map", "tiny", arguments("mean_composition_map"))

    def cancel(done: int, total: int, message: str = "") -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        work.run(Handing(pool, 1, work, cancel))
    assert all(future.cancelled() for future, _ in pool.waiting)


@pytest.mark.parametrize(
    ("engine", "analysis", "says"),
    [
        ("ray", "task_accuracy", "no engine 'ray' for analyses; choose dask"),
        ("dask", "predict", "does not go over examples"),
        ("dask:tcp://127.0.0.1:9", "task_accuracy", "at tcp://127.0.0.1:9 has the workers that it has"),
    ],
)
def test_what_cannot_be_handed_out_is_refused(engine, analysis, says):
    with pytest.raises(UserError, match=says):
        analyse_on(engine, Work(analysis, "dcformer++", {}), jobs=2)


def test_workers_get_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "other", "texts", "words"):
        (tmp_path / name).mkdir()
    (tmp_path / "python").mkdir()
    (tmp_path / "dcformer++").mkdir()
    work = Work("text_loss", "own:mine", {"text": "texts", "other": "other", "files": 2}, tokenizer="words")
    there = work.from_anywhere
    assert there.model == f"own:{tmp_path / 'mine'}"
    assert there.arguments == {"text": str(tmp_path / "texts"), "other": str(tmp_path / "other"), "files": 2}
    assert there.tokenizer == str(tmp_path / "words")
    named = Work("text_loss", "dcformer++", {"text": "python"})
    assert named.from_anywhere == named, "names come before folders"
    hub = Work("text_loss", "EleutherAI/pythia-70m", {"other": ""})
    assert hub.from_anywhere == hub


def test_a_worker_with_other_code_is_refused(tiny):
    work = Work("text_loss", "tiny", arguments("text_loss"))
    with pytest.raises(UserError, match=r"A worker has dcinterp .*, and this machine dcinterp 0\.0; give"):
        make_units(work, {}, "dcinterp 0.0", ["a.py"])


def test_files_that_only_this_machine_has_are_named(tiny):
    class Blind(Apart):
        def work(self) -> None:
            for future, _ in self.waiting:
                future.set_result({})
            self.waiting = []

    pool, work = Blind(), Work("text_loss", "tiny", arguments("text_loss"))
    with pytest.raises(UserError, match=r"The workers have no '.*', which is here; they must see the same model"):
        work.run(Handing(pool, 1, work, lambda *_: pool.work()))


@pytest.mark.parametrize(
    ("error", "says"),
    [(CancelledError(), "The scheduler of the cluster is gone"), (KilledWorker("part 1"), "Several workers died")],
)
def test_a_cluster_that_ends_says_so(tiny, error, says):
    class Ended(Apart):
        def work(self) -> None:
            for future, _ in self.waiting:
                future.set_exception(error)
            self.waiting = []

    pool, work = Ended(), Work("text_loss", "tiny", arguments("text_loss"))
    with pytest.raises(UserError, match=says):
        work.run(Handing(pool, 1, work, lambda *_: pool.work()))


def test_a_model_that_was_written_anew_is_read_anew(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = on_cluster._stamp(str(tmp_path))
    os.utime(tmp_path / "config.json", ns=(1, 1))
    assert on_cluster._stamp(str(tmp_path)) != before
    assert on_cluster._stamp("dcformer++") == ()


@pytest.mark.slow
def test_a_cluster_of_this_machine_makes_it():
    pytest.importorskip("distributed")
    chosen = {"examples": "same-person n=3", "layer": 1}
    spread = analyse_on("dask", Work("mean_composition_map", "dcformer++", chosen), jobs=1)
    here = dcinterp.mean_composition_map(dcinterp.load("dcformer++"), **chosen)
    torch.testing.assert_close(spread.total, here.total)
