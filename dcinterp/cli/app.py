"""`dcinterp app`: open the workbench in the browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from dcinterp.errors import UserError

MODELS_VARIABLE = "DCINTERP_MODELS"
"""How the app learns which models it was started with: folders and hub ids, separated as in PATH."""


def command(
    models: Annotated[
        list[str] | None, typer.Argument(help="Model folders or hub ids, beside the shipped ones.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8501,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Open the workbench, on the shipped models and on any that are named.

    Examples:

        dcinterp app

        dcinterp app runs/my-model/model --port 8600
    """
    from dcinterp.loading import read_config_file, refuse_missing_folder

    for model in models or []:
        if Path(model).is_dir():
            read_config_file(Path(model))
        else:
            refuse_missing_folder(model)
    script = app_folder() / "asgi.py"
    environment = os.environ | {MODELS_VARIABLE: os.pathsep.join(map(_absolute, models or []))}
    options = ["--server.port", str(port), "--server.headless", "false" if browser else "true"]
    # Streamlit reads its configuration from the folder of the script it is given.
    code = subprocess.call([sys.executable, "-m", "streamlit", "run", *options, str(script)], env=environment)
    raise typer.Exit(code)


def app_folder() -> Path:
    """Where the app lies: inside the installed package, or beside it in the repository."""
    package = Path(__file__).parents[1]
    for folder in (package / "app", package.parent / "app"):
        if (folder / "asgi.py").is_file():
            return folder
    raise UserError("The app is missing from this installation; install dcinterp again.")


def _absolute(model: str) -> str:
    return str(Path(model).resolve()) if Path(model).is_dir() else model
