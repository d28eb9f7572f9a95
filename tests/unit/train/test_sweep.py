"""A sweep runs what its file says, keeps what is finished, names what failed, and writes one table."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest
import torch

import dcinterp
from dcinterp.model.build import build_model
from dcinterp.support.errors import UserError
from dcinterp.support.progress import Cancelled
from dcinterp.train.control.run_lock import lock_run
from dcinterp.train.control.sweep import is_finished, read_sweep, results, run_sweep, training_flops
from dcinterp.train.loop.run import train

SWEEPS = sorted((Path(__file__).parents[3] / "configs" / "sweeps").glob("*.yaml"))
BASE = """
config:
  model: {changes: {num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, intermediate_size: 16}}
  data: {phases: [{source: pairs, steps: 3, batch_size: 4}]}
  evaluation: {every: 3, answers_per_task: 1, examples: [1]}
  save_every: 3
  log_every: 1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.name)
def test_sweeps_of_the_repository_are_valid(path):
    assert len(read_sweep(path).runs) >= 6


def test_the_table_alone_keeps_what_failed(tmp_path):
    from dcinterp.cli import main

    place = write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: '001'}}, {{name: '2'}}]\n")
    (tmp_path / "out").mkdir()
    table = tmp_path / "out" / "results.csv"
    table.write_text("name,status,message\n001,failed,boom: no memory\n2,waiting,\n")
    with pytest.raises(SystemExit, match="1"):
        main(["sweep", str(place), "--table"])
    found = pd.read_csv(table, keep_default_na=False, dtype=str).set_index("name")
    assert found["status"].to_dict() == {"001": "failed", "2": "waiting"}
    assert found.loc["001", "message"] == "boom: no memory"


