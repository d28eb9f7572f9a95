"""A real, tiny run: it learns, it is saved whole, and stopping and resuming changes nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from socket import gethostname

import pytest
import torch
from typer.testing import CliRunner

import dcinterp
from dcinterp.checkpoints.composition import open_start
from dcinterp.cli import verbs
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    RecipeSection,
    TextSection,
    TrainConfig,
    read_config,
    require_read_keys,
    write_config,
)
from dcinterp.train.control import run_lock
from dcinterp.train.control.run_lock import FILE, lock_holder, lock_run
from dcinterp.train.loop import checkpoints
from dcinterp.train.loop.run import resolve, train
from dcinterp.train.loop.run_summary import describe_data
from dcinterp.train.loop.trainer import compose_parameters


def tiny(output, preset="tiny-dcformer++", **recipe) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(
            preset=preset,
            changes={"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48},
        ),
        data=DataSection(phases=(Phase(source="pairs", steps=6, batch_size=8), Phase(steps=6, batch_size=8))),
        recipe=RecipeSection(learning_rate=3e-3, warmup_fraction=0.1, **recipe),
        evaluation=EvaluationSection(every=6, answers_per_task=1, examples=(1,)),
        save_every=4,
    )


def weights(folder):
    return dict(dcinterp.load(folder).original_model.state_dict())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    output = tmp_path_factory.mktemp("whole")
    steps = []
    folder = train(tiny(output), progress=lambda done, total, message="": steps.append((done, total)))
    return output, folder, steps


def test_a_run_leaves_model_tokenizer_config_and_metrics(whole):
    output, folder, steps = whole
    assert steps == [(step, 12) for step in range(1, 13)]
    bridge = dcinterp.load(folder)
    assert bridge.to_str_tokens("Ruth has a violin.") == ["Ruth", "has", "a", "violin", "."]
    assert read_config(output / "config.yaml").steps == 12
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    accuracies = [line["accuracy"]["1"] for line in metrics if "accuracy" in line]
    assert len(accuracies) == 2
    assert set(accuracies[0]) == {
        "same-person",
        "the-other-person",
        "same-object",
        "the-other-object",
        "different-in-set",
        "all",
    }
    assert metrics[-1]["tokens"] > 0


def test_held_out_combinations_are_measured_by_themselves(tmp_path):
    config = tiny(tmp_path / "run")
    config = replace(config, data=replace(config.data, holdout=("same-person:city->country",)))
    train(config)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]["1"]
    assert list(last)[-3:] == ["seen", "held-out", "all"]
    assert dcinterp.training_curves(tmp_path / "run").has_sides
    with pytest.raises(UserError, match=r"data\.holdout"):
        train(replace(config, data=replace(config.data, holdout=())), resume=True)


def test_stopped_and_resumed_ends_with_the_same_weights(whole, tmp_path):
    def stop(done, total, message=""):
        if done == 9:
            raise Cancelled

    config = tiny(tmp_path / "run")
    with pytest.raises(Cancelled):
        train(config, progress=stop)
    assert checkpoints.steps_in(tmp_path / "run" / "checkpoints")[-1] == 9, "nothing is trained twice"
    before = json.loads((tmp_path / "run" / "checkpoints" / "checkpoint-9" / "running.json").read_text())["seconds"]
    told = []
    folder = train(config, resume=True, begin=lambda run: told.append((run.step, run.sentences(resuming=True))))
    assert told[0][0] == 9
    assert "from step 9 of 12" in told[0][1][0]
    mine, theirs = weights(folder), weights(whole[1])
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    ours, whole_run = ((path / "metrics.jsonl").read_text() for path in (tmp_path / "run", whole[0]))
    assert ours == whole_run, "nothing is recorded twice"
    assert json.loads((tmp_path / "run" / "timings.json").read_text())["seconds"] > before > 0, "of all starts"


def test_every_checkpoint_is_a_model_with_its_tokenizer(whole):
    bridge = dcinterp.load(whole[0] / "checkpoints" / "checkpoint-8")
    assert bridge.to_str_tokens("Ruth has a violin.") == ["Ruth", "has", "a", "violin", "."]


def test_timing_a_step_changes_nothing(whole, tmp_path):
    sentences = []
    folder = train(tiny(tmp_path / "timed"), begin=lambda run: sentences.extend(run.sentences()))
    mine, theirs = weights(folder), weights(whole[1])
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert "on the synthetic tasks: 12 steps" in sentences[0]
    assert "It takes about 1 second" in sentences[1]
    assert str(tmp_path / "timed") in sentences[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ({}, "the source files of Python's standard library"),
        ({"path": "books"}, "books"),
        ({"dataset": "hub/name"}, "hub/name"),
        ({"packages": ("python",)}, "the Python sources of python"),
        ({"packages": ("python", "numpy", "pandas")}, "the Python sources of python, numpy, pandas"),
        ({"packages": tuple("abcd")}, "the Python sources of a, b, c, d"),
        ({"packages": tuple("abcdef")}, "the Python sources of a, b, c, d and 2 more"),
    ],
)
def test_a_run_says_which_text_it_reads(text, said):
    assert describe_data(DataSection(phases=(Phase(source="text"),), text=TextSection(**text))) == said


def test_cancelled_at_the_last_step_is_finished(whole, tmp_path):
    def stop(done, total, message=""):
        if done == total:
            raise Cancelled

    folder = train(tiny(tmp_path / "run"), progress=stop)
    assert all(torch.equal(weight, weights(whole[1])[name]) for name, weight in weights(folder).items())


def test_a_long_message_in_any_script_leaves_the_process_readable(tmp_path):
    with lock_run(tmp_path) as publish:
        publish(3, 10, "损失" * 400)
        found = lock_holder(tmp_path)
    assert found is not None
    assert (found.process, found.step, found.elsewhere) == (os.getpid(), 3, "")
    assert found.message.startswith("损失")


def test_a_process_of_another_machine_is_named_with_it(tmp_path, monkeypatch):
    with lock_run(tmp_path) as publish:
        with monkeypatch.context() as there:
            there.setattr(run_lock, "gethostname", lambda: "far-away")
            publish(3, 10)
        with pytest.raises(UserError, match=f"Process {os.getpid()} on far-away is training"), lock_run(tmp_path):
            pass


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    seen, refused = [], []

    def look(done, total, message=""):
        seen.append(lock_holder(tmp_path / "run"))
        if done == 5:
            with pytest.raises(UserError, match=rf"Process {os.getpid()} is training in .*run now") as error:
                train(tiny(tmp_path / "run"), resume=True)
            refused.append(error.value)

    assert lock_holder(tmp_path / "run") is None
    train(tiny(tmp_path / "run"), progress=look)
    assert len(refused) == 1
    assert {found.process for found in seen} == {os.getpid()}
    assert seen[-1].steps == 12
    assert lock_holder(tmp_path / "run") is None


def test_a_folder_that_takes_nothing_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be made \(Not a directory\); choose another output folder"):
        train(tiny(tmp_path / "file" / "run"))


def test_a_trained_model_is_not_overwritten(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for resume in (False, True):
        with pytest.raises(UserError, match="already holds a trained model"):
            train(tiny(tmp_path / "run"), resume=resume)


def test_a_run_that_was_moved_does_not_start_again_elsewhere(whole, tmp_path):
    moved, left = tmp_path / "moved", tmp_path / "left"
    shutil.copytree(whole[0], moved)
    write_config(replace(read_config(moved / "config.yaml"), output=str(left)), moved / "config.yaml")
    command = ["train", str(moved / "config.yaml"), "--resume"]
    ran = CliRunner().invoke(verbs, command)
    assert isinstance(ran.exception, UserError)
    assert f"To go on with it, give --output {moved} as well" in str(ran.exception)
    assert not left.exists()
    assert CliRunner().invoke(verbs, [*command, "--output", str(moved)]).exit_code == 0
    shutil.copytree(moved, left)
    assert CliRunner().invoke(verbs, command).exit_code == 0, "a copy of the folder leaves the run where it was"


def test_refuses_to_overwrite_or_to_resume_another_run(whole):
    output = whole[0]
    with pytest.raises(UserError, match="already holds a run"):
        train(tiny(output))
    with pytest.raises(UserError, match="other settings"):
        train(tiny(output, seed=5), resume=True)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without an accelerator")
def test_mixed_precision_on_a_cpu(tmp_path, monkeypatch):
    """Matrix products are in bfloat16, weights and losses in float32."""
    kinds = set()
    real = torch.nn.functional.linear

    def linear(x, weight, bias=None):
        found = real(x, weight, bias)
        kinds.add((found.dtype, weight.dtype))
        return found

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    folder = train(tiny(tmp_path / "run", bf16=True))
    assert (torch.bfloat16, torch.float32) in kinds
    assert {weight.dtype for weight in weights(folder).values() if weight.is_floating_point()} == {torch.float32}
    losses = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["loss"] < 8 for line in losses if "loss" in line)


def test_a_gpu_without_bfloat16_is_a_sentence_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr("dcinterp.train.loop.run.is_torch_bf16_gpu_available", lambda: False)
    with pytest.raises(UserError, match=r"recipe.bf16 is true, but .* leave recipe.bf16 out"):
        train(tiny(tmp_path / "run", bf16=True))
    assert not (tmp_path / "run").exists()


def test_the_composition_has_its_own_learning_rate(tmp_path):
    """With a share of 0 the composition stays as it was initialised, and everything else learns."""
    frozen = weights(train(tiny(tmp_path / "frozen", compose_learning_rate_fraction=0.0)))
    free = weights(train(tiny(tmp_path / "free")))
    for name, weight in frozen.items():
        if ".post." in name and "gate" in name:
            assert float(weight.abs().max()) < 0.1
            assert not torch.equal(weight, free[name])


def test_compose_parameters_are_those_of_the_stages(bridge):
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", vocab_size=20, num_hidden_layers=1)
    model = dcinterp.DCFormerForCausalLM(config)
    names = {id(p): n for n, p in model.named_parameters()}
    found = {names[id(p)] for p in compose_parameters(model)}
    assert found == {n for n in names.values() if ".pre." in n or ".post." in n}
    assert len(found) == 2 * 2 * 3


def test_gradients_reach_every_parameter_at_the_papers_initialisation():
    config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", vocab_size=20, num_hidden_layers=2)
    model = dcinterp.DCFormerForCausalLM(config)
    ids = torch.randint(0, 20, (4, 9))
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("evaluation", {"examples": []}, r"evaluation\.examples is \[\]; it must be numbers of at least 1"),
        ("evaluation", {"validation_rows": 0}, r"evaluation\.validation_rows is 0; it must be at least 1"),
        ("recipe", {"seed": -1}, r"recipe\.seed is -1; it must be 0 or more"),
        ("data", {"seed": -2}, r"data\.seed is -2; it must be 0 or more"),
        ("phase", {"asked": -1}, r"data\.phases\[0\]\.asked is -1"),
        ("phase", {"tokens": -5}, r"data\.phases\[0\]\.tokens is -5; it must be 0 or more"),
        ("phase", {"examples": ()}, r"data\.phases\[0\]\.examples is \[\]; it must be numbers of at least 1"),
        ("phase", {"gaps": (-1,)}, r"data\.phases\[0\]\.gaps is \[-1\]; it must be numbers of at least 0"),
    ],
)
def test_what_no_run_could_be_made_of_is_refused_before_it_begins(tmp_path, section, changes, says):
    config = tiny(tmp_path / "run")
    if section == "phase":
        data = replace(config.data, phases=(replace(config.data.phases[0], **changes), *config.data.phases[1:]))
        config = replace(config, data=data)
    else:
        config = replace(config, **{section: replace(getattr(config, section), **changes)})
    with pytest.raises(UserError, match=says):
        resolve(config)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no way to see what a process has open")
@pytest.mark.parametrize("written", ["process of another program", "words"])
def test_a_number_that_somebody_wrote_into_a_lock_is_no_process_of_ours(tmp_path, written):
    with subprocess.Popen(["sleep", "60"]) as other:
        process = other.pid if written != "words" else "1"
        (tmp_path / FILE).write_text(json.dumps({"process": process, "step": 3, "host": gethostname()}))
        with (tmp_path / FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert lock_holder(tmp_path).process == 0
        other.kill()


def test_a_disk_without_locks_gives_a_warning(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", fails)
    with pytest.warns(UserWarning, match=r"without locks \(Function not implemented\)"), lock_run(tmp_path) as publish:
        publish(1, 2)


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    """A config of one's own, notes and a table, none of which a run may overwrite."""
    mine = {"config.yaml": "# my notes\n", "watch/notes.txt": "seen", "metrics.jsonl": "mine"}
    (tmp_path / "run" / "watch").mkdir(parents=True)
    for name, text in mine.items():
        (tmp_path / "run" / name).write_text(text)
    for resume in (False, True):
        with pytest.raises(UserError, match=r"holds other files, such as config\.yaml"):
            train(tiny(tmp_path / "run"), resume=resume)
    assert {name: (tmp_path / "run" / name).read_text() for name in mine} == mine


