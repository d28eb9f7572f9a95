"""Experiments: the same question asked of several arms, over seeds, beside the protocol that says how."""

import streamlit as st

from dcinterp.support.errors import UserError
from workbench import analyses, experiments, inputs, links
from workbench.glossary import tip
from workbench.markdown import escape
from workbench.view import view

st.title("Experiments", anchor=False)
st.markdown(
    "One example shows what can happen; an experiment shows how often. Each of these trains several kinds of model "
    "(its *arms*) on the same documents, tunes all of them by the same search, and repeats them with many seeds. What "
    "would count as an answer was written down before the first run. This page does not use the model in the sidebar."
)
found = experiments.found()
if not found:
    st.info("There is no experiment with an experiment.yaml here; docs/experiments.md says how to make one.")
    links.end_page()
name = links.choose("Experiment", found, key="experiment", format=lambda name: found[name].title)
experiment = found[name]
across = st.columns(2)
measure = links.choose(
    "Measure",
    experiment.measures,
    key="measure",
    where=across[0],
    format=lambda column: experiment.measures[column],
    help="The first is the primary one, which the hypotheses are about.",
)
baseline = links.choose(
    "Compared with", experiment.arms, key="baseline", where=across[1], help="The arm that the others are compared with."
)
try:
    result = analyses.fresh("compare_arms", experiment=str(experiment.folder), measure=measure, baseline=baseline)
    verdicts = experiments.verdicts(experiment)
except UserError as problem:
    inputs.refuse(problem)
for paragraph in experiment.about:
    st.markdown(paragraph)
for verdict in verdicts:
    st.markdown(f"- {verdict}")
st.caption(
    "Supported: the whole 95 % interval over seeds lies above zero. Refuted: below. Open: it includes zero.",
    help=tip("arm", "interval over seeds"),
)
view(result, "arms")
with st.expander("What the numbers do not say"):
    st.markdown("\n".join(f"- {each}" for each in experiment.limits) or "Nothing is stated.")
st.subheader("Differences", anchor=False)
for sentence in result.sentences():
    st.markdown(f"- {escape(sentence)}")
if more := experiments.more(experiment):
    st.markdown(more)
with st.expander("Protocol, with what was changed later listed at its end"):
    st.markdown(experiments.protocol(experiment))
st.code(experiments.commands(experiment), language="bash")
