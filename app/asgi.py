"""The server: the app, with the slow imports begun before anybody asks for a page."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st

import preload


@asynccontextmanager
async def _lifespan(app: st.App) -> AsyncIterator[None]:
    threading.Thread(target=preload.heavy_imports, daemon=True).start()
    yield


app = st.App(Path(__file__).parent / "streamlit_app.py", lifespan=_lifespan)
