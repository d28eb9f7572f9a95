"""The 74 synthetic tasks: browse them, generate examples and counterfactual prompts, and evaluate a model."""

import streamlit as st

import synthetic_tasks
from dcinterp.support.errors import UserError
from workbench import analyses, examples, inputs, links, task_tables
from workbench.glossary import tip
from workbench.markdown import escape, sentence
from workbench.view import footer, show_warnings, view

SHOWN = ("all", "right", "wrong")

st.title("Tasks", anchor=False)
st.markdown(
    "Every task combines a QK pattern (how the question selects a fact) with a transformation (what it asks about the "
    "fact), in one domain of words and one wording."
)
name = st.session_state.model

st.subheader("All tasks", anchor=False, help=tip("QK pattern", "transformation"))
patterns, transformations = task_tables.axes()


def pick(row, column):
    st.session_state.pattern, st.session_state.transformation = patterns[row], transformations[column]


across = st.columns(2)
pattern = links.choose("QK pattern", patterns, key="pattern", help=tip("QK pattern"), where=across[0])
transformation = links.choose(
    "Transformation", transformations, key="transformation", help=tip("transformation"), where=across[1]
)
task_tables.task_grid(pattern, transformation, pick)
st.caption("The number is how many tasks combine the two. Click a cell to see them.")
family = task_tables.family(pattern, transformation)
if not family:
    st.info(f"No task combines {pattern} with {transformation}; choose a cell with a number.")
else:
    task = links.choose(
        "Task",
        family,
        key="member",
        format=task_tables.label,
        help="The tasks of the chosen cell: their domain of words, and their wording.",
    )

    st.subheader("Examples", anchor=False, help=tip("held-out"))
    across = st.columns([1, 1, 2])
    number = links.number(
        "Row", 0, 9999, key="row", default=0, where=across[0], help="The number of a row is the seed that generates it."
    )
    size = links.number("Examples in the row", 1, 12, key="size", default=4, where=across[1], help=tip("shots"))
    split = links.choose(
        "Facts", ["held-out", "train"], key="split", style="segmented_control", help=tip("held-out"), where=across[2]
    )
    try:
        row = synthetic_tasks.generate(task, 1, seed=number, examples=size, split=split)[0]
    except ValueError as problem:
        inputs.refuse(problem)
    task_tables.write_examples(row)

    st.subheader("Counterfactual prompts of the last example", anchor=False, help=tip("counterfactual"))
    st.caption(
        "Exactly one thing changes (in bold), and the answer is worked out again. Patching and attribution compare the "
        "example's own answer with the one in the last column."
    )
    task_tables.counterfactual_table(row.examples[-1], name)

    st.subheader("Examples as a table", anchor=False, help=tip("held-out", "logit difference", "edge"))
    inputs.require_tokenizer(name)
    across = st.columns([1, 1, 2])
    many = links.number(
        "Examples",
        4,
        200,
        key="table_size",
        default=20,
        where=across[0],
        help="Held-out examples of the task from number 0 on: those that the other pages open by number. "
        "Those that repeat an earlier one are left out.",
    )
    numbers = examples.distinct(task, many)
    try:
        found = analyses.long(
            "example_table",
            name,
            title=f"Look at {len(numbers)} examples",
            key="example-table",
            cost=f"about {8 * len(numbers)} passes",
            examples=[examples.held_out(task, number) for number in numbers],
        )
    except UserError as problem:
        st.info(sentence(problem), icon=":material/info:")
        found = None
    if found is not None:
        st.markdown(escape(found.sentence()))
        if len(numbers) < many:
            st.caption(f"{many - len(numbers)} of the first {many} examples repeat an earlier one and are left out.")
        show_warnings(found)
        which = links.choose("Show", SHOWN, key="shown", style="segmented_control", where=across[1])
        heads = links.several("Main head", list(dict.fromkeys(found.heads)), key="main_head", where=across[2])
        shown, chosen_row = task_tables.example_table(found, which, heads, numbers)
        footer(found, "example-table", table=False, figure=shown)
        if chosen_row is None:
            st.caption("Sort by clicking a heading. Click the box of a row to open its example.")
        else:
            st.markdown(f"Example {chosen_row}: `{examples.held_out(task, chosen_row).prompt}`")
            with st.container(horizontal=True, gap="small"):
                for page, label in task_tables.OPENS.items():
                    st.page_link(
                        f"app_pages/{page}.py",
                        label=label,
                        query_params={"model": name, **examples.link(name, task, chosen_row), **links.SINCE_0_2},
                    )

st.subheader("Accuracy of the model", anchor=False, help=tip("shots", "clustered interval"))
scope = links.choose(
    "Evaluate",
    ["this family", "this pattern", "all 74 tasks"],
    key="scope",
    default="all 74 tasks",
    style="segmented_control",
    help="This family: the cell that is chosen above. This pattern: its row.",
)
across = st.columns([1, 1, 2])
rows = links.number("Rows per task", 1, 50, key="rows", default=2, where=across[0], help="Each row has eight examples.")
seed = links.number("Seed", 0, 9999, key="seed", default=0, where=across[1], help="Decides which rows are generated.")
chosen = {"this family": ",".join(family), "this pattern": pattern, "all 74 tasks": ""}[scope]
if scope == "this family" and not family:
    links.end_page()
inputs.require_tokenizer(name)


def so_far(scores):
    st.caption(f"So far {len(scores.tasks)} tasks; {scores.accuracy:.1%} of the answers are right.")
    task_tables.accuracy_table(scores.table("pattern"))


try:
    scores = analyses.long(
        "task_accuracy",
        name,
        title=f"Evaluate {name}",
        key="evaluate",
        cost="about 0.2 s per row",
        partial=so_far,
        tasks=chosen,
        rows=rows,
        seed=seed,
    )
except UserError as problem:
    inputs.refuse(problem)
if scores is not None:
    st.markdown(f"**{scores.accuracy:.1%}** of {scores.right.numel():,} answers are right.")
    drawn = [list(dict.fromkeys(names)) for names in (scores.patterns, scores.transformations)]
    inside = pattern in drawn[0] and transformation in drawn[1]
    view(
        scores,
        "accuracy-grid",
        caption="Click a cell to browse its tasks above.",
        selected=(drawn[0].index(pattern), drawn[1].index(transformation)) if inside else None,
        on_pick=lambda row, column: pick(patterns.index(drawn[0][row]), transformations.index(drawn[1][column])),
    )
    st.markdown("**Compared with baselines**", help=tip("task baselines", "clustered interval"))
    by = links.choose("Group by", ["pattern", "transformation", "family"], key="group_by", style="segmented_control")
    view(
        scores,
        "accuracy-bars",
        kind="bars",
        by=by,
        warnings=False,
        table=False,
        caption="Where a baseline does as well as the model, right answers say little about the model.",
    )
    task_tables.accuracy_table(scores.table(by))
    st.markdown("**With more solved examples before the question**", help=tip("shots"))
    view(scores, "accuracy-shots", kind="shots", warnings=False)
