"""The case study of one answer in seven steps: from a prompt to the heads that shared their attention."""

from contextlib import nullcontext

import streamlit as st

from dcinterp.mechanism.ablation_kinds import ABLATIONS, DEFAULT, kinds_in_words
from dcinterp.support.errors import UserError
from workbench import case_studies, inputs, links, models, sentences
from workbench.glossary import tip
from workbench.introduction import introduction
from workbench.markdown import escape
from workbench.theme import theme
from workbench.tokens import tokens as token_chips
from workbench.view import footer, view

BEST, SOURCE = "strongest", "source"
CONTRASTS = {"facts": "the strongest answer of the other facts", "runner-up": "the runner-up"}

st.title("Case study", anchor=False)
name = st.session_state.model
composed = models.composed(name)
introduction()
if composed:
    st.markdown(
        "Follow one answer in seven steps, to the head with the largest direct effect on it, and to the heads from "
        "which that head borrows attention."
    )
else:
    st.markdown("Follow one answer step by step, to the head with the largest direct effect on it.")
    st.info(
        "The heads of this model are not composed after the softmax: every head uses its own attention weights. The "
        "steps about shared attention and gates do not apply, and are left out.",
        icon=":material/info:",
    )
question = inputs.question(name)
inputs.write_out(question)
across = st.columns(2)
kind = links.choose(
    "Ablation",
    list(ABLATIONS),
    key="kind",
    default="zero" if links.older("kind") else DEFAULT,
    format=lambda each: ABLATIONS[each].label,
    help="What takes the place of a part, to measure what it does. Zero stands beside every number.\n\n"
    + kinds_in_words(),
    where=across[0],
)
contrast = links.choose(
    "Compare the answer with",
    list(CONTRASTS),
    key="contrast",
    default="runner-up" if links.older("contrast") else "facts",
    format=CONTRASTS.__getitem__,
    help=tip("foil", "logit difference"),
    where=across[1],
)
try:
    found = case_studies.long_case_study(name, question, kind=kind, contrast=contrast)
except UserError as problem:
    inputs.refuse(problem)
if found is None:
    links.end_page()
scores = found.attribution
words = scores.tokens


# Of a model without composition only these steps say something; the page counts those that it shows.
SHOWN = range(1, 8) if composed else (1, 2, 3, 6)
# Closed where they are not supported: nothing else on the page is built on them.
FOLDED = (3, 7)


def heading(number, *terms):
    step = study.steps[number - 1]
    st.subheader(f"{SHOWN.index(number) + 1}. {step.title}", help=tip(*terms), anchor=f"step-{number}")
    if step.holds:
        st.markdown(escape(step.sentence))
    elif number in FOLDED:
        return st.expander("This step says little about this example", icon=":material/info:", key=f"folded-{number}")
    else:
        st.markdown(
            f":material/info: {escape(step.sentence)}",
            help="This step is not supported: the example differs from what the paper describes, or the effect is "
            "smaller than a tenth of the logit difference.",
        )
    return nullcontext()


def cell_label(cell):
    return "the one with the largest direct effect" if cell == BEST else cell


def position_label(position):
    if position == SOURCE:
        return "the source of the answer" if question.source is not None else "the token with the head's largest weight"
    return f"{position}: {inputs.shown(words[int(position)])}"


def follow(layer, head):
    st.session_state.cell = f"L{layer}H{head}"


def follow_token(position):
    st.session_state.source = str(position)


summary_place = st.container()
places = [st.container() for _ in range(8)]
with places[1]:
    slot_2 = st.container()
    cell = inputs.cell(
        name, "Head to follow", default=BEST, first=[BEST], format=cell_label, help=tip("head", "direct effect")
    )
with places[3 if composed else 5]:  # the step that is about the head's attention to the source
    slot_source = st.container()
    position = links.choose(
        "Source token",
        [SOURCE, *map(str, range(len(words)))],
        key="source",
        format=position_label,
        help=tip("key"),
        means=lambda at: None if at == SOURCE else inputs.read_up_to(words, int(at)),
    )
layer, head = (None, None) if cell == BEST else map(int, cell[1:].split("H"))
key = None if position == SOURCE else int(position)

try:
    with summary_place:
        study = case_studies.long_case_study(name, question, layer, head, key, kind=kind, contrast=contrast)
except UserError as problem:
    inputs.refuse(problem)
if study is None:
    links.end_page()

prediction, breakdown = study.prediction, study.breakdown
with summary_place:
    worth = case_studies.layer_worth(name, question, study)
    st.info(escape(f"{study.summary} {worth}".strip()), icon=":material/arrow_forward:")
    for remark in study.remarks():
        st.caption(escape(remark))
    steps = [f"[{place}. {study.steps[number - 1].title}](#step-{number})" for place, number in enumerate(SHOWN, 1)]
    st.markdown(" · ".join(steps))
    if study.unread and study.looked != study.key:
        st.button(
            f'Follow "{inputs.shown(words[study.looked])}" instead, the token with the largest weight',
            on_click=follow_token,
            args=(study.looked,),
            icon=":material/subdirectory_arrow_right:",
        )
