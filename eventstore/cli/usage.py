"""How the command line speaks of itself: help and errors of usage, in plain words instead of the types of Python."""

from __future__ import annotations

import re
from typing import Any, Final

import typer
import typer.core

_BRACES: Final = re.compile(r"^\{(.*)\}(\.\.\.)?$")
_TYPING: Final = (
    (re.compile(r"Input should be a valid integer\b[^;]*"), "it must be a whole number"),
    (re.compile(r"Input should be a valid number\b[^;]*"), "it must be a number"),
    (re.compile(r"Input should be "), "it must be "),
)


class Command(typer.core.TyperCommand):
    """A command whose help names an argument as it was named here: `ID`, not `{ID}` and `ID <str>`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                # typer has no setting for this; where it knows no such method, it prints no types either
                parameter.display_type_rich = _no_type  # type: ignore[attr-defined]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]


def group_of_commands(what: str) -> typer.Typer:
    """A command that is followed by another one, such as `topic` by `list`."""
    return typer.Typer(
        help=what, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip


def _no_type(ctx: object) -> None:
    return None


def plain_usage(message: str) -> str:
    """An error of usage in plain words, without the full stop at its end."""
    for pattern, words in _TYPING:
        message = pattern.sub(words, message)
    return message.rstrip(".")
