"""Evaluation of models whose answers are known, of random ones, and of interrupted runs."""

import json
import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from synthetic_tasks import TASKS, WORD_PATTERN, Evaluation, Row, evaluate, generate, vocabulary
from synthetic_tasks.baselines import average
from synthetic_tasks.evaluate import alike, tolerance_of
from synthetic_tasks.evaluation import GROUPINGS, render
from synthetic_tasks.scoring import beats, encode, encode_slowly

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for task in ("task2", "task3", "task16", "task42", "task50", "task58") for row in generate(task, 2, 0)]


@pytest.fixture(scope="module")
def word_tokenizer():
    ids = {word: place for place, word in enumerate(("<pad>", *vocabulary()))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<pad>"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD_PATTERN), "removed", invert=True)
    tokenizer.pre_tokenizer = split
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


@pytest.fixture(scope="module")
def byte_tokenizer(rows: list[Row]):
    """Byte-level BPE as GPT-NeoX has it, small enough that most answers take several tokens, with a BOS token."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([row.prompt for row in rows], trainer)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


@pytest.fixture(scope="module")
def neox():
    """A random GPT-NeoX, as a stranger would bring it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=600,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=1024,
    )
    return transformers.GPTNeoXForCausalLM(config).eval()


def oracle(ids, vocab: int = 700, strength: float = 30.0):
    """A model that has read the text already: it predicts every next token."""
    logits = torch.zeros(*ids.shape, vocab)
    logits[:, :-1].scatter_(2, ids[:, 1:, None], strength)
    return logits


@pytest.fixture(params=["word_tokenizer", "byte_tokenizer"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


def test_an_oracle_scores_one_everywhere(rows: list[Row], tokenizer) -> None:
    result = evaluate(oracle, rows, tokenizer=tokenizer)
    assert len(result.records) == 6 * len(rows)
    assert result.accuracy == 1.0
    assert result.perplexity == pytest.approx(1.0, abs=1e-6)
    for by in GROUPINGS:
        table = result.table(by)
        assert (table[["accuracy", "accepted", "restricted"]] == 1).all().all()
        assert table["answers"].sum() == len(result.records)
    assert sorted(result.table("shots")["shots"]) == [2, 3, 4, 5, 6, 7]


def test_a_constant_model_scores_zero(rows: list[Row], word_tokenizer) -> None:
    result = evaluate(lambda ids: oracle(torch.zeros_like(ids)), rows, tokenizer=word_tokenizer)
    assert result.accuracy == 0
    assert result.to_dataframe()["restricted"].sum() == 0, "ties are not right answers"


def test_restricted_accuracy_asks_among_the_candidates_only(word_tokenizer) -> None:
    (row,) = generate("task10", 1, 0, examples=1)
    (example,) = row.examples
    distractor = next(fact.item for fact in example.facts if fact.item != example.answer)

    def prefers(*words: str):
        logits = torch.zeros(700)
        for rank, word in enumerate(words):
            logits[word_tokenizer.convert_tokens_to_ids(word)] = 10.0 - rank
        return lambda ids: logits.expand(*ids.shape, -1)

    for order, expected in (((example.answer, distractor), True), ((distractor, example.answer), False)):
        (record,) = evaluate(prefers("the", *order), [row], tokenizer=word_tokenizer).records
        assert record["greedy"] == "the"
        assert record["correct"] is False
        assert record["restricted"] is expected


@pytest.mark.parametrize(
    ("rival", "expected"),
    [
        ((5, 1, 2), True),  # leaves at the first token: 3 is more probable there than 5
        ((3, 4, 2), False),  # leaves at the second: 4 is more probable than 1
        ((3, 0, 2), True),  # leaves at the second, after a common token
        ((3, 1), True),  # only stops earlier
        ((3, 1, 2), False),  # cannot be told from the answer
    ],
)
def test_rivals_of_several_tokens_are_compared_where_they_part(rival: tuple[int, ...], expected: bool) -> None:
    logprobs = torch.tensor([[0, 0, 0, 3, 0, 2], [0, 1, 0, 0, 2, 0], [0, 0, 1, 0, 0, 0]]).float().log_softmax(-1)
    assert beats(logprobs, (3, 1, 2), rival) is expected


def test_an_answer_that_is_right_among_all_tokens_is_right_among_some(word_tokenizer) -> None:
    (row,) = generate("task10", 1, 0, examples=1)
    (example,) = row.examples
    place = word_tokenizer.convert_tokens_to_ids
    logits = torch.zeros(700)
    for word in {example.answer, *(fact.item for fact in example.facts)}:
        logits[place(word)] = 10.0
    (record,) = evaluate(lambda ids: logits.expand(*ids.shape, -1), [row], tokenizer=word_tokenizer).records
    assert record["restricted"] is record["correct"]


@pytest.mark.parametrize("trim", [True, False])
def test_a_space_that_is_a_token_of_its_own_counts_whatever_its_offsets(trim: bool) -> None:
    """Digits are split from what stands before them, and a tokenizer may trim the offsets of the space to nothing."""
    bare = tokenizers.Tokenizer(tokenizers.models.BPE())
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    bare.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trim)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=byte_level.alphabet())
    bare.train_from_iterator(["It is 12 ."], trainer)
    for tokenizer in (bare, transformers.PreTrainedTokenizerFast(tokenizer_object=bare)):
        encoding = encode(tokenizer, "It is 12 .")
        assert len(encoding.answer(6, 8)) == 3


