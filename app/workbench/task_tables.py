"""The tables of the page of the tasks: the grid of the tasks, examples, counterfactual prompts, accuracies."""

from __future__ import annotations

from collections.abc import Callable
from difflib import SequenceMatcher
from typing import Any

import plotly.graph_objects as go
import streamlit as st

import synthetic_tasks
from workbench import models
from workbench.heatmap import heatmap
from workbench.markdown import escape
from workbench.theme import theme

COUNTERFACTUAL_KINDS = {
    "question": "question: what the question names",
    "source": "source: the fact that answers",
    "relation": "relation: what is asked about the fact",
    "polarity": "polarity: does or does not",
    "position": "position: the order of the facts",
}
"""What each kind of counterfactual prompt changes."""

COLUMNS = {
    "answers": ("answers", "How many answers were scored."),
    "accuracy": (
        "right (%)",
        "Answers whose every token is the most likely one. Where several are right, the one that the tasks name first.",
    ),
    "low": ("from", "Lower end of the 95 % interval."),
    "high": ("to", "Upper end of the 95 % interval."),
    "fact_unif": ("random fact (%)", "A baseline that applies the right transformation to a random fact."),
    "value_unif": ("random value (%)", "A baseline that picks one of the different possible answers at random."),
    "ignores_negation": ("ignores negation (%)", "A baseline that reads the question except for its `not`."),
    "odd_one_out": ("odd one out (%)", "A baseline that never reads the question: it takes the fact that differs."),
}
"""Heading and tooltip of every column in a table of accuracies."""

PERCENT = ("accuracy", "low", "high", "fact_unif", "value_unif", "ignores_negation", "odd_one_out")


def axes() -> tuple[list[str], list[str]]:
    """The QK patterns and the transformations of the 74 tasks."""
    tasks = synthetic_tasks.TASKS.values()
    return list(dict.fromkeys(t.qk for t in tasks)), list(dict.fromkeys(t.relation for t in tasks))


def family(pattern: str, transformation: str) -> list[str]:
    """Ids of the tasks that pair the two."""
    return [t.id for t in synthetic_tasks.TASKS.values() if (t.qk, t.relation) == (pattern, transformation)]


def label(task_id: str) -> str:
    """A task of a known family in a few words."""
    task = synthetic_tasks.TASKS[task_id]
    return f"{task_id}: {task.domain}, {task.surface}"


def task_grid(pattern: str, transformation: str, on_pick: Callable[[int, int], None]) -> None:
    """How many tasks pair each pattern with each transformation."""
    from dcinterp.figures.base.grid import grid
    from dcinterp.figures.base.style import THEMES

    patterns, transformations = axes()
    counts = [[len(family(p, t)) or float("nan") for t in transformations] for p in patterns]
    figure = grid(
        counts,
        x=transformations,
        y=patterns,
        x_title="transformation",
        y_title="QK pattern",
        quantity="tasks",
        theme=theme(),
        signed=False,
        selected=(patterns.index(pattern), transformations.index(transformation)),
        height=90 + 40 * len(patterns),
    )
    assert isinstance(figure.data[0], go.Heatmap)
    figure.data[0].text = [["" if cell != cell else f"{cell:.0f}" for cell in row] for row in counts]
    words = "The 74 tasks by QK pattern (rows) and transformation (columns); the number is how many tasks pair them."
    heatmap(figure, key="task-grid", outline=THEMES[theme()].selected, alternative=words, on_pick=on_pick)


def write_examples(row: Any) -> None:
    """The examples of a row as lines, answers in bold."""
    lines = [f"{escape(example.prompt)} **{escape(example.answer)}**" for example in row.examples]
    st.markdown("  \n".join(lines))


def counterfactual_table(example: Any, name: str) -> None:
    """The five kinds of change as a table; the words that differ are bold."""
    tokenizer = getattr(models.require(name), "tokenizer", None)
    lines = []
    for kind, pair in synthetic_tasks.counterfactuals(example, tokenizer=tokenizer).items():
        missing = isinstance(pair, synthetic_tasks.NoCounterfactual)
        lines.append(
            {
                "changed": COUNTERFACTUAL_KINDS[kind],
                "prompt": why_missing(pair, example) if missing else mark_changes(pair.corrupt.prompt, example.prompt),
                "answer": "" if missing else escape(" or ".join(pair.corrupt.accepted)),
                "compared with": "" if missing else escape(pair.foil),
            }
        )
    st.table(lines, hide_index=True)


def why_missing(statement: Any, example: Any) -> str:
    """Why an example has no counterfactual prompt of a kind, without the example itself, which is shown above."""
    words = str(statement).replace(f" of {example.prompt!r}", "").replace("as it has", "as this one")
    return f"*{escape(words)}*"


def mark_changes(text: str, other: str) -> str:
    """A prompt as Markdown; what differs from another prompt is bold."""
    words, others = text.split(), other.split()
    parts = []
    for same, _, _, start, stop in SequenceMatcher(None, others, words, autojunk=False).get_opcodes():
        if start < stop:
            part = escape(" ".join(words[start:stop]))
            parts.append(part if same == "equal" else f"**{part}**")
    return " ".join(parts)


OPENS = {
    "case_study": "Case study",
    "attention": "Attention patterns",
    "attribution": "Attribution",
    "edges": "Edges",
    "logits": "Logits by part",
    "patching": "Patching",
}
"""Pages that an example can be opened on."""

EXAMPLE_COLUMNS = {
    "number": "The number of the example, as on the other pages.",
    "said": "The model's most likely token.",
    "logit difference": "The logit of the answer minus that of the counterfactual's answer.",
    "main head": "The head whose edges into the stream have the largest scores together.",
    "main edge": "The composition edge between two heads with the largest score; without composition any edge.",
}


def example_table(result: Any, which: str, heads: list[str], numbers: list[int]) -> tuple[Any, int | None]:
    """(the examples as a table that can be sorted, the number of the one that is chosen, if one is).

    Args:
        result: an `ExampleTable`.
        which: "all", "right" or "wrong" answers.
        heads: only examples with one of these main heads; all if there are none.
        numbers: of the examples, by their places in the set that the result is about.
    """
    frame = result.table()
    frame["number"] = [numbers[place] for place in frame["number"]]
    if which != "all":
        frame = frame[frame["right"] == (which == "right")]
    if heads:
        frame = frame[frame["main head"].isin(heads)]
    config = {name: st.column_config.Column(help=words) for name, words in EXAMPLE_COLUMNS.items()}
    config |= {
        name: st.column_config.NumberColumn(format="%.2f", help=EXAMPLE_COLUMNS.get(name))
        for name in ("logit difference", "head score", "edge score")
    }
    # The selection is by row: what is shown must not change under it.
    key = f"examples {which} {' '.join(heads)} {id(result)}"
    event = st.dataframe(
        frame, hide_index=True, column_config=config, key=key, on_select="rerun", selection_mode="single-row"
    )
    chosen = event["selection"]["rows"]
    return frame, int(frame["number"].iloc[chosen[0]]) if chosen and chosen[0] < len(frame) else None


def accuracy_table(table: Any) -> None:
    """A table of accuracies in percent, with a tooltip on every column."""
    shown = table.copy()
    for column in PERCENT:
        if column in shown:
            shown[column] = (100 * shown[column]).round(1)
    config = {name: st.column_config.Column(words[0], help=words[1]) for name, words in COLUMNS.items()}
    st.dataframe(shown, hide_index=True, column_config=config)