def test_lists_and_grids_multiply(tmp_path):
    text = f"output: out\n{BASE}runs: [{{name: a}}, {{name: b, recipe.clip: 2.0}}]\ngrid: {{data.seed: [3, 4]}}\n"
    runs = read_sweep(write(tmp_path, text)).runs
    assert [run.name for run in runs] == ["a,seed=3", "a,seed=4", "b,seed=3", "b,seed=4"]
    assert [(run.config.recipe.clip, run.config.data.seed) for run in runs] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert runs[2].config.output == "out/b,seed=3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour: red", "Unknown key 'colour'"),
        ("grid: {data.seed: 3}", "lists of values"),
        ("runs: [{name: a}, {name: a}]", "called 'a'"),
        ("runs: [{name: odd, recipe.lerning_rate: 1}]", "The run odd: Unknown key 'lerning_rate'"),
        ("jobs: 0", "at least 1"),
        (f"grid: {{{', '.join(f'data.k{n}: [1, 2, 3, 4, 5, 6]' for n in range(9))}}}", "describes 10,077,696 runs"),
        ("runs: [{name: plain}, {name: Plain}]", "Two runs of .* are called 'Plain'"),
        ("{}", "describes no runs; give `config`, `runs` or `grid`"),
        ("output: runs/mine", "describes no runs"),
        ("config: missing.yaml", "no training config"),
        ("config: 3", "`config` of .* must hold keys and values"),
        ("output: 5", "`output` of .* must be a folder"),
    ],
)
def test_refuses_with_a_sentence(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_sweep(write(tmp_path, text))


@pytest.mark.usefixtures("warm_python")
def test_runs_keeps_and_names_the_failed(tmp_path):
    """The second run cannot be cut as it asks; the first is done all the same, and not done twice."""
    runs = "runs: [{name: good}, {name: bad, recipe.gradient_accumulation: 9}]\n"
    sweep = read_sweep(write(tmp_path, BASE + runs), output=tmp_path / "out")
    seen = []
    table = run_sweep(sweep, progress=lambda done, total, message="": seen.append(done), jobs=2)
    assert seen[-1] == 2
    assert table["status"].tolist() == ["done", "failed"]
    assert "cannot be cut into 9 parts" in table["message"][1]
    good = table.iloc[0]
    assert good["steps"] == 3
    assert good["family"] == "dcformer++"
    assert good["accuracy 1 all"] >= 0
    config = dcinterp.read_model(tmp_path / "out" / "good" / "model").config
    parameters = sum(p.numel() for n, p in build_model(config).named_parameters() if "embed" not in n)
    assert good["parameters"] == parameters
    assert good["flops"] > 6 * parameters * good["tokens"]
    assert pd.read_csv(tmp_path / "out" / "results.csv")["name"].tolist() == ["good", "bad"]
    stamp = (tmp_path / "out" / "good" / "model" / "model.safetensors").stat().st_mtime_ns
    assert [is_finished(run) for run in sweep.runs] == [True, False]
    (tmp_path / "out" / "bad.yaml").unlink()
    again = read_sweep(write(tmp_path, BASE + "runs: [{name: good}]\n"), output=tmp_path / "out")
    assert run_sweep(again)["status"].tolist() == ["done"]
    assert (tmp_path / "out" / "good" / "model" / "model.safetensors").stat().st_mtime_ns == stamp


def test_flops_are_those_counted_on_the_model():
    """Forward, counted operation by operation where the shapes are real, against the formula."""
    from dcinterp.model.complexity import CountFlops

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    for preset, tied in (("tiny-dcformer++", False), ("tiny-transformer++", False), ("tiny-transformer++", True)):
        config = dcinterp.DCFormerConfig.preset(preset, vocab_size=500, tie_word_embeddings=tied, **sizes)
        model = build_model(config)
        parameters = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
        with CountFlops() as counted, torch.no_grad():
            model(torch.zeros(1, 32, dtype=torch.long), output_attentions=True, use_cache=False)
        formula = training_flops(config.to_dict(), parameters, tokens=32, row=32) / 3
        assert counted.total == pytest.approx(formula, rel=0.02), preset


def test_flops_of_a_local_layer_are_those_of_a_row_as_short_as_its_window():
    counted = {}
    for windows in ((None,), (8,), (8, None)):
        config = dcinterp.DCFormerConfig.preset("tiny-dcformer++", num_hidden_layers=2, attention_windows=windows)
        counted[windows] = [training_flops(config.to_dict(), 1000, tokens=32, row=row) for row in (32, 8, 4)]
    (long, short, shorter), local, mixed = counted.values()
    assert local == pytest.approx([short, short, shorter])
    assert mixed == pytest.approx([(long + short) / 2, short, shorter])


def test_flops_of_images_are_those_counted_on_the_model():
    """Without a mask every patch reads every patch; the projection of patches is an embedding, not counted."""
    from dcinterp.model.complexity import CountFlops

    sizes = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    for preset in ("tiny-vit", "tiny-dcvit"):
        config = dcinterp.DCFormerConfig.preset(preset, image_size=8, patch_size=2, num_channels=1, **sizes)
        model = build_model(config)
        parameters = sum(p.numel() for n, p in model.named_parameters() if "embed" not in n)
        with CountFlops() as counted, torch.no_grad():
            model(torch.zeros(1, 1, 8, 8), output_attentions=True)
        formula = training_flops(config.to_dict(), parameters, tokens=16, row=16) / 3
        assert counted.total == pytest.approx(formula, rel=0.03), preset


@pytest.mark.usefixtures("warm_python")
def test_the_table_has_no_numbers_of_another_config(tmp_path):
    text = f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: a, recipe.learning_rate: %s}}]\n"
    run_sweep(read_sweep(write(tmp_path, text % 0.001)))
    table = run_sweep(read_sweep(write(tmp_path, text % 0.002)))
    assert table["status"].tolist() == ["failed"]
    assert "loss" not in table or table["loss"].isna().all()


def test_the_table_has_what_was_measured_at_the_end(tmp_path):
    planned = read_sweep(write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}"))
    (run,) = planned.runs
    train(run.config)
    metrics = Path(run.config.output) / "metrics.jsonl"
    earlier = '{"step": 1, "tokens": 9, "accuracy": {"8": {"all": 0.5}}}\n'  # of a sitting that measured more
    metrics.write_text(earlier + metrics.read_text())
    (row,) = results(planned).to_dict("records")
    assert row["status"] == "done"
    assert "accuracy 1 all" in row
    assert "accuracy 8 all" not in row


