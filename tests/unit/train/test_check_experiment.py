"""What an experiment would be is what its runs then are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from dcinterp.cli import verbs
from dcinterp.support.errors import UserError
from dcinterp.train.control.check_experiment import plan_experiment
from dcinterp.train.control.experiment_file import read_experiment

FOLDER = Path(__file__).parents[3] / "experiments"
runner = CliRunner()


@pytest.mark.parametrize("name", ["recombination", "digits", "ablations", "recombination_tasks"])
def test_a_plan_is_what_the_runs_of_the_table_were(name):
    experiment = read_experiment(FOLDER / name)
    plan = plan_experiment(experiment)
    assert plan.problems == ()
    assert plan.search[0] == plan.search[1]
    assert plan.reported == (len(experiment.arms) * len(experiment.seeds),) * 2
    assert plan.seconds == 0, "nothing is to come"
    table = pd.read_csv(experiment.table)
    for arm in plan.arms:
        row = table[(table["stage"] == "final") & (table["arm"] == arm.arm)].iloc[0]
        assert (arm.parameters, arm.steps) == (row["parameters"], row["steps"])
        # Tokens of tasks differ from batch to batch; the older tables count one tap of a convolution twice.
        assert arm.flops == pytest.approx(row["flops"], rel=0.05 if name == "recombination_tasks" else 5e-3)
    assert set(plan.columns) <= {*table.columns, "seconds"}, "which the oldest table does not have"


@pytest.fixture
def changed(tmp_path, write_experiment):
    """An experiment without runs, some of whose keys are others."""

    def write(**keys):
        folder = write_experiment(tmp_path / "mine", {"plain": [0.1, 0.2], "composed": [0.2, 0.3]})
        (folder / "results.csv").unlink()
        file = folder / "experiment.yaml"
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys, sort_keys=False))
        return folder

    return write


def test_what_no_run_measures_is_known_before_the_first(changed):
    folder = changed(measures={"accuracy 1 heldout": "accuracy on new pairs"})
    (folder / "protocol.md").write_text("# Mine\n")
    shown = runner.invoke(verbs, ["experiment", "check", str(folder)])
    assert shown.exit_code == 1
    said = (
        "! measures names 'accuracy 1 heldout', which not all runs that are reported measure; did you mean accuracy 1"
    )
    assert said in shown.stdout
    assert "0 of 4 runs of the search and 0 of 4 reported runs" in shown.stdout
    assert "The others take about " in shown.stdout
    assert not list(folder.parent.glob("**/model")), "nothing was trained"


def tuned(**keys):
    return {"keys": {"recipe.learning_rate": [0.001, 0.002]}, "seeds": [100], "by": "loss"} | keys


def problems(folder, about):
    return [each for each in plan_experiment(read_experiment(folder)).problems if each.startswith(about)]


@pytest.mark.parametrize("by", ["accuracy 1 all", "accuracy 2 all"])
def test_the_search_is_asked_for_what_it_measures(changed, by):
    """Its runs may measure other things than those that are reported."""
    config = {"data": {"phases": [{"source": "pairs", "steps": 60, "batch_size": 2}]}}
    config["evaluation"] = {"examples": [1], "answers_per_task": 1}
    keys = {"config": config, "measures": {"accuracy 1 all": "accuracy"}, "hypotheses": []}
    found = problems(
        changed(**keys, tuning=tuned(config={"evaluation.examples": [2]}, by=by, best="highest")), "tuning"
    )
    if by == "accuracy 2 all":
        assert not found
    else:
        (said,) = found
        assert said.startswith(f"tuning.by names '{by}', which not all runs of the search measure; did you mean")


def test_a_run_shorter_than_a_line_of_its_log_has_no_loss(changed):
    (said,) = problems(changed(tuning=tuned()), "tuning")
    assert said.startswith("tuning.by names 'loss', which not all runs of the search measure")


def test_every_searched_value_is_opened(changed):
    tuning = tuned(keys={"model.changes.num_attention_heads": [8, 7]}, by="accuracy 1 seen", best="highest")
    arms = [{"name": "plain"}, {"name": "composed", "model.changes.compose": "dynamic"}]
    with pytest.raises(UserError, match=r"^The run tuning,plain,num_attention_heads=7,seed=100: 7 heads do not divide"):
        plan_experiment(read_experiment(changed(tuning=tuning, arms=arms)))


def test_an_arm_that_is_tuned_as_another_has_no_search(changed):
    """What only runs of a search have need not fit it."""
    tree = {"data.phases": [{"source": "puzzle", "steps": 3}], "tuned_as": "plain"}
    arms = [{"name": "plain"}, {"name": "composed"} | tree]
    tuning = tuned(config={"recipe.cooldown_steps": 1}, by="accuracy 1 seen", best="highest")
    plan = plan_experiment(read_experiment(changed(arms=arms, tuning=tuning)))
    assert plan.search == (2, 0)
    assert [each.search_seconds is None for each in plan.arms] == [False, True]


def test_rows_of_another_config_are_named(changed, write_experiment):
    folder = changed()
    rows = [{"stage": "tuning", "arm": "plain", "name": "tuning,plain,learning_rate=0.001,seed=100", "status": "done"}]
    pd.DataFrame(rows).assign(digest="0f", **{"accuracy 1 seen": 0.5}).to_csv(folder / "results.csv", index=False)
    (said,) = problems(folder, f"{folder / 'results.csv'}")
    assert "that was made with another config; take its row out" in said


@pytest.mark.parametrize(("measure", "best", "said"), [("loss", "highest", 1), ("loss", "lowest", 0)])
def test_a_loss_of_which_more_would_be_better_is_named(changed, measure, best, said):
    folder = changed(measures={measure: "loss in training"}, tuning=tuned(measure_best=best), hypotheses=[])
    assert len(problems(folder, f"tuning.measure_best is highest, and lower is better in {measure!r}")) == said


def test_a_missing_protocol_is_named(changed):
    plan = plan_experiment(read_experiment(changed()))
    (problem,) = plan.problems
    assert problem.startswith("There is no ")
    assert "protocol.md; write it, and commit it before the first run that counts" in problem


def test_an_arm_that_could_not_begin_is_named(changed):
    text = {"data.phases": [{"source": "text", "steps": 2}], "data.text.path": "nowhere"}
    arms = [{"name": "plain"}, {"name": "odd"} | text]
    with pytest.raises(
        UserError, match=r"^The run tuning,odd,learning_rate=0\.002,seed=100: There is no text at nowhere"
    ):
        plan_experiment(read_experiment(changed(arms=arms, hypotheses=[])))


def test_an_arm_whose_documents_do_not_fit_is_named(changed):
    config = {"data": {"phases": [{"source": "tasks", "steps": 2, "batch_size": 2}]}}
    arms = [{"name": "plain"}, {"name": "short", "model.changes.max_position_embeddings": 16}]
    said = r"^The run .*short.*: Documents of data\.phases\[0\] are \d+ tokens and more, but the model reads 16"
    with pytest.raises(UserError, match=said):
        plan_experiment(read_experiment(changed(config=config, arms=arms, hypotheses=[])))


def test_a_table_that_is_a_link_to_itself_has_no_runs(changed):
    folder = changed()
    (folder / "results.csv").symlink_to("results.csv")
    shown = runner.invoke(verbs, ["experiment", "show", str(folder)])
    assert isinstance(shown.exception, UserError)
    assert "No run of" in str(shown.exception)
