"""Processes that start with the libraries imported: forks of one that did nothing but import them.

A test that starts `python -m dcinterp ...` waits some seconds until torch and transformers are imported, and some
forty tests do. With the fixture `warm_python`, `subprocess` gives them a fork of a process that has imported these (and
nothing of this repository) instead of a fresh interpreter. All else is as it was: the child is one of the test's own
processes, with its own streams, folder, environment, session, exit status and end of a program; it can be signalled and
waited for. What cannot be had so gets a fresh interpreter: other programs, other options of Python, and environments
that differ in what libraries read while they are imported. So does everything where the system is not Linux.

Tests of what is imported when do not use it. Those of memory measure how much it grows, which is the same in a fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import os
import pickle
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARIES = (
    *("torch", "torch.distributed.run", "transformers", "transformers.trainer", "accelerate", "safetensors.torch"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformer_lens.model_bridge", "jaxtyping", "pandas", "scipy.stats", "plotly.graph_objects"),
    *("typer", "rich", "yaml", "tqdm"),
)
READ_AT_IMPORT = ("OMP_", "MKL_", "OPENBLAS_", "HF_", "TRANSFORMERS_", "TORCH", "TRITON_", "LD_", "XDG_", "HOME")
"""Beginnings of the names of variables whose values the libraries have taken over by the time of the fork."""
BEGAN_WITH = dict(os.environ)
FRESH = subprocess.Popen
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux


class _Source:
    """The process that is forked: it starts at the first question, and ends with this one."""

    def __init__(self) -> None:
        self._ours: socket.socket | None = None
        self._one_at_a_time = threading.Lock()

    def start(self) -> socket.socket:
        """Our end of the channel."""
        if self._ours is None:
            self._ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, __file__, str(theirs.fileno())]
                environment = BEGAN_WITH | {"PYTHONPATH": ""}
                self._process = FRESH(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        return self._ours

    def fork(self, question: dict[str, Any], streams: list[int]) -> int:
        """The id of a new child of this process.

        Between the two stands one that ends at once: an orphan is then handed to its nearest ancestor that asked for
        orphans, which is this process while the question is answered.
        """
        said, libc = pickle.dumps(question), ctypes.CDLL(None)
        with self._one_at_a_time:
            channel = self.start()
            libc.prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(channel, [len(said).to_bytes(8, "little")], streams)
                channel.sendall(said)
                return int.from_bytes(_receive(channel, 8), "little")
            finally:
                libc.prctl(SUBREAPER, 0, 0, 0, 0)


_source = _Source()


class WarmPopen(subprocess.Popen):
    """`subprocess.Popen`, which forks where it can."""

    def _execute_child(self, args: Any, *details: Any) -> None:
        names = "executable preexec_fn close_fds pass_fds cwd env startupinfo creationflags shell p2cread p2cwrite"
        names += " c2pread c2pwrite errread errwrite restore_signals gid gids uid umask start_new_session process_group"
        given = dict(zip(names.split(), details, strict=True))
        environment = dict(os.environ if given["env"] is None else given["env"])
        unusual = ("executable", "preexec_fn", "pass_fds", "shell", "gid", "gids", "uid")
        if any(given[name] for name in unusual) or given["umask"] != -1 or given["process_group"] != -1:
            return super()._execute_child(args, *details)
        words = [os.fsdecode(word) for word in args] if isinstance(args, list | tuple) else []
        ours = sys.platform == "linux" and words[:1] == [sys.executable]
        if not ours or _split(words[1:]) is None or _differs(environment):
            return super()._execute_child(args, *details)
        pairs = (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2))
        streams = [given[name] if given[name] != -1 else own for name, own in pairs]
        heard = {number for number in signal.valid_signals() if signal.getsignal(number) != signal.SIG_IGN}
        question = {
            "words": words[1:],
            "environment": environment,
            "folder": os.path.abspath(os.fspath(given["cwd"] or os.getcwd())),
            "heard": {int(number) for number in heard},
            "session": given["start_new_session"],
        }
        try:
            self.pid = _source.fork(question, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*details[9:15])
        return None


@contextmanager
def warm() -> Iterator[None]:
    """Inside, `subprocess` forks; the fixture `warm_python` is this around a test."""
    subprocess.Popen = WarmPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = FRESH  # type: ignore[misc]


def _differs(environment: dict[str, str]) -> bool:
    """Whether the libraries would have been imported in another way."""

    def read(variables: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in variables.items() if name.startswith(READ_AT_IMPORT)}

    return read(environment) != read(BEGAN_WITH)


def _split(words: list[str]) -> tuple[list[str], str, str, list[str]] | None:
    """(filters of warnings, kind, what to run, its arguments) of a command line of Python, or None: another option."""
    filters = []
    while words[:1] == ["-W"]:
        filters.append(words[1])
        words = words[2:]
    if words[:1] in (["-m"], ["-c"]):
        return filters, words[0], words[1], words[2:]
    return None if not words or words[0].startswith("-") else (filters, "file", words[0], words[1:])


def _receive(channel: socket.socket, size: int) -> bytes:
    """Exactly that many bytes; EOFError where nobody speaks any more."""
    got = b""
    while len(got) < size:
        more = channel.recv(size - len(got))
        if not more:
            raise EOFError("the process that is forked has ended")
        got += more
    return got


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Answer with the ids of children, to the end; what is asked of a child comes back in that child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, streams, _, _ = socket.recv_fds(channel, 8, 3)
        if not head:
            os._exit(0)
        question = pickle.loads(_receive(channel, int.from_bytes(head, "little")))
        ours, theirs = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                channel.close()
                os.close(ours)
                os.close(theirs)
                return question | {"streams": streams}
            os.write(theirs, child.to_bytes(8, "little"))
            os._exit(0)
        os.waitpid(between, 0)
        channel.sendall(os.read(ours, 8))
        for stream in (*streams, ours, theirs):
            os.close(stream)


def _become(question: dict[str, Any]) -> None:
    """What a fresh process has of its own, of the one that asked, and of its interpreter."""
    if question["session"]:
        os.setsid()
    for own, stream in enumerate(question["streams"]):
        os.dup2(stream, own)
        os.set_inheritable(own, True)
    for stream in question["streams"]:
        os.close(stream)
    os.chdir(question["folder"])
    os.environ.clear()
    os.environ.update(question["environment"])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        heard = int(number) in question["heard"] and number not in (signal.SIGPIPE, signal.SIGXFSZ)
        if signal.getsignal(number) is not None:
            signal.signal(number, signal.SIG_DFL if heard else signal.SIG_IGN)
    if signal.SIGINT in question["heard"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=seen or os.isatty(1))  # type: ignore[union-attr]
    random.seed()


def _run(filters: list[str], kind: str, target: str, arguments: list[str]) -> None:
    """As the interpreter runs it."""
    for words in reversed(filters):
        sys.warnoptions.append(words)
        warnings.simplefilter(words)  # type: ignore[arg-type]
    first = {"-m": os.getcwd(), "-c": "", "file": os.path.dirname(os.path.abspath(target))}[kind]
    ours = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.path[:] = ours + sys.path[1:]
    importlib.invalidate_caches()
    sys.argv = [target if kind == "file" else kind, *arguments]
    sys.orig_argv = [sys.executable, kind, target, *arguments]
    if kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "file":
        main.__file__ = target
        with open(target, encoding="utf-8") as file:
            exec(compile(file.read(), target, "exec"), main.__dict__)
        return
    exec(compile(target, "<string>", "exec"), main.__dict__)


if __name__ == "__main__":
    for library in LIBRARIES:
        try:
            importlib.import_module(library)
        except ImportError:
            continue
    inspect.getmodule(sys._getframe())  # notes which file each module came from, as `torch.library` asks
    gc.collect()
    gc.freeze()
    asked = _serve(socket.socket(fileno=int(sys.argv[1])))
    # Here to the end of the program, so that it ends as any does.
    _become(asked)
    _run(*_split(asked["words"]))  # type: ignore[misc]
