"""Composition put into trained models: nothing changes at first, it learns alone, and it is kept apart or merged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import dcinterp
from dcinterp import UserError
from dcinterp.checkpoints.composition import open_start, read_composed
from dcinterp.checkpoints.layouts import write_foreign
from dcinterp.checkpoints.read import read_model
from dcinterp.checkpoints.verify import verify
from dcinterp.cli import main
from dcinterp.model.added_composition import TENSORS, is_added, weights_fingerprint
from dcinterp.model.config import DCFormerConfig
from dcinterp.model.decoder import DCFormerForCausalLM
from dcinterp.support.file_names import COMPOSITION
from dcinterp.support.progress import Cancelled
from dcinterp.train.config.recipe import (
    DataSection,
    EvaluationSection,
    ModelSection,
    Phase,
    RecipeSection,
    TextSection,
    TrainConfig,
)
from dcinterp.train.data.held_out import held_out_documents
from dcinterp.train.loop.run import train

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.tensor([[5, 6, 7, 8, 5, 9, 3], [1, 2, 30, 4, 5, 6, 7]])
FAMILIES = {
    "llama-grouped": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3-grouped": {"num_key_value_heads": 1, "head_dim": 8},
}
STEPS = 6


@pytest.fixture(scope="module", params=FAMILIES)
def base(request, tmp_path_factory) -> Path:
    """The folder of a tiny random model of transformers, without a tokenizer."""
    import transformers as hf

    kind = "Llama" if request.param.startswith("llama") else "Qwen3"
    folder = tmp_path_factory.mktemp("base") / request.param
    torch.manual_seed(0)
    config = getattr(hf, f"{kind}Config")(vocab_size=50, **(SIZES | FAMILIES[request.param]))
    getattr(hf, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


def reference(folder: Path) -> torch.Tensor:
    """Logits of transformers' own model."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)(IDS).logits.detach()


def added_tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / TENSORS)


