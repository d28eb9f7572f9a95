"""Circuits: the edges that make the answers, drawn, run alone at a click, noted on, saved and exported."""

import json

import streamlit as st

import synthetic_tasks
from dcinterp.support.errors import UserError
from workbench import analyses, circuit_view, examples, inputs, links, patching_form
from workbench.glossary import tip
from workbench.markdown import escape, sentence
from workbench.task_tables import COUNTERFACTUAL_KINDS
from workbench.theme import theme
from workbench.view import file_name, footer, show_warnings, view

COUNTERFACTUALS = {"any": "the first that exists"} | {
    kind: words for kind, words in COUNTERFACTUAL_KINDS.items() if kind != "position"
}
CONTRASTS = {"counterfactual": "the counterfactual prompt", "mean": "the mean over the prompts"}
METHODS = {
    "gates-relp": "gates and RelP",
    "gates": "gates",
    "eap-ig": "EAP-IG (inputs)",
    "eap-ig-activations": "EAP-IG (activations)",
    "eap": "EAP",
    "exact": "exact patching (slow)",
}
# {input: the argument of `dcinterp.circuit` that it gives, and its choices}
WORDS = {
    "edge_method": ("method", METHODS),
    "pair_change": ("counterfactual", COUNTERFACTUALS),
    "edge_contrast": ("contrast", CONTRASTS),
}

st.title("Circuit", anchor=False)
st.markdown(
    "Which edges of the whole model make the answers, and what does the model answer with these alone? Every other "
    "edge carries what it has on another prompt.",
    help=tip("circuit", "counterfactual", "composition"),
)
name = st.session_state.model
inputs.require_tokenizer(name)
if examples.own(name):
    st.info(
        f"Circuits are found over many examples of a task, and this model {examples.made_from(name)}. Choose another "
        "model in the sidebar, or follow one prompt on the page Case study.",
        icon=":material/info:",
    )
    links.end_page()
try:
    patching_form.graph_of(name)
except UserError as problem:
    st.info(sentence(problem), icon=":material/info:")
    links.end_page()

across = st.columns([3, 1, 1])
task = links.choose(
    "Task",
    synthetic_tasks.TASKS,
    key="task",
    default=examples.SHOWCASE_TASKS[0],
    format=examples.label,
    where=across[0],
)
number = links.number(
    "Prompts",
    *circuit_view.PROMPTS,
    key="prompts",
    default=12,
    where=across[1],
    help="Edges are ranked on one half of them, and circuits are run on the other half, which shares no facts with it.",
)
seed = links.number(
    "Seed", *circuit_view.SEEDS, key="prompts_seed", default=0, where=across[2], help="Decides which prompts are drawn."
)
with st.expander("How edges are scored"):
    across = st.columns(3)
    method = links.choose("Method", METHODS, key="edge_method", format=METHODS.__getitem__, where=across[0])
    changes = links.choose(
        "Counterfactual", COUNTERFACTUALS, key="pair_change", format=COUNTERFACTUALS.__getitem__, where=across[1]
    )
    contrast = links.choose(
        "Patched edges carry", CONTRASTS, key="edge_contrast", format=CONTRASTS.__getitem__, where=across[2]
    )
prompts = f"{task} n={number} seed={seed}"
arguments = {"examples": prompts, "counterfactual": changes, "contrast": contrast}
scoring = {"method": method, "steps": 3, "held_out": True}
try:
    scores = analyses.long(
        "circuit",
        name,
        title="Score the edges",
        key="score",
        cost=f"about {(4 if method == 'gates-relp' else 3) * number // 2} passes forward and backward"
        if method != "exact"
        else "a run for every edge",
        at_once=method != "exact" and number <= 24,
        **arguments,
        **scoring,
    )
    if scores is None:
        links.end_page()
    live = circuit_view.ready(name, arguments)
except UserError as problem:
    st.info(sentence(problem), icon=":material/info:")
    links.end_page()

