"""How the command line speaks of itself: help and errors of usage, in plain words instead of the types of Python."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

import typer
import typer.core
import typer.main

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


GROUPS: Final = {
    "topic": ("Topics of the broker.", "topics"),
    "queue": ("The queues of a topic.", "topics"),
    "group": ("Consumer groups: how far they are.", "groups"),
    "message": ("Messages: look one up, watch them come, send some.", "messages"),
    "deadletter": ("Messages that a consumer group could not handle.", "dead_letters"),
}
"""Commands that are followed by another one: what they are for, and the module where an object of their name has the others."""


class Program(typer.core.TyperGroup):
    """All commands. A group of them is built when it is used: building them all would take a fifth of what `--help` takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, (what, _) in GROUPS.items():
            self.commands[name] = typer.core.TyperGroup(name=name, help=what)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in GROUPS:
            name = args[0]
            module = importlib.import_module(f"eventstore.cli.{GROUPS[name][1]}")
            self.commands[name] = typer.main.get_group(getattr(module, name))
        return super().resolve_command(ctx, args)


def group_of_commands(name: str) -> typer.Typer:
    """A command that is followed by another one, such as `topic` by `list`."""
    return typer.Typer(
        name=name, help=GROUPS[name][0], add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip


def _no_type(ctx: object) -> None:
    return None


def plain_usage(message: str) -> str:
    """An error of usage in plain words, without the full stop at its end."""
    for pattern, words in _TYPING:
        message = pattern.sub(words, message)
    return message.rstrip(".")
