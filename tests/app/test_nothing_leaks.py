"""Nothing leaves this machine unasked, and no text becomes a part of the page or of an exported file."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import plotly.graph_objects as go
import pytest

import dcinterp
from dcinterp import figures
from dcinterp.figures.base import export
from dcinterp.figures.base.describe import describe
from dcinterp.figures.base.rows import rows

APP = Path(__file__).parents[2] / "app"
EVIL = '</script><script>document.title="taken"</script>'
PICTURE = "![x](http://foreign.example/x.png)"


def test_a_foreign_origin_is_refused_without_asking_the_network(monkeypatch):
    from streamlit import net_util
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    monkeypatch.syspath_prepend(str(APP))
    monkeypatch.setattr(net_util, "get_external_ip", net_util.get_external_ip)  # put back after the test
    runpy.run_path(str(APP / "asgi.py"))

    def asked(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(net_util, "_make_blocking_http_get", asked)
    assert not is_url_from_allowed_origins("http://foreign.example")
    assert is_url_from_allowed_origins("http://127.0.0.1:8501")


@pytest.mark.slow
def test_a_page_of_a_foreign_origin_cannot_talk_to_the_app(server):
    import websockets
    from websockets.exceptions import InvalidHandshake

    async def knock() -> None:
        place = server.replace("http", "ws") + "/_stcore/stream"
        async with websockets.connect(place, origin="http://foreign.example", subprotocols=["streamlit"]):
            pass

    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool, pytest.raises(InvalidHandshake):
        pool.submit(lambda: asyncio.run(knock())).result(timeout=60)
    assert time.monotonic() - began < 10


@pytest.fixture(scope="module")
def evil(shipped):
    """A result whose tokens are markup."""
    made = dcinterp.attention_patterns(shipped, "Ruth has a violin.", 1)
    tokens = (EVIL, "<unk>", "<b>bold</b>", '<a href="http://foreign.example">x</a>', '"onload="x', made.tokens[-1])
    return dataclasses.replace(made, tokens=tokens[: len(made.tokens)])


def test_tokens_cannot_leave_their_place_in_an_exported_page(evil):
    figure = figures.plot(evil, head=0)
    for made in (export.page(evil, figure, caption=EVIL), export.whole_page(EVIL, [(evil, figure, EVIL)])):
        text = made.decode()
        assert "<script>document.title" not in text
        assert text.count("</script>") == text.count("<script"), "no script ends before its end"
        assert '<a href="http://foreign' not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_tokens_that_look_like_tags_are_seen_in_every_form_of_a_figure(evil, monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    from workbench.heatmap import payload

    figure = figures.plot(evil, head=0)
    assert "&lt;unk>" in figure.layout.xaxis.ticktext, "Plotly leaves out tags that it does not know"
    assert "<unk>" in payload(figure)["x"]
    assert any("<unk>" in str(name) for name in rows(figure)["key"])
    assert "&lt;" not in describe(figure).alternative
    bars = go.Figure(go.Bar(x=[1.0], y=["&lt;unk>"], orientation="h"))
    assert b"&amp;lt;" not in export.image(bars, "svg")


@pytest.mark.browser
def test_a_link_cannot_bring_markup_or_pictures_into_a_page(page, server):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail("a dialog was opened"))
    text = quote(
        f"Ruth has a violin. {PICTURE} `{PICTURE} <img src=http://foreign.example/y.png onerror=alert(1)> {EVIL}"
    )
    for place in (
        f"attention?prompt=text&text={text}",
        f"interventions?what={text}",
        f"hooks?search={text}",
        f"attention?model={text}&layer={text}",
    ):
        page.goto(f"{server}/{place}", timeout=90_000)
        page.wait_for_selector("[data-testid=stAlert]", timeout=120_000)
        page.wait_for_timeout(500)
    assert not [url for url in asked if "foreign" in url.split("?")[0]]
    assert page.title() != "taken"
