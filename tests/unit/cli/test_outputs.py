"""What verbs write never costs a person what lay there before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from dcinterp.analysis.answers.predict import Prediction
from dcinterp.checkpoints.names import SHIPPED
from dcinterp.cli import main
from dcinterp.cli._outputs import require_file_place, require_folder_place, require_result_place, save_result, whole
from dcinterp.results.result import Result, load_result
from dcinterp.support.errors import UserError

PREDICT = ("analyze", "predict", "dcformer++", "--prompt", "There are tea, meat, meat. Which is not meat? The")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence of a command line that must be refused."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    return captured.err


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_result_of_another_kind_stays(capsys, tmp_path):
    other = tmp_path / "other"
    with pytest.raises(SystemExit):
        main(["analyze", "head-diversity", "dcformer++", "--save", str(other)])
    capsys.readouterr()
    before = contents(other)
    said = refused(capsys, *PREDICT, "--save", str(other))
    assert f"{other} holds a HeadDiversity, not a Prediction; give another folder." in said
    assert "holds a HeadDiversity, not a MethodScores" in refused(
        capsys, "planted", "table", "share-by-kp", "--save", str(other)
    )
    assert contents(other) == before


@pytest.mark.parametrize("text", ['{"accuracy": 0.9}', "[1, 2]", "my notes", '{"kind": "mine"}'])
def test_a_file_that_only_has_the_name_of_a_result_stays(capsys, tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    assert f"{tmp_path} holds other files" in refused(capsys, *PREDICT, "--save", str(tmp_path))
    assert contents(tmp_path) == {"result.json": text.encode()}


def test_a_result_in_a_folder_of_another_result_stays(tmp_path):
    outer = predicted().save(tmp_path / "outer")
    require_result_place(outer, "Prediction")
    predicted().save(outer / "inner")
    with pytest.raises(UserError, match="outer holds other files"):
        require_result_place(outer, "Prediction")


def test_what_came_while_the_work_went_on_stays(tmp_path):
    folder = tmp_path / "saved"
    require_result_place(folder, "Prediction")
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="saved holds other files"):
        save_result(predicted(), folder)
    assert contents(tmp_path) == {"saved/notes.txt": b"mine"}


@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_result_of_the_kind_is_replaced_and_so_is_one_that_was_cut_off(tmp_path, cut):
    folder = predicted().save(tmp_path / "saved")
    save_result(predicted(), folder)
    record = folder / "result.json"
    record.write_text(record.read_text()[:cut])
    save_result(predicted(), folder)
    assert load_result(folder) == predicted()
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_what_lay_there_comes_back_when_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old/notes.txt").write_text("mine")
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".part"):
            raise OSError("no")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)

    def write() -> None:
        with whole(tmp_path / "old") as place:
            place.mkdir()

    with pytest.raises(OSError, match="no"):
        write()
    assert contents(tmp_path) == {"old/notes.txt": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_does_not_become_a_file(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/notes.txt").write_text("mine")

    def write() -> None:
        with whole(tmp_path / "results") as place:
            place.write_text("table")

    with pytest.raises(IsADirectoryError):
        write()
    assert contents(tmp_path) == {"results/notes.txt": b"mine"}


def test_a_place_beside_which_nothing_can_be_made_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("old")
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    for check, name in ((require_folder_place, "empty"), (require_file_place, "table.csv")):
        with pytest.raises(UserError, match=f"The folder {tmp_path} may not be written by you"):
            check(tmp_path / name)
    require_file_place(Path("/dev/stdout"))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("answers.csv", "mine", "holds other files"),
        ("summary.json", "[1]", "holds other files"),
        ("summary.json", "mine", "holds other files"),
        (
            "summary.json",
            '{"model": "transformer++", "tables": {}}',
            "holds an evaluation of transformer++, not of dcformer++; give another folder.",
        ),
    ],
)
def test_an_evaluation_is_written_over_no_other(capsys, tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    evaluate = ("tasks", "evaluate", "dcformer++", "--tasks", "56", "--rows", "1", "--output", str(tmp_path))
    assert says in refused(capsys, *evaluate)
    assert contents(tmp_path) == {name: text.encode()}


def test_an_evaluation_is_written_beside_other_files_and_over_its_own(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["tasks", "evaluate", "dcformer++", "--tasks", "56", "--rows", "1", "--output", str(tmp_path)])
        assert ended.value.code == 0
    assert {"notes.txt", "answers.csv", "summary.json"} <= contents(tmp_path).keys()


def predicted() -> Result:
    """A small result."""
    ids, numbers = torch.tensor([5, 7]), torch.tensor([0.75, 0.25])
    return Prediction(
        tokens=("a",),
        position=0,
        top_tokens=("b", "c"),
        answer="",
        answer_id=-1,
        rank=0,
        answer_probability=0.0,
        top_ids=ids,
        probability=numbers,
        logit=numbers.log(),
    )


def test_what_is_read_is_not_written_over(capsys, tmp_path):
    text = tmp_path / "text.py"
    text.write_text("x = 1\n" * 50)
    before = contents(tmp_path)
    said = refused(capsys, "analyze", "text-loss", "dcformer++-code", "--text", str(text), "--csv", str(text))
    assert f"{text} is read; give the output another path." in said
    runs = str(tmp_path / "runs.csv")
    Path(runs).write_text("a,b\n")
    said = refused(capsys, "analyze", "scaling-fit", "--runs", runs, "--csv", runs)
    assert "runs.csv is read" in said
    assert contents(tmp_path) == before | {"runs.csv": b"a,b\n"}


def test_the_model_that_is_read_is_not_written_over(capsys, tmp_path):
    copied = tmp_path / "m"
    shutil.copytree(SHIPPED / "transformer++", copied)
    before = contents(copied)
    for output in ("--csv", "--table-to"):
        said = refused(capsys, "analyze", "predict", str(copied), *PREDICT[3:], output, str(copied / "config.json"))
        assert "config.json is read; give the output another path." in said
    assert contents(copied) == before


def test_a_file_of_another_kind_is_not_written_over(capsys, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    said = refused(capsys, "tasks", "generate", str(notes), "--tasks", "task56", "--rows", "1")
    assert "notes.md is there and is no .jsonl file, so that it may be yours" in said
    assert "is no .csv file" in refused(capsys, *PREDICT, "--csv", str(notes))
    assert "There is no output to the screen" in refused(capsys, *PREDICT, "--csv", "-")
    assert "is too long for the name of a file" in refused(capsys, *PREDICT, "--csv", str(tmp_path / ("n" * 220)))
    assert contents(tmp_path) == {"notes.md": b"mine"}


@pytest.mark.parametrize("cut", ['{"id": 1, "text": "mine"}\n{"id": 2, "te', '{"id": 1, "text": "my only co'])
def test_rows_of_another_file_are_not_taken_for_measurements(capsys, tmp_path, cut):
    file = tmp_path / "rows.jsonl"
    file.write_text(cut)
    for command in (("circuits", "--model", "dcformer++", "--tasks", "task0"), ("edges",)):
        name, *more = command
        arguments = [str(file), *more] if name == "circuits" else [str(file), "same-person"]
        said = refused(capsys, "bench", name, *arguments, "--seconds", "0.0001")
        assert "rows.jsonl is no row of this measurement" in said
    assert file.read_text() == cut


def test_a_measurement_without_a_row_leaves_no_file(capsys, tmp_path):
    file = tmp_path / "new.jsonl"
    said = refused(capsys, "bench", "circuits", str(file), "--model", "./nomodel", "--tasks", "task0")
    assert "nomodel" in said
    assert not file.exists()


def test_an_output_beside_a_model_is_written_again(capsys, tmp_path):
    copied = tmp_path / "m"
    shutil.copytree(SHIPPED / "transformer++", copied)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["analyze", "predict", str(copied), *PREDICT[3:], "--csv", str(copied / "mine.csv")])
        assert ended.value.code in (0, None)
    assert (copied / "mine.csv").read_text().count("\n") > 1
