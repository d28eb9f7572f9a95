"""Generate rows by the released file's sampling rules (docs/tasks.md), for any number of rows and any seed.

A row depends on nothing but the seed, its number, the number of examples, the split and its task's partner key:
partner tasks get the same facts, and asking for more rows leaves the first ones as they were.
"""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from synthetic_tasks.catalogue import find
from synthetic_tasks.example import Example, Fact, Row
from synthetic_tasks.sampling import choose, choose_weighted, source_positions
from synthetic_tasks.split import Split, check_split, facts_are_held_out
from synthetic_tasks.task import Grammar, Task

# Redraws before giving up. A fact set is held out with probability 1/8, so 500 misses in a row never happen by chance.
PATIENCE = 500


def generate(
    task: Task | str | int,
    rows: int,
    seed: int,
    *,
    examples: int = 8,
    max_answer_uses: int = 2,
    split: Split | None = None,
) -> list[Row]:
    """Return `rows` rows of `examples` examples each.

    task: a Task, its id or its number
    max_answer_uses: no answer is used more often in a row
    split: "train" or "held-out" restricts the facts to that part (see split.py); None takes all

    Rows are distinct as long as the task has enough examples. Raises ValueError if the rules cannot be kept,
    for instance if a row needs more answers than the task has.
    """
    task = find(task)
    check_split(split)
    if rows < 0 or examples < 1:
        raise ValueError(f"rows must be 0 or more and examples 1 or more, not {rows} and {examples}")
    made: list[Row] = []
    seen: set[tuple[Example, ...]] = set()
    for number in range(rows):
        rng = Random(f"{seed}/{task.partner}/{examples}/{split}/{number}")
        row = draw_row(rng, task.grammar, examples, max_answer_uses, split)
        for _ in range(20):  # short rows of small tasks run out of distinct ones; then repeats are all there is
            if row.examples not in seen:
                break
            row = draw_row(rng, task.grammar, examples, max_answer_uses, split)
        seen.add(row.examples)
        made.append(row)
    return made


def stream(tasks: Iterable[Task | str | int], seed: int, *, split: Split | None = "train") -> Iterator[Example]:
    """Yield single examples of uniformly drawn tasks, without end; predicate and source position are drawn for each."""
    check_split(split)
    grammars = [find(task).grammar for task in tasks]
    if not grammars:
        raise ValueError("stream needs at least one task")
    rng = Random(f"{seed}/stream/{split}")
    while True:
        grammar = choose(rng, grammars)
        source = int(rng.random() * grammar.surface.size)
        yield draw_example(rng, grammar, source, draw_predicate(rng, grammar), split)


def draw_row(rng: Random, grammar: Grammar, examples: int, max_answer_uses: int, split: Split | None) -> Row:
    """One row: one predicate, balanced source positions, distinct examples, no answer too often."""
    predicate = draw_predicate(rng, grammar)
    drawn: list[Example] = []
    for source in source_positions(rng, examples, grammar.surface.size):
        for _ in range(PATIENCE):
            example = draw_example(rng, grammar, source, predicate, split)
            uses = sum(example.answer == other.answer for other in drawn)
            if uses < max_answer_uses and example not in drawn:
                break
        else:
            raise ValueError(
                f"{grammar.task.id} has too few different answers for a row of {examples} examples with each answer "
                f"at most {max_answer_uses} times (max_answer_uses); ask for fewer examples"
            )
        drawn.append(example)
    return Row(grammar.task.id, tuple(drawn))


def draw_predicate(rng: Random, grammar: Grammar) -> str:
    if grammar.surface.fact is None or not grammar.predicates:
        return ""
    return choose_weighted(rng, grammar.predicates, grammar.predicate_weights)


def draw_example(rng: Random, grammar: Grammar, source: int, predicate: str, split: Split | None) -> Example:
    """One example with the given source position; facts of the other part of the split are drawn again."""
    pattern, size = grammar.pattern, grammar.surface.size
    for _ in range(PATIENCE):
        scope = choose(rng, grammar.scopes)
        persons = pattern.persons(rng, source, size)
        items = pattern.items(rng, scope, grammar.relation.many_to_one, source, size)
        facts = tuple([Fact(person, item.word) for person, item in zip(persons, items, strict=True)])
        if split is None or facts_are_held_out(facts) == (split == "held-out"):
            break
    else:
        raise ValueError(f"{grammar.task.id} has no examples in the {split} part of the split")
    asked = ""
    if grammar.names_asked:
        about = facts[(source + 1) % size] if pattern.negated else facts[source]
        asked = any_of(rng, grammar.key(about.person, about.item))
    accepted = grammar.accepted(facts[source].person, facts[source].item)
    answer = any_of(rng, accepted)
    prompt = grammar.write(persons, items, asked, predicate, scope.unit)
    return Example(grammar.task.id, facts, source, asked, predicate, scope.unit, answer, accepted, prompt)


def any_of(rng: Random, values: Sequence[str]) -> str:
    """A free choice; it draws only if there is one, which keeps tasks that share facts in step."""
    return values[0] if len(values) == 1 else choose(rng, values)
