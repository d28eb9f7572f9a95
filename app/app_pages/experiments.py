"""Experiments: the same question asked of several arms, over seeds, beside the protocol that says how."""

import streamlit as st

from dcinterp.evidence.multiplier import found_fit
from dcinterp.evidence.page import search_tables
from dcinterp.evidence.verdicts import AT_AN_EDGE
from dcinterp.support.errors import UserError
from workbench import analyses, experiments, links
from workbench.glossary import FAVOURS_AFTER, tip
from workbench.markdown import escape, sentence, without_pictures
from workbench.view import view

MAIN = (
    "By how much the loss rises at this checkpoint when this entry of the map over heads is replaced by its mean. The "
    "main edge is the one worth most at the end of training, on half of the documents; its start was measured on the "
    "other half, and the curves are of all, so another edge may stand higher here."
)
EVERY = (
    "Each is that something is above zero. A loss is better when it is lower, so that in bits a byte *plain minus all* "
    "above zero speaks for composition. Choose an experiment below for its arms, for what the numbers do not say, and "
    f"for hypotheses on ways through a model or on its heads. {AT_AN_EDGE}"
)
WAYS = (
    "A row is an arm of an experiment on a puzzle. The prompt and the one that values are taken from differ in one "
    "thing, a change. A way is all that the attention of layer 0 writes into one kind of input of layer 1, into an "
    "MLP, or into the logits; the largest carries the greatest share of the change's effect, and in brackets stands in "
    "how many models it is that one. *Alike* is how the shares of two models correlate over all groups of edges, most "
    "of which are no ways, change by change in the same order (? where too few are known). That a way is the largest "
    "does not say that the puzzle needs it. Only models that learnt it can be asked; those of recombination, seeds 0 "
    "to 9, were trained again."
)


def show_protocol() -> None:
    """What was written down before the results, and what was changed."""
    with st.expander("Protocol, with what was changed later listed at its end"):
        st.markdown(experiments.protocol(experiment))


st.title("Experiments", anchor=False)
st.markdown(
    "One example shows what can happen; an experiment shows how often. Each of these trains several kinds of model "
    "(its *arms*) on the same documents (arms that train longer read more), tunes all of them by the same search or "
    "gives all one learning rate, and repeats them with three to ten seeds. What would count as an answer was written "
    "down before the results (of one experiment git does not show that); what was changed or added later, and what was "
    "known then, is listed at the end of each protocol. This page does not use the model in the sidebar.\n\n"
    "- **No task is shown to need composition.** In one puzzle, which was made for it, DCMHA learns sooner than "
    "plain models with more parameters, where the learning rate falls early and one layer alone sees the items, "
    "and this came again with ten other seeds (*Does composition spare a head for every pair ...?*). Where the "
    "rate falls late it is ahead of wider heads by +0.147 and +0.141 and of an MLP by +0.013 and +0.008, and the "
    "plain model with the MLP learns it in the same steps (0.987 and 0.991 of the trained pairs, DCMHA 1.000 both"
    " times); both do with three times the steps, each in two sets of seeds. Its sizes were chosen in pilots in "
    "which DCMHA was ahead, and the learning rates by the accuracy at the end, not by how soon.\n"
    "- **On Python source** a plain model that is trained longer, for about the same compute, has the lower "
    "mean loss in all eight experiments that trained one, and again in each of the eight when it was run with "
    "other seeds (one library, early in training; in two of them DCMHA had the lowest rate tried, and one of these "
    "verdicts is open; other rates may give another sign)."
)
found = experiments.found()
if not found:
    st.info("There is no experiment with an experiment.yaml here; docs/experiments-how.md says how to make one.")
    links.end_page()
if links.switch("All hypotheses on differences between arms", key="all", help="What was asked, and what became of it."):
    rows = experiments.every_verdict(found.values(), experiments.tables(found.values()))
    st.dataframe(rows, hide_index=True, height=420)
    st.caption(EVERY)
