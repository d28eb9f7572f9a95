"""Models with a planted circuit, for the pages: their names, their examples, and the edges that are known."""

from __future__ import annotations

from typing import Any

import streamlit as st

PREFIX = "planted:"


def circuits() -> dict[str, str]:
    """The circuits that can be planted, with a sentence on each; those before the softmax have other figures."""
    from dcinterp.planted import Traits
    from dcinterp.planted import circuits as kinds

    return {name: kind.SUMMARY for name, kind in kinds().items() if "pre" not in Traits.of(kind).STAGES}


def name_of(circuit: str, noise: float, redundancy: int, rank: int, seed: int) -> str:
    """The name by which `dcinterp.load` builds the model."""
    return f"{PREFIX}{circuit},noise={noise:g},redundancy={redundancy},rank={rank},seed={seed}"


def setting(name: str) -> str:
    """What a name plants, without its seed and without settings that have their usual value."""
    defaults = ("noise=0", "redundancy=1", "rank=1")
    circuit, *knobs = name.removeprefix(PREFIX).split(",")
    return " ".join([circuit, *(knob for knob in knobs if knob not in defaults and not knob.startswith("seed="))])


@st.cache_resource(max_entries=8, show_spinner=False)
def planted(name: str) -> Any:
    """The planted model of a name; UserError when it does not have that many heads."""
    from dcinterp.planted import read_plant

    return read_plant(name.removeprefix(PREFIX))


def example(name: str, number: int) -> Any:
    """Example `number` of a planted model."""
    return planted(name).examples(number + 1)[number]


def true_edges(name: str, example: Any) -> list[tuple[int, str, int, int, int]]:
    """(layer, branch, head_from, head_to, sign) of every edge that makes the answer."""
    from dcinterp.mechanism.branches import NAMES

    edges = planted(name).truth(example).edges
    return [(*_place(place, NAMES), int(edges[tuple(place)])) for place in edges.nonzero().tolist()]


def _place(place: list[int], branches: Any) -> tuple[int, str, int, int]:
    layer, branch, head_from, head_to = place
    return layer, branches[branch], head_from, head_to


def compare_with_truth(truth: list[tuple[int, str, int, int, int]], edges: Any) -> list[dict[str, Any]]:
    """The true edges and as many of the strongest scored ones, side by side."""
    scored = edges.top(len(truth), shared=False)
    signs = {each[:4]: each[4] for each in truth}
    rows = []
    for edge in scored:
        place = (edge.layer, edge.branch, edge.head_from, edge.head_to)
        rows.append(
            {
                "strongest edges": edge_label(place),
                "score (logits)": round(edge.score, 3),
                "planted": "yes" if place in signs else "no",
                "sign": "right" if signs.get(place, 0) * edge.score > 0 else "wrong" if place in signs else "",
            }
        )
    return rows


def missed_edges(truth: list[tuple[int, str, int, int, int]], edges: Any) -> list[str]:
    """Labels of the true edges that are not among as many strongest ones."""
    scored = {(e.layer, e.branch, e.head_from, e.head_to) for e in edges.top(len(truth), shared=False)}
    return [edge_label(each[:4]) for each in truth if each[:4] not in scored]


def edge_label(place: tuple[int, str, int, int]) -> str:
    """An edge as figures label it, with its branch."""
    layer, branch, head_from, head_to = place
    if branch == "skip":
        return f"L{layer}H{head_to} (own attention)"
    return f"L{layer}H{head_from} → L{layer}H{head_to} ({branch})"
