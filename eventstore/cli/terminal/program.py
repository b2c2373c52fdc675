"""Finds the commands: each is a module of a package in `eventstore.cli.commands`, and is imported when it is needed.

A module is named as its command (`import_` is `import`) and holds a function of the same name, or, for a command that is
followed by another one (`topic list`), the `command_group`. The packages are the sections of `eventstore --help`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, get_args

import typer
import typer.core
import typer.main

from eventstore.cli.terminal.access_options import offers_access
from eventstore.cli.terminal.settings_options import SETTINGS_OFFERED, add_options
from eventstore.settings.written_values import read_written

_BRACES: Final = re.compile(r"^\{(.*)\}(\.\.\.)?$")
_COMMANDS: Final = "eventstore.cli.commands"
_WRONG_USAGE: Final = 2
GIVEN: Final = "eventstore.given"
"""Under this name `meta` of a command's context has the names of its parameters as they were given, one after the other."""
_SECTIONS: Final = ("run", "events", "broker", "watch", "security", "backup", "offline")
_PLAIN: Final[dict[str, Any]] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class PlainCommand(typer.core.TyperCommand):
    """A command whose help is plain: options in sections, and an argument as it was named, `ID` instead of `{ID} <str>`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                # typer has no setting for this; a version without this method prints no types either
                parameter.display_type_rich = _no_type  # type: ignore[attr-defined]

    def get_params(self, ctx: Any) -> list[Any]:
        return _read_here(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[GIVEN] = [parameter.name for parameter in self.make_parser(ctx).parse_args(list(args))[2]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_BRACES.sub(r"\1\2", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class WrittenValues:
    """Reads what was written for a parameter."""

    def coerce(self, written: Any, param: Any, ctx: Any) -> object:
        if param.multiple or param.nargs == -1:
            return tuple(self._read(each, param, ctx) for each in written or ())
        return None if written is None else self._read(written, param, ctx)

    def _read(self, written: object, param: Any, ctx: Any) -> object:
        declared, limits = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        kind = next(iter(get_args(declared)), declared)
        try:
            value = read_written(kind, written)
            if limits.min is not None and value < limits.min:
                raise ValueError(f"greater than or equal to {limits.min}")
            if limits.max is not None and value > limits.max:
                raise ValueError(f"less than or equal to {limits.max}")
        except ValueError as expected:
            raise typer.BadParameter(f"it must be {expected}", ctx=ctx, param=param) from None
        return value


def _read_here(parameters: list[Any]) -> list[Any]:
    """Returns the parameters, which read their values without typer: it needs pydantic, 7 MB and 0.1 s of each command."""
    for parameter in parameters:
        parameter.get_runtime_param = WrittenValues  # a version of typer without this method needs no pydantic
    return parameters


class CommandGroup(typer.core.TyperGroup):
    """A command that is followed by another one. Alone it prints its help, and is an error, as the program itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _read_here(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args:
            print(ctx.get_help())
            ctx.exit(_WRONG_USAGE)
        return super().parse_args(ctx, args)


class Program(typer.core.TyperGroup):
    """All commands. Only those that are used are built: building all of them would make `--help` slow."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = {name: (section, module) for section, name, module in _modules()}
        self.commands: MutableMapping[str, Any] = dict.fromkeys(self._modules)

    def get_params(self, ctx: Any) -> list[Any]:
        return _read_here(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if self.commands.get(cmd_name) is None and cmd_name in self._modules:
            self.commands[cmd_name] = _build(cmd_name, self._load(cmd_name))
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists the commands by section, each with the first sentence of its help."""
        room = formatter.width - 6 - max(map(len, self._modules))
        for section in _SECTIONS:
            names = [name for name, (found_in, _) in self._modules.items() if found_in == section]
            with formatter.section(section.capitalize()):
                formatter.write_dl([(name, _summary(self._load(name), room)) for name in names])

    def _load(self, name: str) -> typer.Typer | Callable[..., object]:
        section, module = self._modules[name]
        found: typer.Typer | Callable[..., object] = getattr(importlib.import_module(f"{_COMMANDS}.{section}.{module}"), module)
        return found


def command_group(name: str, what: str) -> typer.Typer:
    """Returns a command that is followed by another one, such as `topic` by `list`."""
    return typer.Typer(name=name, cls=CommandGroup, help=what, **_PLAIN)


def program(name: str, what: str) -> typer.Typer:
    """Returns the program with all commands."""
    return typer.Typer(name=name, cls=Program, help=what, **_PLAIN)


def _modules() -> Iterator[tuple[str, str, str]]:
    """Section, command and module of every command."""
    for section in _SECTIONS:
        package = importlib.import_module(f"{_COMMANDS}.{section}")
        for module in pkgutil.iter_modules(package.__path__):
            yield section, module.name.rstrip("_"), module.name


def _build(name: str, found: typer.Typer | Callable[..., object]) -> Any:
    if isinstance(found, typer.Typer):
        for each in found.registered_commands:
            assert each.callback is not None, "a command is a function"
            each.callback = offers_access(each.callback)
        return typer.main.get_group(found)
    found = offers_access(found)
    if hasattr(found, SETTINGS_OFFERED):
        add_options(found)
    alone = typer.Typer(**_PLAIN)
    alone.command(name, cls=PlainCommand)(found)
    return typer.main.get_command(alone)


def _summary(found: typer.Typer | Callable[..., object], room: int) -> str:
    text = found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)
    return typer.core.TyperCommand(None, help=str(text)).get_short_help_str(room)


def _no_type(ctx: object) -> None:
    return None
