"""The five-step story of one answer: from a prompt to the head that borrowed attention."""

import streamlit as st

import state
import synthetic_tasks
from dcinterp import figures
from dcinterp.errors import UserError

OWN_TEXT, TASK_EXAMPLE = "My own text", "An example of a task"
BEST, SOURCE = "strongest", "source"

name = st.session_state.model
theme = state.theme()


def figure(result, chart, /, **options):
    """A figure that follows the theme, with its numbers below it as a table."""
    st.plotly_chart(
        figures.plot(result, theme=theme, **options),
        key=f"chart-{chart}",
        width="stretch",
        config={"displayModeBar": False},
    )


def numbers(result):
    with st.expander("Numbers", icon=":material/table:"):
        st.dataframe(result.to_dataframe(), width="stretch", hide_index=True)


def heading(number, step, help_text):
    st.subheader(f"{number}. {step.title}", help=help_text, anchor=f"step-{number}")
    st.markdown(step.sentence if step.holds else f":material/info: {step.sentence}")


def chips(tokens, marked):
    """The prompt as tokens; `marked` maps positions to a CSS colour."""
    spans = []
    for position, token in enumerate(tokens):
        shown = token.replace("\n", "↵").replace("<", "&lt;").replace(">", "&gt;") or "&nbsp;"
        colour = marked.get(position)
        style = f"background:{colour};color:#fff;border-color:{colour}" if colour else ""
        spans.append(f'<span title="position {position}" style="{style}">{shown}</span>')
    st.html(
        "<style>.chips span{display:inline-block;border:1px solid rgba(128,128,128,.35);border-radius:.35rem;"
        "padding:.1rem .45rem;margin:.15rem .2rem .15rem 0;font-family:var(--st-code-font),monospace;font-size:.9rem}"
        f"</style><div class=chips>{''.join(spans)}</div>"
    )


def task_label(task_id):
    task = synthetic_tasks.TASKS[task_id]
    return f"{task_id.removeprefix('task')} · {task.qk} · {task.relation} ({task.domain}, {task.surface})"


st.title("Whose attention wrote this answer?", anchor=False)
st.markdown(
    "DCFormer lets heads lend each other their attention. Follow one answer, step by step, to the head that wrote it "
    "and to the heads whose attention it borrowed."
)

# --- the question -----------------------------------------------------------------------------------------------

kind = st.segmented_control(
    "Prompt",
    [TASK_EXAMPLE, OWN_TEXT],
    default=TASK_EXAMPLE,
    key="prompt",
    bind="query-params",
    label_visibility="collapsed",
)
state.require(name)
best_task, best_number = state.showcase(name)
task, number, source = None, None, None
if kind == OWN_TEXT:
    example = state.held_out_example(best_task, best_number)
    left, right = st.columns([3, 1])
    text = left.text_area(
        "Text",
        value=example.prompt,
        key="text",
        bind="query-params",
        help="Words of the tasks only: this is a small model.",
    )
    answer = right.text_input(
        "Expected answer (optional)", value="", key="answer", bind="query-params", help="Empty: the model's own answer."
    )
    prompt, answer = text.strip(), answer.strip() or None
else:
    left, right = st.columns([3, 1])
    tasks = list(synthetic_tasks.TASKS)
    task = left.selectbox(
        "Task",
        tasks,
        index=tasks.index(best_task),
        format_func=task_label,
        key="task",
        bind="query-params",
        help="The 74 tasks of the paper: how the question selects a fact, and what is asked about it.",
    )
    number = right.number_input(
        "Example",
        min_value=0,
        max_value=9999,
        value=best_number if task == best_task else 0,
        key="example",
        bind="query-params",
        help="Held-out examples, numbered: no shipped model was trained on them.",
    )
    example = state.held_out_example(task, int(number))
    prompt, answer = example.prompt, example.answer
    source = state.source_token(name, task, int(number))

# --- the head and the token to follow ---------------------------------------------------------------------------

try:
    scores = state.attribution(name, prompt, answer)
except UserError as problem:
    st.error(str(problem), icon=":material/error:")
    st.stop()

layers, heads = scores.scores.shape
tokens = scores.tokens


def picked_cell():
    points = st.session_state.heads["selection"]["points"]
    if points:
        st.session_state.cell = f"L{points[0]['y']}H{points[0]['x']}"


cells = [BEST, *(f"L{layer}H{head}" for layer in range(layers) for head in range(heads))]
positions = [SOURCE, *map(str, range(len(tokens)))]


def cell_label(cell):
    return "the one that writes most at the last token" if cell == BEST else cell


def position_label(position):
    if position == SOURCE:
        return "the source of the answer" if source is not None else "where the head looks most"
    return f"{position}: {tokens[int(position)]}"


top = st.container()
st.session_state.setdefault("cell", BEST)
if st.session_state.cell not in cells:
    st.session_state.cell = BEST
if st.session_state.get("source", SOURCE) not in positions:
    st.session_state.source = SOURCE

steps = [st.container() for _ in range(5)]
with steps[1]:
    slot_2 = st.container()
    cell = st.selectbox(
        "Head to follow", cells, format_func=cell_label, key="cell", bind="query-params", help=state.HELP["head"]
    )
with steps[2]:
    slot_3 = st.container()
    position = st.selectbox(
        "Source token",
        positions,
        format_func=position_label,
        key="source",
        bind="query-params",
        help="The token attended to.",
    )
layer, head = (None, None) if cell == BEST else map(int, cell[1:].split("H"))
key = source if position == SOURCE else int(position)

try:
    told = state.story(name, prompt, answer, layer, head, key)
except UserError as problem:
    st.error(str(problem), icon=":material/error:")
    st.stop()

# --- the story --------------------------------------------------------------------------------------------------

prediction, breakdown = told.prediction, told.breakdown
with steps[0]:
    if prediction.answer and prediction.rank != 1:
        st.warning(f"This model answers this example wrongly (the right answer has rank {prediction.rank}).")
    heading(1, told.steps[0], state.HELP["logit"])
    chips(tokens, {told.key: "#cc6633", len(tokens) - 1: "#4477aa"})
    st.caption("Orange: the source token that is followed. Blue: the last token, where the answer is read off.")
    figure(prediction, "answer")
with slot_2:
    heading(2, told.steps[1], state.HELP["attribution"])
    st.plotly_chart(
        figures.plot(scores, theme=theme, selected=(told.layer, told.head)),
        key="heads",
        on_select=picked_cell,
        selection_mode="points",
        width="stretch",
        config={"displayModeBar": False},
    )
    st.caption(
        "Over all positions. Click a cell to follow that head. Orange pushes towards the answer, blue away from it."
    )
with steps[1]:
    numbers(scores)
with slot_3:
    heading(3, told.steps[2], state.HELP["branches"])
    if breakdown is not None:
        figure(breakdown, "branches", selected=told.head)
with steps[2]:
    if breakdown is not None:
        numbers(breakdown)
with steps[3]:
    heading(4, told.steps[3], state.HELP["lending"])
    if breakdown is not None:
        pair = st.grid(2, min_column_width=420)
        with pair.container():
            figure(breakdown, "lending", kind="lending", selected=told.head)
        with pair.container():
            figure(breakdown, "weights", kind="weights", side="key", selected=told.head)
            st.caption("The key token's dynamic weights: which heads it gathers attention from and shares it to.")
with steps[4]:
    heading(5, told.steps[4], state.HELP["softmax"])
    figure(told.rows, "rows", head=told.head, lender=told.lender, key=told.key)
    numbers(told.rows)
