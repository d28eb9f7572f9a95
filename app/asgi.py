"""The server: the app, with the slow imports begun before anybody asks for a page."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st
from streamlit import net_util

import memory
import preload

# A page of another origin that asks this server is refused either way. Before that Streamlit would ask the network for
# the address that this machine has outside, to compare it; nothing leaves this machine unless a person wants it.
net_util.get_external_ip = lambda: None

memory.give_back()


@asynccontextmanager
async def _lifespan(app: st.App) -> AsyncIterator[None]:
    threading.Thread(target=preload.heavy_imports, daemon=True).start()
    yield


app = st.App(Path(__file__).parent / "streamlit_app.py", lifespan=_lifespan)
