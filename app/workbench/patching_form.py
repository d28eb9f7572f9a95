"""The form of the page Patching: the counterfactual of the question, and which answers tell the two apart."""

from __future__ import annotations

from typing import Any

import streamlit as st

import synthetic_tasks
from dcinterp.mechanism.branches import BRANCHES, DYNAMIC_WEIGHTS
from workbench import links, models
from workbench.glossary import tip
from workbench.inputs import Question, as_meant, read_ids
from workbench.markdown import escape
from workbench.task_tables import COUNTERFACTUAL_KINDS

STANDARD = {
    "z": "output (z)",
    "v": "values (v)",
    "pattern": "attention (pattern)",
    "q": "queries (q)",
    "k": "keys (k)",
}


def site_groups(name: str) -> dict[str, list[str]]:
    """The sites of a model's heads that can be patched, in groups by what they are."""
    from dcinterp.mechanism.head_sites import head_sites

    known = head_sites(models.model(name))
    groups = {"any attention": [site for site in STANDARD if site in known]}
    for site in known:
        if "." in site:
            stage, _, part = site.partition(".")
            groups.setdefault(f"{stage}: {'dynamic weights' if part in DYNAMIC_WEIGHTS else 'branches'}", []).append(
                site
            )
    return groups


def graph_of(name: str) -> Any:
    """The edges of a model; UserError if it has none that we know."""
    from dcinterp.mechanism.circuit_graph import CircuitGraph

    return CircuitGraph.of(models.model(name))


def site_label(site: str) -> str:
    """A site in words, with its name."""
    part = site.rpartition(".")[2]
    return STANDARD.get(site) or (f"{BRANCHES[part].label} ({site})" if part in BRANCHES else site)


def pair_arguments(name: str, question: Question) -> dict[str, Any] | None:
    """The arguments of a patching analysis that say the pair of prompts; None if there is no counterfactual yet.

    Of an example of the tasks the person chooses what changes; beside a text of one's own there is a field.
    """
    if question.example is None:
        return _own(name, question)
    made = synthetic_tasks.counterfactuals(question.example, tokenizer=models.model(name).tokenizer)
    found = {
        kind: pair
        for kind, pair in made.items()
        # Where the answer stays, no logit difference tells the two prompts apart.
        if not isinstance(pair, synthetic_tasks.NoCounterfactual) and pair.answer not in question.example.accepted
    }
    if not found:
        st.info(
            "This example has no counterfactual prompt with as many tokens; choose another.", icon=":material/info:"
        )
        return None
    kind = links.choose(
        "The counterfactual prompt changes",
        list(found),
        key="twin",  # as on the page Interventions
        format=COUNTERFACTUAL_KINDS.__getitem__,
        help=tip("counterfactual"),
    )
    pair = found[kind]
    st.markdown(f"The counterfactual is `{pair.corrupt.prompt}`; the right answer there is **{escape(pair.answer)}**.")
    return {"counterfactual": pair.corrupt.prompt, "target": question.answer, "foil": pair.answer}


def _own(name: str, question: Question) -> dict[str, Any] | None:
    words = "As many tokens as the prompt has. Change the word that decides the answer."
    if not isinstance(question.prompt, str):
        ids = ", ".join(map(str, question.prompt))
        given: Any = read_ids(
            links.text(
                "Counterfactual token ids", key="counterfactual-ids", default=ids, help=words, means=lambda _: ids
            )
        )
    else:
        typed = links.text(
            "Counterfactual prompt",
            key="counterfactual",
            default=question.prompt,
            area=True,
            help=words,
            means=lambda _: question.prompt,
        )
        given = as_meant(models.model(name).tokenizer, typed)
    if not given or given == question.prompt:
        st.info(
            "Change the counterfactual prompt so that it has another answer and as many tokens.",
            icon=":material/info:",
        )
        return None
    return {"counterfactual": given, "target": question.answer, "foil": None}