with places[0]:
    if prediction.answer and prediction.rank != 1 and int(prediction.top_ids[0]) in inputs.also_right(name, question):
        st.info(
            f'The model gives another right answer of this example: "{escape(prediction.top_tokens[0].strip())}".',
            icon=":material/info:",
        )
    elif prediction.answer and prediction.rank != 1:
        st.warning(
            f"The model answers this example wrongly (the right answer has rank {prediction.rank}).",
            icon=":material/warning:",
        )
    heading(1, "logit")
    token_chips(
        words,
        key="prompt-tokens",
        marks={study.key: "source", len(words) - 1: "answer"},
        chosen=study.key,
        on_pick=follow_token,
        dark=theme() == "dark",
    )
    st.caption(
        "Underlined in purple: the source token, to which attention is followed below; click another token to follow "
        "that one. In green: the last token, after which the model answers."
    )
    ink = "white" if theme() == "dark" else "black"
    view(
        prediction,
        "answer",
        warnings=False,
        caption=f"The most likely next tokens{f'; {ink}: the expected answer' if prediction.answer else ''}.",
    )
with slot_2:
    heading(2, "attribution", "direct effect")
    view(
        scores,
        "heads",
        selected=(study.layer, study.head),
        on_pick=follow,
        caption=f"What each head contributes to {sentences.explained(scores)}, over all positions. Click a cell, or "
        "move with the arrow keys, to follow that head.",
    )
with places[2], heading(3, "OV circuit"):
    if not study.steps[2].holds:
        st.markdown(escape(study.steps[2].sentence))
    view(
        study.circuit,
        "circuit",
        caption="From left to right: the tokens that this head promotes most when it attends to the source word alone.",
    )
if composed:
    with slot_source:
        heading(4, "branches")
        view(
            breakdown,
            "branches",
            selected=study.head,
            caption="Every head's attention from the last token to the source. Grey is its own; green is what the "
            "query token adds, purple what the key token adds, projections dark and gates light; the diamond is the "
            "sum, which the head uses. The band marks the head that is followed.",
        )
    with places[4]:
        heading(5, "sharing", "edge")
        beside = st.grid(2, min_column_width=420)
        with beside.container():
            view(
                breakdown,
                "sharing",
                kind="sharing",
                selected=study.head,
                warnings=False,
                caption=f"How much attention each head shares with head {study.head}. Below zero it reduces that "
                "head's attention.",
            )
        with beside.container():
            side = study.side
            view(
                breakdown,
                "weights",
                kind="weights",
                side=side,
                selected=study.head,
                warnings=False,
                caption=f"The {side} token's dynamic weights: from which heads it gathers attention, to which heads it "
                f"distributes it (framed: head {study.head}), and its gate.",
            )
        # The other pages have one foil, which may be another than this one.
        against = "\n\nThere the answer is compared with the runner-up, here with " + CONTRASTS["facts"] + "."
        against *= study.contrast == "facts"
        st.page_link(
            "app_pages/interventions.py",
            label=f"Ablate the attention that head {study.head_from} shares with head {study.head} here, and see what "
            "changes",
            help=f"Opens the page Interventions with the line: {study.edge_line}{against}",
            icon=":material/content_cut:",
            query_params=inputs.link_choices({"what": study.edge_line}),
        )
        edge = {"layer": study.layer, "branch": f"{side[0]}p", "lender": study.head_from, "head": study.head}
        st.page_link(
            "app_pages/edges.py",
            label=f"Compare the edge L{study.layer}H{study.head_from} → L{study.layer}H{study.head} with all other "
            "edges",
            help="Opens the page Edges at this edge. Step 5 is about one token; the score of an edge is the sum over "
            f"all tokens.{against}",
            icon=":material/account_tree:",
            query_params=inputs.link_choices({key: str(value) for key, value in edge.items()}),
        )
with places[5] if composed else slot_source:
    heading(6, "softmax")
    view(
        study.rows,
        "rows",
        head=study.head,
        head_from=study.head_from,
        key=study.key,
        caption="Each row is what a head attends to from the last token. "
        + (
            "Before composition a row sums to 1 and is nowhere negative; after it neither is true. "
            if breakdown is not None
            else ""
        )
        + "The frame marks the source.",
    )
if composed:
    with places[6], heading(7, "o_kg", "o_qg"):
        if not study.steps[6].holds:
            st.markdown(escape(study.steps[6].sentence))
with places[7]:
    st.divider()
    st.markdown("**The whole case study** as numbers, a folder, and code:")
    footer(study, "study")
