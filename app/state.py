"""What the pages share: models and results kept between runs, one lock a model, the widgets of the sidebar.

Nothing here computes: a function takes strings and numbers (which make good cache keys), calls one analysis and keeps
what it returns. torch is imported inside functions, so that the first page paints before it has loaded.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import streamlit as st

HELP = {
    "head": "An attention head: one of several parallel readers of a layer. It decides where to look (attention) and "
    "copies something from there (its values).",
    "composition": "DCFormer mixes the heads' attention: a head can use attention that another head computed, "
    "token by token.",
    "logit": "The score that a model gives to a possible next token, before scores are turned into probabilities.",
    "attribution": "Integrated gradients: how much of the answer's logit (against the strongest wrong token) comes "
    "from each head's output. All heads of a layer add up to what the layer does.",
    "branches": "Composed attention = own attention + what projections and gates add. The query token and the key "
    "token each have a projection (mixes heads) and a gate (scales a head).",
    "lending": "At this pair of tokens, w_1 gathers attention from heads and w_2 shares it to heads. The product tells "
    "which head lends how much to which.",
    "softmax": "Before composition a head's attention is a softmax: positive, adding up to 1. After it, it is neither.",
}


def choose_model() -> None:
    """The model selector of the sidebar; its value is part of every link."""
    names = available_models()
    st.selectbox("Model", names, key="model", bind="query-params", help="Shipped models, and those given at the start.")


def available_models() -> list[str]:
    """Names that `dcinterp.load` takes: those given at the start, then the shipped ones."""
    from dcinterp.cli.app import MODELS_VARIABLE
    from dcinterp.loading import shipped_models

    given = [name for name in os.environ.get(MODELS_VARIABLE, "").split(os.pathsep) if name]
    return list(dict.fromkeys([*given, *shipped_models()]))


@st.cache_resource(max_entries=4, show_spinner="Loading the model ...")
def model(name: str) -> Any:
    """A bridge, shared by all sessions; use it under `lock`."""
    import dcinterp

    return dcinterp.load(name)


def require(name: str) -> None:
    """Load the model, or say in one sentence why it cannot be loaded and end the page."""
    try:
        model(name)
    except (ValueError, OSError) as problem:
        reason = str(problem).splitlines()[0]
        st.error(f"{name} does not load: {reason} Choose another model in the sidebar.", icon=":material/error:")
        st.stop()


@st.cache_resource
def lock(name: str) -> threading.RLock:
    """Hooks of two sessions on one bridge would mix: every run holds its model's lock."""
    return threading.RLock()


SHOWCASE_TASKS = ("task2", "task10", "task6", "task58", "task56")
SHOWCASE_EXAMPLES, SHOWCASE_RIGHT = 10, 8


@st.cache_data(max_entries=64, show_spinner="Looking for an example that this model can do ...")
def showcase(name: str) -> tuple[str, int]:
    """(task, number) of a held-out example that the model answers rightly, of a task that it can do at all.

    Retrieval by person comes first. A task counts as learnt with 8 of 10 right answers: a guess among three facts gets
    there once in three hundred times.
    """
    import dcinterp
    import synthetic_tasks

    with lock(name):
        for task in SHOWCASE_TASKS:
            right = [
                number
                for number in range(SHOWCASE_EXAMPLES)
                if answers_rightly(dcinterp.predict, model(name), synthetic_tasks, task, number)
            ]
            if len(right) >= SHOWCASE_RIGHT:
                return task, right[0]
    return SHOWCASE_TASKS[0], 0


def answers_rightly(predict: Any, bridge: Any, synthetic_tasks: Any, task: str, number: int) -> bool:
    example = held_out_example(task, number)
    try:
        best = int(predict(bridge, example.prompt).top_ids[0])
    except ValueError:
        return False
    return synthetic_tasks.words(example.answer)[0] == bridge.tokenizer.decode([best]).strip()


@st.cache_data(max_entries=256, show_spinner=False)
def held_out_example(task: str, number: int) -> Any:
    """An example that no shipped model was trained on."""
    import synthetic_tasks

    return synthetic_tasks.generate(task, 1, seed=number, examples=1, split="held-out")[0].examples[0]


@st.cache_data(max_entries=128, show_spinner=False)
def attribution(name: str, prompt: str, answer: str | None) -> Any:
    """Head scores of a prompt, kept because every click on the page needs them again."""
    import dcinterp

    with lock(name):
        return dcinterp.case_study(model(name), prompt, answer).attribution


@st.cache_data(max_entries=512, show_spinner=False)
def story(name: str, prompt: str, answer: str | None, layer: int | None, head: int | None, key: int | None) -> Any:
    """The five steps for one choice of head and source token."""
    import dcinterp

    scores = attribution(name, prompt, answer)
    with lock(name):
        return dcinterp.case_study(model(name), prompt, answer, layer=layer, head=head, key=key, attribution=scores)


@st.cache_data(max_entries=256, show_spinner=False)
def source_token(name: str, task: str, number: int) -> int | None:
    """Position of the token that the answer of a held-out example is read from."""
    from dcinterp.story import source_position

    return source_position(model(name), held_out_example(task, number))


def theme() -> str:
    """ "light" or "dark", whichever the person looks at."""
    return "dark" if st.context.theme.type == "dark" else "light"
