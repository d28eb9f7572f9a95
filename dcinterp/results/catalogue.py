"""Where the analyses are, read from their files: help, completion and `import dcinterp` must not wait for torch.

    homes()["attribute_heads"]       # "dcinterp.analysis.attribution.attribute_heads"
    titles()["attribute_heads"]      # "Head attribution"

An analysis is a function under `@analysis(...)` in a file of its own, named like it, in a folder of
`dcinterp/analysis`. That file is the only place that says so; whoever wants to know of all analyses asks here. Other
packages add theirs by entry points; `homes` and `titles` are those of this repository.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

from dcinterp.support.errors import UserError, reason
from dcinterp.support.extensions import load_all

PACKAGE = "dcinterp.analysis"
FOLDER = Path(__file__).parents[1] / "analysis"
DECORATOR = "analysis"
CLASS = re.compile(r"^class (\w+)\(([^)]*)\)", re.M)
GROUP = "analyses"
"""Where packages add theirs (see dcinterp.support.extensions)."""


@cache
def homes() -> dict[str, str]:
    """The module of every analysis, by the name of its function. Cost: reads some forty small files, once."""
    files = (path for path in FOLDER.glob("*/*.py") if f"\n@{DECORATOR}(" in path.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for path in sorted(files, key=lambda p: (p.stem, str(p))):
        module = f"{PACKAGE}.{path.parent.name}.{path.stem}"
        if path.stem in found:
            raise UserError(f"Two analyses are called {path.stem}, {found[path.stem]} and {module}; rename one.")
        found[path.stem] = module
    return found


@cache
def titles() -> dict[str, str]:
    """The title of every analysis, by the name of its function."""
    return {name: _title(name) for name in homes()}


@cache
def own_kinds() -> frozenset[str]:
    """The names of the kinds of result of the files of analyses; what several share is in files of `mechanism`."""
    files = (*FOLDER.glob("*/*.py"), *FOLDER.with_name("mechanism").glob("*.py"))
    found = [each for path in files for each in CLASS.findall(path.read_text(encoding="utf-8"))]
    bases = {name: re.findall(r"\w+", made_from) for name, made_from in found}
    kinds = {"Result"}
    while more := {name for name, made_from in bases.items() if kinds & {*made_from}} - kinds:
        kinds |= more
    return frozenset(name for name in kinds if "shared" not in bases.get(name, ("shared",)))


def import_all() -> None:
    """Import every analysis of this repository, so that the registry and its kinds of result are complete."""
    for module in homes().values():
        import_analysis(module)


def import_added() -> None:
    """Import those of other packages; what cannot stand beside ours is left out with a warning."""
    load_all(GROUP, own=homes())


def import_analysis(module: str) -> None:
    """Import the file of an analysis, or say which one it is that does not load.

    Raises:
        UserError: the file cannot be imported.
    """
    try:
        import_module(module)
    except ImportError:
        raise  # a library that is missing says so better itself
    except Exception as error:
        path = f"{module.replace('.', '/')}.py"
        raise UserError(f"The analysis in {path} does not load ({type(error).__name__}: {reason(error)}).") from error


def _title(name: str) -> str:
    path = FOLDER / homes()[name].split(".")[2] / f"{name}.py"
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except SyntaxError as error:
        raise UserError(f"The analysis in {path} does not load (line {error.lineno}: {error.msg}).") from error
    functions = (node for node in body if isinstance(node, ast.FunctionDef))
    for function in functions:
        for call in (each for each in function.decorator_list if isinstance(each, ast.Call)):
            if function.name == name and isinstance(call.func, ast.Name) and call.func.id == DECORATOR:
                given = [each.value for each in call.keywords if each.arg == "title"]
                if given and isinstance(given[0], ast.Constant) and isinstance(given[0].value, str):
                    return given[0].value
                raise UserError(f"The analysis in {path} needs title=, written out as a text, in @{DECORATOR}(...).")
    raise UserError(f"{path} has no function called {name} under @{DECORATOR}(...); call the file as the function is.")