def test_accepted_counts_the_other_opposite(word_tokenizer) -> None:
    row = next(
        row
        for seed in range(50)
        for row in generate("task42", 1, seed)
        if any(row.examples[shot].answer == "sad" for shot in row.scored)
    )
    unhappy = word_tokenizer.convert_tokens_to_ids("unhappy")
    result = evaluate(lambda ids: oracle(torch.full_like(ids, unhappy)), [row], tokenizer=word_tokenizer)
    frame = result.to_dataframe()
    assert frame[frame["answer"] == "sad"]["accepted"].all()
    assert not frame[frame["answer"] == "sad"]["correct"].any()


def test_scores_equal_a_plain_computation(rows: list[Row], neox, tokenizer) -> None:
    """Log-probability and greedy tokens of one answer at a time, without batch, padding or offsets."""
    result = evaluate(neox, rows[:3], tokenizer=tokenizer, batch_size=2)
    several = 0
    for record in result.records[:12]:
        row, shot = rows[record["row"]], record["shots"]
        before = "\n" + "\n".join(e.text for e in row.examples[:shot]) + "\n" + row.examples[shot].prompt
        prefix = tokenizer(before)["input_ids"]
        whole = tokenizer(f"{before} {record['answer']}")["input_ids"]
        assert whole[: len(prefix)] == prefix
        with torch.inference_mode():
            logprobs = neox(torch.tensor([whole])).logits[0].float().log_softmax(-1)
        answer = whole[len(prefix) :]
        at = range(len(prefix) - 1, len(whole) - 1)
        expected = sum(float(logprobs[place, token]) for place, token in zip(at, answer, strict=True))
        assert record["logprob"] == pytest.approx(expected, abs=1e-4)
        assert record["tokens"] == len(answer)
        assert record["correct"] == ([int(logprobs[place].argmax()) for place in at] == answer)
        several += len(answer) > 1
    assert several or len(tokenizer) > 450, "the byte tokenizer is here for answers of several tokens"


def test_batches_and_padding_change_nothing(rows: list[Row], neox, byte_tokenizer) -> None:
    one = evaluate(neox, rows, tokenizer=byte_tokenizer, batch_size=1).to_dataframe()
    many = evaluate(neox, rows, tokenizer=byte_tokenizer, batch_size=7).to_dataframe()
    assert (one.drop(columns="logprob") == many.drop(columns="logprob")).all().all()
    assert (one["logprob"] - many["logprob"]).abs().max() < 1e-4


def test_tokens_found_without_offsets(rows: list[Row], tokenizer) -> None:
    """A slow tokenizer gives no offsets; prefixes find the same tokens over every answer."""
    text = rows[0].prompt
    fast, slow = encode(tokenizer, text), encode_slowly(tokenizer, text)
    assert fast.ids == slow.ids
    start = 1
    for example in rows[0].examples:
        end = start + len(example.text)
        assert fast.answer(end - len(example.answer), end) == slow.answer(end - len(example.answer), end)
        start = end + 1


def test_a_bare_tokenizer_of_the_tokenizers_library(rows: list[Row], byte_tokenizer) -> None:
    assert evaluate(oracle, rows[:1], tokenizer=byte_tokenizer.backend_tokenizer).accuracy == 1


