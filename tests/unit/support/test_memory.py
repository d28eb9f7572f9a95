"""Memory that the process keeps, each time in a process of its own: what others have freed would be used first."""

import os
import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from dcinterp.support.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(20_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1])

print(faults())
with keep_freed_memory():
    faults()
    faults()
    print(faults())
    print(resident())
print(resident())
"""
"""Prints the pages that the system gave for ten tensors, before and within, and those that the process had."""
SET_UP = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def counts(**variables: str) -> list[int]:
    """What `COUNT` prints in an environment that says nothing else of malloc."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SET_UP)} | variables
    done = subprocess.run([sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives large blocks back at once")
def test_freed_memory_is_used_again_and_goes_back_in_the_end():
    before, within, kept, left = counts()
    assert within < before / 5
    assert left < kept


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives large blocks back at once")
def test_nothing_is_done_where_the_environment_sets_up_malloc():
    before, within, *_ = counts(MALLOC_ARENA_MAX="1")
    assert within > before / 2
