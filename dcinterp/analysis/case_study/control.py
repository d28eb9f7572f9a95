"""The control of the source step: whether a head that seems to read a fact writes the same whatever the fact is.

    share = (f(clean) - f(clean with the head's output at the last position from a counterfactual prompt)) / direct

In the counterfactual prompts another word stands in the place of the source (for an example of the tasks another item,
by `synthetic_tasks.corrupt`; else words that stand behind the same word in the reference prompts). A head that reads
the fact loses its direct effect with it; one that follows the wording of the question (a prior) keeps it. And a word
that stands in most reference prompts belongs to the wording: it cannot tell one answer from another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch

from dcinterp.analysis.case_study.evidence import Ablator
from dcinterp.analysis.case_study.question import Asked
from dcinterp.mechanism.path_gradient import Metric
from dcinterp.mechanism.prompt import decoded, token_ids
from dcinterp.shapes import TokenIds

WORDS = 4
"""Counterfactual prompts of the control."""


class Control(NamedTuple):
    """What the control found.

    words: that stood in place of the source; effect: by how much the logit difference falls with the head's output from
    those prompts, in the mean over them; having, prompts: how many of the reference prompts have the source's token;
    source: whether the token is where the answer is read from, by the solver of the tasks; None if no task reads it.
    """

    words: tuple[str, ...]
    effect: float
    having: int
    prompts: int
    source: bool | None

    @property
    def wording(self) -> bool:
        """Whether the token belongs to the wording of the prompts."""
        return self.source is not True and self.prompts > 1 and 2 * self.having >= self.prompts


def control(
    ablator: Ablator,
    metric: Metric,
    asked: Asked,
    layer: int,
    head: int,
    key: int,
    sources: Sequence[int],
    reference: Sequence[TokenIds],
) -> Control | None:
    """Put what the head writes on counterfactual prompts in place of what it writes here; None without such prompts.

    Cost: `WORDS` forward passes, and one of as many rows.
    """
    token = int(asked.ids[0, key])
    source = None if asked.example is None else key in sources
    others = _other_facts(ablator, asked) if source else _other_words(asked.ids, key, reference)
    if not others:
        return None
    name = f"blocks.{layer}.attn.hook_z"
    new = {}
    for number, ids in enumerate(others):
        with torch.no_grad():
            cache = ablator.bridge.run_with_cache(ids, names_filter=[name])[1]
        new[name, (head, number)] = cache[name][0, -1, head]
    effect = float(ablator.patched(metric, new).mean())
    # All that differs: an item may be several tokens.
    words = tuple(decoded(ablator.bridge, ids[ids != asked.ids].tolist()).strip(" ") for ids in others)
    having = sum(bool((ids == token).any()) for ids in reference)
    return Control(words, effect, having, len(reference), source)


def _other_facts(ablator: Ablator, asked: Asked) -> list[TokenIds]:
    """The prompt with other items in place of the source's, as far as they take as many tokens."""
    from synthetic_tasks import NoCounterfactual, corrupt

    assert asked.example is not None
    read = asked.ids[:, asked.ids.shape[1] - asked.place :] if asked.place else asked.ids[:, :0]
    found: dict[str, TokenIds] = {}
    before, behind = asked.around
    for seed in range(3 * WORDS):
        try:
            other = corrupt(asked.example, "source", tokenizer=ablator.bridge.tokenizer, seed=seed).corrupt
        except NoCounterfactual:
            break
        ids = torch.cat([token_ids(ablator.bridge, before + other.prompt + behind), read], 1)
        if ids.shape == asked.ids.shape and len(found) < WORDS:
            found.setdefault(other.prompt, ids)
    return list(found.values())


def _other_words(ids: TokenIds, key: int, reference: Sequence[TokenIds]) -> list[TokenIds]:
    """The prompt with other tokens at one position: those that follow the same token in the reference prompts, else
    those that few of them have.
    """
    row, token = ids[0].tolist(), int(ids[0, key])
    rows = [each[0].tolist() for each in reference]
    behind = {b for each in rows for a, b in zip(each, each[1:], strict=False) if key and a == row[key - 1]} - {token}
    having = Counter(each for one in rows for each in set(one))
    rare = {each for each, count in having.items() if 2 * count < len(rows)} - {token}
    chosen = sorted(behind if len(behind) >= WORDS else rare)
    drawn = Random(f"{row}/{key}").sample(chosen, min(WORDS, len(chosen)))
    made = []
    for other in drawn:
        changed = ids.clone()
        changed[0, key] = other
        made.append(changed)
    return made