def test_a_bridge_is_called_with_its_own_tokenizer_and_hooks(rows: list[Row], word_tokenizer) -> None:
    class Bridge:
        """What evaluate relies on of a TransformerLens bridge."""

        original_model = torch.nn.Linear(1, 1)
        tokenizer = word_tokenizer

        def __call__(self, ids, return_type: str):
            assert return_type == "logits"
            return oracle(ids)

    assert evaluate(Bridge(), rows[:2]).accuracy == 1


@pytest.mark.parametrize("opens", [False, True])
def test_a_bridge_that_opens_no_text_gets_no_first_token(rows: list[Row], byte_tokenizer, opens: bool) -> None:
    """TransformerLens makes its tokenizer add one, which a model of ours never saw in training."""
    first = set()

    class Bridge:
        original_model = torch.nn.Linear(1, 1)
        tokenizer = byte_tokenizer
        cfg = SimpleNamespace(default_prepend_bos=opens)

        def __call__(self, ids, return_type: str):
            first.update(ids[:, 0].tolist())
            return oracle(ids)

    assert evaluate(Bridge(), rows[:2]).accuracy == 1
    assert (first == {byte_tokenizer.bos_token_id}) == opens
    assert encode_slowly(byte_tokenizer, "Who?", opens).ids == encode(byte_tokenizer, "Who?", opens).ids
    backend = byte_tokenizer.backend_tokenizer
    assert encode(backend, "Who?", opens).ids == encode(byte_tokenizer, "Who?", opens).ids


def test_the_shipped_model_reads_what_it_was_trained_on(shipped, rows: list[Row]) -> None:
    record = evaluate(shipped, rows[:1]).to_dataframe().iloc[-1]
    before = rows[0].prompt[: rows[0].prompt.rindex(" " + record["answer"])]
    logprobs = shipped(shipped.to_tokens(before, prepend_bos=False))[0, -1].detach().log_softmax(-1)
    at = shipped.to_single_token(record["answer"])
    assert record["logprob"] == pytest.approx(float(logprobs[at]), abs=1e-4)


def test_training_mode_comes_back(rows: list[Row], neox, word_tokenizer) -> None:
    neox.train()
    evaluate(neox, rows[:1], tokenizer=word_tokenizer)
    assert neox.training
    neox.eval()


class Stop(Exception):
    pass


def stop_after(batches: int) -> Callable[[int, int, str], None]:
    calls = []

    def progress(done: int, total: int, message: str) -> None:
        calls.append((done, total, message))
        if len(calls) == batches:
            raise Stop

    return progress


def test_an_interrupted_evaluation_goes_on(rows: list[Row], neox, word_tokenizer, tmp_path) -> None:
    whole = evaluate(neox, rows, tokenizer=word_tokenizer, batch_size=2)
    with pytest.raises(Stop):
        evaluate(neox, rows, tokenizer=word_tokenizer, batch_size=2, folder=tmp_path, progress=stop_after(3))
    with (tmp_path / "unfinished.jsonl").open("a") as file:
        file.write('[\n{"place": 9}\n{"place": 9, "records": [{"row": 3}]}\n')  # damaged
        file.write('{"place": 11, "rec')  # as a crash in the middle of writing leaves it
    with pytest.raises(ValueError, match="another model, other rows"):
        evaluate(neox, rows[1:], tokenizer=word_tokenizer, folder=tmp_path)
    forwards = []
    neox.register_forward_pre_hook(lambda *_: forwards.append(1))
    seen = []
    resumed = evaluate(
        neox, rows, tokenizer=word_tokenizer, batch_size=2, folder=tmp_path, progress=lambda d, t, m: seen.append(d)
    )
    neox._forward_pre_hooks.clear()
    assert len(forwards) == 4, "the first row, to know the model again, and three batches"
    assert seen == [8, 10, 12]
    assert resumed.to_dataframe().equals(whole.to_dataframe())
    assert not (tmp_path / "unfinished.jsonl").exists()


def test_rows_read_as_other_tokens_are_not_gone_on_with(rows: list[Row], byte_tokenizer, tmp_path) -> None:
    class Bridge:
        original_model = torch.nn.Linear(1, 1)
        tokenizer = byte_tokenizer
        cfg = SimpleNamespace(default_prepend_bos=True)

        def __call__(self, ids, return_type: str):
            return oracle(ids)

    with pytest.raises(Stop):
        evaluate(Bridge(), rows, batch_size=2, folder=tmp_path, progress=stop_after(1))
    Bridge.cfg.default_prepend_bos = False
    with pytest.raises(ValueError, match="other tokens"):
        evaluate(Bridge(), rows, batch_size=2, folder=tmp_path)