def test_a_run_that_is_lengthened_is_not_done_before_its_new_end(tmp_path):
    base = BASE.replace("  log_every", "  recipe: {warmup_steps: 1, schedule_steps: 3}\n  log_every")
    text = f"output: {tmp_path / 'out'}\n{base}"
    (run,) = read_sweep(write(tmp_path, text)).runs
    train(run.config)
    assert is_finished(run)
    longer = read_sweep(write(tmp_path, text.replace("steps: 3, batch", "steps: 7, batch")))

    def stop(done, total, message=""):
        if done == 5:
            raise Cancelled

    assert not is_finished(longer.runs[0])
    with pytest.raises(Cancelled):
        train(longer.runs[0].config, resume=True, progress=stop)
    assert not is_finished(longer.runs[0])
    assert results(longer)["status"].tolist() == ["stopped"]
    train(longer.runs[0].config, resume=True)
    assert results(longer)[["status", "steps"]].to_numpy().tolist() == [["done", 7]]


def test_a_run_that_is_shortened_to_its_checkpoint_is_measured_there(tmp_path):
    text = f"output: {tmp_path / 'out'}\n{BASE}".replace("save_every: 3", "save_every: 2").replace(
        "steps: 3", "steps: 8"
    )

    def stop(done, total, message=""):
        if done == 5:
            raise Cancelled

    text = text.replace("  log_every", "  recipe: {warmup_steps: 1, schedule_steps: 8}\n  log_every")
    with pytest.raises(Cancelled):
        train(read_sweep(write(tmp_path, text)).runs[0].config, progress=stop)
    shorter = read_sweep(write(tmp_path, text.replace("steps: 8, batch", "steps: 5, batch")))
    train(shorter.runs[0].config, resume=True)
    (row,) = results(shorter).to_dict("records")
    assert (row["status"], row["steps"]) == ("done", 5)
    records = map(json.loads, (Path(shorter.runs[0].config.output) / "metrics.jsonl").read_text().splitlines())
    assert [record["step"] for record in records if "accuracy" in record] == [3, 5]


def test_a_place_in_the_home_folder_is_that(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_sweep(write(tmp_path, f"output: ~/sweeps\n{BASE}")).output == tmp_path / "sweeps"


def test_a_run_from_a_model_has_no_family_of_a_preset(tmp_path):
    runs = read_sweep(
        write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: a, model.start: x}}, {{name: b}}]\n")
    )
    assert results(runs)["family"].tolist() == ["", "dcformer++"]


@pytest.mark.usefixtures("warm_python")
def test_a_stop_file_of_a_killed_sweep_stops_nothing(tmp_path):
    planned = read_sweep(write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / f".stop-{os.getpid()}").touch()
    assert run_sweep(planned)["status"].tolist() == ["done"]


def test_files_that_a_sweep_did_not_write_are_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.csv").write_text("my,table\n1,2\n")
    place = write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: base}}]\n")
    with pytest.raises(UserError, match="has no column 'name'"):
        run_sweep(read_sweep(place))
    assert (tmp_path / "out" / "results.csv").read_text() == "my,table\n1,2\n"
    (tmp_path / "out" / "results.csv").unlink()
    (tmp_path / "out" / "base.yaml").write_text("# mine\nmodel: {}\n")
    with pytest.raises(UserError, match=r"base\.yaml is another file"):
        run_sweep(read_sweep(place))
    assert (tmp_path / "out" / "base.yaml").read_text().startswith("# mine")


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ("runs: [{name: a, data.seed: 77}]\ngrid: {data.seed: [0, 1]}", "set the same thing"),
        ("runs: [{name: a, data: {seed: 7}}]\ngrid: {data.seed: [0, 1]}", "set the same thing"),
        ("runs: [{name: a, output: elsewhere}]", "leave output out of it"),
        ("runs: [{name: ..}]", "names another folder"),
        (
            "runs: [{name: a, recipe.seed: 1, recipe: {seed: 2}}]",
            r"recipe\.seed stands twice in a run of a sweep",
        ),
        (f"runs: [{{name: {'x' * 230}}}]", "has a name of 230 bytes, too many for a folder"),
    ],
)
def test_settings_that_would_be_dropped_are_refused(tmp_path, runs, said):
    with pytest.raises(UserError, match=said):
        read_sweep(write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}{runs}\n"))


