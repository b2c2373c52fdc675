"""Reads the settings of a server: from the command line, then the environment (`EVENTSTORE_…`), then a TOML file.

Types and ranges are checked against the declarations, as for all settings. Unknown names are refused, so that a typo does not
pass for a setting.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from eventstore.errors import InvalidArgument
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import ENVIRONMENT_PREFIX, DeclaredSetting, declared_settings, settings_of
from eventstore.settings.written_values import read_written

Origin = Literal["default", "file", "environment", "command line"]

_CLOSE: Final = 0.8  # EVENTSTORE_PORT, which Kubernetes sets for a service called eventstore, must not pass for SORT


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings from all sources, with each value as an operator writes it, and the source of each, by name."""

    settings: ServerSettings
    values: dict[str, object]
    origins: dict[str, Origin]


def load_settings(toml: Path | None, **given: object) -> ServerSettings:
    """Returns the settings from all sources; None in `given` counts as not given.

    Raises:
        InvalidArgument: names the setting, its value and the allowed values; or the file and the line that is not TOML.
    """
    return load_with_origins(toml, **given).settings


def load_with_origins(toml: Path | None, **given: object) -> LoadedSettings:
    """Returns the same as `load_settings`, with the source of every value.

    Raises:
        InvalidArgument: names the setting, its value and the allowed values; or the file and the line that is not TOML.
    """
    if toml is not None and not toml.is_file():
        raise InvalidArgument(f"there is no settings file {toml}", field="config", value=str(toml))
    declared = declared_settings(ServerSettings)
    sources: dict[Origin, Mapping[str, object]] = {
        "file": _in_file(toml),
        "environment": _in_environment(declared),
        "command line": {name: value for name, value in given.items() if value is not None},
    }
    merged = {name: value for source in sources.values() for name, value in source.items()}
    values = {name: _typed(each, merged.get(name, each.written(each.default))) for name, each in declared.items()}
    for name in merged:
        if name not in declared:
            raise _unknown(name, merged[name])
    origins: dict[str, Origin] = {
        name: next((origin for origin in reversed(sources) if name in sources[origin]), "default") for name in declared
    }
    settings = settings_of(ServerSettings, {name: each.read(values[name]) for name, each in declared.items()})
    return LoadedSettings(settings, values, origins)


def misspelled_variables() -> dict[str, str]:
    """Returns environment variables that look like a misspelled setting, each with the variable that is probably meant.

    Only names that are close: other programs may use the same prefix for their variables.
    """
    names = [name.upper() for name in (*declared_settings(ServerSettings), "store")]
    given = {
        name.removeprefix(ENVIRONMENT_PREFIX) for name in map(str.upper, os.environ) if name.startswith(ENVIRONMENT_PREFIX)
    }
    close = {name: difflib.get_close_matches(name, names, 1, _CLOSE) for name in sorted(given.difference(names))}
    return {ENVIRONMENT_PREFIX + name: ENVIRONMENT_PREFIX + found[0] for name, found in close.items() if found}


def _typed(declared: DeclaredSetting, written: object) -> object:
    """Returns a written value in the type of its setting. Raises InvalidArgument: it is of another one."""
    if written is None and declared.default is None:
        return None
    kind = str if declared.listed else declared.kind
    try:
        return read_written(kind, written)
    except ValueError as expected:
        raise InvalidArgument(
            f"{declared.name} is {_shown(written)}, expected {expected}", field=declared.name, value=_shown(written)
        ) from None


def _in_environment(declared: Mapping[str, DeclaredSetting]) -> dict[str, object]:
    variables = {name.upper(): value for name, value in os.environ.items()}
    return {name: variables[each.variable] for name, each in declared.items() if each.variable in variables}


def _in_file(toml: Path | None) -> dict[str, object]:
    if toml is None:
        return {}
    import tomllib  # here: most servers have no file

    try:
        return tomllib.loads(toml.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:  # not TOML, not UTF-8, or a number of more than 4,300 digits
        why = error.strerror if isinstance(error, OSError) else f"it is not TOML: {error}"
        message = f"the settings file {toml} cannot be read: {why}; correct it, or start without --config"
        raise InvalidArgument(message, field="config", value=str(toml)) from None


def _unknown(name: str, written: object) -> InvalidArgument:
    close = difflib.get_close_matches(name, declared_settings(ServerSettings), 1)
    hint = f"did you mean {close[0]}?" if close else "`eventstore serve --help` and docs/REFERENCE.md list them"
    return InvalidArgument(f"there is no setting {name}; {hint}", field=name, value=_shown(written))


def _shown(written: object) -> str:
    return repr(written) if isinstance(written, str) else str(written)