def test_results_are_saved_and_loaded(rows: list[Row], neox, word_tokenizer, tmp_path) -> None:
    result = evaluate(neox, rows, tokenizer=word_tokenizer, folder=tmp_path, name="tiny")
    loaded = Evaluation.load(tmp_path)
    assert loaded.model == "tiny"
    for by in GROUPINGS:
        one, other = result.table(by), loaded.table(by)
        assert (one[by] == other[by]).all()
        numbers = [column for column in one.columns if column != by]
        assert (one[numbers] - other[numbers]).abs().max().max() < 1e-6
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["answers"] == len(result.records)
    assert {"task", "pattern", "transformation", "family", "shots"} <= set(summary["tables"])
    # A file of version 0.1 calls one of the baselines otherwise.
    text = (tmp_path / "summary.json").read_text()
    assert '"ignores negation"' in text
    (tmp_path / "summary.json").write_text(text.replace('"ignores negation"', '"polarity-blind"'))
    assert Evaluation.load(tmp_path).baseline == loaded.baseline
    with pytest.raises(ValueError, match="does not hold a finished evaluation"):
        Evaluation.load(tmp_path / "nothing")


def test_a_finished_evaluation_is_not_written_over_by_another(rows: list[Row], neox, word_tokenizer, tmp_path) -> None:
    first = evaluate(neox, rows, tokenizer=word_tokenizer, folder=tmp_path)
    kept = (tmp_path / "summary.json").read_text()
    for other, name in ((rows[1:], None), (rows, "other")):
        with pytest.raises(ValueError, match="holds an evaluation of another model, other rows or other tokens"):
            evaluate(neox, other, tokenizer=word_tokenizer, folder=tmp_path, name=name)
    assert (tmp_path / "summary.json").read_text() == kept
    assert evaluate(neox, rows, tokenizer=word_tokenizer, folder=tmp_path).records == first.records


def test_baselines_count_answers_where_tasks_have_unequal_rows() -> None:
    table = {"a": {"guess": 1.0}, "b": {"guess": 0.0}}
    assert average(table, ["a", "b"]) == {"guess": 0.5}
    assert average(table, ["a", "b"], {"a": 1, "b": 3}) == {"guess": 0.25}


def test_partner_tasks_are_one_cluster(rows: list[Row], word_tokenizer) -> None:
    records = evaluate(oracle, rows, tokenizer=word_tokenizer).to_dataframe()
    clusters = records.groupby("task")["cluster"].unique()
    assert set(clusters["task2"]) == set(clusters["task3"])
    assert len(clusters["task2"]) == 2, "one cluster a row and partner pair"


def test_intervals_widen_with_clusters() -> None:
    """Eight answers each right or wrong together are worth one: the interval is that of the clusters."""
    base = {"task": "task2", "accepted": True, "restricted": True, "logprob": -1.0, "tokens": 1, "answer": "x"}
    together = [{**base, "correct": n % 2 == 0, "cluster": str(n)} for n in range(20) for _ in range(8)]
    apart = [{**record, "cluster": str(place)} for place, record in enumerate(together)]
    wide, narrow = (Evaluation("m", records, {}).table("all").iloc[0] for records in (together, apart))
    assert wide["accuracy"] == narrow["accuracy"] == 0.5
    assert wide["high"] - wide["low"] > 2 * (narrow["high"] - narrow["low"])
    assert 0.2 < wide["low"] < 0.4 < 0.6 < wide["high"] < 0.8


def test_baselines_stand_beside_the_model(rows: list[Row], word_tokenizer) -> None:
    result = evaluate(oracle, rows, tokenizer=word_tokenizer, name="oracle")
    table = result.compare("pattern").set_index("pattern")
    assert table.loc["same-person", "odd-one-out"] == pytest.approx(1 / 3)
    assert table.loc["the-other-person", "odd-one-out"] == 1
    text = render(result.compare("pattern"))
    assert "| same-person | 48 | 100.0 |" in text
    with pytest.raises(ValueError, match="has none"):
        result.compare("shots")
    with pytest.raises(ValueError, match="there is no table by 'colour'"):
        result.table("colour")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": []}, "no rows to evaluate"),
        ({"tokenizer": None}, "has no tokenizer"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
    ],
)
def test_wrong_requests_are_named(rows: list[Row], neox, word_tokenizer, change: dict, message: str) -> None:
    arguments = {"rows": rows, "tokenizer": word_tokenizer, **change}
    with pytest.raises(ValueError, match=message):
        evaluate(neox, arguments.pop("rows"), **arguments)


