"""Where the answer's logit comes from: what each part adds to it, and what each layer would answer."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models
from workbench.glossary import tip
from workbench.markdown import escape, sentence
from workbench.view import view

COLOURS = {
    "probability": "probability of the most likely token",
    "target_probability": "probability of the answer",
    "logit_difference": "logit difference",
    "divergence": "divergence from the output",
}

st.title("Logits by part and layer", anchor=False)
st.markdown(
    "What does each part of the model add to the answer by itself, and what would the model answer if it ended "
    "earlier? Both read the residual stream through the model's own final norm and unembedding.",
    help=tip("logit difference", "residual stream"),
)
name = st.session_state.model
question = inputs.question(name)
inputs.write_out(question)
try:
    target, strongest = inputs.target_and_foil(name, question)
    if isinstance(strongest, str):
        strongest = (
            links.text(
                "Compared with",
                key="against_word",
                default=strongest,
                help=tip("foil", "logit difference"),
                means=lambda _: (question.prompt, target),
            ).strip()
            or strongest
        )
    parts = analyses.run("direct_logit_attribution", name, prompt=question.prompt, target=target, foil=strongest)
except UserError as problem:
    inputs.refuse(problem)

layers, heads = parts.heads.shape


def follow_part(row, column):
    if 1 <= row <= layers and column < heads:
        st.session_state.cell = f"L{row - 1}H{column}"


st.subheader("What each part adds", anchor=False, help=tip("logit attribution"))
st.markdown(escape(parts.sentence()))
slot = st.container()
cell = inputs.cell(name, "Head", default=parts.best, help=tip("head"))
layer, head = map(int, cell[1:].split("H"))
with slot:
    view(
        parts,
        "parts",
        selected=(layer, head),
        on_pick=follow_part,
        caption="Each cell is what one part adds at the last token, in logits: the heads, the MLP and the biases of "
        "each layer; the embedding in the first row, the biases of the final norm and the unembedding in the last. "
        "Click a head, or move with the arrow keys, to choose it.",
    )
value = float(parts.heads[layer, head])
rank = int((parts.heads.abs() > abs(value)).sum()) + 1
st.markdown(f"Head {head} of layer {layer} adds **{value:+z.2f}**: number {rank} of {layers * heads} heads by size.")
view(
    parts,
    "bars",
    kind="parts",
    warnings=False,
    caption="The largest parts and the sum of all others. All bars together are the logit difference.",
)

st.subheader("What each layer would answer", anchor=False, help=tip("logit lens"))
across = st.columns(2, vertical_alignment="bottom")
which = links.choose("Colour", COLOURS, key="which_lens", format=COLOURS.__getitem__, where=across[0])
middle = False
if not getattr(models.model(name).cfg, "parallel_attn_mlp", False):
    middle = links.switch("Also after attention", key="middle", where=across[1], help=tip("layer", "residual stream"))
try:
    lens = analyses.run("logit_lens", name, prompt=question.prompt, target=target, foil=strongest, attention=middle)
except UserError as problem:
    inputs.refuse(problem)
depths = lens.depths[::-1]


def follow_place(row, column):
    st.session_state.depth, st.session_state.place = depths[row], column


st.markdown(escape(lens.sentence()))
slot = st.container()
across = st.columns(2)
depth = links.choose("Stream", depths, key="depth", help=tip("logit lens"), where=across[0])
place = inputs.position("Token", lens.tokens, key="place", where=across[1])
with slot:
    view(
        lens,
        "lens",
        which=which,
        selected=(depths.index(depth), place),
        on_pick=follow_place,
        caption="Each cell names the most likely next token after the token below it. The top row is the model's own "
        "output. Click a cell, or move with the arrow keys, to see its alternatives.",
    )
at = lens.depths.index(depth)
words = [inputs.shown(token) for token in lens.top_tokens[at][place]]
chances = lens.probability[at, place].tolist()
listed = ", ".join(f"`{word}` {chance:.1%}" for word, chance in zip(words, chances, strict=True))
st.markdown(
    f'After "{inputs.shown(lens.tokens[place])}", {depth} gives {listed}. The answer "{lens.target.strip()}" is number '
    f"{int(lens.target_rank[at, place])} there."
)
view(
    lens,
    "depths",
    kind="depths",
    pos=place,
    warnings=False,
    caption="At the chosen token, from the embedding to the output.",
)

st.subheader("Generation, step by step", anchor=False, help=tip("generation", "logit lens"))
# The last token that is written is not read any more.
room = models.model(name).cfg.n_ctx - len(lens.tokens) + 1
count = links.number(
    "Steps",
    1,
    min(32, room),
    key="generated",
    default=6,
    help="Tokens that the model writes, each time the most likely one; it stops at the end of the text.",
)
answer = question.answer
try:
    written = analyses.run("generation_steps", name, prompt=question.prompt, answer=answer, steps=count)
except UserError as problem:
    st.info(sentence(problem), icon=":material/info:")
    links.end_page()
stack = written.depths[::-1]
labels = [f"{number}: {inputs.shown(token)}" for number, token in enumerate(written.written)]


def follow_step(row, column):
    st.session_state.step_depth, st.session_state.step = stack[row], labels[column]


st.markdown(escape(written.sentence()))
if len(written.expected) > 1:
    parts = zip(written.expected, written.answer_probability.tolist(), strict=True)
    st.markdown("By token: " + ", ".join(f"`{inputs.shown(token)}` {chance:.1%}" for token, chance in parts) + ".")
slot = st.container()
across = st.columns(2)
of_depth = links.choose("Stream at the step", stack, key="step_depth", where=across[0], help=tip("logit lens"))
step = labels.index(links.choose("Step", labels, key="step", where=across[1]))
with slot:
    view(
        written,
        "generation",
        selected=(stack.index(of_depth), step),
        on_pick=follow_step,
        caption="Each column is a step, each cell the most likely next token of the stream at that depth. The top row "
        "is what was written. Click a cell, or move with the arrow keys, to see its alternatives.",
    )
at = written.depths.index(of_depth)
tops = zip(written.top_tokens[at][step], written.probability[at, step].tolist(), strict=True)
st.markdown(
    f"At step {step}, {of_depth} gives "
    + ", ".join(f"`{inputs.shown(token)}` {chance:.1%}" for token, chance in tops)
    + f". The token that was written is the most likely one from {written.first_depth(step)} on."
)
