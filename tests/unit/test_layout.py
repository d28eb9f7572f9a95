"""The house rules that code can break without anybody noticing: import directions, laziness, no private paths."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Who may import whom inside dcinterp: a room may use those below it, and rooms on one line do not know each other.
FLOORS = [
    {"shapes", "support"},
    {"model"},
    {"bridge", "train"},
    {"planted"},
    {"checkpoints"},
    {"results"},
    {"mechanism"},
    {"analysis"},
    {"figures", "bench", "evidence"},
    {"cli"},
]
STRING_OTHERS_TOGETHER = {"case_study", "methods", "compare_head_diversity"}
"""Modules and rooms that call other analyses; everywhere else an analysis may only name another's kind of result."""


@cache
def import_lines(path: Path) -> tuple[ast.AST, ...]:
    """The import statements of a file, inside functions too."""
    return tuple(one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Import | ast.ImportFrom))


def imports(path: Path) -> set[str]:
    """Modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in import_lines(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def rooms_of(path: Path) -> set[str]:
    """The rooms of dcinterp that a file imports, or names in a string that could be imported."""
    found = {module for module in imports(path) if module.startswith("dcinterp.")}
    for node in import_lines(path):
        if isinstance(node, ast.ImportFrom) and node.module == "dcinterp":
            found |= {f"dcinterp.{alias.name}" for alias in node.names if alias.name != "__version__"}
    return {module.split(".")[1] for module in found}


@pytest.mark.parametrize("floor", range(len(FLOORS)), ids=[" ".join(sorted(rooms)) for rooms in FLOORS])
def test_imports_point_one_way(floor):
    below = set().union(*FLOORS[:floor])
    for room in FLOORS[floor]:
        for path in [*(ROOT / "dcinterp").glob(f"{room}.py"), *(ROOT / "dcinterp" / room).rglob("*.py")]:
            upward = rooms_of(path) - below - {room}
            assert not upward, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upward))}"


def test_every_room_has_its_floor():
    rooms = {path.stem for path in (ROOT / "dcinterp").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__"} == set().union(*FLOORS)


def test_no_two_modules_import_each_other():
    """Function-level imports count: what is put into a function to avoid a circle is one."""
    graph = {}
    for path in (ROOT / "dcinterp").rglob("*.py"):
        graph[".".join(path.relative_to(ROOT).with_suffix("").parts)] = imports(path)
    packages = {name.removesuffix(".__init__") for name in graph if name.endswith(".__init__")}
    for name, found in graph.items():
        for module in found - packages:
            assert name not in graph.get(module, ()), f"{name} and {module} import each other"


def test_analyses_never_call_each_other():
    folder = ROOT / "dcinterp" / "analysis"
    for path in (p for p in folder.glob("*/*.py") if not {p.stem, p.parent.name} & STRING_OTHERS_TOGETHER):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dcinterp.analysis."):
                functions = [alias.name for alias in node.names if alias.name.islower()]
                assert not functions, f"{path.name} imports {', '.join(functions)} of {node.module}"


def test_an_analysis_is_a_file_named_like_it():
    from dcinterp.results.registry import ANALYSES

    for name, entry in ANALYSES.items():
        module = sys.modules[inspect.unwrap(entry.function).__module__]
        assert Path(module.__file__ or "").stem == name
        assert Path(module.__file__ or "").parents[1] == ROOT / "dcinterp" / "analysis"


def test_only_the_bridge_knows_transformer_lens():
    home = ROOT / "dcinterp"
    users = {p for p in home.rglob("*.py") if any(m.startswith("transformer_lens") for m in imports(p))}
    assert {path.relative_to(home).parts[0] for path in users} == {"bridge"}


def test_figures_draw_without_touching_a_model():
    for path in (ROOT / "dcinterp" / "figures").rglob("*.py"):
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


def test_importing_the_package_loads_nothing_heavy_and_the_auto_classes_find_our_models():
    heavy = "torch streamlit plotly captum transformers transformer_lens pandas".split()
    program = f"""import sys, dcinterp, synthetic_tasks
print([name for name in {heavy!r} if name in sys.modules])
import transformers
print([name for name in sys.modules if name.startswith("dcinterp.model.decoder")])
model = transformers.AutoModelForCausalLM.from_pretrained({str(ROOT / "dcinterp/checkpoints/shipped/dcformer++")!r})
print(type(model).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # Nothing before it is asked for; and what is imported afterwards knows our models.
    assert done.stdout.split("\n")[:3] == ["[]", "[]", "DCFormerForCausalLM"], done.stderr


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


def test_the_container_gets_what_the_wheel_includes():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    copied = {
        line.split()[1] for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines() if line[:4] == "COPY"
    }
    left_out = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    assert set(wheel["force-include"]) | set(wheel["packages"]) <= copied - left_out
