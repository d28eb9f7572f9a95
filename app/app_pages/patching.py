"""Activation patching: what restores the answer, by layer and position, and by head."""

import streamlit as st

from dcinterp.mechanism.patching import NothingToRestore
from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models, patching_form
from workbench.glossary import tip
from workbench.markdown import escape, sentence
from workbench.view import view

SITES = {"resid_pre": "residual stream", "attn_out": "attention output", "mlp_out": "MLP output"}
DIRECTIONS = {"denoising": "Denoising: what restores the answer?", "noising": "Noising: what breaks it?"}
AT_ONCE = 60_000  # tokens in all runs, up to which a small model is run without a button

st.title("Patching", anchor=False)
st.markdown(
    "Two prompts that differ in little have different answers. Run one of them with a single value taken from the "
    "other, and see how far the answer moves.",
    help=tip("patching", "counterfactual", "share restored"),
)
name = st.session_state.model
question = inputs.question(name)
inputs.write_out(question)
try:
    length = len(analyses.run("predict", name, prompt=question.prompt).tokens)
    pair = patching_form.pair_arguments(name, question)
except UserError as problem:
    inputs.refuse(problem)
if pair is None:
    links.end_page()
pair["direction"] = links.choose(
    "Direction",
    DIRECTIONS,
    key="direction",
    format=DIRECTIONS.__getitem__,
    style="segmented_control",
    help=tip("denoising"),
)
does = "restores" if pair["direction"] == "denoising" else "takes away"

st.subheader("By layer and position", anchor=False, help=tip("share restored"))
bridge = models.model(name)
layers, heads = bridge.cfg.n_layers, bridge.cfg.n_heads
try:
    stream = analyses.long(
        "patch_stream",
        name,
        title="Patch the stream",
        key="stream",
        cost=f"{len(SITES) * layers * (length + 1):,} runs of {length} tokens",
        at_once=len(SITES) * layers * (length + 1) * length <= AT_ONCE,
        prompt=question.prompt,
        **pair,
    )
except NothingToRestore as problem:
    st.info(sentence(problem), icon=":material/info:")
    links.end_page()
except UserError as problem:
    inputs.refuse(problem)
if stream is not None:
    st.markdown(escape(stream.sentence()), help=tip("logit difference", "target", "foil"))
    site = links.choose("Site", SITES, key="site", format=SITES.__getitem__, style="segmented_control")
    effect = stream.effect[stream.sites.index(site)]
    best_layer, best_place = divmod(int(effect.argmax()), effect.shape[1])

    def follow_place(row, column):
        st.session_state.at_layer, st.session_state.at = row, column

    slot = st.container()
    across = st.columns(2)
    links.unit("at_layer", "at")
    layer = inputs.layer(name, key="at_layer", default=best_layer, where=across[0])
    place = inputs.position("Token", stream.labels("pos"), key="at", default=best_place, where=across[1])
    with slot:
        view(
            stream,
            "stream",
            site=site,
            selected=(layer, place),
            on_pick=follow_place,
            caption="Each cell is one run: this site of this layer, at this token alone, comes from the other prompt. "
            "Where the prompts differ, both tokens are named. Click a cell, or move with the arrow keys, to read it.",
        )
    st.markdown(
        f'The {SITES[site]} of layer {layer} at "{inputs.shown(stream.labels("pos")[place])}" {does} '
        f"**{float(effect[layer, place]):z.0%}**: the logit difference becomes "
        f"{float(stream.logit_difference[stream.sites.index(site), layer, place]):z.2f}."
    )

st.subheader("By head", anchor=False, help=tip("head", "share restored"))
groups = patching_form.site_groups(name)
across = st.columns(2)
group = links.choose("Parts of heads", groups, key="group", help=tip("composition", "dynamic weights"), where=across[0])
site = links.choose("Site", groups[group], key="head_site", format=patching_form.site_label, where=across[1])
sites = list(groups[group])
try:
    patched = analyses.long(
        "patch_heads",
        name,
        title="Patch the heads",
        key="heads",
        cost=f"{len(sites) * layers * (heads + 1):,} runs of {length} tokens",
        at_once=len(sites) * layers * (heads + 1) * length <= AT_ONCE,
        prompt=question.prompt,
        sites=sites,
        **pair,
    )
