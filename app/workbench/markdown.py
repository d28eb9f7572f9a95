"""Text from elsewhere inside Markdown."""

from __future__ import annotations


def escape(text: str) -> str:
    """Text in which no sign is taken for markup."""
    for sign in "\\`*_{}[]<>#$~":
        text = text.replace(sign, f"\\{sign}")
    return text
