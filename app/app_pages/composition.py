"""How heads are composed at one pair of tokens: the map over heads, its parts, and the attention that results."""

import streamlit as st

from dcinterp.figures.base.style import OF_ALL_TOKENS
from dcinterp.mechanism.ablation_kinds import ABLATIONS
from dcinterp.mechanism.branches import PART_LABELS
from dcinterp.mechanism.dataset import read_selection
from dcinterp.support.errors import UserError
from workbench import analyses, examples, inputs, links, models
from workbench.glossary import tip
from workbench.intervention_form import has_added
from workbench.markdown import escape, sentence
from workbench.view import view

MOTIFS_LISTED = 8
EXAMPLES_AT_ONCE = 50
SHOW = {"added": "mean of what composition adds", "spread": "how much it varies", "shared": "attention that is shared"}
MEANS = {
    "added": "The mean weight over the pairs of the last token of every example, after which the model answers, with "
    "all tokens up to it, without the skip connection.",
    "spread": "How much the weight differs between these pairs of tokens (its standard deviation); a fixed map would "
    "have 0 everywhere.",
    "shared": "How much attention heads share with each other for the last token of an example, on average.",
}

st.title("Composition", anchor=False)
st.markdown(
    "Where one token attends to another, composition mixes the heads: the attention that each head computed there "
    "(rows) is added, with a weight, to the attention that each head uses (columns)."
)
name = st.session_state.model
inputs.needs_composition(name)
question = inputs.question(name, with_answer=False)
try:
    words = analyses.run("predict", name, prompt=question.prompt).tokens
except UserError as problem:
    inputs.refuse(problem)

across = st.columns(4)
layer = inputs.layer(name, where=across[0])
stage = inputs.stage(name, where=across[1])
query = inputs.position("Query token", words, key="query", help=tip("query"), where=across[2])
source = question.source if question.source is not None else 0
key = inputs.position("Key token", words, key="key", default=source, until=query, help=tip("key"), where=across[3])
try:
    breakdown = analyses.run(
        "compose_breakdown", name, prompt=question.prompt, layer=layer, query=query, key=key, stage=stage
    )
    mixing = analyses.run(
        "composition_map", name, prompt=question.prompt, layer=layer, stage=stage, query=query, key=key
    )
except UserError as problem:
    inputs.refuse(problem)


def pick(row, column):
    st.session_state.lender, st.session_state.head = row, column


st.subheader("Which heads share with which", anchor=False, help=tip("composition map", "sharing"))
part = links.choose(
    "Part",
    PART_LABELS,
    key="part",
    format=PART_LABELS.__getitem__,
    style="segmented_control",
    help=tip("branches"),
)
picked = st.columns(2)
moved = (mixing.total * breakdown.a[:, None]).abs().fill_diagonal_(0)
from_most, to_most = divmod(int(moved.argmax()), len(moved))
links.unit("lender", "head")
# The address calls it as version 0.1 did.
head_from = inputs.head(name, key="lender", default=from_most, label="From head", where=picked[0])
head = inputs.head(name, default=to_most, label="To head", where=picked[1])
weight, own = float(getattr(mixing, part)[head_from, head]), float(breakdown.a[head_from])
quantity = "score" if stage == "pre" else "attention"
st.markdown(
    f"Here head {head} uses **{weight:+.2f}** times the {quantity} of head {head_from} ({PART_LABELS[part]}). The "
    f"{quantity} of head {head_from} is {own:.2f} here, so this adds **{weight * own:+.2f}**."
)
if abs(bias := float(breakdown.out[head] - mixing.total[:, head] @ breakdown.a)) >= 0.005:
    st.markdown(f"A bias adds **{bias:+.2f}** to head {head}, whatever the heads attend to.")
view(
    mixing,
    "map",
    part=part,
    selected=(head_from, head),
    on_pick=pick,
    caption="Rows share, columns borrow; a negative weight subtracts. The diagonal is a head's own attention. Click a "
    "cell, or move with the arrow keys, to choose its two heads.",
)

base = f"the {OF_ALL_TOKENS}" if breakdown.has_map_of_all_tokens else f"its own {quantity}"
st.subheader(f"What the composed {quantity} is made of", anchor=False, help=tip("branches"))
view(
    breakdown,
    "branches",
    selected=head,
    caption=f"One column per head. Grey is {base}; green is what the query token adds, purple what the "
    "key token adds, projections dark and gates light; the diamond is the sum, which the head uses. The band marks the "
    "chosen head.",
)