except UserError as problem:
    inputs.refuse(problem)
if patched is not None:
    effect = patched.effect[patched.sites.index(site)]
    together = patched.all_heads[patched.sites.index(site)]
    together = together if pair["direction"] == "denoising" else 1 - together
    cells = [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]

    def follow_head(row, column):
        st.session_state.cell = f"L{row}H{column}"

    def follow_site(row, column):
        st.session_state.head_site, st.session_state.cell = sites[row], cells[column]

    slot = st.container()
    cell = inputs.cell(name, "Head", default=cells[int(effect.argmax())], help=tip("head"))
    layer, head = map(int, cell[1:].split("H"))
    with slot:
        view(
            patched,
            "heads",
            site=site,
            selected=(layer, head),
            on_pick=follow_head,
            warnings=False,
            caption="Each cell is one run: this site of this head, at all tokens, comes from the other prompt. Click a "
            "head, or move with the arrow keys, to read it.",
        )
    st.markdown(
        f"Head {head} of layer {layer}, {patching_form.site_label(site)}: {does} "
        f"**{float(effect[layer, head]):z.0%}**. All heads of the layer together: {float(together[layer]):z.0%}."
    )
    view(
        patched,
        "sites",
        kind="sites",
        selected=(sites.index(site), cells.index(cell)),
        on_pick=follow_site,
        warnings=False,
        caption="All sites of this group and all heads. Click a cell to choose both.",
    )

st.subheader("By head and token", anchor=False, help=tip("head", "share restored"))
try:
    placed = analyses.long(
        "patch_head_positions",
        name,
        title="Patch each head at each token",
        key="head-positions",
        cost=f"{layers * heads * length:,} runs of {length} tokens",
        prompt=question.prompt,
        site=site,
        **pair,
    )
except UserError as problem:
    inputs.refuse(problem)
if placed is not None:
    rows = [f"L{layer}H{head}" for layer in range(layers) for head in range(heads)]
    cell, at = st.session_state.get("cell"), st.session_state.get("at")  # of another page, where none is drawn here

    def follow_head_at(row, column):
        st.session_state.cell, st.session_state.at = rows[row], column

    view(
        placed,
        "head-positions",
        selected=(rows.index(cell), at) if cell in rows and at in range(length) else None,
        on_pick=follow_head_at,
        warnings=False,
        caption=f"Each cell is one run: {patching_form.site_label(placed.site)} of this head, at this token alone, "
        "comes from the other prompt. Click a cell to choose the head and the token above.",
    )

st.subheader("Along a path", anchor=False, help=tip("path patching", "composition"))
try:
    graph = patching_form.graph_of(name)
except UserError as problem:
    st.info(sentence(problem), icon=":material/info:")
    links.end_page()
receivers = list(dict.fromkeys(edge.nodes[1] for edge in graph.edges))
across = st.columns([1, 2])
receiver = links.choose(
    "What reads",
    receivers,
    key="receiver",
    default="logits",
    where=across[0],
    help="A query, key or value, dynamic weights, an MLP, the logits; a head that uses another head's attention, or "
    "attention made of other heads' scores.",
)
through = links.several(
    "And then along these edges alone", graph.names, key="through", where=across[1], help=tip("path patching")
)
try:
    path = analyses.long(
        "patch_path",
        name,
        title="Patch the path",
        key="path",
        cost="a run for every edge into it",
        at_once=length <= inputs.SHORT,
        prompt=question.prompt,
        receiver=receiver,
        through=through or None,
        **pair,
    )
except UserError as problem:
    inputs.refuse(problem)
if path is not None:
    most = int(path.effect.argmax())
    together = path.together if pair["direction"] == "denoising" else 1 - path.together
    st.markdown(
        f"`{path.edges[most]}` {does} most: **{float(path.effect[most]):z.0%}**. All {len(path.edges)} edges into "
        f"`{receiver}` together: {together:z.0%}."
    )
    view(
        path,
        "path",
        warnings=False,
        caption="Each bar is one run: the part on the left has its value of the other prompt where the receiver reads "
        "it, and nowhere else.",
    )
