"""Examples and rows: what the generator makes and the solver recovers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from synthetic_tasks.spans import Spans

# Shots before this one show a bare answer, the others bracket it in the released layout and are scored.
FIRST_SCORED_SHOT = 2


class Fact(NamedTuple):
    """One fact; `person` is empty in sets. `item` is the bare word."""

    person: str
    item: str


@dataclass(frozen=True)
class Example:
    """One question about a few facts.

    facts: in the order of the text
    source: place of the fact the answer is read from
    asked: the person, value or item the question names; empty where it names none
    predicate: the paraphrase used, empty where there is none
    unit: the word for the scale of an ordinal, empty elsewhere
    answer, accepted: the official answer and all correct ones
    prompt: the text up to the answer, without a space at the end
    """

    task_id: str
    facts: tuple[Fact, ...]
    source: int
    asked: str
    predicate: str
    unit: str
    answer: str
    accepted: tuple[str, ...]
    prompt: str

    @property
    def text(self) -> str:
        """The whole example with its answer and without brackets."""
        return f"{self.prompt} {self.answer}"

    @property
    def released_text(self) -> str:
        """The example as a scored shot of the released file: the answer in brackets."""
        return f"{self.prompt} [ {self.answer} ]"

    @property
    def spans(self) -> "Spans":
        """Character spans of facts, source, distractors, query, cue and answer in `text`."""
        from synthetic_tasks.spans import locate  # needs the grammar, which training streams never look at again

        return locate(self)


@dataclass(frozen=True)
class Row:
    """Examples of one task behind each other; the later ones are answered with the earlier ones as shots."""

    task_id: str
    examples: tuple[Example, ...]

    @property
    def text(self) -> str:
        """The released layout: a line an example, answers in brackets from the third on, newlines around all."""
        lines = [
            example.text if shot < FIRST_SCORED_SHOT else example.released_text
            for shot, example in enumerate(self.examples)
        ]
        return "\n" + "\n".join(lines) + "\n"

    @property
    def prompt(self) -> str:
        """What a model reads: the released layout with every `[ answer ]` replaced by `answer`, nothing else changed.

        So there is one space before an answer and a newline right after it, in all shots alike.
        """
        return "\n" + "\n".join(example.text for example in self.examples) + "\n"

    @property
    def scored(self) -> range:
        """Shots that count: those with at least two before them; all of them in rows too short for that."""
        return range(max(0, min(FIRST_SCORED_SHOT, len(self.examples) - 1)), len(self.examples))
