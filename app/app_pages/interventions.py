"""Remove or replace a head, branch, edge or dynamic weight, and see how the answer changes."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, inputs, intervention_form, links, models, sentences
from workbench.glossary import tip
from workbench.markdown import escape
from workbench.view import view

st.title("Interventions", anchor=False)
st.markdown(
    "Change a part of the model while it processes this prompt, and compare its answer before and after. The model "
    "itself is not changed."
)
name = st.session_state.model
question = inputs.question(name)
inputs.write_out(question)
try:
    target, foil = inputs.target_and_foil(name, question)
except UserError as problem:
    inputs.refuse(problem)

st.subheader("What to change", anchor=False, help=tip("ablation", "patching"))
intervention_form.line_builder(name)
lines = links.text(
    "Interventions",
    key="what",
    default=intervention_form.default_line(name, question),
    area=True,
    # Parts belong to a model; a line that names a position also belongs to the prompt.
    means=lambda lines: (name, question.prompt if intervention_form.names_position(lines) else None),
    help="One per line; all act together. Examples: `head 1.3 zero`, `attention 1.3 zero`, `branch 1.post.kp mean`, "
    "`edge 1.post.kp.2>3 resample`, `weight 1.post.w_k1.2 scale=2`; without a last word a line means `mean`. "
    "`query=-1` or `key=7` at the end of a line restricts it to that position.",
)
try:
    st.caption(escape(intervention_form.in_words(lines)))
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
        help="Frozen: later compositions keep the dynamic weights that they have on the unchanged prompt, so that the "
        "effect is what passes through values.\n\n" + tip("dynamic weights"),
    )
try:
    counterfactual = intervention_form.counterfactual_prompt(name, question, lines, where=across[1])
    reference = intervention_form.reference_of(question, lines, where=across[1])
    effect = analyses.run(
        "intervene",
        name,
        prompt=question.prompt,
        interventions="; ".join(filter(None, map(str.strip, lines.splitlines()))),
        target=target,
        foil=foil,
        dynamic_weights=weights,
        counterfactual=counterfactual,
        reference=reference,
    )
except UserError as problem:
    inputs.refuse(problem)

st.markdown(sentences.emphasised(effect), help=tip("logit difference", "target", "foil"))
if effect.reference is not None:
    st.caption(f"The values that are put in come from `{effect.reference}`, examples of the tasks.")
predicted = intervention_form.predicted_effect(name, question.prompt, target, foil, lines)
if predicted is not None:
    words = f"Attribution (integrated gradients) predicted {predicted:+.2f} for this head."
    if predicted * effect.effect >= 0:
        st.caption(words)
    else:
        st.warning(f"{words} Its sign differs from that of the measured effect.", icon=":material/warning:")
view(effect, "logits", table=False)
with st.expander("The tokens as a table", icon=":material/table:"):
    st.dataframe(effect.table().round(4), hide_index=True)
st.subheader("Change of attention", anchor=False, help=tip("attention"))
view(
    effect,
    "attention",
    kind="attention",
    warnings=False,
    caption="The change of a head is the sum of |after - before| over the keys, averaged over the queries."
    if effect.attention_change.any()
    else "No head's attention changes: the intervention acts after the attention of all heads.",
)

st.subheader("Predicted and measured effects", anchor=False, help=tip("ablation", "clustered interval"))
st.caption(
    "Every unit of one kind is set to zero, one at a time, and the measured effect is compared with what attribution "
    "predicts."
)
left, right = st.columns(2)
with left.container(horizontal=True):
    part = links.choose(
        "Units",
        ["head", "branch", "edge", "weight"] if models.composed(name) else ["head"],
        key="units",
        help="Heads, branches of the composition, edges between heads, or dynamic weights.",
    )
    stage = "post"
    if part != "head":
        stage = links.choose("Stage", ["post", "pre"], key="part_stage", help=tip("stage"))
examples = inputs.examples_set(
    "Examples",
    key="part_set",
    default=f"{question.task or 'all'} n=3",
    where=right,
)
try:
    calibration = analyses.long(
        "calibrate",
        name,
        title="Predict and measure",
        key="calibration",
        cost="about ten seconds per example, twenty for edges",
        examples=examples,
        part=part,
        stage=stage,
    )
    if calibration is not None:
        view(
            calibration,
            "calibration",
            caption="Each point is one unit. On the dotted line the prediction is exact; vertical lines are 95 % "
            "intervals over the examples. Frozen: the dynamic weights stay as they are on the unchanged prompt.",
        )
except UserError as problem:
    inputs.refuse(problem)
