"""Baselines (docs/tasks.md): what simple strategies score, to compare a model's accuracy with.

A plain total hides that most tasks can be solved without reading the question. Every baseline is an expected
accuracy in exact match with the official answer, over the scored shots only; no random numbers are drawn.

    fact-unif         the right relation, applied to a random fact
    value-unif        a random one of the distinct candidate answers
    first, middle, last   the right relation, applied to that fact (`middle` of three facts; absent with two)
    copy-unif         a random fact, its item copied without the relation
    shot-mode         the most frequent answer of the earlier shots, ties split
    shot-last         the answer of the shot before
    shot-unif         the answer of a random earlier shot
    ignores negation  follows what the question names but ignores `not` (in sets: takes the repeated item)
    odd-one-out       ignores the question: the odd fact if the task always has one, else a random fact
    task-mode         always the most frequent answer of the task in these rows (it has seen the answers)
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from synthetic_tasks.catalogue import find
from synthetic_tasks.example import Example, Row
from synthetic_tasks.pattern import select

# From an example and the answers of the earlier shots to the probability of the official answer; None: not defined.
Baseline = Callable[[Example, Sequence[str]], Fraction | None]


def candidates(example: Example) -> list[tuple[str, ...]]:
    """For every fact the answers accepted if that fact were the source."""
    grammar = find(example.task_id).grammar
    return [grammar.accepted(*fact) for fact in example.facts]


def share(example: Example, places: Sequence[int]) -> Fraction:
    """The probability of the official answer when one of these facts is read at random, with the right relation."""
    answers = candidates(example)
    return mean(example.answer in answers[place] for place in places)


def mean(hits: Iterable[bool]) -> Fraction:
    """The share of hits; 0 if there is nothing to choose from."""
    values = list(hits)
    return Fraction(sum(values), len(values)) if values else Fraction(0)


def fact_unif(example: Example, shots: Sequence[str]) -> Fraction:
    return share(example, range(len(example.facts)))


def value_unif(example: Example, shots: Sequence[str]) -> Fraction:
    return mean(example.answer in answers for answers in set(candidates(example)))


def first(example: Example, shots: Sequence[str]) -> Fraction:
    return share(example, [0])


def middle(example: Example, shots: Sequence[str]) -> Fraction | None:
    return share(example, [len(example.facts) // 2]) if len(example.facts) % 2 else None


def last(example: Example, shots: Sequence[str]) -> Fraction:
    return share(example, [len(example.facts) - 1])


def copy_unif(example: Example, shots: Sequence[str]) -> Fraction:
    of_person = find(example.task_id).grammar.pattern.answer == "person"
    return mean((fact.person if of_person else fact.item) == example.answer for fact in example.facts)


def shot_mode(example: Example, shots: Sequence[str]) -> Fraction:
    counts = Counter(shots)
    most = max(counts.values(), default=0)
    return mean(answer == example.answer for answer, count in counts.items() if count == most)


def shot_last(example: Example, shots: Sequence[str]) -> Fraction:
    return mean(answer == example.answer for answer in shots[-1:])


def shot_unif(example: Example, shots: Sequence[str]) -> Fraction:
    return mean(answer == example.answer for answer in shots)


def ignores_negation(example: Example, shots: Sequence[str]) -> Fraction:
    pattern = find(example.task_id).grammar.pattern
    selected = selected_by_question(example)
    if pattern.negated:
        return share(example, [place for place in range(len(example.facts)) if place not in selected])
    return share(example, selected)


def odd_one_out(example: Example, shots: Sequence[str]) -> Fraction:
    grammar = find(example.task_id).grammar
    if not grammar.pattern.negated:
        return fact_unif(example, shots)  # the facts of these patterns all differ in what is asked for
    odd = select([grammar.key(*fact) for fact in example.facts], None, negated=True)
    return share(example, odd)


def selected_by_question(example: Example) -> tuple[int, ...]:
    grammar = find(example.task_id).grammar
    keys = [grammar.key(*fact) for fact in example.facts]
    return select(keys, example.asked if grammar.names_asked else None, grammar.pattern.negated)


BASELINES: Mapping[str, Baseline] = {
    "fact-unif": fact_unif,
    "value-unif": value_unif,
    "first": first,
    "middle": middle,
    "last": last,
    "copy-unif": copy_unif,
    "shot-mode": shot_mode,
    "shot-last": shot_last,
    "shot-unif": shot_unif,
    "ignores negation": ignores_negation,
    "odd-one-out": odd_one_out,
}

FORMER = {"polarity-blind": "ignores negation"}
"""What version 0.1 called baselines, in the files that it wrote, and their names now."""


def baselines(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return task id -> baseline -> expected accuracy over the scored shots of these rows."""
    hits: dict[str, dict[str, list[Fraction]]] = defaultdict(lambda: defaultdict(list))
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for shot in row.scored:
            example = row.examples[shot]
            shots = [earlier.answer for earlier in row.examples[:shot]]
            answers[row.task_id][example.answer] += 1
            for name, baseline in BASELINES.items():
                hit = baseline(example, shots)
                if hit is not None:
                    hits[row.task_id][name].append(hit)
    table = {
        task: {name: float(sum(values) / len(values)) for name, values in named.items()} for task, named in hits.items()
    }
    for task, counts in answers.items():
        table[task]["task-mode"] = max(counts.values()) / counts.total()
    return table


def average(
    table: Mapping[str, Mapping[str, float]], tasks: Iterable[str], answers: Mapping[str, int] | None = None
) -> dict[str, float]:
    """The baselines averaged over some tasks.

    answers: how many of each task there are, so that each answer counts the same; each task does without
    """
    chosen = [(table[task], 1 if answers is None else answers[task]) for task in tasks if task in table]
    names = dict.fromkeys(name for row, _ in chosen for name in row)
    averages = {}
    for name in names:
        having = [(row[name], count) for row, count in chosen if name in row]
        averages[name] = sum(level * count for level, count in having) / sum(count for _, count in having)
    return averages
