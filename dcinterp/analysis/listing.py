"""Names and titles of the analyses, read from the sources: for help and completion, which must not wait for torch.

    titles()["attribute_heads"]        # "Head attribution"

The registry (dcinterp.analysis.registry) is what runs them; a test holds the two together.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
DECORATOR = "analysis"


@cache
def titles() -> dict[str, str]:
    """The title of every function of the package that is decorated as an analysis, by name."""
    found: dict[str, str] = {}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if f"\n@{DECORATOR}(" in source:
            found |= dict(pair for node in ast.parse(source).body for pair in _titled(node))
    return dict(sorted(found.items()))


def _titled(node: ast.stmt) -> list[tuple[str, str]]:
    if not isinstance(node, ast.FunctionDef):
        return []
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    return [
        (node.name, str(ast.literal_eval(keyword.value)))
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == DECORATOR
        for keyword in call.keywords
        if keyword.arg == "title"
    ]
