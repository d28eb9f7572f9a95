"""The scripts that lie in the folders of experiments, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "experiments"


def script(experiment: str, name: str) -> Any:
    """A script of an experiment as a module."""
    spec = importlib.util.spec_from_file_location(f"{experiment}_{name}", FOLDER / experiment / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def command_of(experiment: str) -> str:
    """That makes the words on circuits again."""
    return f"python experiments/{experiment}/circuits.py"
