r"""Activation patching: what a tensor of one prompt does in the run of another, many places in one forward pass.

    share = (f(patched) - f(corrupted)) / (f(clean) - f(corrupted))        0: as corrupted, 1: as clean

f is the logit difference. The clean prompt and its counterfactual ("corrupted") have the same number of tokens. Two
directions: "denoising" runs the counterfactual and puts in tensors of the clean prompt (what is enough to restore the
answer), "noising" runs the clean prompt and puts in tensors of the counterfactual (what is needed for it). They do not
mirror each other where parts stand in for each other.

    pair = read_pair(bridge, clean, corrupted, "tea", "meat")
    values = sweep(bridge, pair, [Patch("blocks.1.hook_resid_pre", (5,))])        # f, one number a patch

A run begins at the lowest layer that its batch changes; what lies below is computed once (dcinterp.mechanism.stream).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from dcinterp.bridge.protocol import Bridge
from dcinterp.mechanism.objective import Explanation, answer_tokens, explain, other_answer
from dcinterp.mechanism.prompt import Prompt, Token, position, str_tokens, token_ids, token_word, tokens_in_text
from dcinterp.mechanism.stream import Stream, layer_of, metric_of
from dcinterp.results.result import Result
from dcinterp.shapes import TokenIds
from dcinterp.support.errors import UserError, require_known
from dcinterp.support.progress import Progress, silent
from dcinterp.support.text import in_sentence_apart

Direction = Literal["denoising", "noising"]
DIRECTIONS = ("denoising", "noising")
LEAST = 0.01
"""Logits by which clean and counterfactual prompt must differ: shares of less would be rounding error."""
SMALL = 1.0
"""Logits below which a difference is called small."""

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Patch:
    """A tensor, or part of it, that is taken from the other prompt: its hook, and the part in a row of the batch."""

    hook: str
    index: Index = ()


@dataclass(frozen=True)
class Pair:
    """Two prompts with as many tokens and the number that tells them apart.

    explanation: of the clean prompt; corrupted: ids of the counterfactual, [1, pos]. clean_value, corrupted_value: f.
    clean_answer, corrupted_answer: the model's own answers; clean_right, corrupted_right: whether these are the target
    and the foil, token by token. direction: which of the two is run. corrupted_target: the right answer to the
    counterfactual where that is not the foil (a fact that changed its place keeps the answer).
    """

    explanation: Explanation
    corrupted: TokenIds
    clean_value: float
    corrupted_value: float
    clean_answer: str
    corrupted_answer: str
    clean_right: bool
    corrupted_right: bool
    direction: Direction
    corrupted_target: str = ""

    @property
    def run(self) -> TokenIds:
        """The prompt that is run."""
        return self.corrupted if self.direction == "denoising" else self.explanation.ids

    @property
    def source(self) -> TokenIds:
        """The prompt that tensors come from."""
        return self.explanation.ids if self.direction == "denoising" else self.corrupted

    def share(self, values: Tensor) -> Tensor:
        """f as a share of the way from the corrupted to the clean prompt."""
        return (values - self.corrupted_value) / (self.clean_value - self.corrupted_value)

    def record(self, bridge: Bridge) -> dict[str, Any]:
        """The fields of a result that say what was patched into what."""
        return {
            "tokens": str_tokens(bridge, self.explanation.ids),
            "counterfactual_tokens": str_tokens(bridge, self.corrupted),
            "position": self.explanation.positions[0],
            "target": self.explanation.target,
            "foil": self.explanation.foil,
            "direction": self.direction,
            "clean": self.clean_value,
            "corrupted": self.corrupted_value,
            "clean_answer": self.clean_answer,
            "corrupted_answer": self.corrupted_answer,
            "clean_right": self.clean_right,
            "corrupted_right": self.corrupted_right,
            "corrupted_target": self.corrupted_target,
        }


@dataclass(frozen=True)
class PairPatching(Result, shared=True):
    """What results of patching have in common: the two prompts, and what each patch does.

    tokens, counterfactual_tokens: of the clean prompt and of the other. position: whose next token is the answer.
    clean, corrupted: f of the two prompts; clean_answer, corrupted_answer: what the model says to them; clean_right,
    corrupted_right: whether that is the target and the foil, token by token (None in results of earlier versions);
    corrupted_target: the right answer to the counterfactual where that is not the foil.
    logit_difference: f of the patched run; share: the same with the counterfactual at 0 and the clean prompt at 1.
    """

    tokens: tuple[str, ...]
    counterfactual_tokens: tuple[str, ...]
    position: int
    target: str
    foil: str
    direction: Direction
    clean: float
    corrupted: float
    clean_answer: str
    corrupted_answer: str
    logit_difference: Tensor
    share: Tensor
    clean_right: bool | None = field(default=None, kw_only=True)
    corrupted_right: bool | None = field(default=None, kw_only=True)
    corrupted_target: str = field(default="", kw_only=True)

    @property
    def effect(self) -> Tensor:
        """The share restored (denoising) or lost (noising): 0 where a patch does nothing."""
        return self.share if self.direction == "denoising" else 1 - self.share

    def token_pairs(self) -> list[str]:
        """The tokens of both prompts by position, as one name where they are the same."""
        pairs = zip(self.tokens, self.counterfactual_tokens, strict=True)
        return [mine if mine == other else f"{mine}|{other}" for mine, other in pairs]

    def table(self) -> pd.DataFrame:
        """One row a patch, the largest effects first."""
        frame = self.to_dataframe("share")
        named = {column: column.removesuffix("_label") for column in frame if str(column).endswith("_label")}
        # A token says less than its position; other names say all.
        frame = frame.drop(columns=[name for name in named.values() if name != "pos"])
        frame = frame.rename(columns=named | {"pos_label": "token"})
        frame["effect"] = self.effect.flatten().tolist()
        return frame.sort_values("effect", key=abs, ascending=False, ignore_index=True)

    def sentence(self) -> str:
        target, foil = in_sentence_apart(self.target, self.foil)
        return (
            f'The logit of "{target}" minus that of "{foil}" is {self.clean:z.2f} on the '
            f"prompt (share 1) and {self.corrupted:z.2f} on the counterfactual (share 0)."
        )

    def warnings(self) -> list[str]:
        sentences = []
        answers = (
            (self.clean_answer, self.target, self.clean_right, "prompt"),
            (self.corrupted_answer, self.corrupted_target or self.foil, self.corrupted_right, "counterfactual"),
        )
        for answer, wanted, right, where in answers:
            if said := other_answer(answer, wanted, answer.strip() == wanted.strip() if right is None else right):
                sentences.append(f"To the {where} the model {said}.")
        if abs(self.clean - self.corrupted) < SMALL:
            sentences.append(
                f"The logit difference of the two prompts differs by {abs(self.clean - self.corrupted):.2f} only, so "
                "that shares make small effects look large; read the logits."
            )
        return sentences


class NothingToRestore(UserError):
    """The two prompts give almost the same logit difference."""


@torch.no_grad()
def read_pair(
    bridge: Bridge,
    prompt: Prompt,
    counterfactual: Prompt | None,
    target: Token | None = None,
    foil: Token | None = None,
    *,
    change: str = "question",
    at: int = -1,
    direction: Direction = "denoising",
) -> Pair:
    """The clean prompt, its counterfactual, and what f is for both.

    Args:
        counterfactual: text or ids; without one, that of the task which the prompt is an example of.
        target: the answer to the clean prompt; by default that of the task, or the model's own beside a given
            counterfactual. Beside a counterfactual of the task a text is read as it stands there, with a space in front
            where the vocabulary has that; beside a given one as it is written.
        foil: the answer to the counterfactual, or another one where that is the target too; by default as for the
            target.
        change: what the counterfactual of a task changes.
        at: the position whose next token is the answer.

    Cost: two forward passes.

    Raises:
        UserError: the prompts differ in length, are the same, or give almost the same logit difference; there is no
            counterfactual; an argument does not fit the model.
    """
    from synthetic_tasks import KINDS

    require_known("direction", direction, DIRECTIONS)
    require_known("change of the counterfactual", change, KINDS)
    if isinstance(counterfactual, str) and counterfactual in KINDS:
        raise UserError(
            f"The counterfactual is the other prompt, and {counterfactual!r} is a kind; give change={counterfactual!r}."
        )
    keeps = counterfactual is None and change == "position"
    if counterfactual is None:
        counterfactual, right, wrong = counterfactual_of(bridge, prompt, change)
        keeps &= target is None or answer_tokens(bridge, target) == answer_tokens(bridge, right)
        # All read alike: what a person gives, too, is an answer in this text.
        target, foil = (
            _in_text(bridge, given) if isinstance(given, str) else own_answer if given is None else given
            for given, own_answer in ((target, right), (foil, wrong))
        )
    clean, corrupted = token_ids(bridge, prompt), token_ids(bridge, counterfactual)
    if clean.shape != corrupted.shape:
        hint = " (the counterfactual comes before the target)" if corrupted.shape[1] == 1 else ""
        raise UserError(
            f"The prompt is {clean.shape[1]} tokens long and its counterfactual {corrupted.shape[1]}; patching goes "
            f"position by position, so give two prompts with as many tokens{hint}."
        )
    if torch.equal(clean, corrupted):
        raise UserError("The prompt and its counterfactual are the same; change at least one token.")
    place = position(at, clean.shape[1], "Position")
    own = [token_word(bridge, int(bridge(ids)[0, place].argmax())) for ids in (clean, corrupted)]
    target, foil = own[0] if target is None else target, own[1] if foil is None else foil
    if answer_tokens(bridge, target) == answer_tokens(bridge, foil):
        raise UserError(
            f"The answer to both prompts would be {target!r}; give a target and a foil that tell the prompts apart."
        )
    explanation = explain(bridge, prompt, target, foil, at=at)
    corrupted = torch.cat([corrupted, explanation.ids[:, clean.shape[1] :]], 1)
    logits = [bridge(ids) for ids in (explanation.ids, corrupted)]
    values = [float(explanation.metric(each)[0]) for each in logits]
    if abs(values[0] - values[1]) < LEAST:
        raise NothingToRestore(
            f"The logit difference is {values[0]:.3f} on the prompt and {values[1]:.3f} on its counterfactual, almost "
            "the same, so that nothing can be restored; choose a target and foil, or prompts, that differ more."
        )
    return Pair(
        explanation,
        corrupted,
        clean_value=values[0],
        corrupted_value=values[1],
        clean_answer=explanation.answer(bridge, logits[0]),
        corrupted_answer=explanation.answer(bridge, logits[1]),
        clean_right=explanation.is_right(logits[0]),
        corrupted_right=explanation.is_right(logits[1])
        if keeps
        else explanation.answer_ids(logits[1]) == [explanation.other],
        corrupted_target=explanation.target if keeps else "",
        direction=direction,
    )


def counterfactual_of(bridge: Bridge, prompt: Prompt, change: str) -> tuple[str, Token, Token]:
    """(counterfactual of a prompt of the tasks with as many tokens, answer to the prompt, its foil).

    The foil is the answer to the counterfactual; where a fact changed its place, that of who looks at the old one.

    Worked examples before the question stay.

    Raises:
        UserError: the prompt is none of the tasks, or has no such counterfactual.
    """
    from synthetic_tasks import NoCounterfactual, UnsolvableLine, corrupt, solve

    if not isinstance(prompt, str) and bridge.tokenizer is not None:
        prompt = bridge.tokenizer.decode(token_ids(bridge, prompt)[0], skip_special_tokens=True)
    before, newline, line = prompt.rpartition("\n") if isinstance(prompt, str) else ("", "", "")
    try:
        made = corrupt(solve(line).example(), change, tokenizer=bridge.tokenizer)  # type: ignore[arg-type]
    except UnsolvableLine as reason:
        raise UserError(
            "This prompt is not one of the tasks, so its counterfactual is not known; give one with as many tokens."
        ) from reason
    except NoCounterfactual as reason:
        words = str(reason)
        raise UserError(
            f"{words[:1].upper()}{words[1:]}; give a prompt with as many tokens as counterfactual."
        ) from reason
    return before + newline + made.corrupt.prompt, _in_text(bridge, made.clean.answer), _in_text(bridge, made.foil)


def _in_text(bridge: Bridge, word: str) -> Token:
    """An answer as it stands in the text: in a byte-level vocabulary another token than the bare word."""
    tokens = tokens_in_text(bridge, word)
    if list(tokens) == answer_tokens(bridge, word):
        return word
    return tokens[0] if len(tokens) == 1 else f" {word}"


@torch.no_grad()
def sweep(
    bridge: Bridge,
    pair: Pair,
    patches: Sequence[Patch],
    *,
    batch_size: int = 64,
    progress: Progress = silent,
) -> Float[Tensor, " patch"]:
    """f of the run prompt with each patch alone, in the order of `patches`; on the CPU.

    Args:
        batch_size: patches of one forward pass.
        progress: called with the cost before the work, and after every batch.

    Cost: a row a patch, from the patch's layer on, and one forward pass of the other prompt.

    Raises:
        UserError: a hook never fires in this model.
    """
    stream, source = Stream(bridge, pair.run), Stream(bridge, pair.source)
    progress(0, len(patches), cost(len(patches), pair.run.shape[1]))
    order = sorted(range(len(patches)), key=lambda i: (layer_of(patches[i].hook) or 0, patches[i].hook))
    values = torch.zeros(len(patches), dtype=torch.float64)
    done = 0
    for layer, same in groupby(order, key=lambda i: layer_of(patches[i].hook)):
        here = list(same)
        taken = _read(source, list(dict.fromkeys(patches[i].hook for i in here)))
        for start in range(0, len(here), batch_size):
            some = here[start : start + batch_size]
            hooks = patch_hooks([patches[i] for i in some], taken)
            values[some] = metric_of(stream, pair.explanation.metric, len(some), hooks).cpu().double()
            done += len(some)
            progress(done, len(patches), f"layer {layer}")
    return values


def _read(source: Stream, names: list[str]) -> Mapping[str, Tensor]:
    try:
        return source.read(names)
    except KeyError as missing:
        raise UserError(f"There is nothing to patch at {missing.args[0]}: this model never comes by it.") from missing


def patch_hooks(patches: Sequence[Patch], source: Mapping[str, Tensor]) -> list[tuple[str, Callable[..., Tensor]]]:
    """Hooks of a batch in which row i undergoes patches[i]."""

    def put(tensor: Tensor, hook: Any, name: str) -> Tensor:
        out = tensor.clone()
        for row, patch in enumerate(patches):
            if patch.hook == name:
                out[row][patch.index] = source[name][0][patch.index].to(out)
        return out

    return [(name, partial(put, name=name)) for name in dict.fromkeys(patch.hook for patch in patches)]


def cost(patches: int, length: int) -> str:
    """What a sweep takes, to be said before it begins."""
    return f"{patches:,} rows of {length:,} tokens forward, each from its layer on: at most {patches * length:,} tokens"
