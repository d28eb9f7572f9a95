"""A package of somebody else's, installed beside ours, adds an analysis, its figure, a composer and a puzzle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dcinterp.model.compose.base import Composer
from dcinterp.support import extensions
from dcinterp.support.errors import UserError

PROMPT = "There are tea, meat, meat. Which is not meat? The"
ENTRIES = """
[dcinterp.analyses]
count_tokens = their_package.counting:count_tokens

[dcinterp.figures]
counted = their_package.drawing

[dcinterp.composers]
theirs = their_package.composing:Theirs

[dcinterp.puzzles]
last-word = their_package.puzzle:LastWord
"""
COUNTING = '''
from dataclasses import dataclass
from typing import Any

from dcinterp.results.registry import analysis
from dcinterp.results.result import Result


@dataclass(frozen=True)
class CountedByThem(Result):
    """How many tokens a prompt has."""

    tokens: int


@analysis(title="Tokens", question="How many?", guide="analyses.md", example={"prompt": "tea"})
def count_tokens(bridge: Any, prompt: str) -> CountedByThem:
    """How many tokens a prompt has."""
    return CountedByThem(tokens=bridge.to_tokens(prompt).shape[1])
'''
DRAWING = """
import plotly.graph_objects as go

RESULT, KIND = "CountedByThem", ""


def plot(result, *, theme="light"):
    return go.Figure(go.Bar(x=["tokens"], y=[result.tokens]))
"""
COMPOSING = """
from dcinterp.model.compose.static import StaticCompose


class Theirs(StaticCompose):
    name = "theirs"
"""
PUZZLE = """
from dcinterp.train.data.puzzles import PUZZLES


class LastWord(PUZZLES["pairing"]):
    name = "last-word"
"""


def install(folder: Path, entries: str = ENTRIES, name: str = "their-package") -> Path:
    """What pip leaves in an environment, without pip."""
    package = folder / "their_package"
    package.mkdir(parents=True, exist_ok=True)
    files = {"__init__": "", "counting": COUNTING, "drawing": DRAWING, "composing": COMPOSING, "puzzle": PUZZLE}
    for module, text in files.items():
        (package / f"{module}.py").write_text(text)
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    return folder


def give(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of dcinterp in a process of its own, with what is installed in `folder`."""
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    words = [sys.executable, "-m", "dcinterp", *command]
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": paths}, timeout=300
    )


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages in a folder of this process's path, and nothing of them afterwards."""

    def there(entries: str, name: str = "their-package") -> None:
        install(tmp_path / name, entries, name)
        monkeypatch.syspath_prepend(tmp_path / name)
        extensions.entries.cache_clear()

    before = set(sys.modules)
    yield there
    for module in set(sys.modules) - before:
        if module.startswith("their_package"):
            del sys.modules[module]
    monkeypatch.undo()
    extensions.entries.cache_clear()


def test_a_command_knows_what_a_package_adds(tmp_path):
    place = install(tmp_path / "site")
    listed = give(place, "analyze", "--help")
    assert "count-tokens" in listed.stdout
    assert "Added by their-package" in listed.stdout
    figure = tmp_path / "tokens.html"
    options = ("--prompt", PROMPT, "--save", str(tmp_path / "saved"), "--figure", str(figure))
    made = give(place, "analyze", "count-tokens", "dcformer++", *options)
    assert made.returncode == 0, made.stderr
    assert figure.stat().st_size > 0
    again = give(place, "replay", str(tmp_path / "saved"))
    assert again.returncode == 0, again.stderr
    without = give(tmp_path, "replay", str(tmp_path / "saved"))
    assert without.returncode == 2
    assert "holds a CountedByThem of their_package.counting; import their_package.counting first" in without.stderr


def test_a_run_trains_what_a_package_adds(tmp_path):
    place = install(tmp_path / "site")
    config = tmp_path / "run.yaml"
    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    phases = [{"source": "puzzle", "steps": 2, "batch_size": 2}]
    settings = {
        "output": str(tmp_path / "run"),
        "model": {"preset": "tiny-transformer++", "changes": sizes | {"compose": "theirs"}},
        "data": {"puzzle": {"name": "last-word"}, "phases": phases},
        "evaluation": {"every": 2, "watch": False},
    }
    config.write_text(yaml.safe_dump(settings))
    ran = give(place, "train", str(config))
    assert ran.returncode == 0, ran.stderr + ran.stdout
    for command in (("train", str(config), "--output", str(tmp_path / "other")), ("load", str(tmp_path / "run/model"))):
        unknown = give(tmp_path, *command)
        assert unknown.returncode == 2
        assert "One that another package adds is known once that is installed" in unknown.stderr, unknown.stderr


def test_a_worker_says_which_packages_it_computes_by(tmp_path):
    place = install(tmp_path / "site")
    code = "from dcinterp.results.on_cluster import own_code; print(own_code())"
    paths = {"PYTHONPATH": os.pathsep.join([str(place), *sys.path[:1]])}

    def said() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | paths
        ).stdout

    first = said()
    assert "with their-package (sources " in first
    (place / "their_package" / "counting.py").write_text(COUNTING + "\n# changed\n")
    assert said() != first


def test_a_composer_is_imported_when_its_name_is_asked_for(installed):
    classes = extensions.Classes({}, Composer, "composers")
    installed("[dcinterp.composers]\ntheirs = their_package.composing:Theirs\n")
    assert list(classes) == ["theirs"]
    assert "theirs" in classes
    assert len(classes) == 1
    assert "their_package" not in sys.modules
    assert classes["theirs"].name == "theirs"
    assert "ours" not in classes
    with pytest.raises(KeyError):
        classes["ours"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("their_package.nowhere:Theirs", r"their_package.nowhere:Theirs does not load \(ModuleNotFoundError"),
        ("their_package.composing:StaticCompose", "is no Composer whose name is 'theirs'"),
    ],
)
def test_what_does_not_fit_is_named_with_its_package(installed, value, said):
    installed(f"[dcinterp.composers]\ntheirs = {value}\n")
    classes = extensions.Classes({}, Composer, "composers")
    with pytest.raises(UserError, match=f"their-package adds 'theirs' to dcinterp.composers, and .*{said}"):
        classes["theirs"]


def test_a_name_that_there_is_already_is_refused(installed):
    installed("[dcinterp.composers]\ndynamic = their_package.composing:Theirs\n")
    classes = extensions.Classes({"dynamic": Composer}, Composer, "composers")
    with pytest.raises(UserError, match=r"their-package adds 'dynamic' to dcinterp.composers, which has one; mend"):
        classes["dynamic"]


def test_two_packages_with_one_name_are_refused(installed):
    installed("[dcinterp.puzzles]\none = their_package.puzzle:LastWord\n")
    installed("[dcinterp.puzzles]\none = their_package.other:LastWord\n", "another-package")
    with pytest.raises(UserError, match=r"both add 'one' to dcinterp.puzzles; uninstall one of them"):
        extensions.entries("puzzles")


def test_what_does_not_load_is_left_out_of_lists(installed):
    installed("[dcinterp.figures]\nbroken = their_package.nowhere\nwhole = their_package.drawing\n")
    with pytest.warns(UserWarning, match="their-package adds 'broken' to dcinterp.figures.* It is left out"):
        found = extensions.load_all("figures")
    assert list(found) == ["whole"]
