"""Take a head, branch, edge or dynamic weight out, or put another value in, and see what becomes of the answer."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, links, models, surgery, task_tools
from workbench.glossary import tip
from workbench.view import view

st.title("Interventions", anchor=False)
st.markdown(
    "Change a part inside the model while it reads this prompt, and compare its answer before and after. The model "
    "itself stays as it is."
)
name = st.session_state.model
asked = inputs.question(name)
inputs.written_out(asked)
try:
    target, foil = inputs.target_and_foil(name, asked)
except UserError as problem:
    inputs.refuse(problem)

st.subheader("What to change", anchor=False, help=tip("ablation", "patching"))
surgery.builder(name)
what = links.text(
    "Interventions",
    key="what",
    default=surgery.default(name),
    follows=True,
    area=True,
    help="One a line; all act together. `head 1.3 zero`, `branch 1.post.kp mean`, `edge 1.post.kp.2>3 zero`, "
    "`weight 1.post.w_k1.2 scale=2`; `query=-1` or `key=7` behind it confines it to a position.",
)
try:
    st.caption(task_tools.plain(surgery.in_words(what)))
except UserError as problem:
    inputs.refuse(problem)
across = st.columns(2)
weights = "recomputed"
if models.composed(name):
    weights = links.choose(
        "Dynamic weights",
        ["recomputed", "frozen"],
        key="weights",
        style="segmented_control",
        where=across[0],
        help="Frozen: later compositions keep the weights they have on the untouched prompt, so that the effect is "
        "what flows through values. " + tip("dynamic weights"),
    )
twin = surgery.counterfactual(name, asked, what, where=across[1])
try:
    effect = analyses.run(
        "intervene",
        name,
        prompt=asked.prompt,
        interventions="; ".join(filter(None, map(str.strip, what.splitlines()))),
        target=target,
        foil=foil,
        dynamic_weights=weights,
        counterfactual=twin,
        reference=surgery.reference(what, asked),
    )
except UserError as problem:
    inputs.refuse(problem)

st.markdown(effect.sentence(strong="**"), help=tip("logit", "target", "foil"))
predicted = surgery.predicted(name, asked.prompt, target, foil, what)
if predicted is not None:
    words = f"Attribution (integrated gradients) predicted {predicted:+.2f} for this head."
    if predicted * effect.effect >= 0:
        st.caption(words)
    else:
        st.warning(f"{words} It disagrees in sign with the ablation.", icon=":material/warning:")
view(effect, "logits", table=False)
with st.expander("The tokens as a table", icon=":material/table:"):
    st.dataframe(effect.table().round(4), hide_index=True)
st.subheader("Whose attention changed", anchor=False, help=tip("attention"))
view(
    effect,
    "attention",
    kind="attention",
    banners=False,
    caption="The change of a head is the sum of |after - before| over the keys, its mean over the queries."
    if effect.attention_change.any()
    else "No head looks elsewhere: what was changed acts behind the attention of all heads.",
)

st.subheader("Predicted against measured", anchor=False, help=tip("ablation", "clustered interval"))
st.caption(
    "Every unit of one sort is put to zero alone, and the measured effect is held against what attribution predicts "
    "for it."
)
left, right = st.columns(2)
with left.container(horizontal=True):
    part = links.choose(
        "Units",
        ["head", "branch", "edge", "weight"] if models.composed(name) else ["head"],
        key="part",
        help="Heads, branches of the composition, edges between heads, or dynamic weights.",
    )
    stage = "post"
    if part != "head":
        stage = links.choose("Stage", ["post", "pre"], key="part_stage", help=tip("stage"))
examples = links.text(
    "Examples",
    key="part_set",
    default=f"{asked.task or 'all'} n=3",
    follows=True,
    where=right,
    help="A pattern, a transformation or task numbers, then n=, seed=, shots=, split=.",
)
try:
    calibration = analyses.long(
        "calibrate",
        name,
        title="Predict and measure",
        key="calibration",
        cost="some ten seconds an example, for edges twenty",
        examples=examples,
        part=part,
        stage=stage,
    )
    if calibration is not None:
        view(
            calibration,
            "calibration",
            caption="A point is one unit; on the dotted line the prediction is exact, vertical lines are 95 % "
            "intervals over the examples. Frozen: the dynamic weights stay as they are on the untouched prompt.",
        )
except UserError as problem:
    inputs.refuse(problem)
