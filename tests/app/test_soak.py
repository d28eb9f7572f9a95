"""Many people for minutes: no error, and memory that stays within a bound. Opt in: `make soak`.

Most of them are connections as a browser opens them, without a browser; some are tabs of Chromium, which act in turns:
on a few cores thirty that draw would measure Chromium. `DCINTERP_SOAK` is how many minutes it goes on,
`DCINTERP_SOAK_SESSIONS` how many people there are, `DCINTERP_SOAK_TABS` how many of them have a browser.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

MINUTES = float(os.environ.get("DCINTERP_SOAK", 0))
SESSIONS = int(os.environ.get("DCINTERP_SOAK_SESSIONS", 30))
TABS = min(int(os.environ.get("DCINTERP_SOAK_TABS", 3)), SESSIONS)
PAGES = ("", "attention", "composition", "attribution", "edges", "logits", "ov-circuits", "interventions", "tasks")
GROWTH = 1.15
"""Of the median memory of the last third of the time to that of the third before it, when all caches are full."""
PATIENCE = 600.0
"""Seconds for one page: with many others at work it waits its turn."""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not MINUTES, reason="takes minutes: `make soak`, or set DCINTERP_SOAK to how many"),
]


class Seen:
    """What came of it so far."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.seconds: list[float] = []
        self.in_tabs: list[float] = []


def somewhere(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """A page, and a choice of inputs that its link holds."""
    query = {"task": draw.choice(["task2", "task10", "task29"]), "example": draw.randrange(20)}
    return draw.choice(PAGES), query | {"layer": draw.randrange(3), "head": draw.randrange(8)}


async def session(address: str, seed: int, until: float, seen: Seen) -> None:
    """One person who opens page after page, and looks at one example after the other."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    draw, place = random.Random(seed), address.replace("http", "ws") + "/_stcore/stream"
    while time.monotonic() < until:
        async with websockets.connect(place, max_size=None, subprotocols=["streamlit"]) as socket:
            for _ in range(draw.randrange(3, 12)):  # then the page is loaded again
                message = BackMsg()
                message.rerun_script.page_name, query = somewhere(draw)
                message.rerun_script.query_string = urlencode(query)
                began = time.monotonic()
                await socket.send(message.SerializeToString())
                while True:
                    reply = ForwardMsg()
                    reply.ParseFromString(await asyncio.wait_for(socket.recv(), timeout=PATIENCE))
                    kind = reply.WhichOneof("type")
                    if kind == "delta" and reply.delta.new_element.HasField("exception"):
                        message_of = reply.delta.new_element.exception.message
                        seen.errors.append(f"{message.rerun_script.page_name}: {message_of}")
                    if kind == "script_finished":
                        break
                seen.seconds.append(time.monotonic() - began)
                await asyncio.sleep(draw.random() * 4)
                if time.monotonic() > until:
                    return


def look(page: Any, address: str, draw: random.Random, seen: Seen) -> None:
    """What somebody with a browser does next: another page of the sidebar, or a link."""
    began = time.monotonic()
    name, query = somewhere(draw)
    if draw.random() < 0.5 and page.url.startswith(address):
        page.locator("[data-testid=stSidebarNavLink]").nth(draw.randrange(len(PAGES))).click()
        page.wait_for_timeout(300)
    else:
        page.goto(f"{address}/{name}?{urlencode(query)}", timeout=1000 * PATIENCE)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=1000 * PATIENCE)
    if shown := page.locator("[data-testid=stException]").all_inner_texts():
        seen.errors.append(f"{page.url}: {shown[0]}")
    seen.in_tabs.append(time.monotonic() - began)


def memory(process_id: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8")
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def say(line: str) -> None:
    sys.__stdout__.write(f"{line}\n")
    sys.__stdout__.flush()


def watch(process_id: int, seen: Seen, measured: list[float], over: threading.Event) -> None:
    """Measure the memory every two seconds, and say once a minute what came of it."""
    began, minute = time.monotonic(), 0
    while not over.wait(2):
        measured.append(memory(process_id))
        if time.monotonic() - began > 60 * (minute + 1):
            minute += 1
            lately = measured[-30:]
            say(
                f"minute {minute}: {statistics.median(lately):.0f} MB (at most {max(lately):.0f}), "
                f"{len(seen.seconds)} pages of connections, {len(seen.in_tabs)} of tabs, {len(seen.errors)} errors"
            )


def test_many_people_for_minutes(server, server_process, browser):
    seen, measured, over = Seen(), [], threading.Event()
    until = time.monotonic() + 60 * MINUTES

    async def connections() -> None:
        await asyncio.gather(*(session(server, seed, until, seen) for seed in range(SESSIONS - TABS)))

    def all_connections() -> None:
        try:
            asyncio.run(connections())
        except Exception as error:
            seen.errors.append(f"connection: {error!r}")

    threads = [
        threading.Thread(target=all_connections),
        threading.Thread(target=watch, args=(server_process, seen, measured, over)),
    ]
    tabs = [browser.new_context().new_page() for _ in range(TABS)]
    for tab in tabs:
        tab.on("pageerror", lambda error: seen.errors.append(f"in the browser: {error}"))
    for thread in threads:
        thread.start()
    try:
        draw = random.Random(0)
        while tabs and time.monotonic() < until:
            look(draw.choice(tabs), server, draw, seen)
    finally:
        threads[0].join(timeout=60 * MINUTES + PATIENCE)
        over.set()
        threads[1].join()
        for tab in tabs:
            tab.context.close()
    third = len(measured) // 3
    middle, end = statistics.median(measured[third : 2 * third]), statistics.median(measured[2 * third :])
    times = sorted(seen.seconds)
    say(
        f"{SESSIONS} people ({TABS} with a browser), {MINUTES:g} minutes, {len(times) + len(seen.in_tabs)} pages, "
        f"{len(seen.errors)} errors; seconds a page: median {times[len(times) // 2]:.1f}, 95 % "
        f"{times[int(0.95 * len(times))]:.1f}; megabytes: {measured[0]:.0f} at first, {middle:.0f} in the middle third "
        f"(median), {end:.0f} in the last, at most {max(measured):.0f}"
    )
    assert not seen.errors, seen.errors[:3]
    assert end < GROWTH * middle
