"""The tables of docs/models.md and docs/analyses.md are generated from the code; those of hooks in test_hook_tables.py.

UPDATE_DOCS=1 pytest tests/docs/test_model_tables.py rewrites them.
"""

import re
from collections.abc import Callable
from pathlib import Path

from sitetools.marked import require_part

from dcinterp.bridge import DCBridge
from dcinterp.model.build import count_parameters
from dcinterp.model.complexity import overhead_rows
from dcinterp.model.compose.registry import MECHANISM_COLUMNS, mechanism_rows
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.presets import presets
from dcinterp.results.catalogue import homes
from dcinterp.results.registry import ANALYSES
from dcinterp.support.text import markdown_table

DOCS = Path(__file__).parents[2] / "docs"


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
    require_part(DOCS / "models.md", "presets", markdown_table(header, rows))


def test_the_table_of_mechanisms() -> None:
    rows = [(title, f"`{name}`", *rest) for title, name, *rest in mechanism_rows()]
    require_part(DOCS / "models.md", "mechanisms", markdown_table(MECHANISM_COLUMNS, rows))


def test_the_table_of_costs() -> None:
    header = ["preset", "keys", "parameters", "counted", "FLOPs", "counted"]
    require_part(DOCS / "models.md", "complexity", markdown_table(header, overhead_rows(presets().values())))


def test_the_table_of_analyses() -> None:
    """In the order of the folders, so that related analyses stand together."""
    rows = []
    for name in sorted(homes(), key=homes().__getitem__):
        entry = ANALYSES[name]
        title = (DOCS / entry.guide).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        rows.append([entry.question, f"`{name}`", f"[{title}]({entry.guide})"])
    require_part(DOCS / "analyses.md", "analyses", markdown_table(["question", "function", "guide"], rows))


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
