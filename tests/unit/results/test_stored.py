"""A result.json that no analysis wrote: one sentence, no code of its own, and nothing read outside its folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file

import dcinterp
from dcinterp import UserError, replay
from dcinterp.mechanism.interventions import read_interventions
from dcinterp.results.call import EXAMPLE, Call, from_plain, source_text
from dcinterp.results.result import RECORD, TENSORS, Result, load_result
from dcinterp.results.stored import check_fields, check_words


@pytest.fixture(scope="module")
def saved(make_bridge, prompt, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "shown"
    return dcinterp.predict(make_bridge(), prompt).save(folder)


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "result"))


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        load_result(folder)
    sentence = str(raised.value)
    assert str(folder) in sentence
    assert len(sentence) <= 300
    assert "\n" not in sentence
    return sentence


CHANGES: list[tuple[tuple[str, ...], Any, str]] = [
    (("kind",), 3, "kind is 3"),
    (("kind",), "Nothing", "'Nothing'"),
    (("kind",), [1], "kind is [1]"),
    (("kind",), {}, "kind is {}"),
    (("fields",), [], "fields is []"),
    (("fields", "extra"), 1, "no field 'extra'"),
    (("fields", "tokens"), 3, "tokens is 3"),
    (("fields", "top_tokens"), ["a"], "labels"),
    (("parts",), ["."], "parts is ['.']"),
    (("parts",), ["../shown"], "parts is"),
    (("parts",), 3, "parts is 3"),
    (("call",), [], "call is []"),
    (("call",), {"analysis": "predict"}, "call has no field"),
    (("call", "analysis"), "predict; import os", "call.analysis"),
    (("call", "home"), "os;x", "call.home"),
    (("call", "dtype"), "load", "call.dtype"),
    (("call", "obstacle"), "x\nimport os; os.remove('x')", "call.obstacle"),
    (("call", "arguments"), {"x) or (y": 1}, "call.arguments"),
    (("call", "arguments"), None, "call.arguments"),
    (("call", "shown"), ["nothing"], "call.shown"),
    (("call", "public"), "yes", "call.public"),
]


@pytest.mark.parametrize(("where", "value", "said"), CHANGES)
def test_a_wrong_field_is_named(folder, where, value, said):
    record = json.loads((folder / RECORD).read_text())
    if where[0] == "call":
        record["call"] = {"analysis": "predict", "home": "dcinterp.analysis.answers.predict", "model": "dcformer++"}
        record["call"] |= {"arguments": {}, "shown": [], "dtype": None, "revision": None, "fingerprint": None}
    place = record
    for name in where[:-1]:
        place = place[name]
    place[where[-1]] = value
    (folder / RECORD).write_text(json.dumps(record))
    assert said in refused(folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"fields": {', '"fields": {"tokens": [], ', "gives 'tokens' twice"),
        ('"kind": "', '"kind": "\\ud800', "half a letter"),
        ('"parts": [', f'"parts": [{"[" * 100}{"]" * 100}], "other": [', "nested too deep"),
    ],
)
def test_what_readers_of_json_pass_over_is_refused(folder, old, new, said):
    text = (folder / RECORD).read_text()
    assert old in text
    (folder / RECORD).write_text(text.replace(old, new, 1))
    assert said in refused(folder)


@dataclass(frozen=True)
class Listed(Result, shared=True):
    AXES: ClassVar[dict[str, tuple[str, ...]]] = {"score": ("word", "top")}
    LISTS: ClassVar[dict[str, tuple[str, ...]]] = {"answers": ("word",), "best": ("word", "top")}

    answers: tuple[str, ...]
    best: tuple[tuple[str, ...], ...]
    ends: tuple[float, str]
    score: Float[torch.Tensor, "word top"]


def test_lists_are_as_long_as_their_axes_and_numbers_of_their_type():
    score = torch.zeros(2, 3)
    given = {"answers": ["a", "b"], "best": [["x"] * 3] * 2, "ends": [0.5, "a"], "score": score}
    check_fields(Listed, given)
    for name, wrong, said in (
        ("answers", ["a"], "answers has 1 entries along word, and score has 2"),
        ("best", [["x"] * 3, ["x"] * 2], "best has 2 entries along top, and score has 3"),
        ("ends", [0.5], "ends is"),
        ("ends", ["a", 0.5], "ends is"),
        ("score", score.long(), "numbers of type int64"),
    ):
        with pytest.raises(UserError, match=said):
            check_fields(Listed, given | {name: wrong})


def test_a_field_that_repeats_an_argument_is_one_of_its_words():
    check_words(
        {"kind": "mean (of positions)", "free": "x"}, {"kind": Literal["mean", "zero"], "free": Literal["a"] | str}
    )
    with pytest.raises(UserError, match="no kind 'meen'; did you mean mean"):
        check_words({"kind": "meen"}, {"kind": Literal["mean", "zero"] | None})


OLD = Path(__file__).parents[2] / "fixtures" / "v0.1" / "results"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("calibrate", "methods", ["gradient9", "ig"]),
        ("calibrate", "part", "heads"),
        ("attribute_edges_over", "control", "none?"),
        ("head_diversity", "reading", "stackd"),
    ],
)
def test_a_word_that_figures_look_up_is_one_of_its_own(tmp_path, name, field, value):
    folder = Path(shutil.copytree(OLD / name, tmp_path / "result"))
    record = json.loads((folder / RECORD).read_text())
    assert load_result(folder)
    record["fields"][field], record["call"] = value, None
    (folder / RECORD).write_text(json.dumps(record))
    assert "; did you mean" in refused(folder)


@pytest.mark.parametrize("content", ["", "null", "[]", "[" * 200_000, '{"kind": "Prediction"}', "{}", "\x00"])
def test_what_is_no_record_is_refused(folder, content):
    (folder / RECORD).write_text(content)
    refused(folder)


def test_every_field_is_needed_but_those_with_a_default(folder):
    whole = json.loads((folder / RECORD).read_text())
    for name in whole["fields"]:
        left = {key: value for key, value in whole["fields"].items() if key != name}
        (folder / RECORD).write_text(json.dumps(whole | {"fields": left}))
        try:
            load_result(folder)
        except UserError as error:
            assert name in str(error)  # noqa: PT017


def test_tensors_have_their_axes(folder):
    tensors = load_file(folder / TENSORS)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name][None]}, folder / TENSORS)
    assert name in refused(folder)
    (folder / TENSORS).write_bytes(b"no")
    assert TENSORS in refused(folder)
    (folder / TENSORS).unlink()
    (folder / TENSORS).symlink_to("/dev/zero")
    assert "device" in refused(folder)


def test_code_is_made_of_names_only():
    record = {"analysis": "predict", "home": "a.b", "model": '")\nimport os', "arguments": {}, "shown": []}
    record |= {"dtype": None, "revision": None, "fingerprint": None}
    assert Call.from_record(record).python().count("\n") == 3  # the model stays inside its quotes


WORDS = dict.fromkeys(("task_id", "asked", "predicate", "unit", "answer", "prompt"), "x")
GOOD = {**WORDS, "source": 0, "facts": [["a", "b"]], "accepted": ["x"]}


@pytest.mark.parametrize(
    "wrong",
    [
        *(3, [], {}, GOOD | {"facts": [3]}, GOOD | {"facts": [["a"]]}, GOOD | {"facts": [["a", 3]]}),
        *(GOOD | {"answer": None}, GOOD | {"accepted": [3]}, GOOD | {"extra": 1}, GOOD | {"source": "0"}),
        GOOD | {"source": 5},
    ],
)
def test_an_example_of_wrong_kinds_is_refused(wrong):
    assert from_plain({EXAMPLE: GOOD}).answer == "x"
    with pytest.raises(UserError, match="not a valid example of the tasks"):
        from_plain({EXAMPLE: wrong})


@pytest.mark.parametrize("given", [[3], [None], [["head 1.2"]], [{"part": "head"}], [True]])
def test_an_intervention_is_a_line(given):
    with pytest.raises(UserError, match="is no intervention"):
        read_interventions(given)


def test_nan_survives(folder):
    tensors = load_file(folder / TENSORS)
    name = next(name for name, t in tensors.items() if t.is_floating_point())
    save_file(tensors | {name: torch.full_like(tensors[name], float("nan"))}, folder / TENSORS)
    assert getattr(load_result(folder), name).isnan().all()


def test_a_save_that_fails_leaves_what_was_there(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = replace(load_result(folder), probability=torch.zeros_like(load_result(folder).probability))
    with pytest.raises(TypeError):
        replace(other, target=object()).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / f".{RECORD}.123.part").write_text("{")  # as a save is left that was killed
    other.save(folder)
    assert load_result(folder) == other
    assert sorted(path.name for path in folder.iterdir()) == sorted(before)
    new = folder.parent / "new"
    new.mkdir()
    (new / f".{TENSORS}.123.part").write_bytes(b"")
    assert load_result(other.save(new)) == other


@pytest.mark.parametrize("public", [True, False])
@pytest.mark.parametrize(("home", "name"), [("os", "system"), ("dcinterp", "load")])
def test_no_code_is_written_for_what_is_no_analysis(folder, home, name, public):
    record = json.loads((folder / RECORD).read_text())
    strange = {"home": home, "analysis": name, "model": None, "arguments": {"command": "x"}, "shown": ["command"]}
    record["call"] |= strange | {"public": public}
    (folder / RECORD).write_text(json.dumps(record))
    call = load_result(folder).call
    assert not call.reproducible
    for code in (call.python(), call.command()):
        assert code.startswith("# ")
        assert "\n" not in code


def test_no_command_has_options_that_the_analysis_has_not(folder):
    record = json.loads((folder / RECORD).read_text())
    record["call"] |= {"obstacle": "", "model": "dcformer++"}
    record["call"]["arguments"]["engine"] = "dask:somewhere:8786"
    record["call"]["shown"].append("engine")
    (folder / RECORD).write_text(json.dumps(record))
    call = load_result(folder).call
    assert call.command() == call.python()
    assert call.command().endswith("has no argument 'engine'; use the version that made it.")
    record["call"]["model"] = "--help"
    (folder / RECORD).write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"call\.model is '--help', not the name of a model"):
        load_result(folder)


def test_a_result_does_not_have_the_hub_asked(folder, monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: asked.append(1))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    record = json.loads((folder / RECORD).read_text())
    record["call"] |= {"obstacle": "", "model": "somebody/a-model"}
    (folder / RECORD).write_text(json.dumps(record))
    with pytest.raises(UserError, match="nobody typed it, so it is not asked; get the model with `dcinterp load`"):
        replay(folder)
    assert not asked


def test_an_analysis_of_ours_is_called_where_it_is_now(folder):
    record = json.loads((folder / RECORD).read_text())
    record["call"] |= {"home": "os.path", "public": False}
    (folder / RECORD).write_text(json.dumps(record))
    assert "os.path" not in load_result(folder).call.python()


def test_numbers_that_are_not_finite_are_code():
    assert eval(source_text([float("inf"), -float("inf")])) == [float("inf"), -float("inf")]


def test_a_broken_analysis_does_not_make_a_result_broken(folder, monkeypatch):
    def broken() -> None:
        raise UserError("The analysis in mine.py does not load.")

    monkeypatch.setattr("dcinterp.results.result.import_all", broken)
    with pytest.raises(UserError, match=r"^The analysis in mine\.py does not load\.$"):
        load_result(folder)


def test_a_second_kind_of_result_of_one_name_is_refused():
    with pytest.raises(TypeError, match="has a kind of result Prediction already"):
        type("Prediction", (Result,), {"__module__": "mine"})


def test_a_save_takes_away_what_an_earlier_result_had(tmp_path, shipped):
    folder = tmp_path / "s"
    found = dcinterp.branch_ablation(shipped, tasks="56", parts=["post"], rows=1, examples=2)
    assert found.zero is not None
    found.save(folder)
    (folder / ".zero.12-34.part").mkdir()
    # A person's own result beside it, named as a field is.
    other = dcinterp.predict(shipped, "Which is not tea? The").save(folder / "parts")
    replace(found, zero=None).save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["parts", "result.json", "tensors.safetensors"]
    assert dcinterp.load_result(other)
