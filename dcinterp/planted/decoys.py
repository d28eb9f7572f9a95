"""Heads beside the circuit that seem to matter: they attend, have outputs and share attention, without any effect.

A method that scores the amount of attention, and not its effect, finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import copy_by
from dcinterp.planted.words import CONTEXT, KIND, NAMES, OBJECTS, QUESTIONS

Decoy = Callable[[Blueprint, int, int], None]
"""Makes one of (plan, layer, head)."""


def look_back(plan: Blueprint, layer: int, head: int) -> None:
    """Attend from every position to the one before it."""
    for place in range(1, CONTEXT):
        here, before = (plan.stream.at("position", str(p)) for p in (place, place - 1))
        plan.look(layer, head, here, before)


def _reads_the_word_before(plan: Blueprint, layer: int, head: int) -> None:
    look_back(plan, layer, head)
    plan.copy(layer, head, plan.stream.any_of("token", NAMES), plan.stream.dead(head))


def _reads_itself(plan: Blueprint, layer: int, head: int) -> None:
    for place in range(CONTEXT):
        here = plan.stream.at("position", str(place))
        plan.look(layer, head, here, here)
    plan.copy(layer, head, plan.stream.any_of("token", OBJECTS), plan.stream.dead(head))


def _reads_everything(plan: Blueprint, layer: int, head: int) -> None:
    plan.copy(layer, head, plan.stream.always(), plan.stream.dead(head))


def _attends_without_effect(plan: Blueprint, layer: int, head: int) -> None:
    """Attends to the asked thing like a finder, but shares with no head and has no effect on the answer."""
    s = plan.stream
    plan.look_for_name(layer, head, query="token", key="previous")
    plan.look(layer, head, s.always(), s.any_of("token", OBJECTS))
    plan.rest_on_bos(layer, head, 1.3)
    plan.copy(layer, head, s.any_of("token", OBJECTS), s.dead(head))
    plan.silence("query", s.any_of("question", QUESTIONS), [head], layer=layer)


def _attends_to_all_things(plan: Blueprint, layer: int, head: int) -> None:
    s = plan.stream
    plan.look(layer, head, s.always(), s.any_of("token", OBJECTS))
    plan.rest_on_bos(layer, head)
    plan.copy(layer, head, s.any_of("token", OBJECTS), s.dead(head))


def _borrows_without_effect(plan: Blueprint, layer: int, head: int) -> None:
    plan.rest_on_bos(layer, head)
    plan.copy(layer, head, plan.stream.any_of("token", OBJECTS), plan.stream.dead(head))


def _could_answer_but_borrows_nothing(plan: Blueprint, layer: int, head: int) -> None:
    plan.rest_on_bos(layer, head)
    copy_by(plan, head, KIND, 1.0, layer)


FIRST_LAYER: tuple[Decoy, ...] = (_reads_the_word_before, _reads_itself, _reads_everything)
LATER_LAYERS: tuple[Decoy, ...] = (
    _attends_without_effect,
    _attends_to_all_things,
    _borrows_without_effect,
    _could_answer_but_borrows_nothing,
)


def plant_decoys(plan: Blueprint, free: Sequence[Sequence[int]], rank: int) -> None:
    """Make decoys of the heads that no circuit uses.

    Args:
        plan: of the model.
        free: heads, by layer.
        rank: of the dynamic projection, not used by a circuit: the decoys share with one another through it.
    """
    a_thing, asked = plan.stream.any_of("token", OBJECTS), plan.stream.any_of("question", QUESTIONS)
    for layer, heads in enumerate(free):
        decoys = LATER_LAYERS if layer else FIRST_LAYER
        if layer and "pre" in plan.stages:
            # Without its scores a head attends everywhere, so the scores of one that could answer do matter.
            decoys = tuple(decoy for decoy in decoys if decoy is not _could_answer_but_borrows_nothing)
        for number, head in enumerate(heads):
            decoys[number % len(decoys)](plan, layer, head)
        for stage in plan.stages if layer and len(heads) > 2 else ():
            plan.share("key", a_thing, heads[:2], [heads[2]], 1.0, [rank], layer=layer, stage=stage)
            plan.share("query", asked, heads[:1], [heads[2]], 1.0, [rank], layer=layer, stage=stage)
