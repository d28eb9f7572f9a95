"""How heads are mixed: the map over heads at one pair of tokens, by part, and what it makes of the attention there."""

import streamlit as st

from dcinterp.mechanism.branches import FORMER_PARTS, PART_LABELS
from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, stories
from workbench.glossary import tip
from workbench.view import view

# How many are told in words.
MOTIFS = 8
SHOW = {"added": "mean of what it adds", "spread": "how much it changes", "shared": "attention that it moves"}
MEANS = {
    "added": "The mean weight from the last token of every example, where the answer is made, to all tokens up to it, "
    "without the skip connection.",
    "spread": "How much the weight differs between these pairs of tokens (its standard deviation): 0 would be a fixed "
    "map.",
    "shared": "How much attention is really moved from head to head for the last token of an example, on average.",
}

st.title("Composition", anchor=False)
st.markdown(
    "Where one token looks at another, composition mixes the heads: what each head computed there (rows) is added, "
    "with a weight, to what each head uses (columns)."
)
name = st.session_state.model
inputs.needs_composition(name)
asked = inputs.question(name, with_answer=False)
try:
    words = analyses.run("predict", name, prompt=asked.prompt).tokens
except UserError as problem:
    inputs.refuse(problem)

across = st.columns(4)
layer = inputs.layer(name, where=across[0])
stage = inputs.stage(name, where=across[1])
query = inputs.position("Query token", words, key="query", help=tip("query"), where=across[2])
source = asked.source if asked.source is not None else 0
key = inputs.position("Key token", words, key="key", default=source, help=tip("key"), where=across[3])
try:
    breakdown = analyses.run(
        "compose_breakdown", name, prompt=asked.prompt, layer=layer, query=query, key=key, stage=stage
    )
    mixing = analyses.run("composition_map", name, prompt=asked.prompt, layer=layer, stage=stage, query=query, key=key)
except UserError as problem:
    inputs.refuse(problem)


def pick(row, column):
    st.session_state.head_from, st.session_state.head = row, column


st.subheader("Who lends to whom", anchor=False, help=tip("composition map", "lending"))
part = links.choose(
    "Part",
    PART_LABELS,
    key="part",
    format=PART_LABELS.__getitem__,
    style="segmented_control",
    help=tip("branches"),
    former=FORMER_PARTS,
)
picked = st.columns(2)
from_most, to_most = stories.most_shared(breakdown)
head_from = inputs.head(name, key="lender", default=from_most, label="From head", where=picked[0])
head = inputs.head(name, default=to_most, label="To head", where=picked[1])
weight, own = float(getattr(mixing, part)[head_from, head]), float(breakdown.a[head_from])
what = "score" if stage == "pre" else "attention"
st.markdown(
    f"Here head {head} takes up **{weight:+.2f}** times the {what} of head {head_from} ({PART_LABELS[part]}). Head "
    f"{head_from} has {own:.2f} here, so this adds **{weight * own:+.2f}**."
)
view(
    mixing,
    "map",
    part=part,
    selected=(head_from, head),
    on_pick=pick,
    caption="Rows lend, columns receive; a negative weight takes away. The diagonal is a head's own attention. Click a "
    "cell, or walk with the arrow keys.",
)

st.subheader(f"What becomes of the {what} here", anchor=False, help=tip("branches"))
view(
    breakdown,
    "branches",
    selected=head,
    caption=f"One column a head. Grey: its own {what}; blue and cyan: what the query token adds; orange and yellow: "
    "what the key token adds; the diamond is the sum, which the head uses. The band marks the chosen head.",
)

st.subheader(f"What head {head} is lent, and by which token's choice", anchor=False, help=tip("lending"))
pair = st.grid(2, min_column_width=420)
with pair.container():
    view(
        breakdown,
        "lending",
        kind="sharing",
        selected=head,
        table=False,
        caption=f"What each head's {what} adds to head {head}'s; below zero it takes away.",
    )
with pair.container():
    side = links.choose(
        "Dynamic weights of the",
        ["key", "query"],
        key="side",
        default=stories.sharing_side(breakdown, head_from, head),
        style="segmented_control",
        format=lambda word: f"{word} token",
        help=tip("dynamic weights"),
    )
    view(
        breakdown,
        "weights",
        kind="weights",
        side=side,
        selected=head,
        table=False,
        caption=f"The {side} token's weights, as numbers: from which heads it gathers, to which it shares (framed: to "
        f"head {head}), and its gate.",
    )

st.subheader("Motifs of this map", anchor=False, help=tip("motif"))
view(
    mixing,
    "motifs",
    kind="motifs",
    banners=False,
    table=False,
    caption="The same map without the skip connection. A letter marks an entry of a motif: an entry of at least half "
    "the largest, in a shape that has a name. An arrow with n is one head to many, or many to one; a negative weight "
    "takes away.",
)
if told := mixing.motifs():
    more = [f"{len(told) - MOTIFS} more, marked in the map"] if len(told) > MOTIFS else []
    st.markdown("\n".join(f"- {sentence}" for sentence in [*(motif.sentence for motif in told[:MOTIFS]), *more]))

st.subheader("Averaged over a set of examples", anchor=False, help=tip("composition map"))
across = st.columns([3, 2])
texts = links.text(
    "Examples",
    key="set",
    default=f"{asked.task or 'all'} n=10",
    where=across[0],
    help="A pattern, a transformation or task numbers, then n=, seed=, shots=, split=.",
)
# Scores are no amounts, so that nothing of them is moved.
ways = [way for way in SHOW if way != "shared" or stage == "post"]
show = links.choose("Show", ways, key="show", format=SHOW.__getitem__, where=across[1])
try:
    mean = analyses.long(
        "mean_composition_map",
        name,
        title=f"Average the map of layer {layer}, {stage}",
        key="mean",
        examples=texts,
        layer=layer,
        stage=stage,
    )
    if mean is not None:
        view(mean, "mean", show=show, selected=(head_from, head), on_pick=pick, caption=MEANS[show])
    st.subheader("Which layers' composition matters", anchor=False, help=tip("attribution", "clustered interval"))
    importance = analyses.long(
        "composition_importance", name, title="Attribute answers to composition", key="importance", examples=texts
    )
    if importance is not None:
        view(
            importance,
            "importance",
            caption="What the composition of each layer adds to the answers of these examples, by branch: before the "
            "softmax (pre) and after it (post). The diamond is the sum of the branches.",
        )
except UserError as problem:
    inputs.refuse(problem)
