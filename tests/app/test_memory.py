"""Memory that threads have freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

APP = Path(__file__).parents[2] / "app"
# Many threads take and free blocks of 100 kB, and keep one of ten; prints megabytes after that and a second later.
PROGRAM = """
import ctypes, sys, threading, time
import memory
memory.EVERY = 0.2
if sys.argv[1] == "bounded":
    assert memory.give_back()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
waiting = threading.Barrier(9)

def work():
    waiting.wait()
    blocks = [library.malloc(100_000) for _ in range(100)]
    for block in blocks:
        library.memset(block, 1, 100_000)
    waiting.wait()
    for i, block in enumerate(blocks):
        if i % 10:
            library.free(block)
    waiting.wait()

for _ in range(8):
    threading.Thread(target=work).start()
for _ in range(3):
    waiting.wait()
time.sleep(0.5)
print(int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0]) // 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about the C library of Linux")
def test_what_threads_have_freed_goes_back_to_the_system():
    def megabytes(how: str) -> int:
        command = [sys.executable, "-c", PROGRAM, how]
        done = subprocess.run(command, capture_output=True, text=True, cwd=APP, timeout=60, check=True)
        return int(done.stdout)

    assert megabytes("bounded") < 0.6 * megabytes("as it is")
