"""The kernel's file: built whole or not at all, loaded only if it is ours and undamaged, and never waited for long."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dcinterp.model.kernels import fused
from dcinterp.model.kernels.fused import build

pytestmark = [
    pytest.mark.skipif(not fused.available(), reason="no C++ compiler here: there is no file"),
    pytest.mark.usefixtures("warm_python"),
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DCINTERP_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that this machine has already: what the quick compiler gives."""
    loaded = build.library()
    assert loaded is not None
    copy = tmp_path_factory.mktemp("ready") / "kernel.so"
    copy.write_bytes(Path(loaded._name).read_bytes())
    return copy


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`compiler(script)`: what is found as the compiler from now on. `$out` is the file that it must write."""

    def make(script: str) -> Path:
        path = tmp_path / "g++"
        find = 'for word; do [ "$before" = -o ] && out=$word; before=$word; done\n'
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo fake && exit\n{find}{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


@pytest.fixture
def quick(compiler: Callable[[str], Path], ready: Path, tmp_path: Path) -> Path:
    """A compiler that takes no time; the file that it returns has a line for each of its calls."""
    log = tmp_path / "calls"
    log.touch()
    compiler(f'echo "$@" >> {log}\ncase $1 in -shared) cp {ready} $out;; *) echo > $out;; esac')
    return log


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    build.library.cache_clear()


def calls(log: Path) -> int:
    return len(log.read_text().splitlines())


def built(cache: Path) -> Path:
    (file,) = cache.glob("**/*.so")
    return file


def test_it_is_built_once_and_only_for_its_owner(cache: Path, quick: Path) -> None:
    before = os.umask(0)
    try:
        build.build()
    finally:
        os.umask(before)
    build.build()
    assert calls(quick) == 3  # float, double, and the two joined
    assert {path.suffix for path in cache.iterdir()} == {".so", ".json", ".lock"}
    assert cache.stat().st_mode & 0o777 == 0o700
    assert not built(cache).stat().st_mode & 0o022


def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    cache: Path, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, move = os.fsync, os.replace

    def synced(handle: int) -> None:
        order.append("sync")
        sync(handle)

    def moved(source: Path, target: Path) -> None:
        order.append(Path(target).suffix)
        move(source, target)

    monkeypatch.setattr(build.os, "fsync", synced)
    monkeypatch.setattr(build.os, "replace", moved)
    build.build()
    assert order == ["sync", ".so", "sync", ".json", "sync"]


def test_a_compiler_without_threads_takes_the_source() -> None:
    """As some of Apple's have no OpenMP; the build tries them without it."""
    compiler = build.find_compiler()
    without = [flag for flag in build.FLAGS if flag != "-O3"]
    command = [compiler, *without, "-DREAL=float", "-fsyntax-only", str(build.SOURCE / "kernel.cpp")]
    subprocess.run(command, check=True)


# In a process of its own: a library that lacks its end is a bus error for whoever loads it.
LOAD = "from dcinterp.model.kernels.fused import build; import sys; sys.exit(build.library() is None)"


def load() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=False)


def damaged(file: Path, content: bytes) -> None:
    """In a file of its own: this process has the other one loaded, and could not end without its end."""
    file.unlink()
    file.write_bytes(content)


