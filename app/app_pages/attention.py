"""Attention patterns: any head, before and after composition, scores and weights; point at a token to follow it."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links
from workbench.drawings import drawn
from workbench.glossary import tip
from workbench.theme import theme
from workbench.thumbnails import thumbnails
from workbench.tokens import tokens as token_chips
from workbench.view import footer, view

WHICH = {
    "weights": "weights before",
    "composed": "weights after",
    "change": "what composition adds",
    "scores": "scores before",
    "composed_scores": "scores after",
}

VERBS = {
    "weights": "attends to",
    "composed": "uses attention at",
    "change": "changes most at",
    "scores": "scores",
    "composed_scores": "scores",
}

st.title("Attention patterns", anchor=False)
st.markdown(
    "What does a head attend to, and what attention does it use with its values? *Weights before*: the attention from "
    "the softmax. *Weights after*: what composition makes of it; these can be negative and need not add up to 1. Point "
    "at a token to see them from there; click it to keep it. The grid below the prompt is the same head's whole "
    "pattern."
)

name = st.session_state.model
question = inputs.question(name, with_answer=False)
where = [*st.columns([1, 1, 2, 2])]
layer = inputs.layer(name, where=where[0])
head = inputs.head(name, where=where[1])
which = links.choose(
    "Show",
    WHICH,
    key="which",
    default="composed",
    format=WHICH.__getitem__,
    style="segmented_control",
    help=tip("scores", "weights", "composition"),
)
try:
    prediction = analyses.run("predict", name, prompt=question.prompt)
    patterns = analyses.run("attention_patterns", name, prompt=question.prompt, layer=layer)
except UserError as problem:
    inputs.refuse(problem)
if not patterns.stages:
    st.info("The heads of this model are not composed: before and after are the same.", icon=":material/info:")

words = patterns.tokens
query = inputs.position("From the token", words, key="query", help=tip("query"), where=where[2])
source = question.source or 0
links.at_most("key", query)  # where a link to a later token has always led
key = inputs.position("To the token", words, key="key", default=source, until=query, help=tip("key"), where=where[3])


def follow(position):
    st.session_state.query = position


def follow_cell(row, column):
    st.session_state.query, st.session_state.key = row, min(row, column)


matrix = patterns.composed - patterns.weights if which == "change" else getattr(patterns, which)
token_chips(
    words,
    key="attention-tokens",
    weights=matrix[head],
    chosen=query,
    marks={len(words) - 1: "answer", **({question.source: "source"} if question.source is not None else {})},
    verb=VERBS[which],
    on_pick=follow,
    dark=theme() == "dark",
)
st.caption(
    "In green: the last token, after which the model answers."
    + (" In purple: the token that the right answer is read from." if question.source is not None else "")
)
view(
    patterns,
    "patterns",
    head=head,
    which=which,
    selected=(query, key),
    on_pick=follow_cell,
    caption="Each row is a token that attends, each column a token that is attended to; a token cannot attend to later "
    "ones, so those cells are empty. Click a cell, or move with the arrow keys, to choose a pair of tokens"
    + (": the page Composition then shows what its attention is made of." if patterns.stages else "."),
)

st.subheader(
    f'What every head of layer {layer} attends to from "{inputs.shown(words[query])}"', anchor=False, help=tip("head")
)
try:
    rows = analyses.run("attention_rows", name, prompt=question.prompt, layer=layer, query=query)
except UserError as problem:
    inputs.refuse(problem)


def follow_head(row, column):
    st.session_state.head = row


after = which in ("composed", "change", "composed_scores")
composing = f", {'after' if after else 'before'} composition" if patterns.stages else ""
view(
    rows,
    "rows",
    kind="heads",
    which="composed" if after else "weights",
    selected=head,
    on_pick=follow_head,
    caption=f"One row per head{composing}. The frame marks the chosen head's "
    "largest weight. Click a row to choose that head.",
)
st.subheader("All heads of all layers", anchor=False, help=tip("head", "composition"))
across = st.columns([2, 1])
most = len(words)
window = across[0].container()
first, last = 0, most
if most > 16:
    sizes = sorted({size for size in (16, 32, 64, 128, 256, 512) if size < most} | {min(most, 512)})
    size = links.choose("Tokens in the window", sizes, key="window", default=sizes[-1], where=across[1])
    starts = list(range(0, most - size + 1, max(1, size // 4)))
    starts += [most - size] * (starts[-1] != most - size)
    first = links.choose(
        "The window begins at",
        starts,
        key="window_start",
        format=lambda at: f"{at}: {inputs.shown(words[at])}",
        style="select_slider" if len(starts) > 1 else "selectbox",
        where=window,
    )
    last = size
try:
    small = analyses.run("attention_thumbnails", name, prompt=question.prompt, first=first, window=last)
except UserError as problem:
    inputs.refuse(problem)


def open_head(of_layer, of_head, from_token, to_token):
    st.session_state.layer, st.session_state.head = of_layer, of_head
    if from_token is not None:
        st.session_state.query, st.session_state.key = from_token, to_token


thumbnails(small, key="thumbnails", look=theme(), chosen=(layer, head), on_pick=open_head)
st.caption(
    "One small matrix a head: rows attend, columns are attended to; orange is positive, blue negative, the full colour "
    "is 1 or more. Point at one to read its tokens, click it to open that head above; arrow keys and Enter do the same."
    + (f" A cell holds {small.block} tokens and shows the entry of largest size." if small.block > 1 else "")
)
matrices = drawn(small, "", theme(), {})
footer(small, "thumbnails", {"kind": ""}, matrices.words.alternative, figure=matrices.figure)

st.subheader("What the model predicts next", anchor=False, help=tip("logit"))
view(prediction, "prediction", caption="The five most likely tokens after the prompt.")
