"""Where the analyses are, read from their files: help, completion and `import dcinterp` must not wait for torch.

    homes()["attribute_heads"]       # "dcinterp.analysis.attribution.attribute_heads"
    titles()["attribute_heads"]      # "Head attribution"

An analysis is a function under `@analysis(...)` in a file of its own, named like it, in a folder of
`dcinterp/analysis`. That file is the only place that says so; whoever wants to know of all analyses asks here.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

PACKAGE = "dcinterp.analysis"
FOLDER = Path(__file__).parents[1] / "analysis"
DECORATOR = "analysis"


@cache
def homes() -> dict[str, str]:
    """The module of every analysis, by the name of its function. Cost: reads some forty small files, once."""
    files = (path for path in FOLDER.glob("*/*.py") if f"\n@{DECORATOR}(" in path.read_text(encoding="utf-8"))
    return {path.stem: f"{PACKAGE}.{path.parent.name}.{path.stem}" for path in sorted(files, key=lambda p: p.stem)}


@cache
def titles() -> dict[str, str]:
    """The title of every analysis, by the name of its function."""
    return {name: _title(name) for name in homes()}


def import_all() -> None:
    """Import every analysis, so that the registry and the kinds of result are complete."""
    for module in homes().values():
        import_module(module)


def _title(name: str) -> str:
    path = FOLDER / homes()[name].split(".")[2] / f"{name}.py"
    functions = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef))
    for function in functions:
        for call in (each for each in function.decorator_list if isinstance(each, ast.Call)):
            if function.name == name and isinstance(call.func, ast.Name) and call.func.id == DECORATOR:
                return next(str(ast.literal_eval(each.value)) for each in call.keywords if each.arg == "title")
    raise AssertionError(f"{path} has a decorated function, but none called {name}")
