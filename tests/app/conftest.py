"""A running workbench and a browser to drive it; and the app in this process, without a browser."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

APP = Path(__file__).parents[2] / "app"


@pytest.fixture
def app(monkeypatch, tmp_path, scanned_once):
    """The workbench in this process, started in an empty folder."""
    from streamlit.testing.v1 import AppTest

    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.chdir(tmp_path)
    return AppTest.from_file(str(APP / "streamlit_app.py"), default_timeout=300)


@pytest.fixture(scope="session")
def running(tmp_path_factory) -> Iterator[tuple[str, int]]:
    """(address, process id) of `dcinterp app`, started as a user starts it, in an empty folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dcinterp", "app", "--no-browser", "--port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    place = tmp_path_factory.mktemp("workbench")
    process = subprocess.Popen(command, env=environment, cwd=place, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=1)
                break
            except OSError:
                assert process.poll() is None, "the app ended before it answered"
                time.sleep(0.25)
        yield address, process.pid
    finally:
        os.killpg(process.pid, 15)
        process.wait(timeout=20)


@pytest.fixture
def server(running) -> str:
    """The address of the running app."""
    return running[0]


@pytest.fixture
def server_process(running) -> int:
    """The id of the process that was started."""
    return running[1]


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium: the system's, or the one that Playwright has installed."""
    from playwright.sync_api import Error, sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-quic"]
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        except Error as error:
            pytest.skip(f"no Chromium to drive; install Debian's chromium or `playwright install chromium`: {error}")
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A fresh browser profile at 1440 pixels."""
    # Without a graphics card every frame of an animation is drawn by the processor.
    look = {"color_scheme": "light", "reduced_motion": "reduce"}
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, **look)
    yield context.new_page()
    context.close()
