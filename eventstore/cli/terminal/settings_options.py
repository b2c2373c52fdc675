"""Gives a command the settings of a server as options: their flags, texts and sections follow from the declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from eventstore.errors import InvalidArgument

Function = TypeVar("Function", bound=Callable[..., object])

ConfigFile = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A TOML file with settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting by its name; may be given several times."),
]
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")
"""A link to a page, in a text that is also part of one."""
_TYPED: Final = (int, float, bool)

SETTINGS_OFFERED: Final = "offers_settings"
"""The attribute of a command's function that says which settings of a server it has as options."""


def offers_settings(*groups: str, names: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Marks a command with `**given`: it takes the settings of the groups, and those named, as options; without any, all.

    The options are added when the command is used: reading the declarations would make `eventstore --help` slower.
    """

    def mark(function: Function) -> Function:
        setattr(function, SETTINGS_OFFERED, (groups, names))
        return function

    return mark


def add_options(function: Callable[..., object]) -> None:
    """Puts the settings that a command offers into its signature, which typer reads."""
    from eventstore.settings.server import ServerSettings
    from eventstore.settings.setting_declaration import declared_settings

    groups, names = getattr(function, SETTINGS_OFFERED)
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    offered = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(each))
        for each in declared_settings(ServerSettings).values()
        if not (groups or names) or each.setting.group in groups or each.name in names
    ]
    function.__signature__ = signature.replace(parameters=[*own, *offered])  # type: ignore[attr-defined] # as inspect says


def _annotation(declared: Any) -> Any:
    kind = declared.kind if declared.kind in _TYPED and not declared.listed else str
    first = _LINK.sub(r"\1", declared.setting.meaning).replace("`", "").partition(". ")[0].rstrip(".")
    flag = declared.flag
    metavar = None if kind is bool else declared.metavar
    text = f"{first}. [{declared.default_text}]"
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text, rich_help_panel=declared.setting.group)]


def parse_assignments(assignments: list[str] | None) -> dict[str, object]:
    """Returns the NAME=VALUE texts of `--set` as a dict.

    Raises:
        InvalidArgument: a text has another form.
    """
    given: dict[str, object] = {}
    for text in assignments or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArgument(f"--set {text!r} is not of the form NAME=VALUE", field="set", value=text)
        given[name.strip().replace("-", "_")] = value.strip()
    return given


def all_given(assignments: list[str] | None, options: dict[str, object]) -> dict[str, object]:
    """Returns the settings of the command line; an option comes before `--set`."""
    return {**parse_assignments(assignments), **{name: value for name, value in options.items() if value is not None}}