from dcinterp.mechanism.circuit_drawing import all_nodes  # noqa: E402
from dcinterp.mechanism.circuit_file import SavedCircuit, read_notes, write_notes  # noqa: E402
from dcinterp.mechanism.faithfulness import FRACTIONS, edges_kept  # noqa: E402

offered = [edges_kept(fraction, len(scores.edges)) for fraction in FRACTIONS]
# One of a file or of a link may be any other.
wanted = (links.asked_for("edges_kept"), st.session_state.get("edges_kept"), links.last("edges_kept"))
offered += [int(each) for each in wanted if str(each).isdecimal() and len(str(each)) < 10]
nodes = all_nodes(scores.edge_list)


def toggle(edge):
    switched = list(st.session_state.get("switched", []))
    st.session_state.switched = [e for e in switched if e != edge] if edge in switched else [*switched, edge]
    st.session_state["_circuit_before"] = (edge, st.session_state.get("_circuit_f"))


def choose_node(node):
    st.session_state.node = node


size = links.choose(
    "Size of the circuit (edges)",
    circuit_view.sizes(len(scores.edges), offered),
    key="edges_kept",
    default=scores.size,
    format=lambda edges: f"{edges:,} edges ({edges / len(scores.edges):.1%})",
    style="select_slider",
    help=tip("circuit"),
)
beside = st.grid(2, min_column_width=420)
left, right = beside.container(), beside.container()
with right:
    slot = st.container()
    curve_slot = st.container()
below = st.container()
with below:
    switched = links.several(
        "Edges put in or taken out by hand",
        scores.edges,
        key="switched",
        means=lambda _: (name, method, str(arguments)),
        help="Click an edge of the drawing to take it out, and once more to put it back; any other edge is found here.",
    )
    notes_text = links.text(
        "Notes",
        key="notes",
        means=lambda _: name,
        area=True,
        height=100,
        placeholder="pin L1H6\nname L1H6 attention: finds the other mention\ngroup borrowers: L1H1, L1H4",
        help="One note a line: `pin NODE`, `name NODE: NAME`, `group NAME: NODE, NODE`. A group is drawn as one node.",
    )
try:
    notes = read_notes(notes_text, nodes, switched)
except UserError as problem:
    inputs.refuse(problem)
kept = scores.highest(size, switched)
found = circuit_view.answers(name, live, kept, arguments)

with slot:
    f = found.faithfulness
    st.metric("Faithfulness f (no edge: 0, the model: 1)", f"{f:.2f}", help=tip("faithfulness"), border=True)
    # Only in the run that the click made: later changes are not the edge's doing.
    edge, before = st.session_state.pop("_circuit_before", (None, None))
    if before is not None and edge in scores.edges:
        does = "kept" if bool(kept[scores.edges.index(edge)]) else "taken out"
        st.markdown(f"With `{edge}` {does}, f goes from {before:.2f} to **{f:.2f}**.")
    st.session_state["_circuit_f"] = f
    st.markdown(escape(found.sentence()))
    show_warnings(found)
with left:
    chosen = st.session_state.get("node")
    legend, words = circuit_view.draw(
        scores, kept, notes, key="circuit-drawing", look=theme(), chosen=chosen, on_edge=toggle, on_node=choose_node
    )
    st.caption(f"Click an edge to take it out, a node to choose it. {legend}")
    drawing = {"kind": "drawing", "size": size, "switched": tuple(switched)}
    drawing |= {"pinned": notes.pinned, "groups": notes.groups, "names": notes.names}
    edges = scores.table()
    footer(scores, "drawing", drawing, words, figure=edges[edges["edge"].isin(found.edges)])

with curve_slot:
    try:
        curve = analyses.long(
            "faithfulness",
            name,
            title="Measure circuits of all sizes",
            key="curve",
            cost=f"about {number // 2 * 80} passes",
            at_once=method != "exact" and number <= 12,
            **arguments,
            method=method,
            steps=3,
            draws=1,
        )
    except UserError as problem:
        inputs.refuse(problem)
    if curve is not None:
        view(
            curve,
            "curve",
            warnings=False,
            mark=(len(found.edges) / found.of, round(f, 4)),
            caption="The diamond is the circuit that is drawn.",
        )

