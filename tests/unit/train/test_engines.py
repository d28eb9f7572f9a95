"""Runs on a cluster: a worker that is killed loses nothing, and the table is that of runs in this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dcinterp.support.cluster import require_seen, wait_for_workers
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.control.engines import _environment, _is_there, open_engine, train_there
from dcinterp.train.control.run_lock import lock_holder, lock_run
from dcinterp.train.control.signals import interrupt_on_signals
from dcinterp.train.control.sweep import LOCK, Sweep, make_run, results, run_sweep
from dcinterp.train.loop.checkpoints import steps_in
from dcinterp.train.loop.run import train

CONFIG = {
    "model": {
        "preset": "tiny-dcformer++",
        "changes": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 0},
    },
    "data": {
        "puzzle": {"options": {"questions": 1}},
        "phases": [{"source": "puzzle", "steps": 400, "batch_size": 4}],
    },
    "recipe": {"learning_rate": 3e-3, "threads": 1},
    "evaluation": {"every": 200, "validation_rows": 8, "watch": False},
    "save_every": 20,
    "log_every": 20,
}
COLUMNS = ["name", "status", "steps", "tokens", "loss", "accuracy 1 seen", "parameters", "flops"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """A worker that does not see a run says so at once."""
    monkeypatch.setattr("dcinterp.train.control.engines.BLIND_SECONDS", 0.0)


def sweep(folder: Path, seeds=(0, 1)) -> Sweep:
    runs = [make_run(CONFIG, folder, f"seed={seed}", {"recipe.seed": seed, "data.seed": seed}) for seed in seeds]
    return Sweep(folder, tuple(runs), len(runs))


def parent(process: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads who started a process from /proc")
def test_a_killed_worker_loses_nothing(tmp_path):
    planned, killed = replace(sweep(tmp_path / "cluster", seeds=(0,)), jobs=2), []  # one worker to kill, one to go on

    def kill_one(done: int, total: int, message: str = "") -> None:
        folder = Path(planned.runs[0].config.output)
        if not killed and steps_in(folder / "checkpoints") and (at := lock_holder(folder)) is not None and at.step:
            worker = parent(at.process)
            assert worker != os.getpid(), "a process of the cluster trains"
            os.kill(worker, signal.SIGKILL)
            killed.append(at.step)

    found = run_sweep(planned, engine="dask", progress=kill_one)
    assert killed
    assert killed[0] < 400, "it was killed before its end"
    assert found["status"].tolist() == ["done"]
    here = sweep(tmp_path / "here", seeds=(0,))
    train(here.runs[0].config)
    expected = run_sweep(here)  # all are finished: this only reads them
    assert found[COLUMNS].equals(expected[COLUMNS])
    assert not list((tmp_path / "cluster").glob(".stop-*"))


@pytest.mark.usefixtures("warm_python")
def test_a_cancelled_sweep_stops_at_checkpoints_and_goes_on(tmp_path):
    planned = sweep(tmp_path, seeds=(0,))

    def cancel(done: int, total: int, message: str = "") -> None:
        if steps_in(Path(planned.runs[0].config.output) / "checkpoints"):
            raise Cancelled

    with pytest.raises(Cancelled):
        run_sweep(planned, progress=cancel)
    assert lock_holder(Path(planned.runs[0].config.output)) is None, "it has ended"
    assert not list(tmp_path.glob(".stop-*"))
    assert run_sweep(planned)["status"].tolist() == ["done"]


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals a group of processes")
def test_ctrl_c_of_a_terminal_ends_a_cluster_of_this_machine(tmp_path):
    """It reaches the workers too, more runs wait than there are workers, and all stop at a checkpoint."""
    planned = sweep(tmp_path / "runs")
    program = tmp_path / "program.py"
    program.write_text(
        "import signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from dataclasses import replace\nfrom pathlib import Path\nfrom test_engines import sweep, run_sweep\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which work in the background ignores
        "    run_sweep(replace(sweep(Path(sys.argv[2])), jobs=1), engine='dask')\n"
    )
    command = [sys.executable, str(program), str(Path(__file__).parent), str(tmp_path / "runs")]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(command, stderr=log, start_new_session=True)
        try:
            end = time.monotonic() + 120
            while not any(at and at.step for at in map(lock_holder, folders(planned))) and time.monotonic() < end:
                time.sleep(0.1)
            os.killpg(child.pid, signal.SIGINT)
            assert child.wait(60) != 0
        finally:
            child.kill()
    assert "KeyboardInterrupt" in (tmp_path / "log").read_text()
    assert not any(map(lock_holder, folders(planned)))
    assert any(steps_in(folder / "checkpoints") for folder in folders(planned))


def folders(planned: Sweep) -> list[Path]:
    return [Path(run.config.output) for run in planned.runs if Path(run.config.output).is_dir()]


def test_what_waits_when_the_block_ends_is_dropped():
    begun, go = [], threading.Event()

    def run(number: int) -> None:
        begun.append(number)
        go.wait(10)

    with open_engine("local", 1) as pool:
        waiting = [pool.submit(run, number) for number in range(3)]
        threading.Timer(0.2, go.set).start()
    assert begun in ([0], []), "one may have been taken before"
    assert all(each.cancelled() for each in waiting[1:])


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of Unix")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_kill_stops_a_sweep_as_ctrl_c_does(name):
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_DFL)  # `nohup` has it ignored, also for what it starts
    try:
        with pytest.raises(KeyboardInterrupt), interrupt_on_signals():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_one_process_at_a_time_runs_a_sweep(tmp_path):
    with (
        lock_run(tmp_path, file=LOCK),
        pytest.raises(UserError, match=r"is training in .*, or give another output"),
    ):
        run_sweep(sweep(tmp_path))


def test_a_run_that_another_process_ended_is_done_whatever_was_said_of_it(tmp_path):
    planned = sweep(tmp_path, seeds=(0,))
    train(planned.runs[0].config)
    found = results(planned, {planned.runs[0].name: "Process 7 is training in it"})
    assert found["status"].tolist() == ["done"]
    assert found["message"].tolist() == [""]


def test_what_is_to_stop_does_not_start(tmp_path):

    (tmp_path / "stop").touch()
    (tmp_path / "config.yaml").touch()
    places = (str(tmp_path / name) for name in ("config.yaml", "log", "run", "stop"))
    assert train_there(*places) == "stopped"
    assert not (tmp_path / "log").exists()
    assert "does not see" in train_there(*(str(tmp_path / name) for name in ("none.yaml", "log", "run", "stop")))


def test_a_run_sees_relative_paths_from_where_its_sweep_was_started(tmp_path, monkeypatch):
    script, places = tmp_path / "where", [str(tmp_path / name) for name in ("config.yaml", "log", "run", "stop")]
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("sys.executable", str(script))
    assert train_there(*places, str(tmp_path / "elsewhere")) == ""
    assert (tmp_path / "log").read_text().strip() == str(tmp_path / "elsewhere")
    assert "does not see" in train_there(*places, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("ray", "There is no engine 'ray'; choose local, stacked:cuda, dask"),
        ("stacked:abacus", "The engine 'stacked:abacus' names no device"),
        ("stacked:cuda", "The engine 'stacked:cuda' needs a GPU"),
        ("local:2", "There is no engine 'local:2'"),
        ("dask:", "The engine 'dask:' has no address"),
        ("dask:tcp://127.0.0.1:9", "No Dask scheduler answers at tcp://127.0.0.1:9"),
        ("dask:nowhere/scheduler.json", "No Dask scheduler answers at nowhere/scheduler.json"),
    ],
)
def test_an_engine_that_is_not_there_is_named(engine, says, monkeypatch):
    monkeypatch.setattr("dcinterp.support.cluster.CONNECT_SECONDS", 1.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=says), open_engine(engine, 1):
        pass


@pytest.mark.parametrize("place", ["tcp://127.0.0.1:9", "scheduler.json"])
def test_a_cluster_that_runs_already_takes_no_number_of_workers(place, tmp_path):
    sweep = Sweep(tmp_path / "sweep", (), 1)
    with pytest.raises(UserError, match=f"The cluster at {place} has the workers that it has.*leave jobs out"):
        run_sweep(sweep, jobs=2, engine=f"dask:{place}")
    assert not sweep.output.exists()
    assert run_sweep(sweep, engine=f"dask:{place}").empty  # nothing to run; the file's number is no wish


def test_a_scheduler_that_cannot_be_read_is_named(monkeypatch):
    def connect(**_):
        raise AssertionError("no certificate")

    monkeypatch.setattr("distributed.Client", connect)
    with pytest.raises(UserError, match=r"answers at tls://host:1 \(no certificate\)"):
        open_engine("dask:tls://host:1", 1).__enter__()


class Workers:
    """A client of a cluster whose workers come one after another."""

    def __init__(self, counts: list[int], seen: dict[str, bool] | None = None) -> None:
        self.counts, self.seen = counts, seen or {}

    def submit(self, function, *, pure):
        return self

    def release(self) -> None:
        self.asked = True

    def ncores(self) -> dict[str, int]:
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return {f"worker {number}": 1 for number in range(count)}

    def run(self, function, *args, on_error):
        return self.seen


def test_workers_are_counted_when_no_further_one_comes(monkeypatch):
    monkeypatch.setattr("dcinterp.support.cluster.POLL_SECONDS", 0.01)
    monkeypatch.setattr("dcinterp.support.cluster.SETTLED_SECONDS", 0.1)
    said = []
    assert wait_for_workers(Workers([0, 0, 1, 1, 3]), lambda done, total, message: said.append(message)) == 3
    assert said[0] == "no worker has come to the cluster yet"
    assert "1 worker has come" in said
    assert said[-1] == "3 workers have come"


def test_workers_that_do_not_see_the_folder_are_named(tmp_path):
    require_seen(Workers([2], {"tcp://a:1": True, "tcp://b:1": True, "tcp://left:1": OSError()}), tmp_path)
    with pytest.raises(UserError, match=r"1 of the 2 workers do not see .*, such as tcp://b:1; start workers where"):
        require_seen(Workers([2], {"tcp://a:1": True, "tcp://b:1": False}), tmp_path)


def test_a_scheduler_that_is_gone_is_no_failure_of_a_run(tmp_path, monkeypatch):
    """Its runs go on when the command is given again."""
    planned = sweep(tmp_path)

    class Gone(ThreadPoolExecutor):
        def submit(self, *_args, **_kwargs):
            future: Future[str] = Future()
            future.set_exception(CancelledError())
            return future

    @contextmanager
    def gone(*_):
        yield Gone(1)

    monkeypatch.setattr("dcinterp.train.control.sweep.open_engine", gone)
    with pytest.raises(UserError, match="The scheduler of the cluster is gone; start one"):
        run_sweep(planned)
    Gone._client = Workers([1])
    Gone._client.status = "running"
    assert run_sweep(planned)["status"].tolist() == ["failed", "failed"], "somebody cancelled the runs"


def test_a_run_is_one_process_of_this_dcinterp_whatever_started_the_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "8")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    monkeypatch.setenv("PMIX", "kept")
    (tmp_path / "dcinterp").mkdir()
    (tmp_path / "dcinterp" / "__init__.py").write_text("raise SystemExit('of the folder it is started in')")
    environment = _environment()
    dropped = {"PMI_SIZE", "OMPI_COMM_WORLD_RANK", "WORLD_SIZE", "MALLOC_TRIM_THRESHOLD_"}
    assert not dropped & set(environment)
    assert environment["PMIX"] == "kept"
    command = [sys.executable, "-m", "dcinterp", "--version"]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "dcinterp" in ran.stdout
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    assert _environment()["MALLOC_TRIM_THRESHOLD_"] == "131072", "somebody's own"


def test_a_disk_that_does_not_answer_for_a_moment_stops_no_run(monkeypatch):
    def fails(self):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr("pathlib.Path.exists", fails)
    assert not _is_there("stop")


def test_a_run_that_is_killed_says_so_and_not_what_an_earlier_attempt_said(tmp_path, monkeypatch):
    config, log = tmp_path / "a.yaml", tmp_path / "a.log"
    config.write_text("{}")
    log.write_text("dcinterp: stopped at step 500 (Ctrl-C); --resume goes on\n")
    places = (str(config), str(log), str(tmp_path), str(tmp_path / "stop"))
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert train_there(*places) == f"ended with code 1; see {log}"
    script = tmp_path / "killed"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    assert train_there(*places) == f"was killed (SIGKILL, as where memory runs out); see {log}"
