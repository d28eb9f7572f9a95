"""Train a small model, follow it, stop it, resume it, and go back through its checkpoints."""

import os
from pathlib import Path
from typing import Any

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, code_models, examples, links, models, training
from workbench.glossary import FAVOURS_AFTER, SIZE_ALONE, tip
from workbench.markdown import escape, sentence
from workbench.view import view

st.title("Training", anchor=False)
st.markdown(
    "Train a small model here and see what it learns when. A run is `dcinterp train` in a process of its own: it goes "
    "on while you look at other pages or close the browser. When the app ends, also when it is killed, the run stops "
    "at a checkpoint, and **Resume** goes on from there with the same numbers as if it had never stopped. For a run "
    "that is to outlive the app, use the command in a terminal; it is shown here all the same."
)
SHIPPED, SHIPPED_CODE = "the shipped models", "the shipped models of source code"
PRESETS = ["tiny-dcformer++", "tiny-transformer++", "tiny-dcformer", "tiny-transformer"]
SIDE_BY_SIDE = 420

found = training.runs(Path.cwd())
# Another key makes another expander, which is closed: so it is after a run was started.
with (
    st.expander(
        "Start a run",
        expanded=not found,
        icon=":material/play_arrow:",
        key=f"start-{st.session_state.get('_started', 0)}",
    ),
    st.form("start", border=False, enter_to_submit=False),
):
    across = st.columns([2, 2, 1, 1])
    # A key, so that what is typed stays where another session takes the name that was suggested.
    suggested = f"new-run-{st.session_state.get('_started', 0)}"
    st.session_state.setdefault(suggested, training.free_name())
    place = across[0].text_input(
        "Folder", key=suggested, help="For the run and its model, seen from where the app was started."
    )
    known = [name for name in PRESETS if name in training.tiny_presets()] or training.tiny_presets()
    preset = across[1].selectbox(
        "Model",
        known,
        help="The names with `dc` compose their heads, the others are their baseline models, without composition.",
    )
    layers = across[2].number_input("Layers", 1, 8, 2, help=tip("layer"))
    steps = across[3].number_input("Steps", 10, 100_000, 200, help="A step is one batch of documents and one update.")
    text = st.text_input(
        "Text to train on",
        "",
        placeholder="empty: the 74 synthetic tasks",
        help="The path of a file or a folder, read byte by byte. Empty: the synthetic tasks, and the share of held-out "
        "questions that the model answers is measured as it trains.",
    )
    if st.form_submit_button("Start", type="primary"):
        try:
            folder = Path(os.path.realpath(os.path.expanduser(place)))
            training.start(folder, preset, int(steps), {"num_hidden_layers": int(layers)}, text.strip())
        except (UserError, OSError) as problem:
            st.error(sentence(problem), icon=":material/error:")
        else:
            st.session_state.run = str(folder)
            training.started(folder)
            st.session_state["_started"] = st.session_state.get("_started", 0) + 1
            st.rerun()

run = links.choose(
    "Run",
    [*found, SHIPPED, SHIPPED_CODE],
    key="run",
    # Not that of another folder: what was trained here, else what everybody has.
    default=training.own_run(found) or SHIPPED,
    format=lambda run: run if run in (SHIPPED, SHIPPED_CODE) else training.name(run),
    help="Runs in or below the folder where the app was started, the latest first.",
)
folder = Path(run)


def curves(*, complete: bool) -> None:
    """Loss and accuracy of the run as far as it is; `complete` with tables, files and code."""
    found = training.losses(folder)
    if found is None:
        return
    draw = view if complete else training.picture
    alone = training.source(folder) in ("text", "images")
    beside = st.container() if alone else st.grid(2, min_column_width=SIDE_BY_SIDE, gap="medium")
    with beside.container():
        st.subheader("How well it predicts", anchor=False, help=tip("loss"))
        thick = "; thick, of those that are held out" if bool(found.validation_loss.isfinite().any()) else ""
        caption = f"Mean loss of the documents it trains on, a few steps to a point{thick}."
        draw(found, f"loss-{complete}", caption=caption)
    if alone:
        return
    with beside.container():
        st.subheader("What it answers", anchor=False, help=tip("QK pattern", "held-out"))
        answers(f"answers-{complete}", run, draw)


def answers(place: str, source: str, draw: Any = view) -> None:
    """Accuracy by QK pattern, once there is a measurement."""
    try:
        measured = analyses.fresh("training_curves", run=source)
    except UserError:
        st.caption("The first measurement is still to come.")
        return
    caption = "Share of held-out questions whose whole answer is the most likely one, by "
    if training.source(Path(source)) == "puzzle":
        caption += "the part of the puzzle."
    else:
        caption += "how the question selects its fact (QK pattern); the thick line is over all."
        if measured.has_sides:
            caption += " *Held-out* are combinations that training left out, *seen* the tasks that it draws from."
    draw(measured, place, caption=caption)


def state(now: training.Run) -> None:
    """Where the run stands, and the button for what can be done about it."""
    st.progress(now.share, text=now.words())
    if now.state == "failed":
        st.error(sentence(now.message), icon=":material/error:")
    if now.host:
        st.caption(f"It runs on {escape(now.host)}, where it can be stopped.")
    elif now.state in ("starting", "running"):
        st.button("Stop", icon=":material/stop:", on_click=training.stop, args=(folder,), help="It can be resumed.")
    elif now.state == "stopping" and training.ignores_stop(folder):
        st.button("Stop at once", icon=":material/stop:", on_click=training.stop, args=(folder,))
    elif now.state in ("stopped", "failed"):
        # Without a checkpoint there is nothing to go on from.
        label, icon = ("Resume", "resume") if now.saved else ("Start again", "replay")
        st.button(label, icon=f":material/{icon}:", on_click=training.resume, args=(folder,), type="primary")


