"""`dcinterp lm-eval`: lm-evaluation-harness, which knows our models here."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import typer

from dcinterp.support.errors import UserError

SETTINGS = {"context_settings": {"allow_extra_args": True, "ignore_unknown_options": True}}
"""All arguments are lm_eval's."""


def command(ctx: typer.Context) -> None:
    """Run lm-evaluation-harness with the Auto classes that know our models.

    The arguments are those of `lm_eval`, which by itself never imports dcinterp. After `pretrained=`, a shipped model
    may stand instead of a folder. Benchmarks of the hub are downloaded by lm_eval; a task of your own needs no network.

    Examples:

        dcinterp lm-eval run --model hf \\
            --model_args pretrained=runs/mine/model --tasks lambada_openai

        dcinterp lm-eval run --model hf --model_args pretrained=dcformer++ \\
            --include_path my-tasks --tasks my_task --device cpu
    """
    if find_spec("lm_eval") is None:
        raise UserError("lm-evaluation-harness is not installed; install it with: pip install 'dcinterp[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    import dcinterp.model.vit  # noqa: F401  # whoever asks for a class finds all of ours from here on

    before = sys.argv
    sys.argv = ["lm_eval", *map(with_folder, ctx.args)]
    try:
        cli_evaluate()
    finally:
        sys.argv = before


def with_folder(argument: str) -> str:
    """An argument of lm_eval in which the name of a shipped model is its folder."""
    from dcinterp.checkpoints.names import SHIPPED, shipped_models

    def folder(found: re.Match[str]) -> str:
        return f"{found[1]}{SHIPPED / found[2]}" if found[2] in shipped_models() else found[0]

    return re.sub(r"\b((?:pretrained|tokenizer)=)([^,\s]+)", folder, argument)
