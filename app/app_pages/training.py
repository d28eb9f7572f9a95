"""Train a small model, watch it, stop it, take it up again, and go back through what it was at each checkpoint."""

from pathlib import Path

import streamlit as st

from dcinterp.errors import UserError
from workbench import analyses, examples, links, models, training
from workbench.glossary import tip
from workbench.view import view

st.title("Training", anchor=False)
st.markdown(
    "A run is `dcinterp train` in a process of its own: it goes on while you look at other pages, and everything of it "
    "is in its folder."
)
SHIPPED = "the shipped models"
PRESETS = ["tiny-dcformer++", "tiny-transformer++", "tiny-dcformer", "tiny-transformer"]

with st.expander("Start a run", icon=":material/play_arrow:"), st.form("start", border=False):
    across = st.columns([2, 2, 1, 1])
    place = across[0].text_input("Folder", "runs/first", help="Made in the folder where the app was started.")
    known = [name for name in PRESETS if name in training.tiny_presets()] or training.tiny_presets()
    preset = across[1].selectbox("Model", known, help="Small ones; `dcinterp presets` lists all.")
    layers = across[2].number_input("Layers", 1, 8, 2, help=tip("layer"))
    steps = across[3].number_input("Steps", 10, 100_000, 200)
    text = st.text_input(
        "Text to train on (a file or a folder)",
        "",
        help="Empty: the synthetic tasks, whose accuracy is measured as it trains.",
    )
    if st.form_submit_button("Start", type="primary"):
        try:
            folder = Path(place).expanduser().resolve()
            training.start(folder, preset, int(steps), {"num_hidden_layers": int(layers)}, text.strip())
            st.session_state.run = str(folder)
        except (UserError, OSError) as problem:
            st.error(str(problem).splitlines()[0], icon=":material/error:")

found = training.runs(Path.cwd())
run = links.choose("Run", [*found, SHIPPED], key="run", format=models.short, help="Runs in or below this folder.")
folder = Path(run)


@st.fragment(run_every=2.0 if run != SHIPPED and training.look(folder).state == "running" else None)
def watch():
    now = training.look(folder)
    st.progress(now.share, text=now.words())
    if now.problem:
        st.error(now.problem, icon=":material/error:")
    if now.state == "running":
        st.button("Stop", icon=":material/stop:", on_click=training.stop, args=(folder,))
    elif now.state != "finished" and training.checkpoints(folder):
        st.button("Resume", icon=":material/resume:", on_click=training.resume, args=(folder,))
    if st.session_state["_run_state"] != now.state:
        st.rerun()
    if told := training.losses(folder):
        st.line_chart(told, x="step", y="loss", height=240)
        st.caption(f"The loss of {len(told)} stretches of steps; the last is {told[-1]['loss']:.3f}.")


if run != SHIPPED:
    # Only the fragment's own reruns find another state: a rerun while the whole page is drawn would lose its messages.
    st.session_state["_run_state"] = training.look(folder).state
    watch()
    sources = [str(folder)]
else:
    sources = [name for name in models.known() if not Path(name).is_dir()]
for number, source in enumerate(sources):
    try:
        curves = analyses.fresh("training_curves", run=source)
    except UserError as problem:
        st.info(str(problem), icon=":material/info:")
        continue
    st.subheader(f"What {models.short(source)} learnt when", anchor=False, help=tip("QK pattern", "held-out"))
    view(curves, f"curves-{number}")

places = training.checkpoints(folder) if run != SHIPPED else []
if places:
    st.subheader("Back through its checkpoints", anchor=False)
    names = [Path(place).name for place in places]
    at = links.choose("Checkpoint", names, key="checkpoint", default=names[-1], style="select_slider")
    model = training.as_model(places[names.index(at)])
    try:
        example = examples.held_out("task56", 0)
        said = analyses.run("predict", model, prompt=example.prompt, answer=example.answer)
        st.markdown(f"At **{at}**, after `{example.prompt}`:")
        view(said, "scrub")
        heads = analyses.run("attribute_heads", model, prompt=example.prompt, target=example.answer, steps=8)
        view(heads, "scrub-heads", caption=f'Which heads speak for "{example.answer}" at this checkpoint.')
    except (UserError, OSError) as problem:
        st.info(str(problem).splitlines()[0], icon=":material/info:")
    st.button(
        "Look inside this checkpoint",
        on_click=models.choose_now,
        args=(model,),
        icon=":material/search:",
        help="Opens it as a model for the other pages.",
    )