def test_a_stopped_run_keeps_its_numbers_where_a_resume_would_take_the_change(tmp_path):
    base = BASE.replace("steps: 3", "tokens: 4000").replace("save_every: 3", "save_every: 1")
    text = f"output: {tmp_path / 'out'}\n{base}runs: [{{name: a%s}}]\n"

    def stop(done, total, message=""):
        if done == 2:
            raise Cancelled

    (run,) = read_sweep(write(tmp_path, text % "")).runs
    with pytest.raises(Cancelled):
        train(run.config, progress=stop)
    table = results(read_sweep(write(tmp_path, text % ", evaluation.answers_per_task: 2")))
    assert table["status"].tolist() == ["stopped"]
    assert table["loss"].notna().all()
    other = results(read_sweep(write(tmp_path, text % ", recipe.learning_rate: 0.5")))
    assert "the learning rate of step" in other["message"][0]
    assert "loss" not in other
    config = tmp_path / "out" / "a" / "config.yaml"
    config.write_text(config.read_text() + "gone: 1\n")
    assert "'gone'" in results(read_sweep(write(tmp_path, text % "")))["message"][0]


@pytest.mark.usefixtures("warm_python")
def test_a_sweep_whose_folder_was_moved_goes_on(tmp_path):
    text = f"output: %s\n{BASE}runs: [{{name: a}}]\n"
    run_sweep(read_sweep(write(tmp_path, text % (tmp_path / "out"))))
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for place in ("moved", "link"):
        assert run_sweep(read_sweep(write(tmp_path, text % (tmp_path / place))))["status"].tolist() == ["done"]


def test_sections_of_a_run_and_keys_of_the_grid_may_lie_beside_each_other(tmp_path):
    runs, grid = "[{name: a, recipe: {weight_decay: 0.2}}]", "{recipe.learning_rate: [0.1]}"
    text = f"output: out\n{BASE}runs: {runs}\ngrid: {grid}\n"
    (run,) = read_sweep(write(tmp_path, text)).runs
    assert (run.config.recipe.weight_decay, run.config.recipe.learning_rate) == (0.2, 0.1)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("save_every: 0", "save_every is 0"),
        ("recipe.seed: 99999999999", "recipe.seed is 99999999999"),
        ("model.changes.hidden_size: 33", "2 heads do not divide the width 33"),
    ],
)
def test_runs_that_cannot_start_are_named_before_the_first(tmp_path, run, says):
    with pytest.raises(UserError, match=f"The run b: {says}"):
        read_sweep(write(tmp_path, f"output: out\n{BASE}runs: [{{name: a}}, {{name: b, {run}}}]\n"))


def test_what_was_begun_before_its_first_line_is_not_waiting(tmp_path):
    sweep = read_sweep(write(tmp_path, f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: a}}, {{name: b}}]\n"))
    (tmp_path / "out" / "a" / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    (tmp_path / "out" / "b").mkdir()
    with lock_run(tmp_path / "out" / "b"):
        assert results(sweep)["status"].tolist() == ["stopped", "running"]


def test_a_sweep_that_is_stopped_writes_its_table(tmp_path):
    place = write(
        tmp_path, f"output: {tmp_path / 'out'}\n{BASE}runs: [{{name: a}}]\n".replace("steps: 3", "steps: 900")
    )

    def stop(done, total, message=""):
        if "at step" in message:
            raise Cancelled

    with pytest.raises(Cancelled):
        run_sweep(read_sweep(place), progress=stop)
    assert pd.read_csv(tmp_path / "out" / "results.csv")["status"].tolist() == ["stopped"]


def test_patches_that_fit_the_images_are_not_refused_for_the_presets(tmp_path):
    model = "{preset: tiny-vit, changes: {patch_size: 7}}"
    text = f"output: {tmp_path}\nconfig: {{model: {model}}}\nruns: [{{name: a}}]\n"
    (run,) = read_sweep(write(tmp_path, text)).runs
    assert run.config.model.changes == {"patch_size": 7}
