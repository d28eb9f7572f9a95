"""The story of one answer, step by step: from a prompt to the head that borrowed attention."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import inputs, links, stories, task_tools
from workbench.glossary import tip
from workbench.theme import theme
from workbench.tokens import tokens as token_chips
from workbench.view import footer, view

BEST, SOURCE = "strongest", "source"

st.title("Whose attention wrote this answer?", anchor=False)
st.markdown(
    "DCFormer lets heads lend each other their attention. Follow one answer, step by step, to the head that wrote it "
    "and to the heads whose attention it borrowed."
)

name = st.session_state.model
asked = inputs.question(name)
try:
    with st.spinner("Looking for the head that writes the answer ..."):
        scores = stories.attribution(name, asked)
except UserError as problem:
    inputs.refuse(problem)
layers, heads = scores.scores.shape
words = scores.tokens


def heading(number, name, *terms):
    step = told.step(name)
    st.subheader(f"{number}. {step.title}", help=tip(*terms), anchor=f"step-{number}")
    if step.holds:
        st.markdown(step.sentence)
    else:
        st.markdown(
            f":material/info: {step.sentence}",
            help="Here this example differs from what the paper describes, or the effect is less than a tenth.",
        )


def cell_label(cell):
    return "the one that writes most directly" if cell == BEST else cell


def position_label(position):
    if position == SOURCE:
        return "the source of the answer" if asked.source is not None else "where the head looks most"
    return f"{position}: {inputs.shown(words[int(position)])}"


def follow(layer, head):
    st.session_state.cell = f"L{layer}H{head}"


def follow_token(position):
    st.session_state.source = str(position)


summary_place = st.container()
places = [st.container() for _ in range(8)]
with places[1]:
    slot_2 = st.container()
    cells = [BEST, *(f"L{layer}H{head}" for layer in range(layers) for head in range(heads))]
    cell = links.choose("Head to follow", cells, key="cell", format=cell_label, help=tip("head"))
with places[3]:
    slot_4 = st.container()
    position = links.choose(
        "Source token",
        [SOURCE, *map(str, range(len(words)))],
        key="source",
        format=position_label,
        help=tip("key"),
    )
layer, head = (None, None) if cell == BEST else map(int, cell[1:].split("H"))
key = None if position == SOURCE else int(position)

try:
    with summary_place, st.spinner("Telling the story ..."):
        told = stories.told(name, asked, layer, head, key)
except UserError as problem:
    inputs.refuse(problem)

prediction, breakdown = told.prediction, told.breakdown
with summary_place:
    st.info(task_tools.plain(told.summary), icon=":material/arrow_forward:")
    if told.unread and told.looked != told.key:
        st.button(
            f'Follow "{inputs.shown(words[told.looked])}" instead, where it has its largest weight',
            on_click=follow_token,
            args=(told.looked,),
            icon=":material/subdirectory_arrow_right:",
        )
with places[0]:
    if prediction.answer and prediction.rank != 1:
        st.warning(
            f"This model answers this example wrongly (the right answer has rank {prediction.rank}).",
            icon=":material/warning:",
        )
    heading(1, "answer", "logit")
    token_chips(
        words,
        key="prompt-tokens",
        marks={told.key: "source", len(words) - 1: "answer"},
        chosen=told.key,
        on_pick=follow_token,
        dark=theme() == "dark",
    )
    st.caption(
        "Underlined in orange: the source token, whose attention is followed below; click another one to follow it. In "
        "blue: the last token, where the answer is read off."
    )
    view(
        prediction,
        "answer",
        banners=False,
        caption=f"The most likely next tokens{'; orange: the expected answer' if prediction.answer else ''}.",
    )
with slot_2:
    heading(2, "head", "attribution")
    view(
        scores,
        "heads",
        selected=(told.layer, told.head),
        on_pick=follow,
        caption=f'What each head adds to the logit of "{inputs.shown(scores.target).strip()}"'
        + (f' over that of "{inputs.shown(scores.foil).strip()}"' if scores.foil else "")
        + ", over all positions. Click a cell, or use the arrow keys, to follow that head.",
    )
with places[2]:
    heading(3, "transformation", "OV circuit")
    view(
        told.circuit,
        "circuit",
        caption="From left to right: the tokens that this head promotes most when it reads the source word alone.",
    )
with slot_4:
    heading(4, "source", "branches")
    if breakdown is not None:
        view(
            breakdown,
            "branches",
            selected=told.head,
            caption="Every head's attention from the last token to the source: grey is its own; blue and cyan are what "
            "the query token adds, orange and yellow what the key token adds; the diamond is the sum, with which the "
            "head reads. The band marks the head that is followed.",
        )
with places[4]:
    heading(5, "lender", "lending")
    if breakdown is not None:
        pair = st.grid(2, min_column_width=420)
        with pair.container():
            view(
                breakdown,
                "lending",
                kind="sharing",
                selected=told.head,
                banners=False,
                table=False,
                caption=f"What each head's attention adds to head {told.head}'s; below zero it takes away.",
            )
        with pair.container():
            side = told.side
            view(
                breakdown,
                "weights",
                kind="weights",
                side=side,
                selected=told.head,
                banners=False,
                table=False,
                caption=f"The {side} token's dynamic weights, as numbers: from which heads it gathers attention, to "
                f"which it shares it (framed: to head {told.head}), and its gate.",
            )
        st.page_link(
            "app_pages/interventions.py",
            label=f"Take out what head {told.head_from} lends head {told.head} here, and see what changes",
            help=f"Opens the page Interventions with: {told.edge_line}",
            icon=":material/content_cut:",
            query_params=inputs.carried({"what": told.edge_line}),
        )
        edge = {"layer": told.layer, "branch": f"{side[0]}p", "lender": told.head_from, "head": told.head}
        st.page_link(
            "app_pages/edges.py",
            label=f"The edge from head {told.head_from} to head {told.head} among all edges, over all tokens",
            help="Opens the page Edges at this edge. Step 5 is about one token; an edge is the sum over all.",
            icon=":material/account_tree:",
            query_params=inputs.carried({key: str(value) for key, value in edge.items()}),
        )
with places[5]:
    heading(6, "attention", "softmax")
    view(
        told.rows,
        "rows",
        head=told.head,
        head_from=told.head_from,
        key=told.key,
        caption="Each row is where a head looks from the last token. "
        + (
            "Before composition a row adds up to 1 and has no blue; after it neither holds. "
            if breakdown is not None
            else ""
        )
        + "Framed: the source.",
    )
with places[6]:
    heading(7, "gate", "o_kg", "o_qg")
with places[7]:
    st.divider()
    st.markdown("**The whole story** as numbers, a folder, and code:")
    footer(told, "story")
