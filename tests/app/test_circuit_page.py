"""The page of circuits without a browser: what a click does; and examples, paths and steps on the pages beside it."""

from __future__ import annotations

import json

from tests.app.opening import open_page


def texts(app) -> str:
    return "\n".join(element.value for element in app.markdown)


def open_without_errors(app, name: str, **link: str):
    open_page(app, name, **link)
    assert not app.error


def drawn(app):
    """What the browser is given to draw."""
    found = [json.loads(each.proto.json) for each in app.get("bidi_component") if each.proto.json]
    return next(data for data in found if "edges" in data)


def test_an_edge_taken_out_changes_the_answer_and_stays_to_be_put_back(app):
    open_without_errors(app, "circuit", prompts="4", edges_kept="89", notes="pin L2H7\nname L2H7: reads")
    (metric,) = app.metric
    before, picture = float(metric.value), drawn(app)
    assert len(picture["edges"]) == 89
    assert [node["label"] for node in picture["nodes"] if node["pinned"]] == ["reads"]
    assert "With 89 of 1,774 edges kept" in texts(app)
    first = picture["edges"][0]["name"]
    app.session_state["switched"] = [first]
    app.run()
    assert not app.exception
    (out,) = [edge for edge in drawn(app)["edges"] if edge["dash"] == "off"]
    assert out["name"] == first
    assert "With 88 of 1,774 edges kept" in texts(app)
    (metric,) = app.metric
    assert float(metric.value) != before
    app.text_area(key="notes").set_value("dance").run()
    assert any("is not a note" in error.value for error in app.error)


def test_examples_of_a_task_are_a_table(app, until):
    open_without_errors(app, "tasks", table_size="4")
    app.button(key="start-example-table").click().run()
    until(lambda: "of 4 answers are right" in texts(app.run()))
    app.segmented_control(key="shown").set_value("wrong").run()
    assert not app.exception


def test_the_table_leaves_out_repeats_and_keeps_the_numbers_of_the_others(app, monkeypatch):
    import pandas as pd

    from workbench import examples, task_tables

    prompts = [examples.held_out("task70", number).prompt for number in range(12)]
    numbers = examples.distinct("task70", 12)
    assert len(numbers) == len(set(prompts)) < 12
    assert [prompts[number] for number in numbers] == list(dict.fromkeys(prompts))

    class Table:
        def table(self):
            return pd.DataFrame({"number": range(len(numbers)), "right": True, "main head": "L0H0"})

    def choose_the_last(frame, **given):
        assert frame["number"].tolist() == numbers
        return {"selection": {"rows": [len(frame) - 1]}}

    monkeypatch.setattr(task_tables.st, "dataframe", choose_the_last)
    frame, chosen = task_tables.example_table(Table(), "all", [], numbers)
    assert chosen == numbers[-1]
    assert frame["number"].tolist() == numbers, "what is exported is what is shown"


def test_what_is_written_is_shown_step_by_step(app):
    open_without_errors(app, "logits", steps="2")
    assert "The model goes on with" in texts(app)
    assert "At step 0, the output gives" in texts(app)


def test_edges_into_a_receiver_are_patched(app):
    open_without_errors(app, "patching", receiver="L2H7.v")
    assert "edges into `L2H7.v` together" in texts(app)


def test_small_pictures_of_heads_hold_the_numbers_of_the_analysis(app, shipped):
    import base64

    import numpy as np

    import dcinterp

    open_without_errors(app, "attention", task="task0", example="1")
    found = [json.loads(each.proto.json) for each in app.get("bidi_component") if each.proto.json]
    data = next(each for each in found if "unit" in each)
    from workbench.examples import held_out

    seen = dcinterp.attention_thumbnails(shipped, held_out("task0", 1).prompt)
    row = data["rows"][-1]
    numbers = np.frombuffer(base64.b64decode(row["values"]), "<i2").reshape(seen.composed.shape[1:]) * data["unit"]
    assert row["name"] == "layer 2 after"
    assert np.abs(numbers - seen.composed[-1].numpy()).max() <= data["unit"]


def test_a_saved_circuit_fills_the_inputs_or_is_refused(app):
    import dataclasses

    import pytest

    from dcinterp.mechanism.circuit_drawing import CircuitNotes
    from dcinterp.mechanism.circuit_file import SavedCircuit
    from dcinterp.support.errors import UserError
    from workbench.circuit_view import inputs_of

    edges, nodes = ["embedding -> logits", "L0H0 -> logits"], ["embedding", "L0H0", "logits"]
    words = {"edge_method": ("method", {"gates": "", "eap": ""})}
    notes = CircuitNotes((edges[1],), ("L0H0",), (), {})
    saved = SavedCircuit("mine", {"examples": "task2 n=8 seed=3", "method": "eap"}, 2, notes, {edges[0]: 1.0})
    held = inputs_of(saved, "mine", edges, nodes, words)
    assert held == {"edge_method": "eap", "task": "task2", "prompts": 8, "prompts_seed": 3, "edges_kept": 2} | {
        "switched": [edges[1]],
        "notes": "pin L0H0",
    }
    for changes, said in (
        ({"model": "other"}, "choose that model"),
        ({"size": 3}, "has 3 edges, and this model 2"),
        ({"notes": dataclasses.replace(notes, switched=("L9H9 -> logits",))}, "no edge 'L9H9"),
        ({"notes": dataclasses.replace(notes, pinned=("L9H9",))}, "no node 'L9H9'"),
        ({"edges": {"x": 1.0}}, "no edge 'x'"),
        ({"arguments": {}}, "examples is None"),
        ({"arguments": {"examples": "task2 n=x"}}, "must be whole numbers"),
        ({"arguments": {"examples": "task2 n=3"}}, "takes n from 4 to 200"),
        ({"arguments": {"examples": "task2,task3"}}, "circuits of one task"),
        ({"arguments": {"examples": "task2 shots=2"}}, "circuits of one task"),
        ({"arguments": {"examples": "task2", "method": 5}}, "no method '5'"),
    ):
        with pytest.raises(UserError, match=said):
            inputs_of(dataclasses.replace(saved, **changes), "mine", edges, nodes, words)
