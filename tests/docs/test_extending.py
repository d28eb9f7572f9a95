"""What docs/extending.md and docs/app.md tell readers to add is added to a copy of the repository, word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sitetools import blocks
from warm_python import warm

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
LINES = re.findall(r"^    (\S.*)$", PAGE.read_text(encoding="utf-8"), re.M)


def code(page: Path, mark: str) -> str:
    """The one Python block of a page that holds `mark`."""
    found = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    (block,) = (block for block in found if mark in block)
    return block


def line(start: str) -> str:
    """The line of the page that starts with `start`, as a reader would copy it."""
    (found,) = (each for each in LINES if each.startswith(start))
    return found


def insert(path: Path, before: str, text: str) -> None:
    """Put a line in front of the first one that holds `before`."""
    lines = path.read_text(encoding="utf-8").split("\n")
    place = next(number for number, each in enumerate(lines) if before in each)
    lines.insert(place, re.match(r"\s*", lines[place])[0] + text)
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The repository with a relation, two ways to compose, a layout, a circuit, and an analysis with its figure."""
    root = tmp_path_factory.mktemp("copy")
    unwanted = shutil.ignore_patterns("__pycache__", "generated", "images", "shipped")
    for part in ("dcinterp", "synthetic_tasks", "tests", "docs", "analyses"):
        shutil.copytree(ROOT / part, root / part, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", root)
    (root / "dcinterp" / "checkpoints" / "shipped").symlink_to(ROOT / "dcinterp" / "checkpoints" / "shipped")

    relation = code(PAGE, "RELATION = Relation(").partition("assert")[0]
    (root / "synthetic_tasks/relations/after_next.py").write_text(relation)

    (root / "dcinterp/model/compose/scaled.py").write_text(code(PAGE, "class ScaledCompose"))
    (root / "dcinterp/model/compose/routed.py").write_text(code(PAGE, "class RoutedCompose"))
    layout = code(PAGE, "The `plainlm` layout").partition("\n\nsmall = ")[0]
    (root / "dcinterp/checkpoints/layouts/plainlm.py").write_text(layout)

    (root / "dcinterp/analysis/attention/look_back.py").write_text(code(PAGE, "class LookBack"))
    (root / "dcinterp/planted/circuits/own_attention.py").write_text(code(PAGE, 'NAME = "own-attention"'))

    drawing = code(PAGE, 'RESULT = "LookBack"').partition("\n\nfigure = ")[0]
    (root / "dcinterp/figures/attention/look_back_grid.py").write_text(f"{drawing}\n")
    return root


def run(copy: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with warm():
        done = subprocess.run([sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_contracts_take_what_was_added(copy):
    """The tests of this repository, in one process, over the new relation, composers, analysis and circuit."""
    quiet = ("-m", "pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider", "-rN", "-vv")
    contract = ("tests/contract/test_compose.py", "tests/contract/test_tasks.py", "tests/docs/test_site.py")
    files = (*contract, "tests/causal/test_planted_truth.py")
    said = run(copy, *quiet, *files, "-k", "scaled or routed or after-next or every_analysis or own-attention")
    assert int(re.search(r"(\d+) passed", said)[1]) > 90
    assert "failed" not in said
    assert len(re.findall("test_site.py::test_every_analysis_has.* PASSED", said)) == 2
    assert re.search(r"test_an_edge_has_an_effect.*own-attention.* PASSED", said)


ADDITIONS = """
import sys
from contextlib import suppress
from pathlib import Path

import torch

import dcinterp
from dcinterp.checkpoints.verify import verify
from dcinterp.cli import main
from dcinterp.model.build import build_model
from dcinterp.model.complexity import analytic_overhead

place = Path(sys.argv[1])
options = {"routed": {"compose_options": {"kept": 3}}}
for name in ("scaled", "routed"):
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer", vocab_size=40, compose=name, **options.get(name, {}))
    torch.manual_seed(0)
    model = build_model(config)
    with torch.no_grad():
        for which, parameter in model.named_parameters():
            if "norm" in which or "scale" in which:
                parameter.add_(0.3 * torch.randn_like(parameter))
    folder = f"{place}/{name}"
    model.save_pretrained(folder)
    assert verify(folder, length=8).largest < 1e-5, name
    bridge, ids = dcinterp.load(folder), torch.arange(8)[None]
    found = dcinterp.composition_map(bridge, ids, 1, "post", -1, 3)
    assert found.added.abs().max() > 0, name
    dcinterp.attribute_edges(bridge, ids, 5, method="gradient", layers=[1])
    before = bridge(ids).log_softmax(-1)
    bridge.enable_compatibility_mode(disable_warnings=True)
    assert (bridge(ids).log_softmax(-1) - before).abs().max() < 1e-5, name
    print(name, dcinterp.describe(folder).composition, analytic_overhead(config, 16).flops > 0)


def command(*words):
    with suppress(SystemExit):
        main([str(word) for word in words])


command("convert", "transformer++", place / "theirs", "--to", "plainlm")
command("convert", place / "theirs", place / "ours")
ids = torch.arange(5, 25)[None]
with torch.no_grad():
    one, two, three = (dcinterp.load(name)(ids) for name in ("transformer++", place / "theirs", place / "ours"))
print("layout", (one - two).abs().max().item(), (one - three).abs().max().item())

asked = ("--prompt", "There are a sweater, an elephant. Which is", "--figure", place / "figure.html")
main(["analyze", "look-back", "dcformer++", *map(str, asked)])
"""


@pytest.fixture(scope="module")
def tried(copy, tmp_path_factory) -> tuple[str, Path]:
    """What one process with the copy's library, and nothing of this one, says of the additions, and its folder."""
    place = tmp_path_factory.mktemp("tried")
    (place / "additions.py").write_text(ADDITIONS)
    return run(copy, "-W", "ignore", str(place / "additions.py"), str(place)), place


@pytest.mark.slow
def test_new_ways_to_compose_are_analysed_folded_and_verified(tried):
    said = [each for each in tried[0].splitlines() if each.startswith(("scaled ", "routed "))]
    assert said == [
        "scaled scores (pre) and weights (post) composed by 'scaled' True",
        "routed scores (pre) and weights (post) gated by a router of the query (kept 3) True",
    ]


@pytest.mark.slow
def test_a_new_layout_is_written_and_read(tried):
    """There and back."""
    (said,) = (each for each in tried[0].splitlines() if each.startswith("layout "))
    assert [float(word) for word in said.split()[1:]] == [0.0, 0.0]


@pytest.mark.slow
def test_a_new_analysis_is_a_verb_with_a_figure(tried):
    said, place = tried
    assert "How far heads look back" in said
    assert "distance (tokens)" in (place / "figure.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_new_page_runs(monkeypatch, tmp_path, as_served):
    from streamlit.testing.v1 import AppTest

    app = tmp_path / "app"
    shutil.copytree(ROOT / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
    page = ROOT / "docs" / "app.md"
    (app / "app_pages" / "rows.py").write_text(code(page, "import streamlit as st"))
    (entry,) = re.findall(r'^    ("rows": .*,)$', page.read_text(encoding="utf-8"), re.M)
    insert(app / "streamlit_app.py", '"composition":', entry)
    monkeypatch.syspath_prepend(str(app))
    monkeypatch.chdir(tmp_path)
    shown = AppTest.from_file(str(app / "streamlit_app.py"), default_timeout=300).run()
    shown.switch_page("app_pages/rows.py").run()
    assert not shown.exception
    assert not shown.error
    assert [title.value for title in shown.title] == ["Attention rows"]
    shown.query_params["prompt"] = "text"
    shown.query_params["text"] = "There is a zeppelin"
    shown.switch_page("app_pages/rows.py").run()
    assert "zeppelin" in shown.error[0].value


def test_the_page_shows_whole_files():
    """What the test above writes to files is what the page runs in one piece."""
    assert len([block for block in blocks.blocks(PAGE) if "class " in block.code]) == 3