def draw_sharing():
    st.subheader(f"What head {head} borrows, and through which token's weights", anchor=False, help=tip("sharing"))
    beside = st.grid(2, min_column_width=420)
    with beside.container():
        view(
            breakdown,
            "sharing",
            kind="sharing",
            selected=head,
            caption=f"What each head shares with head {head}. Below zero it reduces that head's {quantity}.",
        )
    with beside.container():
        side = links.choose(
            "Dynamic weights of the",
            ["key", "query"],
            key="side",
            default=breakdown.sharing_side(head_from, head),
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
            caption=f"The {side} token's dynamic weights: from which heads it gathers, to which heads it distributes "
            f"(framed: head {head}), and its gate.",
        )


def draw_causes():
    st.subheader(f"What makes head {head_from} share with head {head}", anchor=False, help=tip("dynamic weights"))
    try:
        causes = analyses.run(
            "composition_causes",
            name,
            prompt=question.prompt,
            layer=layer,
            head_from=head_from,
            head_to=head,
            query=query,
            key=key,
            stage=stage,
        )
    except UserError as problem:  # a part of composition that no token decides, or a prompt of one token
        st.caption(sentence(problem))
        return
    beside = st.columns(2)
    with beside[0]:
        explained = links.choose("Explain the", causes.quantities, key="explained", default="weight")
    with beside[1]:
        by = links.choose("By", ["component", "token"], key="by", style="segmented_control")
    st.markdown(escape(causes.sentences()[causes.quantities.index(explained)]))
    view(
        causes,
        "causes",
        quantity=explained,
        by=by,
        caption="How much of the difference between this number and what it is with the mean of the other positions is "
        "credited to what each component (or token) wrote upstream. The diamond is the change that is measured when "
        "one component alone is set to that mean.",
    )


if has_added(models.model(name), layer, stage):
    draw_sharing()
    draw_causes()
elif bool((mixing.total - mixing.total.diag().diag()).any()):
    st.caption("This map is the same for all tokens: heads share by it alone, and no dynamic weights make it.")
else:
    st.caption("Heads share nothing here: each uses what it attends to itself.")

st.subheader("Motifs of this map", anchor=False, help=tip("motif"))
view(
    mixing,
    "motifs",
    kind="motifs",
    warnings=False,
    caption="The same map without the skip connection. A letter marks an entry that belongs to a motif: an entry of at "
    "least half the largest one, in a pattern that has a name. An arrow with n is one-to-many or many-to-one; a "
    "negative weight subtracts.",
)
if motifs := mixing.motifs():
    more = [f"{len(motifs) - MOTIFS_LISTED} more, marked in the map"] if len(motifs) > MOTIFS_LISTED else []
    st.markdown(
        "\n".join(f"- {sentence}" for sentence in [*(motif.sentence for motif in motifs[:MOTIFS_LISTED]), *more])
    )

st.subheader("Averaged over a set of examples", anchor=False, help=tip("composition map"))
across = st.columns([3, 2])
texts = inputs.examples_set(
    "Examples",
    key="set",
    default=f"{question.task or 'all'} n=10",
    where=across[0],
)
# Scores before the softmax are not amounts of attention, so none of it is shared.
ways = [way for way in SHOW if way != "shared" or stage == "post"]
show = links.choose("Show", ways, key="show", format=SHOW.__getitem__, where=across[1])
try:
    mean = analyses.long(
        "mean_composition_map",
        name,
        title=f"Average the map of layer {layer}, {stage}",
        key="mean",
        # Models of puzzles and planted ones have words of their own.
        at_once=examples.knows_tasks(models.require(name).tokenizer) and read_selection(texts).n <= EXAMPLES_AT_ONCE,
        examples=texts,
        layer=layer,
        stage=stage,
    )
    if mean is not None:
        view(mean, "mean", show=show, selected=(head_from, head), on_pick=pick, caption=MEANS[show])
    st.subheader(
        "How much of the answers is credited to each layer's composition",
        anchor=False,
        help=tip("attribution", "clustered interval"),
    )
    kind = links.choose(
        "Compare composition with",
        ["mean", "zero"],
        key="against",
        default="zero" if links.older("against") else "mean",
        format={"mean": "its mean over these examples", "zero": "none (zero)"}.__getitem__,
        style="segmented_control",
        help="\n\n".join(f"**{each}**: {ABLATIONS[each].line}." for each in ("mean", "zero")),
    )
    importance = analyses.long(
        "composition_importance",
        name,
        title="Attribute the answers to composition",
        key="importance",
        examples=texts,
        kind=kind,
    )
    if importance is not None:
        view(
            importance,
            "importance",
            caption="How much of the answers of these examples, each compared with one that another of its facts would "
            "give, integrated gradients credit to each layer, by branch: before the softmax (pre) and after it (post). "
            "The diamond is the sum of the branches.",
        )
except UserError as problem:
    inputs.refuse(problem)