if links.switch("Ways over seeds", key="ways", help="By which ways the models that learnt a puzzle carry it."):
    rows, left = experiments.every_way(found.values(), experiments.tables(found.values()))
    st.dataframe(rows, hide_index=True, height=420)
    st.caption(f"{WAYS} {escape(left)}")
name = links.choose("Experiment", found, key="experiment", format=lambda name: found[name].title)
experiment = found[name]
across = st.columns(2)
measure = links.choose(
    "Measure",
    experiment.measures,
    key="measure",
    where=across[0],
    format=lambda column: experiment.measures[column],
    help="The first is the primary one. A hypothesis names its measure where it is another one.",
)
baseline = links.choose(
    "Compared with", experiment.arms, key="baseline", where=across[1], help="The arm that the others are compared with."
)
for paragraph in experiments.about(experiment):
    st.markdown(paragraph)
try:
    result = analyses.fresh("compare_arms", experiment=str(experiment.folder), measure=measure, baseline=baseline)
    lines = experiments.lines(experiment)
except UserError as problem:
    st.info(sentence(problem), icon=":material/hourglass_empty:")
    show_protocol()
    links.end_page()
for line in lines:
    st.markdown(f"- {without_pictures(line)}")
st.caption(
    "Supported: the whole interval over seeds lies above zero (a compute multiplier: above 1). Refuted: below. Open: "
    "it includes zero (or 1), or the line says why. The level is 95 % where no other is named.",
    help=tip("arm", "interval over seeds"),
)
view(result, "arms")
if (fit := found_fit(experiment)) is not None:
    st.subheader("Compute for the same loss", anchor=False)
    view(fit, "compute")
with st.expander("What the numbers do not say"):
    st.markdown("\n".join(f"- {each}" for each in experiments.limits(experiment)) or "Nothing is stated.")
if searched := search_tables(experiment):
    with st.expander("What the search for the best values saw"):
        st.markdown(without_pictures(searched))
st.subheader("Differences", anchor=False)
for difference in result.sentences():
    st.markdown(f"- {escape(difference)}")
if again := experiments.lines_again(experiment):
    st.subheader("With other seeds", anchor=False, help="The same arms once more; it changes no verdict above.")
    for line in again:
        st.markdown(f"- {without_pictures(line)}")
if by_seed := experiments.curves(experiment):
    st.subheader("The edges of one seed, over training", anchor=False, help=tip("edge", "checkpoint"))
    seed = links.choose(
        "Seed",
        list(by_seed),
        key="run_seed",
        where=st.columns(2)[0],
        format=lambda seed: f"{seed}{', of the repetition' * (seed not in experiment.seeds)}",
    )
    curves = by_seed[seed]
    at = links.choose(
        "Checkpoint",
        curves.step.tolist(),
        key="checkpoint",
        default=int(curves.step[-1]),
        format=lambda step: f"step {step:,}",
        style="select_slider",
        help="Drag it, or use the arrow keys: the numbers and the dotted line are of that moment.",
    )
    row, place = curves.seeds.index(seed), curves.step.tolist().index(at)
    main, across = curves.main[row], st.columns(3)
    across[0].metric("Loss", f"{float(curves.loss[row, place]):.3f} nats")
    across[1].metric("Right answers", f"{float(curves.right[row, place]):.0%}")
    across[2].metric(
        f"Without {escape(main)}", f"{float(curves.effect[row, place, curves.edges.index(main)]):+.2f} nats", help=MAIN
    )
    view(
        curves,
        "edge-starts",
        caption="Thick: the loss. The others: by how much it rises when an edge is replaced by its mean, of the edges "
        "that matter most at the end; solid before the softmax (pre), dashed after it (post). Diamonds: where the loss "
        "and the main edge start, by the split of their curves into two levels; a slow rise is split too. "
        f"{FAVOURS_AFTER}",
        seed=seed,
        checkpoint=place,
    )
if more := experiments.more(experiment):
    st.markdown(more)
show_protocol()
st.code(experiments.commands(experiment), language="bash")
