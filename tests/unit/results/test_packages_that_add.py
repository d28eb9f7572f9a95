"""A package of somebody else's, installed beside ours, adds an analysis, its figure, a composer and a puzzle."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml

from dcinterp import figures
from dcinterp.model.compose import registry
from dcinterp.model.compose.base import Composer
from dcinterp.model.compose.registry import COMPOSERS, mechanism_rows
from dcinterp.model.compose.static import StaticCompose
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


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with what is installed in `folder`."""
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment, timeout=300
    )


def give(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The same of a command of dcinterp."""
    return run(folder, "-m", "dcinterp", *command)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages in a folder of this process's path, and nothing of them afterwards."""

    def there(entries: str, name: str = "their-package") -> None:
        install(tmp_path / name, entries, name)
        monkeypatch.syspath_prepend(tmp_path / name)
        extensions.entries.cache_clear()
        extensions._told.clear()

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
    assert "dcinterp analyze count-tokens dcformer++ --prompt" in again.stdout
    without = give(tmp_path, "replay", str(tmp_path / "saved"))
    assert without.returncode == 2
    assert (
        "holds a CountedByThem of their_package.counting; install that package, or import their_package.counting first"
        in without.stderr
    )


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

    def said() -> str:
        return run(place, "-c", "from dcinterp.results.on_cluster import own_code; print(own_code())").stdout

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
        extensions.load_entry("puzzles", "one")


def test_packages_that_clash_stop_nothing_else(tmp_path):
    """Neither models and results without them, nor lists."""
    install(tmp_path / "site", "[dcinterp.analyses]\nlook = their_package.counting:count_tokens\n")
    added = "[dcinterp.analyses]\nlook = x:look\n\n[dcinterp.composers]\nstatic = x:Static\nnew = x:New\n"
    install(tmp_path / "site", added, "another-package")
    place = tmp_path / "site"
    made = give(place, "analyze", "predict", "transformer++", "--prompt", PROMPT, "--save", str(tmp_path / "saved"))
    assert made.returncode == 0, made.stderr
    assert give(place, "replay", str(tmp_path / "saved")).returncode == 0
    assert "their-package and another-package both add 'look'" in give(place, "analyze", "look", "--help").stderr
    code = "from dcinterp.model.compose.registry import *; mechanism_rows(); COMPOSERS['dynamic']; "
    assert run(place, "-c", code).returncode == 0
    said = run(place, "-c", code + "COMPOSERS['static']").stderr
    assert "another-package adds 'static' to dcinterp.composers, which has one" in said


def test_what_does_not_load_is_left_out_of_lists(installed):
    installed("[dcinterp.figures]\nbroken = their_package.nowhere\nwhole = their_package.drawing\n")
    with pytest.warns(UserWarning, match="their-package adds 'broken' to dcinterp.figures.*; it is left out"):
        found = extensions.load_all("figures")
    assert list(found) == ["their_package.drawing"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extensions.load_all("figures")  # said once


def test_an_analysis_of_a_name_that_there_is_leaves_ours_alone(tmp_path):
    place = install(tmp_path / "site", "[dcinterp.analyses]\npredict = their_package.counting:predict\n")
    theirs = COUNTING.replace("count_tokens", "predict")
    (place / "their_package" / "counting.py").write_text(theirs)
    code = "from dcinterp.results.registry import ANALYSES; print(len(list(ANALYSES)), ANALYSES['predict'].title)"
    listed = run(place, "-c", code)
    assert listed.stdout.split(maxsplit=1)[1].strip() == "Prediction"
    assert "adds 'predict' to dcinterp.analyses, and dcinterp has one of that name; it is left out" in listed.stderr
    said = run(place, "-c", "import their_package.counting")
    assert "TypeError: dcinterp.analysis.answers.predict has an analysis predict already" in said.stderr


@pytest.mark.parametrize(
    ("entries", "file", "said"),
    [
        ("look-back = their_package.counting:count_tokens", "", "an analysis has the name of its function there"),
        ("count_tokens = their_package.counting:count_tokens", "import sys; sys.exit('no')", r"\(SystemExit: no\)"),
        (
            "count_tokens = their_package.counting:count_tokens",
            COUNTING.replace("CountedByThem", "Prediction"),
            "dcinterp has a kind of result Prediction already",
        ),
    ],
)
def test_an_analysis_that_does_not_fit_is_left_out(installed, tmp_path, entries, file, said):
    installed(f"[dcinterp.analyses]\n{entries}\n")
    (tmp_path / "their-package" / "their_package" / "counting.py").write_text(file or COUNTING)
    with pytest.warns(UserWarning, match=f"their-package adds .*{said}.*; it is left out"):
        assert extensions.load_all("analyses") == {}
    if file:
        with pytest.raises(UserError, match=f"their-package adds .*{said}.*; mend that package or uninstall it"):
            extensions.load_entry("analyses", "count_tokens")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (DRAWING.replace("KIND", "SORT"), "it needs RESULT and KIND"),
        (DRAWING.replace("CountedByThem", "Prediction"), "it draws the same figure as dcinterp.figures"),
    ],
)
def test_a_figure_that_does_not_fit_is_left_out(installed, tmp_path, module, said):
    installed("[dcinterp.figures]\ntheirs = their_package.drawing\nagain = their_package.drawing\n")
    (tmp_path / "their-package" / "their_package" / "drawing.py").write_text(module)
    with pytest.warns(UserWarning, match=f"their-package adds '(theirs|again)' to dcinterp.figures, and {said}"):
        found = figures.kinds.__wrapped__()
    assert not [each for each in found.values() if each.__name__.startswith("their_package")]


def test_lists_of_composers_leave_out_what_does_not_load(installed):
    installed("[dcinterp.composers]\nbroken = their_package.nowhere:Broken\n")
    with pytest.warns(UserWarning, match=r"adds 'broken' to dcinterp.composers.*; it is left out"):
        rows = mechanism_rows()
    assert "broken" not in [row[1] for row in rows]
    assert "broken" in COMPOSERS


def test_what_is_put_in_by_hand_is_held_to_the_same(monkeypatch):
    class Mine(StaticCompose):
        name = "by-hand"

    monkeypatch.setattr(registry, "COMPOSERS", extensions.Classes(dict(COMPOSERS), Composer, "composers", ("none",)))
    mine = registry.COMPOSERS
    mine["by-hand"] = Mine
    assert mine["by-hand"] is Mine
    for name, value in (("other", Mine), ("static", Mine), ("none", Mine), ("by-hand", 3)):
        with pytest.raises(UserError, match=f"'{name}' cannot stand in dcinterp.composers: "):
            mine[name] = value
    del mine["by-hand"]
    assert "by-hand" not in mine
    mine.clear()
    assert not mine


def test_a_package_may_move_its_analysis(tmp_path):
    place = install(tmp_path / "site")
    saved = tmp_path / "saved"
    made = give(place, "analyze", "count-tokens", "dcformer++", "--prompt", PROMPT, "--save", str(saved))
    assert made.returncode == 0, made.stderr
    package = place / "their_package"
    (package / "counting.py").rename(package / "moved.py")
    (place / "their_package-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES.replace("counting", "moved"))
    again = give(place, "replay", str(saved))
    assert again.returncode == 0, again.stderr