def test_rows_longer_than_the_context_are_refused(rows: list[Row], byte_tokenizer, neox) -> None:
    neox.config.max_position_embeddings = 100
    try:
        with pytest.raises(ValueError, match="the model takes 100"):
            evaluate(neox, rows, tokenizer=byte_tokenizer)
    finally:
        neox.config.max_position_embeddings = 1024


def test_rows_of_any_length(word_tokenizer) -> None:
    """Single examples, which train small models, are scored as well."""
    rows = [row for task in list(TASKS)[::9] for row in generate(task, 1, 0, examples=1)]
    result = evaluate(oracle, rows, tokenizer=word_tokenizer)
    assert [record["shots"] for record in result.records] == [0] * len(rows)
    assert all(one["row"] + 1 == other["row"] for one, other in pairwise(result.records))


def test_a_model_that_overflows_is_not_perfect(word_tokenizer, tmp_path) -> None:
    def overflows(ids):
        return torch.full((*ids.shape, len(word_tokenizer)), float("nan"))

    result = evaluate(overflows, generate("task2", 2, 0), tokenizer=word_tokenizer, bootstrap=0)
    table = result.table("all")
    assert table[["logprob", "perplexity"]].isna().all(axis=None)
    result.save(tmp_path)
    assert Evaluation.load(tmp_path).table("all")[["logprob", "perplexity"]].isna().all(axis=None)


def test_a_baseline_is_averaged_over_the_tasks_that_have_it() -> None:
    levels = {"a": {"first": 0.2, "middle": 0.3}, "b": {"first": 0.6}}
    assert average(levels, ["a", "b"]) == pytest.approx({"first": 0.4, "middle": 0.3})
    assert average(levels, ["a", "b"], {"a": 1, "b": 3}) == pytest.approx({"first": 0.5, "middle": 0.3})


def test_a_tokenizer_that_does_not_know_an_answer_is_refused(rows: list[Row]) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "the": 2}, unk_token="<unk>"))
    bare.pre_tokenizer = Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bare, unk_token="<unk>", pad_token="<pad>")
    pieces = Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("the", -1.0)], unk_id=0, byte_fallback=False))
    pieces.pre_tokenizer = Whitespace()
    for tokenizer in (bare, wrapped, pieces):
        with pytest.raises(ValueError, match="the tokenizer does not know the answer"):
            evaluate(lambda ids: torch.zeros(*ids.shape, 3), rows, tokenizer=tokenizer)


def test_a_folder_tells_functions_and_hooks_apart(rows: list[Row], word_tokenizer, tmp_path) -> None:
    def says(number: int):
        return lambda ids: torch.nn.functional.one_hot(torch.full_like(ids, number), 700).float()

    with pytest.raises(Stop):
        evaluate(says(5), rows, tokenizer=word_tokenizer, batch_size=2, folder=tmp_path, progress=stop_after(1))
    tokens = word_tokenizer(rows[0].prompt)["input_ids"]
    with pytest.raises(ValueError, match="unfinished evaluation of another model"):
        evaluate(says(tokens[-1]), rows, tokenizer=word_tokenizer, folder=tmp_path)
    first = evaluate(says(5), rows, tokenizer=word_tokenizer, folder=tmp_path)
    with pytest.raises(ValueError, match="holds an evaluation of another model"):
        evaluate(says(tokens[-1]), rows, tokenizer=word_tokenizer, folder=tmp_path)
    assert alike([0.5, -math.inf, math.nan], [0.51, -math.inf, math.nan])
    assert not alike([0.5], [0.7])
    assert alike([0.5], [0.7], tolerance_of(torch.nn.Linear(1, 1).bfloat16()))
    # A folder of an earlier version has the digest alone.
    made_of = tmp_path / "fingerprint.txt"
    made_of.write_text(made_of.read_text().splitlines()[0] + "\n")
    assert evaluate(says(5), rows, tokenizer=word_tokenizer, folder=tmp_path).records == first.records


def test_a_carriage_return_in_an_answer_is_read_back(rows: list[Row], neox, word_tokenizer, tmp_path) -> None:
    result = evaluate(neox, rows[:2], tokenizer=word_tokenizer)
    result.records[0]["greedy"] = "a\rb"
    result.save(tmp_path)
    loaded = Evaluation.load(tmp_path)
    assert [record["greedy"] for record in loaded.records] == [record["greedy"] for record in result.records]
