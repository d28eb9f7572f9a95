"""`dcinterp app`: open the workbench in the browser."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.cli._models import TOKENIZER, model_names
from dcinterp.support.errors import UserError, nearest

MODELS_VARIABLE = "DCINTERP_MODELS"
"""How the app learns which models it was started with: one a line, as its names may hold colons."""
TOKENIZER_MARK = "::tokenizer="
"""What stands in the app's name of a model between the model and the folder of another tokenizer."""


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Folders, .gguf files or hub ids, beside the shipped models.", autocompletion=model_names),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes any free one.")] = 8501,
    tokenizer: Annotated[str | None, TOKENIZER] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser, or only print the address.")] = True,
) -> None:
    """Open the workbench in the browser, on the shipped models and on any that are named.

    It listens on this machine only. Ctrl-C ends it.

    Examples:

        dcinterp app

        dcinterp app --port 8600 --no-browser

        dcinterp app runs/my-run/model

        dcinterp app my-model --tokenizer my-tokenizer
    """
    from dcinterp.checkpoints.names import (
        PLANTED,
        gguf_file,
        is_adapter,
        refuse_file,
        refuse_missing_folder,
        shipped_models,
    )
    from dcinterp.checkpoints.read import read_config_file

    for model in models or []:
        if gguf_file(Path(model)) is not None or is_adapter(Path(model)):
            continue
        if Path(model).is_dir():
            read_config_file(Path(model))
        else:
            refuse_file(model)
            refuse_missing_folder(model)
            if "/" not in model and not model.startswith(PLANTED) and model not in shipped_models():
                note = f"{model!r} is no folder and no shipped model ({nearest(model, shipped_models())[:-1]})"
                typer.echo(f"dcinterp: note: {note}; it is looked up on the hub when it is chosen.", err=True)
    _check_tokenizer(tokenizer, models or [])
    script, port = app_folder() / "asgi.py", _free(port)
    os.environ[MODELS_VARIABLE] = "\n".join(_name(model, tokenizer) for model in models or [])
    threading.Thread(target=_say_when_ready, args=(f"http://127.0.0.1:{port}", browser), daemon=True).start()
    from click import Abort
    from streamlit.web import cli as streamlit

    # Headless, because Streamlit puts an advertisement on the page of the browser that it opens itself. It reads its
    # configuration from the folder of the script it is given.
    options = ["--server.port", str(port), "--server.headless", "true", "--logger.hideWelcomeMessage", "true"]
    try:
        streamlit.main(["run", *options, str(script)], standalone_mode=False)
    except Abort as stopped:  # what its parser, which is not ours, makes of Ctrl-C
        raise KeyboardInterrupt from stopped


def _say_when_ready(address: str, browser: bool) -> None:
    # A proxy of the environment would be asked for this machine's own address.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(600):
        try:
            direct.open(f"{address}/_stcore/health", timeout=1)
        except OSError:
            time.sleep(0.1)
        else:
            typer.echo(f"The workbench is at {address} (Ctrl-C ends it).", err=True)
            if browser:
                webbrowser.open(address)
            return
    typer.echo(f"The workbench does not answer yet; it will be at {address} (Ctrl-C ends it).", err=True)


def _free(port: int) -> int:
    """The port, if nobody listens there; any free one for 0."""
    with socket.socket() as probe:
        # As the server does: a port that is only waiting to be forgotten is free. On Windows it means a used one too.
        if os.name != "nt":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"Port {port} is in use, perhaps by another workbench; give another --port.") from error
        return int(probe.getsockname()[1])


def app_folder() -> Path:
    """Where the app lies: inside the installed package, or beside it in the repository."""
    package = Path(__file__).parents[1]
    for folder in (package / "app", package.parent / "app"):
        if (folder / "asgi.py").is_file():
            return folder
    raise UserError("The app is missing from this installation; install dcinterp again.")


def _check_tokenizer(tokenizer: str | None, models: list[str]) -> None:
    if tokenizer is None:
        return
    from dcinterp.checkpoints.tokenizer_files import read_tokenizer

    if not models:
        raise UserError("--tokenizer is for the models that are named; name one before it.")
    read_tokenizer(tokenizer)


def _name(model: str, tokenizer: str | None) -> str:
    """A model as the app calls it, from whichever folder it is started."""
    return _absolute(model) + ("" if tokenizer is None else f"{TOKENIZER_MARK}{_absolute(tokenizer)}")


def _absolute(place: str) -> str:
    return str(Path(place).resolve()) if Path(place).exists() else place
