"""The tables of docs/models.md and docs/analyses.md are generated from the code; those of hooks in test_hook_tables.py.

UPDATE_DOCS=1 pytest tests/docs/test_model_tables.py rewrites them.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from dcinterp.bridge import DCBridge
from dcinterp.model.build import count_parameters
from dcinterp.model.complexity import overhead_rows
from dcinterp.model.compose.registry import MECHANISM_COLUMNS, mechanism_rows
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.presets import presets
from dcinterp.results.catalogue import homes
from dcinterp.results.registry import ANALYSES

DOCS = Path(__file__).parents[2] / "docs"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def assert_generated(file: str, name: str, text: str) -> None:
    path = DOCS / file
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end -->)", re.S)
    expected = pattern.sub(lambda m: f"{m[1]}{text}\n{m[3]}", whole)
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(expected, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == expected, f"docs/{file}: run UPDATE_DOCS=1 pytest {__file__}"


def test_the_table_of_presets() -> None:
    rows = []
    for each in presets().values():
        config = DCFormerConfig.preset(each.name)
        windows = ", ".join("all" if window is None else str(window) for window in config.attention_windows)
        count = count_parameters(config)
        size = f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"
        shape = (config.num_hidden_layers, config.hidden_size, config.heads_in_words, config.intermediate_size)
        rate = each.training.get("learning_rate")
        rows.append([f"`{each.name}`", *map(str, shape), windows, size, f"{rate:g}" if rate else ""])
    header = ["preset", "layers", "width", "heads", "MLP", "windows", "parameters", "learning rate"]
    assert_generated("models.md", "presets", table(header, rows))


def test_the_table_of_mechanisms() -> None:
    rows = [(title, f"`{name}`", *rest) for title, name, *rest in mechanism_rows()]
    assert_generated("models.md", "mechanisms", table(MECHANISM_COLUMNS, rows))


def test_the_table_of_costs() -> None:
    header = ["preset", "keys", "parameters", "counted", "FLOPs", "counted"]
    assert_generated("models.md", "complexity", table(header, overhead_rows(presets().values())))


def test_the_table_of_analyses() -> None:
    """In the order of the folders, so that related analyses stand together."""
    rows = []
    for name in sorted(homes(), key=homes().__getitem__):
        entry = ANALYSES[name]
        title = (DOCS / entry.guide).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        rows.append([entry.question, f"`{name}`", f"[{title}]({entry.guide})"])
    assert_generated("analyses.md", "analyses", table(["question", "function", "guide"], rows))


def test_every_hook_named_in_the_docs_exists(make_bridge: Callable[..., DCBridge]) -> None:
    gated = make_bridge("tiny-gated", compose_options={"elementwise": True})
    others = [make_bridge(preset).hook_dict for preset in ("tiny-multi-token", "tiny-dense-collaboration")]
    known = {name.split(".")[-1] for hooks in (make_bridge().hook_dict, gated.hook_dict, *others) for name in hooks}
    text = (DOCS / "hooks.md").read_text(encoding="utf-8")
    absent = {
        "hook_hidden_states",
        "hook_cos",
        "hook_sin",
        "hook_w_k",
        "hook_tables",
    }  # said to be absent; a prefix; a test
    named = set(re.findall(r"hook_[a-z_0-9]*[a-z0-9]", text))
    assert named - known - absent == set()