with below:
    st.subheader("Nodes", anchor=False)
    across = st.columns([2, 2, 2, 1], vertical_alignment="bottom")
    node = links.choose("Node", nodes, key="node", where=across[0])
    with across[1]:
        st.text_input("Its name", key="new_name", placeholder=notes.names.get(node, "what it does"))
    with across[2]:
        st.text_input("Its group", key="new_group", placeholder=notes.group_of(node) or "a name for several nodes")

    def write(change):
        st.session_state.notes = write_notes(change)
        st.session_state.new_name = st.session_state.new_group = ""

    def note():
        from dataclasses import replace

        names, groups = dict(notes.names), dict(notes.groups)
        if word := st.session_state.new_name.strip().replace("\n", " "):
            names[node] = word
        if group := st.session_state.new_group.strip().replace(":", " "):
            groups = {label: tuple(m for m in members if m != node) for label, members in groups.items()}
            groups[group] = (*groups.get(group, ()), node)
        write(replace(notes, names=names, groups=tuple((label, m) for label, m in groups.items() if m)))

    def pin():
        from dataclasses import replace

        pinned = tuple(each for each in notes.pinned if each != node)
        write(replace(notes, pinned=pinned if node in notes.pinned else (*pinned, node)))

    across[3].button("Note", on_click=note, key="note-it", width="stretch")
    with st.container(horizontal=True, gap="small"):
        st.button(
            f"Unpin {node}" if node in notes.pinned else f"Pin {node}", on_click=pin, key="pin", icon=":material/keep:"
        )
        saved = SavedCircuit(
            name,
            arguments | scoring,
            size,
            notes,
            {edge: float(scores.mean[i]) for i, edge in enumerate(scores.edges) if kept[i]},
        )
        st.download_button(
            "Save",
            saved.to_json(),
            f"{file_name(scores)}.circuit.json",
            "application/json",
            icon=":material/save:",
            on_click="ignore",
            key="save-circuit",
            help="The circuit with its size, switched edges and notes, to be loaded here again.",
        )
        st.download_button(
            "Attribution graph",
            lambda: json.dumps(scores.to_attribution_graph(kept=kept, notes=notes, slug=file_name(scores)), indent=1),
            f"{file_name(scores)}.graph.json",
            "application/json",
            icon=":material/hub:",
            on_click="ignore",
            key="export-graph",
            help="JSON for the viewers of circuit-tracer and Neuronpedia.",
        )
        loading = st.popover("Load", icon=":material/folder_open:")

    def load():
        st.session_state["_circuit_refused"] = ("", "")
        if (given := st.session_state.get("circuit-file")) is None:
            return
        try:
            opened = SavedCircuit.from_json(given.getvalue().decode("utf-8", "replace"))
            held = circuit_view.inputs_of(opened, name, scores.edges, nodes, WORDS)
        except UserError as refusal:
            st.session_state["_circuit_refused"] = (name, str(refusal))
            return
        for key, value in held.items():
            st.session_state[key] = value

    loading.file_uploader("A saved circuit", type="json", key="circuit-file", on_change=load)
    by, refused = st.session_state.get("_circuit_refused", ("", ""))
    if refused and by == name:
        st.error(sentence(refused), icon=":material/error:")
    elif refused:
        st.button("Load the file that was given into this model", on_click=load, icon=":material/folder_open:")

    st.subheader("Prompts", anchor=False)
    st.caption("Each prompt of the half that edges were not ranked on: the model's answer, and that of the circuit.")
    st.dataframe(found.table(), hide_index=True, width="stretch")
    footer(found, "answers", table=False, figure=found.table())
    st.subheader("Edges by score", anchor=False)
    view(
        scores,
        "edges",
        warnings=False,
        caption="The largest scores with their intervals over the prompts that edges were ranked on.",
    )