def cut(file: Path) -> None:
    damaged(file, file.read_bytes()[: file.stat().st_size // 2])


def empty(file: Path) -> None:
    damaged(file, b"")


def tamper(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    damaged(file, bytes(content))


def no_record(file: Path) -> None:
    file.with_suffix(".json").unlink()


def half_a_record(file: Path) -> None:
    record = file.with_suffix(".json")
    record.write_text(record.read_text()[:9])


@pytest.mark.parametrize("damage", [cut, empty, tamper, no_record, half_a_record])
def test_a_damaged_file_is_built_again(damage: Callable[[Path], None], cache: Path, quick: Path) -> None:
    build.build()
    damage(built(cache))
    ran = load()
    assert ran.returncode == 0, ran.stderr
    assert calls(quick) == 6
    assert build.is_whole(built(cache))


def test_a_file_that_others_can_write_is_built_again(cache: Path, quick: Path) -> None:
    build.build()
    built(cache).chmod(0o777)
    build.build()
    assert calls(quick) == 6


def test_a_link_is_not_followed(cache: Path, quick: Path, tmp_path: Path) -> None:
    build.build()
    elsewhere = built(cache).rename(tmp_path / "elsewhere.so")
    (cache / next(cache.glob("*.json")).with_suffix(".so").name).symlink_to(elsewhere)
    build.build()
    assert calls(quick) == 6


PLANTED = """
#include <stdlib.h>
__attribute__((constructor)) static void planted(void) { system("touch $PLANTED"); }
"""


@pytest.mark.parametrize("who", ["everybody", "parent", "stranger"])
def test_a_library_planted_where_others_can_write_never_runs(
    who: str, cache: Path, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a record that fits: whoever can write one file can write two."""
    if who == "stranger" and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    build.build()
    source, sign = tmp_path / "planted.c", tmp_path / "sign"
    source.write_text(PLANTED)
    monkeypatch.setenv("PLANTED", str(sign))
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", built(cache)], check=True)
    built(cache).with_suffix(".json").write_text(json.dumps(build._record(built(cache).read_bytes())))
    if who == "stranger":
        os.chown(cache, 54321, 54321)
    else:
        (cache if who == "everybody" else cache.parent).chmod(0o777)
    ran = load()
    assert ran.returncode == 0
    assert not sign.exists()
    assert ran.stderr.count("only you can write") == 1
    assert calls(quick) == 6


def test_a_folder_that_a_group_can_write_gets_a_private_one_inside(cache: Path, quick: Path) -> None:
    """As a umask of 002 makes them."""
    cache.mkdir()
    cache.chmod(0o775)
    build.build()
    build.build()
    assert calls(quick) == 3
    assert built(cache).parent == cache / f"private-{os.geteuid()}"
    assert not built(cache).parent.stat().st_mode & 0o077


def gone(marks: Path) -> bool:
    """Whether the processes whose numbers are written in `marks` have ended."""
    numbers = [int(line) for line in marks.read_text().split()]
    assert numbers
    return not any(Path(f"/proc/{n}/cmdline").exists() and Path(f"/proc/{n}/cmdline").read_bytes() for n in numbers)


@pytest.mark.parametrize("when", ["compiling", "linking", "asked for its version"])
def test_a_compiler_that_hangs_is_ended_and_the_portable_path_runs(
    when: str, cache: Path, compiler: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, until: Callable[..., object],
) -> None:  # fmt: skip
    marks = tmp_path / "marks"
    # The one that sleeps is a child of the driver, as the real compiler is, and holds the driver's output open.
    hang = f'sleep 600 & echo $! >> {marks}; echo half > "$out"; wait'
    path = compiler({"linking": f"case $1 in -shared) {hang};; *) echo > $out;; esac"}.get(when, hang))
    if when.startswith("asked"):
        path.write_text(f"#!/bin/sh\nout=/dev/null\n{hang}\n")
    monkeypatch.setattr(build, "PATIENCE", 1.0)
    build.library.cache_clear()
    start = time.monotonic()
    assert build.library() is None
    assert build.library() is None
    assert time.monotonic() - start < 40, "nor the fifty seconds of a first use, nor the ten minutes of the compiler"
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "took too long" in said[0].getMessage()
    assert "portable path" in said[0].getMessage()
    assert {path.suffix for path in cache.iterdir()} <= {".lock"}
    until(lambda: gone(marks), 10)


def test_nobody_waits_a_minute() -> None:
    assert build.PATIENCE < 60


def test_a_compiler_that_is_killed_leaves_nothing(cache: Path, compiler: Callable[[str], Path]) -> None:
    compiler("echo half > $out; kill -9 $$")
    with pytest.raises(build.BuildError, match="ended by signal 9"):
        build.build()
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


def test_what_a_killed_build_left_is_removed_by_the_next(
    cache: Path, compiler: Callable[[str], Path], quick: Path, until: Callable[..., object]
) -> None:
    fast = Path(os.environ["CXX"]).read_text()
    slow = compiler("echo half > $out; sleep 30")
    process = subprocess.Popen([sys.executable, "-c", LOAD])
    until(lambda: list(cache.glob("building-*/*.o")), 60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(cache.glob("building-*"))
    slow.write_text(fast)
    build.build()
    assert {path.suffix for path in cache.iterdir()} == {".so", ".json", ".lock"}


def test_two_processes_at_once_build_it_once(
    cache: Path, compiler: Callable[[str], Path], quick: Path, ready: Path
) -> None:
    compiler(f'echo "$@" >> {quick}\nsleep 1\ncase $1 in -shared) cp {ready} $out;; *) echo > $out;; esac')
    both = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert calls(quick) == 3
    assert build.is_whole(built(cache))


def test_another_process_that_hangs_is_not_waited_for(
    cache: Path, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    # Asking the compiler for its version may itself take all of so short a patience on a crowded machine.
    monkeypatch.setattr(build, "_key", lambda *_: "key")
    build.build()
    built(cache).unlink()
    (lock,) = cache.glob("*.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(build.TimeUpError, match="another process"):
            build.build(patience=0.3)