@st.fragment(run_every=2.0)
def follow():
    now = training.read_run(folder)
    if not now.alive:
        st.rerun()
    state(now)
    curves(complete=False)
    if (newest := max(training.checkpoints(folder), default=0)) > st.session_state.get("_newest", 0) and st.button(
        f"Look at the checkpoint of step {newest:,}", icon=":material/refresh:"
    ):
        st.rerun()


if run == SHIPPED:
    for number, shipped in enumerate(("dcformer++", "transformer++")):
        st.subheader(f"What {shipped} learnt when", anchor=False, help=tip("QK pattern", "held-out"))
        answers(f"shipped-{number}", shipped)
    links.end_page()
if run == SHIPPED_CODE:
    code_models.show()
    links.end_page()

now = training.read_run(folder)
places = training.checkpoints(folder)
st.session_state["_newest"] = max(places, default=0)
if now.alive:
    follow()
else:
    state(now)
    curves(complete=True)
if not places:
    links.end_page()

st.subheader("Back through its checkpoints", anchor=False, help=tip("checkpoint"))
saved = list(places)
at = saved[0]
if len(saved) > 1:
    at = links.choose(
        "Checkpoint",
        saved,
        key="checkpoint",
        default=saved[-1],
        format=lambda step: f"step {step:,}",
        style="select_slider",
        means=lambda _: run,
        help="Drag it, or use the arrow keys: everything below is of that moment.",
    )
model = places[at]
reads = training.source(folder)
try:
    if reads == "tasks":
        task = links.choose("Question", list(examples.SHOWCASE_TASKS), key="question", format=examples.label)
        example = examples.held_out(task, 0)
        beside = st.grid(2, min_column_width=SIDE_BY_SIDE, gap="medium")
        with beside.container():
            st.markdown(f"At **step {at:,}**, after `{example.prompt}` (right would be **{example.answer}**):")
            view(analyses.run("predict", model, prompt=example.prompt, answer=example.answer), "scrub")
        with beside.container():
            st.markdown(f"What each head adds to **{example.answer}**:", help=tip("attribution"))
            heads = analyses.run("attribute_heads", model, prompt=example.prompt, target=example.answer, steps=8)
            view(heads, "scrub-heads", warnings=False)
    elif reads == "text":
        prompt = links.text("Beginning of a text", key="beginning", default="The ")
        st.markdown(f"At **step {at:,}**, after {escape(prompt)}:")
        view(analyses.run("predict", model, prompt=prompt), "scrub")
    strengths = analyses.fresh("training_strengths", run=run)
    spectra = analyses.fresh("training_diversity", run=run)
except (UserError, OSError) as problem:
    st.info(sentence(problem), icon=":material/info:")
else:
    beside = st.grid(2, min_column_width=SIDE_BY_SIDE, gap="medium")
    with beside.container():
        st.markdown("**Size of what each branch adds**", help=tip("branches", "stage"))
        view(
            strengths,
            "strengths",
            caption="Mean size of what a branch adds, relative to the attention that it is added to: solid before the "
            "softmax (pre), dashed after it (post). The dotted line is the chosen checkpoint, or the last one before "
            f"it at which this was measured. {SIZE_ALONE}",
            checkpoint=training.index_at_step(strengths.step.tolist(), at),
        )
    with beside.container():
        st.markdown("**How many directions the heads use**", help=tip("diversity"))
        view(
            spectra,
            "spectra",
            caption="Share of the variance of all heads' QK and OV products together that the first principal "
            "components hold: the later it gets to 100 %, the more directions. Dotted: the first checkpoint.",
            checkpoint=training.index_at_step(spectra.step.tolist(), at),
        )

if reads != "images" and len(places) > 3:
    st.markdown("**When each edge of the composition started to matter**", help=tip("edge", "checkpoint"))
    edges = analyses.long(
        "training_edges",
        None,
        run=run,
        stamp=[(step, models.stamp(place)) for step, place in places.items()],
        documents=32,
        reference=16,
        title="Measure every edge at every checkpoint",
        key="training-edges",
    )
    if edges is not None:
        view(
            edges,
            "training-edges",
            caption="Thick: the loss on held-out documents. The others: by how much it rises when an edge is replaced "
            "by its mean, of the edges that matter most at the end; solid before the softmax (pre), dashed after it "
            "(post). Diamonds: where a curve is best split into two levels; a slow rise is split too. "
            f"{FAVOURS_AFTER}",
            checkpoint=training.index_at_step(edges.step.tolist(), at),
        )


def look_inside():
    # Of the slider as it is now: a click may come before the page has followed it.
    models.choose_now(places.get(st.session_state.get("checkpoint", at), model))


if reads != "images" and st.button(
    "Look inside this checkpoint",
    on_click=look_inside,
    icon=":material/search:",
    help="Chooses it as the model, and opens it where one can follow its heads.",
):
    st.switch_page("app_pages/case_study.py" if reads == "tasks" else "app_pages/attention.py")
