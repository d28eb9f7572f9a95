"""The models that are open, and opening others, from a folder or the hub, with their size shown first."""

from pathlib import Path

import streamlit as st

from dcinterp.model.compose.registry import MECHANISM_COLUMNS, mechanism_rows
from dcinterp.support.errors import UserError, shortened
from dcinterp.support.paths import path_of
from workbench import links, models
from workbench.markdown import escape, sentence, without_pictures

st.title("Models", anchor=False)
st.markdown(
    f"All pages show the model that is chosen in the sidebar. At most {models.LOADED_AT_MOST} models are in memory at "
    f"a time.{models.memory_sentence()}"
)


def facts(found):
    """What is known of a model before it is loaded; its name is shown above."""
    first, *others = found.sentences()
    said = [f"family: {first.removeprefix(f'{found.name}: ')}", *others]
    st.markdown("  \n".join(map(without_pictures, said)))
    if not models.fits(found.loading_bytes):
        st.warning("The weights would leave too little memory to run the model on this machine.")


st.subheader("Open models", anchor=False)
st.caption("The memory for loading includes the libraries (500 MB), which are already in memory once a model is open.")
for number, name in enumerate(models.known()):
    with st.container(border=True):
        left, right = st.columns([4, 1])
        left.markdown(f"**{escape(name)}**")
        with left:
            try:
                facts(models.estimate(name))
            except (UserError, OSError) as problem:
                st.error(sentence(problem), icon=":material/error:")
        right.button(
            "Chosen" if name == st.session_state.model else "Choose",
            key=f"choose-{number}",
            on_click=models.choose_now,
            args=(name,),
            disabled=name == st.session_state.model,
            width="stretch",
        )
        if name in st.session_state.get("_opened", []):
            right.button(
                "Close",
                key=f"close-{number}",
                on_click=models.forget,
                args=(name,),
                width="stretch",
                disabled=name == st.session_state.model,
            )

with st.expander("Ways of composing heads that the workbench knows"):
    st.caption(
        "A' = A M: the composed attention of all heads at one pair of tokens is A times a map M over heads (row: the "
        "head that computed it, column: the head that uses it)."
    )
    st.table([dict(zip(MECHANISM_COLUMNS, row, strict=True)) for row in mechanism_rows()])

st.subheader("Open another model", anchor=False)
root = st.text_input(
    "Look for model folders in", str(Path.cwd()), key="root", help="Up to three folders deep, newest first."
)
found = models.folders(path_of(root)) if models.is_folder(root) else []
if root and not models.is_folder(root):
    st.error(f"There is no folder {escape(shortened(root, 200))} to look in; check the path.", icon=":material/error:")
chosen = st.selectbox(
    "Model folder",
    found,
    index=None,
    key="folder",
    format_func=models.short,
    placeholder=f"{len(found)} found" if found else "none found",
    on_change=lambda: st.session_state.update(open=""),  # what was chosen last counts
)
with st.form("open-another", border=False, enter_to_submit=True):
    typed = links.text(
        "Or a path or a hub id",
        key="open",
        default=st.session_state.get("_wanted", ""),
        placeholder="runs/mine/model, model.gguf or EleutherAI/pythia-70m",
        help="For a hub id that is not on this machine, the hub is asked when you press Enter. Nothing else in the app "
        "uses the network.",
    )
    if st.form_submit_button("Look it up", icon=":material/search:"):
        st.session_state["_looked_up"] = typed.strip()
wanted = typed.strip() or chosen
if wanted and models.needs_hub(wanted) and wanted != st.session_state.get("_looked_up"):
    # A link may fill the field in, and nobody but the person at the keyboard may make the network be asked.
    st.info(
        f"{escape(wanted)} is not on this machine: press Enter in the field to look it up on the hub.",
        icon=":material/info:",
    )
    links.end_page()
if wanted:
    try:
        wanted = str(path_of(wanted).resolve()) if path_of(wanted).exists() else wanted
        with st.spinner("Looking at its size ..."):
            found = models.estimate(wanted)
    except (UserError, OSError) as problem:
        st.error(sentence(problem), icon=":material/error:")
    else:
        with st.container(border=True):
            st.markdown(f"**{escape(wanted)}**")
            facts(found)
            other = links.text(
                "Tokenizer of another folder (optional)",
                key="tokenizer",
                means=lambda _: wanted,
                placeholder="runs/mine/model",
                help="For a model that came without one. The name of a shipped model will do as well.",
            ).strip()
            name = f"{wanted}{models.TOKENIZER_MARK}{other}" if other else wanted
            if problem := models.tokenizer_problem(wanted, other):
                st.error(sentence(problem), icon=":material/error:")
            elif name in models.known():
                st.caption("This model is open.")
            else:
                if not other and models.lacks_tokenizer(wanted):
                    st.caption("It has no tokenizer: it can be opened as it is, and then takes token ids.")
                st.button(
                    "Open it",
                    on_click=models.choose_now,
                    args=(name,),
                    type="primary",
                    icon=":material/folder_open:",
                )