def learnt(folder: Path) -> Path:
    """The composition in a folder, with other numbers in it."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    tensors = {k: 0.2 * torch.randn(t.shape, generator=generator) for k, t in added_tensors(folder).items()}
    save_file(tensors, folder / TENSORS)
    return folder


def logits(folder: Path) -> torch.Tensor:
    return read_composed(folder)(IDS).logits.detach()


def test_the_logits_do_not_change(base, tmp_path):
    folder = dcinterp.compose(base, tmp_path / "added")
    expected = reference(base)
    torch.testing.assert_close(logits(folder), expected, atol=1e-5, rtol=0)
    assert added_tensors(folder).keys() == {n for n in read_composed(folder).state_dict() if is_added(n)}
    assert not torch.allclose(logits(learnt(folder)), expected, atol=1e-3), "it has an effect"


def test_gradients_reach_every_added_tensor_the_first_projections_after_a_step(base, tmp_path):
    """As the docstring of `compose` says: at the start, what makes w_1 has no effect, for w_2 is zero."""
    model = read_composed(dcinterp.compose(base, tmp_path / "added")).train()
    added = {name: p for name, p in model.named_parameters() if is_added(name)}
    optimizer = torch.optim.SGD(added.values(), lr=1.0)
    without = []
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
        without.append({name for name, p in added.items() if p.grad is None or not p.grad.any()})
        optimizer.step()
    assert without[0] == {name for name in added if name.endswith("down.weight")}
    assert not without[1]


def test_merged_equals_kept_apart(base, tmp_path):
    folder = learnt(dcinterp.compose(base, tmp_path / "added"))
    merged = dcinterp.compose(folder, tmp_path / "merged", merge=True)
    assert torch.equal(read_model(merged)(IDS).logits, logits(folder))
    assert not (merged / COMPOSITION).exists()
    tied = read_model(merged).config.tie_word_embeddings
    assert tied == read_model(base).config.tie_word_embeddings


def test_it_is_verified_on_top_of_its_base(base, tmp_path):
    folder = learnt(dcinterp.compose(base, tmp_path / "added"))
    found = verify(folder, length=12)
    assert found.largest < 1e-5
    assert found.stage_names, "the stages of the composition are held against the reference too"


def test_another_base_is_refused(base, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(base, mine)
    folder = dcinterp.compose(mine, tmp_path / "added")
    torch.testing.assert_close(logits(folder), reference(base), atol=1e-5, rtol=0)
    from safetensors.torch import load_file, save_file

    tensors = load_file(mine / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1e-3  # one number of one weight
    save_file(tensors, mine / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"belongs to other weights than those of '.*mine'"):
        dcinterp.load(folder)
    shutil.rmtree(mine)
    with pytest.raises(UserError, match=r"mine', which is not on this machine; .* into composition.json as"):
        dcinterp.load(folder)


@pytest.mark.parametrize("base", ["llama-grouped"], indirect=True)
class TestOneFamily:
    """What does not depend on the family."""

    @pytest.mark.parametrize(
        "options",
        [
            {"rank": 1, "groups": 2},
            {"stages": ("post",)},
            {"compose": "static"},
            {"compose": "fish", "changes": {"compose_options": {"attending": 4}}},
            {"changes": {"compose_skip": False, "compose_static": True}},
        ],
        ids=str,
    )
    def test_options_do_not_change_the_logits_either(self, base, tmp_path, options):
        folder = dcinterp.compose(base, tmp_path / "added", **options)
        torch.testing.assert_close(logits(folder), reference(base), atol=1e-5, rtol=0)

    def test_the_bridge_shows_composition_over_the_query_heads(self, base, tmp_path):
        folder = learnt(dcinterp.compose(base, tmp_path / "added"))
        bridge = dcinterp.load(folder)
        shown, cache = bridge.run_with_cache(IDS)
        torch.testing.assert_close(shown, logits(folder), atol=1e-5, rtol=0)
        assert cache["blocks.1.attn.post.hook_w_qg"].shape == (*IDS.shape, SIZES["num_attention_heads"])
        size = sum(tensor.numel() for tensor in added_tensors(folder).values())
        assert dcinterp.describe(folder).composition_parameters == size

    def test_the_fingerprint_is_of_the_numbers(self, base, tmp_path):
        folder = dcinterp.compose(base, tmp_path / "added")
        recorded = json.loads((folder / COMPOSITION).read_text())["base_fingerprint"]
        model = read_model(base)
        assert recorded == weights_fingerprint(model) == weights_fingerprint(read_composed(folder))
        with pytest.raises(SystemExit) as ended:
            main(["convert", str(base), str(tmp_path / "ours")])
        assert not ended.value.code
        assert recorded == weights_fingerprint(read_model(tmp_path / "ours")), "whatever the layout"
        with torch.no_grad():
            model.model.norm.weight[-1] += 1e-6
        assert recorded != weights_fingerprint(model)

    def test_read_in_another_type(self, base, tmp_path):
        folder = dcinterp.compose(base, tmp_path / "added")
        model = read_composed(folder, dtype=torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}

    def test_files_that_do_not_belong_together_are_refused(self, base, tmp_path):
        folder = dcinterp.compose(base, tmp_path / "added")
        other = dcinterp.compose(base, tmp_path / "other", rank=1)
        shutil.copy(other / TENSORS, folder / TENSORS)
        with pytest.raises(UserError, match="do not belong together"):
            dcinterp.load(folder)
        (folder / TENSORS).write_bytes(b"no")
        with pytest.raises(UserError, match="is damaged"):
            dcinterp.load(folder)
        (folder / COMPOSITION).write_text('{"base_model_name_or_path": "x"}')
        with pytest.raises(UserError, match=r"composition.json has no field 'base_fingerprint'"):
            read_composed(folder)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"compose": "gated"}, "'gated' cannot start at the identity.* one of .*dynamic, "),
            ({"compose": "dynamik"}, "did you mean dynamic"),
            ({"changes": {"compose_skip": False}}, "neither the skip nor a static map"),
            ({"changes": {"hidden_size": 64}}, "no field of composition 'hidden_size'"),
            ({"groups": 3}, "do not divide into 3 composition groups"),
            ({"stages": ("middle",)}, "'middle'"),
            ({"merge": True}, "does not hold a composition"),
            ({"merge": True, "rank": 1}, "leave the other options out"),
        ],
        ids=str,
    )
    def test_what_cannot_be_added_is_refused(self, base, tmp_path, options, said):
        with pytest.raises(UserError, match=said):
            dcinterp.compose(base, tmp_path / "added", **options)
        assert not (tmp_path / "added").exists()

    def test_what_composes_already_or_is_no_model_is_refused(self, base, tmp_path):
        folder = dcinterp.compose(base, tmp_path / "added")
        for model, said in [
            ("dcformer++", "composes its heads already"),
            (folder, "merge it first"),
            ("nobody/nothing", "no folder of that name"),
            (tmp_path / "nowhere", "There is no folder"),
        ]:
            with pytest.raises(UserError, match=said):
                dcinterp.compose(model, tmp_path / "again")
        with pytest.raises(UserError, match="holds other files"):
            dcinterp.compose(base, folder)

    def test_the_verb_does_as_the_function_and_says_the_same(self, base, tmp_path, capsys):
        arguments = ["compose", str(base), "--output", str(tmp_path / "verb"), "--rank", "1", "--stages", "post"]
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--set", "compose_gate=false", "--json"])
        assert not ended.value.code
        changes = {"compose_gate": False}
        folder = dcinterp.compose(base, tmp_path / "added", rank=1, stages=("post",), changes=changes)
        mine, theirs = added_tensors(tmp_path / "verb"), added_tensors(folder)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        said = json.loads(capsys.readouterr().out)
        assert said["composition_parameters"] == sum(t.numel() for t in theirs.values())
        from dcinterp.cli.compose import command

        assert (command.__doc__ or "").splitlines()[0] == (dcinterp.compose.__doc__ or "").splitlines()[0]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    import synthetic_tasks

    path = tmp_path_factory.mktemp("text") / "text.txt"
    rows = synthetic_tasks.generate("task2", 80, seed=1, examples=1)
    path.write_text("\n".join(row.examples[0].prompt for row in rows))
    return path


@pytest.fixture(scope="module")
def added(own_model, tmp_path_factory) -> Path:
    """A composition in a Llama with a tokenizer."""
    return dcinterp.compose(own_model("llama"), tmp_path_factory.mktemp("added") / "composition")


def run_of(
    output: Path, start: Path | str, text: Path, part: Any = "composition", steps: int = STEPS, **changes: Any
) -> TrainConfig:
    return TrainConfig(
        output=str(output),
        model=ModelSection(start=str(start), train=part, **changes),
        data=DataSection(
            phases=(Phase(source="text", steps=steps, batch_size=4),), text=TextSection(path=str(text), context=24)
        ),
        recipe=RecipeSection(learning_rate=1e-2),
        evaluation=EvaluationSection(every=STEPS, validation_rows=4),
        save_every=4,
    )


@pytest.fixture(scope="module")
def trained(added, text, tmp_path_factory) -> tuple[Path, Path, Any, str]:
    """(output, folder of the learnt composition, the model in memory, its fingerprint before) of a run."""
    output = tmp_path_factory.mktemp("run") / "whole"
    seen: list[Any] = []

    def opened(name: str) -> Any:
        start = open_start(name)
        seen.extend([start.model, weights_fingerprint(start.model)])
        return start

    folder = train(run_of(output, added, text), open_start=opened)
    return output, folder, *seen


def test_the_composition_alone_is_trained_and_saved(added, trained):
    output, folder, *_ = trained
    before, after = (added_tensors(each) for each in (added, folder))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in folder.iterdir()) == [COMPOSITION, TENSORS]
    assert dcinterp.load(output / "checkpoints" / "checkpoint-4").tokenizer is not None
    state = torch.load(output / "checkpoints" / "checkpoint-4" / "optimizer.pt", weights_only=True)["state"]
    assert sum(each["exp_avg"].numel() for each in state.values()) == sum(t.numel() for t in before.values())
    losses = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1]["validation_loss"] > 0


def test_frozen_weights_stay_bit_by_bit(own_model, trained):
    _, folder, model, before = trained
    assert weights_fingerprint(model) == before
    assert {is_added(name) for name, p in model.named_parameters() if p.requires_grad} == {True}
    frozen, base = read_composed(folder).state_dict(), read_model(own_model("llama")).state_dict()
    assert all(torch.equal(frozen[name], base[name]) for name in base)


def test_stopped_and_resumed_ends_with_the_same_composition(added, text, trained, tmp_path):
    def stop(done: int, total: int, message: str = "") -> None:
        if done == 5:
            raise Cancelled

    config = run_of(tmp_path / "run", added, text)
    with pytest.raises(Cancelled):
        train(config, progress=stop, open_start=open_start)
    told: list[str] = []
    folder = train(
        config, resume=True, begin=lambda run: told.extend(run.sentences(resuming=True)), open_start=open_start
    )
    assert "Training the composition of" in told[0]
    assert "from step 5 of 6" in told[0]
    mine, theirs = added_tensors(folder), added_tensors(trained[1])
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_all_of_it_is_trained_and_saved_whole(added, text, tmp_path):
    folder = train(run_of(tmp_path / "run", added, text, part="all", steps=2), open_start=open_start)
    mine, before = read_model(folder).state_dict(), read_composed(added).state_dict()
    assert mine.keys() == before.keys()
    assert all(not torch.equal(mine[name], before[name]) for name in before)
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("start", "part", "changes", "said"),
    [
        ("", "composition", {}, "give model.start"),
        ("transformer++", "composition", {}, "transformer.* has no composition to train"),
        ("dcformer++", "all", {"changes": {"hidden_size": 8}}, "model.changes has 'hidden_size'"),
        ("./nowhere", "all", {}, "There is no folder ./nowhere"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(text, tmp_path, start, part, changes, said):
    with pytest.raises(UserError, match=said):
        train(run_of(tmp_path / "run", start, text, part=part, **changes), open_start=open_start)


def test_a_model_of_other_words_does_not_train_on_the_tasks(added, tmp_path):
    config = TrainConfig(output=str(tmp_path / "run"), model=ModelSection(start=str(added)))
    with pytest.raises(UserError, match="does not read the words of the tasks"):
        train(config, open_start=open_start)


def test_the_flags_of_the_verb_start_from_it(added, text, tmp_path, capsys):
    arguments = ["train", "--from", str(added), "--train", "composition", "--text", str(text)]
    sizes = ["--set", "data.text.context=16", "--set", "evaluation.validation_rows=2"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *sizes, "--steps", "1", "--output", str(tmp_path / "run")])
    assert not ended.value.code
    assert read_composed(tmp_path / "run" / "model").config.compose == "dynamic"
    # What is measured later of this run reads by the words of the model that it started from.
    words = dcinterp.load(added).tokenizer
    (ids, _), *_ = held_out_documents(tmp_path / "run", 2)
    assert all(part in text.read_text() for part in words.decode(ids[0]).split(words.unk_token))
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--preset", "tiny-dcformer"])
    assert ended.value.code == 2
    assert "Give --from or --preset" in capsys.readouterr().err


def test_what_is_put_in_starts_as_in_a_fresh_model():
    """And not at the range of all other layers, with which w_1 is half as long as it should be."""
    from dcinterp.model.added_composition import add_composition

    sizes = dict(vocab_size=50, hidden_size=256, num_attention_heads=8, num_hidden_layers=1, intermediate_size=64)
    fresh = DCFormerForCausalLM(DCFormerConfig(**sizes)).model.layers[0].self_attn.post
    base = DCFormerForCausalLM(DCFormerConfig(**sizes, compose="none"))
    base.generation_config.eos_token_id = [3, 4]
    base.set_attn_implementation("eager")
    added = add_composition(base, {"compose": "dynamic"})
    own = added.model.layers[0].self_attn.post
    assert float(own.query.down.weight.std()) == pytest.approx(float(fresh.query.down.weight.std()), rel=0.1)
    assert added.generation_config.eos_token_id == [3, 4]
    assert added.config._attn_implementation == "eager"


def test_a_chat_model_keeps_the_tokens_at_which_it_ends(base, tmp_path):
    shutil.copytree(base, tmp_path / "chat")
    (tmp_path / "chat" / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert read_model(tmp_path / "chat").generation_config.eos_token_id == [2, 7]
    layout = json.loads((base / "config.json").read_text())["model_type"]
    write_foreign(read_model(tmp_path / "chat"), tmp_path / "again", layout)
    assert read_model(tmp_path / "again").generation_config.eos_token_id == [2, 7]
    (tmp_path / "chat" / "generation_config.json").write_text("{")
    with pytest.warns(UserWarning, match=r"generation_config\.json is ignored"):
        read_model(tmp_path / "chat")


def test_maps_that_are_all_the_identity_are_not_written_where_they_stand_for_none(tmp_path):
    """One layer with other maps is enough to tell."""
    sizes = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48, vocab_size=50)
    model = DCFormerForCausalLM(DCFormerConfig(**sizes, compose_static=True)).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            for stage in (layer.self_attn.pre, layer.self_attn.post):
                stage.static.weight.copy_(torch.eye(4).expand_as(stage.static.weight))
        with pytest.raises(UserError, match="Static maps that are the identity"):
            write_foreign(model, tmp_path / "all", "dcformer")
        model.model.layers[1].self_attn.post.static.weight.mul_(0.5)
        write_foreign(model, tmp_path / "one", "dcformer")
        assert torch.allclose(read_model(tmp_path / "one")(IDS).logits, model(IDS).logits, atol=1e-5)


def test_attention_alone_comes_back_as_it_was_written(tmp_path):
    sizes = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=0, vocab_size=50)
    model = DCFormerForCausalLM(DCFormerConfig(**sizes)).eval()
    write_foreign(model, tmp_path / "model", "dcformer")
    assert torch.allclose(read_model(tmp_path / "model")(IDS).logits, model(IDS).logits, atol=1e-5)


def test_a_composition_on_a_bfloat16_base_is_rounded_only_where_that_is_asked(base, tmp_path):
    from transformers import AutoModelForCausalLM

    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(base).bfloat16().save_pretrained(half)
    folder = learnt(dcinterp.compose(half, tmp_path / "composed"))
    kept = added_tensors(folder)
    opened = {
        "load": read_composed(folder, dtype=torch.float32),
        "train": open_start(str(folder)).model,
        "merged": read_model(dcinterp.compose(folder, tmp_path / "merged", merge=True, dtype="float32")),
    }
    for name, model in opened.items():
        state = model.state_dict()
        assert all(torch.equal(state[key], kept[key]) for key in kept), name
    torch.testing.assert_close(dcinterp.load(folder, dtype="float32")(IDS), opened["train"].eval()(IDS).logits)
    plain = read_model(dcinterp.compose(folder, tmp_path / "as-base", merge=True))
    assert plain.dtype == torch.bfloat16
    with pytest.raises(UserError, match="dtype is of merge=True alone"):
        dcinterp.compose(half, tmp_path / "other", dtype="float32")


def test_verify_takes_a_composition_and_convert_says_how_to_merge_it(base, tmp_path, capsys):
    folder = dcinterp.compose(base, tmp_path / "composed")
    for line, code in ((["verify", str(folder)], 0), (["convert", str(folder), str(tmp_path / "new")], 2)):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert (ended.value.code or 0) == code
    assert "merge it first with: dcinterp compose" in capsys.readouterr().err


def test_an_output_below_the_home_folder_is_not_a_folder_called_by_a_tilde(base, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert dcinterp.compose(base, "~/out") == tmp_path / "out"
    assert not (tmp_path / "~").exists()
