"""The case study in the app: its head scores are computed once for a prompt, since every click needs them again."""

from __future__ import annotations

from typing import Any

from workbench import analyses, models


def attribution(name: str, prompt: str, answer: str | None) -> Any:
    """Head scores of a prompt."""
    return told(name, prompt, answer, None, None, None).attribution


def told(name: str, prompt: str, answer: str | None, layer: int | None, head: int | None, key: int | None) -> Any:
    """The five steps for one choice of head and source token."""
    import dcinterp

    def made_by(*choice: int | None) -> str:
        return analyses.key_of("case_study", name, {"prompt": prompt, "answer": answer, "choice": choice})

    cache, wanted, first = analyses.cache(), made_by(layer, head, key), made_by(None, None, None)
    if (kept := cache.get(wanted)) is not None:
        return kept
    base = cache.get(first)
    bridge = models.model(name)
    with models.lock(name):
        story = dcinterp.case_study(
            bridge,
            prompt,
            answer,
            layer=layer,
            head=head,
            key=key,
            attribution=base.attribution if base is not None else None,
        )
    cache.put(wanted, story)
    return story