@pytest.mark.parametrize("source", ["pairs", "puzzle"])
def test_a_tokenizer_of_ones_own_is_left_alone(tmp_path, source):
    mine = tmp_path / "run" / "tokenizer" / "tokenizer.json"
    mine.parent.mkdir(parents=True)
    mine.write_text('{"mine": 1}')
    phase = Phase(source=source, steps=1, batch_size=2, **({"score": "answer"} if source == "puzzle" else {}))
    with pytest.raises(UserError, match="holds other files, such as tokenizer"):
        train(replace(tiny(tmp_path / "run"), data=DataSection(phases=(phase,))))
    assert mine.read_text() == '{"mine": 1}'


def test_a_run_that_is_refused_keeps_its_tokenizer(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    before = (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes()
    puzzle = DataSection(phases=(Phase(source="puzzle", steps=20, batch_size=2, score="answer"),))
    with pytest.raises(UserError, match="was trained for 12 steps with other settings"):
        train(replace(tiny(tmp_path / "run"), data=puzzle), resume=True)
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes() == before


@pytest.mark.parametrize(
    ("examples", "said"), [(40, "evaluation.examples has 40: .* too few"), (16, "up to 5.. tokens")]
)
def test_held_out_rows_that_do_not_fit_are_refused_before_the_first_step(tmp_path, examples, said):
    config = tiny(tmp_path / "run")
    with pytest.raises(UserError, match=said):
        train(replace(config, evaluation=replace(config.evaluation, examples=(1, examples))))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_refused_resume_leaves_the_run_as_it_was(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "checkpoint-12")
    shutil.rmtree(tmp_path / "run" / "model")
    files = [tmp_path / "run" / name for name in ("config.yaml", "history.jsonl", "metrics.jsonl")]
    before = [file.read_bytes() for file in files]
    config = tiny(tmp_path / "run")
    with pytest.raises(UserError, match=r"evaluation\.examples has 40"):
        train(replace(config, evaluation=replace(config.evaluation, examples=(40,))), resume=True)
    assert [file.read_bytes() for file in files] == before


def test_saving_and_logging_follow_the_config_of_a_resume(tmp_path):
    config = replace(tiny(tmp_path / "run"), save_every=100, log_every=100, keep_checkpoints=50)
    short = replace(config, data=DataSection(phases=(replace(config.data.phases[0], steps=3),)))
    train(replace(short, recipe=replace(config.recipe, schedule_steps=9)))
    longer = replace(config, data=DataSection(phases=(replace(config.data.phases[0], steps=9),)), save_every=2)
    train(replace(longer, log_every=1, recipe=replace(config.recipe, schedule_steps=9)), resume=True)
    saved = sorted(int(each.name.split("-")[1]) for each in (tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    assert saved == [3, 4, 6, 8, 9]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [4, 5, 6, 7, 8, 9]


def test_a_log_beside_a_run_is_no_hindrance(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slurm-12.out").write_text("")
    with pytest.raises(Cancelled):
        train(tiny(tmp_path / "run"), progress=lambda *told: (_ for _ in ()).throw(Cancelled))


def test_what_a_run_would_drop_is_refused_before_it_starts(tmp_path):
    config = tiny(tmp_path / "run")
    phases = (replace(config.data.phases[0], asked=2), *config.data.phases[1:])
    with pytest.raises(UserError, match=r"phases\[0\].asked does nothing"):
        train(replace(config, data=replace(config.data, phases=phases)))


def test_checkpoints_without_their_config_do_not_go_on(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(UserError, match="it is not known how the checkpoints beside it were made"):
        train(tiny(tmp_path / "run", seed=5), resume=True)


@pytest.mark.parametrize(
    ("phase", "said"),
    [
        ({"source": "text", "score": "answer"}, r"phases\[0\].score does nothing with the source 'text'"),
        ({"source": "pairs", "tasks": ("task10",)}, r"phases\[0\].tasks does nothing with the source 'pairs'"),
        ({"source": "tasks", "asked": 2}, r"phases\[0\].asked does nothing with the source 'tasks'"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(phase, said):
    config = TrainConfig(data=DataSection(phases=(Phase(**phase),)))
    with pytest.raises(UserError, match=said):
        require_read_keys(config)


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    config = tiny(tmp_path / "run")
    with pytest.raises(UserError, match="vocab_size is 10, but the tokenizer of this data has"):
        train(replace(config, model=replace(config.model, changes=config.model.changes | {"vocab_size": 10})))


def test_a_run_that_is_refused_leaves_no_folder_that_was_not_there(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("too short", encoding="utf-8")
    data = DataSection(phases=(Phase(source="text", steps=2, batch_size=1),), text=TextSection(path=str(text)))
    for made in (False, True):
        if made:
            (tmp_path / "run").mkdir()
        with pytest.raises(UserError):
            train(replace(tiny(tmp_path / "run"), data=data))
        assert (tmp_path / "run").exists() is made


def test_documents_that_are_too_long_are_refused_before_the_first_step(tmp_path):
    config = tiny(tmp_path / "run")
    for most, said in (
        (20, r"phases\[2\] are .* but the model reads 512: .* data\.phases\[2\]\.examples"),
        (40, "too few"),
    ):
        phases = (*config.data.phases, Phase(steps=6, batch_size=1, examples=(*[1] * 20, most)))
        with pytest.raises(UserError, match=said):
            train(replace(config, data=replace(config.data, phases=phases)))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_what_refuses_a_resumed_run_changes_nothing_of_it(tmp_path):
    config = replace(tiny(tmp_path / "run"), recipe=RecipeSection(gradient_accumulation=2))
    train(config)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in ("config.yaml", "history.jsonl")}
    phases = (*config.data.phases, Phase(steps=2, batch_size=1))
    with pytest.raises(UserError, match="A batch of 1 rows cannot be cut into 2 parts"):
        train(replace(config, data=replace(config.data, phases=phases)), resume=True)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in before} == before
    with pytest.raises(UserError, match="cannot be cut"):
        train(replace(config, output=str(tmp_path / "other"), data=replace(config.data, phases=phases)))
    assert not (tmp_path / "other").exists()


def test_a_run_that_adds_composition_goes_on_on_its_own_base_alone(tmp_path):
    first, other = (train(tiny(tmp_path / f"base{seed}", preset="tiny-transformer++", seed=seed)) for seed in (1, 2))
    named, composed = tmp_path / "named", tmp_path / "composed"

    def compose(base):
        for folder in (named, composed):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, named)
        assert CliRunner().invoke(verbs, ["compose", str(named), "--output", str(composed)]).exit_code == 0

    compose(first)
    config = replace(tiny(tmp_path / "run"), model=ModelSection(start=str(composed), train="composition"))
    config = replace(config, recipe=replace(config.recipe, schedule_steps=14))
    train(config, open_start=open_start)
    longer = replace(config, data=replace(config.data, phases=(*config.data.phases, Phase(steps=2, batch_size=8))))
    history = (tmp_path / "run" / "history.jsonl").read_bytes()
    compose(other)
    with pytest.raises(UserError, match="adds composition to has changed since it began"):
        train(longer, resume=True, open_start=open_start)
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == history
    compose(first)
    train(longer, resume=True, open_start=open_start)


def test_a_run_that_ends_within_its_warmup_says_so(tmp_path, caplog):
    config = tiny(tmp_path / "run")
    train(replace(config, recipe=replace(config.recipe, warmup_steps=100)))
    assert "The warmup is 100 steps long and the run 12, so the learning rate only reaches 11%" in caplog.text


def test_a_run_folder_points_to_its_model(whole):
    output, folder, _ = whole
    with pytest.raises(UserError, match=f"is the folder of a training run; its model is {folder}"):
        dcinterp.load(output)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--output", ""], "--output is empty"),
        (["--set", "output=''"], "output is empty"),
        (["--set", "recipe.threads=99999999999"], "recipe.threads is 99999999999; it must be at most 4,096"),
        (["--set", "data.phases=[{steps: 99999999999999999999}]"], r"steps is 99999999999999999999, which is too"),
        (["--set", "data.text.vocabulary=1000000000000"], "data.text.vocabulary is 1000000000000; it must be at most"),
        (["--set", f"recipe.learning_rate={10**400}"], "recipe.learning_rate is 1000.*, which is too large"),
    ],
)
def test_a_number_or_a_folder_that_cannot_be_is_named(tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(verbs, ["train", *options])
    with pytest.raises(UserError, match=says):
        raise ran.exception
    assert not list(tmp_path.iterdir())
