"""Heads beside the circuit that seem to matter: they attend, have outputs and share attention, without any effect.

A method that scores the amount of attention, and not its effect, finds these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dcinterp.planted.blueprint import Blueprint
from dcinterp.planted.circuit import copy_by
from dcinterp.planted.words import CONTEXT, KIND, NAMES, OBJECTS, QUESTIONS

Decoy = Callable[[Blueprint, int], None]


def look_back(plan: Blueprint, layer: int, head: int) -> None:
    """Attend from every position to the one before it."""
    for place in range(1, CONTEXT):
        here, before = (plan.stream.at("position", str(p)) for p in (place, place - 1))
        plan.look(layer, head, here, before)


def _reads_the_word_before(plan: Blueprint, head: int) -> None:
    look_back(plan, 0, head)
    plan.copy(0, head, plan.stream.any_of("token", NAMES), plan.stream.dead(head))


def _reads_itself(plan: Blueprint, head: int) -> None:
    for place in range(CONTEXT):
        here = plan.stream.at("position", str(place))
        plan.look(0, head, here, here)
    plan.copy(0, head, plan.stream.any_of("token", OBJECTS), plan.stream.dead(head))


def _reads_everything(plan: Blueprint, head: int) -> None:
    plan.copy(0, head, plan.stream.always(), plan.stream.dead(head))


def _attends_without_effect(plan: Blueprint, head: int) -> None:
    """Attends to the asked thing like a finder, but shares with no head and has no effect on the answer."""
    s = plan.stream
    plan.look_for_name(1, head, query="token", key="previous")
    plan.look(1, head, s.always(), s.any_of("token", OBJECTS))
    plan.rest_on_bos(1, head, 1.3)
    plan.copy(1, head, s.any_of("token", OBJECTS), s.dead(head))
    plan.silence("query", s.any_of("question", QUESTIONS), [head])


def _attends_to_all_things(plan: Blueprint, head: int) -> None:
    s = plan.stream
    plan.look(1, head, s.always(), s.any_of("token", OBJECTS))
    plan.rest_on_bos(1, head)
    plan.copy(1, head, s.any_of("token", OBJECTS), s.dead(head))


def _borrows_without_effect(plan: Blueprint, head: int) -> None:
    plan.rest_on_bos(1, head)
    plan.copy(1, head, plan.stream.any_of("token", OBJECTS), plan.stream.dead(head))


def _could_answer_but_borrows_nothing(plan: Blueprint, head: int) -> None:
    plan.rest_on_bos(1, head)
    copy_by(plan, head, KIND, 1.0)


FIRST_LAYER: tuple[Decoy, ...] = (_reads_the_word_before, _reads_itself, _reads_everything)
SECOND_LAYER: tuple[Decoy, ...] = (
    _attends_without_effect,
    _attends_to_all_things,
    _borrows_without_effect,
    _could_answer_but_borrows_nothing,
)


def plant_decoys(plan: Blueprint, first: Sequence[int], second: Sequence[int], rank: int) -> None:
    """Make decoys of the heads that no circuit uses.

    Args:
        plan: of the model.
        first: free heads of layer 0.
        second: free heads of layer 1.
        rank: of the dynamic projection, not used by a circuit: the decoys share with one another through it.
    """
    for number, head in enumerate(first):
        FIRST_LAYER[number % len(FIRST_LAYER)](plan, head)
    for number, head in enumerate(second):
        SECOND_LAYER[number % len(SECOND_LAYER)](plan, head)
    if len(second) > 2:
        a_thing, asked = plan.stream.any_of("token", OBJECTS), plan.stream.any_of("question", QUESTIONS)
        plan.share("key", a_thing, second[:2], [second[2]], 1.0, [rank])
        plan.share("query", asked, second[:1], [second[2]], 1.0, [rank])
