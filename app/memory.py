"""Memory that runs of pages have freed goes back to the system.

Streamlit runs every page in a thread of its own, and the C library of Linux gives threads heaps of their own: after
some minutes of many sessions most memory of the process was free pieces in them, and it grew on.
"""

import ctypes
import threading
import time

ARENA_MAX, MMAP_THRESHOLD = -8, -3
"""The numbers of `mallopt` in malloc.h."""
HEAPS = 2
LARGE = 2**20
"""Bytes from which a block is taken from the system by itself, and goes back as soon as it is free."""
EVERY = 20.0
"""Seconds between two times at which free memory goes back."""


def give_back() -> bool:
    """Share few heaps among all threads, and return what is free in them now and then.

    Call it before threads are started. False where the C library has no such settings, as on macOS.
    """
    try:
        library = ctypes.CDLL(None)
        set_option, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError, TypeError):
        return False
    set_option(ARENA_MAX, HEAPS)
    set_option(MMAP_THRESHOLD, LARGE)

    def now_and_then() -> None:
        while True:
            time.sleep(EVERY)
            trim(0)  # a foreign call: other threads go on meanwhile

    threading.Thread(target=now_and_then, daemon=True, name="free memory").start()
    return True
