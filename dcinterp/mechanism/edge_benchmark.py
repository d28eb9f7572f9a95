"""How well scores of edges predict measured removals, as the benchmark that ships found (`dcinterp bench edges`).

    describe("screened", "post")        # one sentence for people
    table("post")                       # Markdown: families and rules

The numbers are read from edge_benchmark.json, which `dcinterp bench edges --write` makes. "Removal": the edge is set to
zero, alone, and everything behind it is computed again.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from dcinterp.support.text import markdown_table

FILE = Path(__file__).with_suffix(".json")
TRAINED, PLANTED = "all tasks", "all planted"
"""The names of all families of tasks, and of all planted circuits, together."""

MODEL = "dcformer++"
SHOWN = ("screened", "recomputed", "gradient", "halfway", "ig", "ig-counterfactual", "relp")


@cache
def summary() -> dict[str, Any]:
    """By "family stage": prompts, edges, and the numbers of every rule over all edges and over shared ones."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def describe(method: str, stage: str) -> str:
    """One sentence on how well a method's scores predict, on the shipped model; empty where it was not measured."""
    if method == "ablation":
        return "Every score is the measured effect of removing that edge, alone; nothing is predicted."
    of = summary().get(f"{TRAINED} {stage}", {})
    found = of.get("rules", {}).get(method, {}).get("all", {})
    if not found.get("prompts"):
        return ""
    numbers = (
        f"on {found['prompts']} prompts of {MODEL} these scores correlate {found['correlation']:.2f} with the measured "
        f"effects of removing each edge (mean over prompts; the lowest 5 % are below {found['low']:.2f}), and their "
        f"median relative error is {found['median']:.0%}."
    )
    if method == "screened":
        return (
            f"The strongest edges by three rankings are measured, the others predicted: {numbers} The strongest edge "
            f"of all was among the measured ones in {found['found']:.1%} of the prompts."
        )
    return numbers[0].upper() + numbers[1:]


def table(stage: str, scope: str = "all") -> str:
    """Markdown: a row for every family and rule of one stage. scope: "all" edges, or the "shared" ones."""
    header = [
        "prompts of",
        "rule",
        "n",
        "correlation (lowest 5 %)",
        "rank",
        "error",
        "median error",
        "strongest checked",
    ]
    lines = []
    for name, of in summary().items():
        family, _, its_stage = name.rpartition(" ")
        for rule in SHOWN if its_stage == stage else ():
            found = of["rules"].get(rule, {}).get(scope, {})
            if found.get("prompts"):
                lines.append(
                    [
                        family,
                        f"`{rule}`",
                        str(found["prompts"]),
                        f"{found['correlation']:.2f} ({found['low']:.2f})",
                        f"{found['rank']:.2f}",
                        f"{found['error']:.2f}",
                        f"{found['median']:.2f}",
                        f"{found['found']:.1%}",
                    ]
                )
    return markdown_table(header, lines)
