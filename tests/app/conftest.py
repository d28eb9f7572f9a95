"""A running workbench and a browser to drive it; and the app in this process, without a browser."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from warm_python import warm

APP = Path(__file__).parents[2] / "app"


@pytest.fixture(scope="session")
def addresses() -> dict[str, Any]:
    """The pages by their addresses, as Streamlit knows them once the app has run."""
    return {}


@pytest.fixture
def new_app(monkeypatch, tmp_path, as_served, addresses) -> Callable[[], Any]:
    """Opens the workbench in this process and in an empty folder, each time as somebody else would.

    It opens at whichever page it is switched to, as a browser does. Left to itself AppTest learns the addresses of the
    pages in its first run, which is that of the first page: a whole case study before every other page.
    """
    from streamlit.testing.v1 import AppTest

    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.chdir(tmp_path)

    def make() -> Any:
        return AppTest.from_file(str(APP / "streamlit_app.py"), default_timeout=300)

    def at_any_page() -> Any:
        if not addresses:
            addresses.update(make().run()._registered_pages)
        made = make()
        made._registered_pages = dict(addresses)
        return made

    return at_any_page


@pytest.fixture
def app(new_app):
    """The workbench in this process, opened in an empty folder."""
    return new_app()


@pytest.fixture(scope="session")
def running(tmp_path_factory) -> Iterator[tuple[str, int]]:
    """(address, process id) of `dcinterp app`, started as a user starts it, in an empty folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dcinterp", "app", "--no-browser", "--port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    place = tmp_path_factory.mktemp("workbench")
    with warm():
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
    """Headless Chromium: the system's, or the one that Playwright has installed.

    Debian's package without a window draws a page in two thirds of the other's time.
    """
    from playwright.sync_api import Error, sync_playwright

    own = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-quic"]
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=own, args=flags)
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
