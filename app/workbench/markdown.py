"""Text from elsewhere inside Markdown."""

from __future__ import annotations

import re


def escape(text: str) -> str:
    """Text in which no sign is taken for markup."""
    for sign in "\\`*{}[]<>#$~":
        text = text.replace(sign, f"\\{sign}")
    # Inside a word an underscore is no markup; beside one it makes the word slanting, and is gone.
    return re.sub(r"(?<!\w)_|_(?!\w)|(?<=_)_", r"\\_", text)


def without_pictures(text: str) -> str:
    """Markdown whose pictures are links: the browser would fetch them, from wherever they say."""
    return re.sub(r"(\\*)!\[", lambda at: at[1] + "\\" * (len(at[1]) % 2 == 0) + "![", text)


def sentence(problem: Exception | str) -> str:
    """The first line of what is wrong, as it stands: a word that is not known is shown with all of its signs."""
    return escape((str(problem).splitlines() or [""])[0])
