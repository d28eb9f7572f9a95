"""The server: the app, with the slow imports begun before anybody asks for a page."""

import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import streamlit as st


def _preload() -> None:
    import torch

    import dcinterp
    import dcinterp.bridge

    # Tiny models run fastest on one thread, and sessions do not fight over the cores.
    torch.set_num_threads(1)
    dcinterp.load  # noqa: B018
    # Streamlit collects all garbage after every run; what is imported by now never becomes any.
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def _lifespan(app: st.App) -> AsyncIterator[None]:
    threading.Thread(target=_preload, daemon=True).start()
    yield


app = st.App(Path(__file__).parent / "streamlit_app.py", lifespan=_lifespan)
