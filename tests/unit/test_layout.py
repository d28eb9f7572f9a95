"""The house rules that code can break without anybody noticing: import directions, laziness, no private paths."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Who may import whom inside dcinterp: everything on the right of a name, and itself.
BASE = {"shapes", "errors", "permissions", "progress", "provenance", "quantities", "shipped", "vocabulary"}
ALLOWED = {
    "model": BASE,
    "loading": BASE | {"bridge", "model", "planted"},
    "bridge": BASE | {"model"},
    "verification": BASE | {"model", "loading"},
    "description": BASE | {"model", "loading"},
    "hook_reference": BASE,
    "train": BASE | {"model"},
    "bench": BASE | {"model", "loading"},
    "planted": BASE | {"model"},
    "analysis": BASE | {"model"},
    "story": BASE | {"analysis"},
    "method_trials": BASE | {"analysis", "planted", "bridge"},
    "reproduction": BASE | {"analysis", "loading"},
    "figures": BASE | {"analysis"},
}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    files = [ROOT / "dcinterp" / f"{part}.py", *(ROOT / "dcinterp" / part).rglob("*.py")]
    for path in (p for p in files if p.is_file()):
        for module in imports(path):
            head, *rest = module.split(".")
            if head == "dcinterp" and rest:
                assert rest[0] in ALLOWED[part] | {part}, f"{path.relative_to(ROOT)} imports {module}"


def test_analyses_never_import_each_other():
    shared = {"call", "dataset", "prompt", "registry", "result", "statistics"}
    shared |= {"edge_credit", "edges", "intervention", "intervention_hooks", "path_gradient"}
    shared |= {"head_maps", "head_paths", "memory", "motifs", "objective", "other_answers", "ov_logits", "sizes"}
    for path in (ROOT / "dcinterp" / "analysis").glob("*.py"):
        for module in imports(path):
            if module.startswith("dcinterp.analysis."):
                assert module.rsplit(".", 1)[1] in shared, f"{path.name} imports {module}"


def test_only_the_bridge_knows_transformer_lens():
    home = ROOT / "dcinterp"
    users = {p for p in home.rglob("*.py") if any(m.startswith("transformer_lens") for m in imports(p))}
    assert {path.relative_to(home).parts[0] for path in users} == {"bridge"}


def test_figures_draw_without_touching_a_model():
    for path in (ROOT / "dcinterp" / "figures").glob("*.py"):
        assert not any(m.startswith(("dcinterp.model", "dcinterp.bridge", "streamlit")) for m in imports(path)), (
            path.name
        )


def test_the_tasks_need_the_standard_library_only():
    for path in (ROOT / "synthetic_tasks").rglob("*.py"):
        tree = ast.parse(path.read_text())
        top = {n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)}
        top |= {alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names}
        for module in top:
            assert module.split(".")[0] in sys.stdlib_module_names | {"synthetic_tasks"}, f"{path.name}: {module}"


def test_importing_the_package_loads_nothing_heavy():
    heavy = "torch streamlit plotly captum transformers transformer_lens pandas".split()
    code = f"import sys, dcinterp, synthetic_tasks; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_exists():
    import dcinterp

    for name in dcinterp.__all__:
        assert getattr(dcinterp, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        dcinterp.magic  # noqa: B018


def test_no_file_holds_a_private_path_or_a_registry_address():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    forbidden = ("/" + "work/", "/" + "root/", "/" + "home/", "pypi" + ".org", "file:" + "///")
    for name in filter(None, tracked):
        path = ROOT / name
        if path.suffix in {".safetensors", ".png"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for words in forbidden:
            assert words not in text, f"{name} holds {words}"
