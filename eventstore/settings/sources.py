"""Reads the settings of a server: from the command line, then the environment (`EVENTSTORE_…`), then a TOML file.

Pydantic reads environment and file, and makes values of the right type; ranges are checked against the declarations, as for all
settings. Unknown names are refused, so that a typo does not pass for a setting.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from eventstore.errors import InvalidArgument
from eventstore.settings.server import ServerSettings
from eventstore.settings.setting_declaration import ENVIRONMENT_PREFIX, DeclaredSetting, declared_settings, settings_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Origin = Literal["default", "file", "environment", "command line"]

_CLOSE: Final = 0.8  # EVENTSTORE_PORT, which Kubernetes sets for a service called eventstore, must not pass for SORT
_EXPECTED: Final = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
}


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
    declared, model = declared_settings(ServerSettings), _model()
    sources: dict[Origin, dict[str, Any]] = {
        "file": _in_file(model, toml),
        "environment": EnvSettingsSource(model)(),
        "command line": {name: value for name, value in given.items() if value is not None},
    }
    merged = {name: value for source in sources.values() for name, value in source.items()}
    try:
        values = model.model_validate(merged).model_dump()
    except ValidationError as error:
        raise _refused(error.errors()[0]) from None
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


@cache
def _model() -> type[BaseSettings]:
    """Returns the model by which pydantic reads written values: types and choices, no ranges."""
    model: type[BaseSettings] = create_model(
        "WrittenSettings",
        __base__=_Written,
        **{name: (_written_type(each), each.written(each.default)) for name, each in declared_settings(ServerSettings).items()},
    )  # type: ignore[call-overload] # fields by name, which its overloads do not know
    return model


class _Written(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=ENVIRONMENT_PREFIX, extra="forbid")


def _written_type(declared: DeclaredSetting) -> Any:
    if declared.choices:
        return Literal[declared.choices]
    if declared.listed:
        return str
    return declared.kind | None if declared.optional and declared.kind is str else declared.kind


def _in_file(model: type[BaseSettings], toml: Path | None) -> dict[str, Any]:
    try:
        return {} if toml is None else TomlConfigSettingsSource(model, toml)()
    except (ValueError, OSError) as error:  # not TOML, not UTF-8, or a number of more than 4,300 digits
        why = error.strerror if isinstance(error, OSError) else f"it is not TOML: {error}"
        message = f"the settings file {toml} cannot be read: {why}; correct it, or start without --config"
        raise InvalidArgument(message, field="config", value=str(toml)) from None


def _refused(error: ErrorDetails) -> InvalidArgument:
    """Rewords an error of pydantic for an operator."""
    name = ".".join(map(str, error["loc"]))
    given = error["input"]
    value = repr(given) if isinstance(given, str) else str(given)
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, declared_settings(ServerSettings), 1)
        hint = f"did you mean {close[0]}?" if close else "`eventstore serve --help` and docs/REFERENCE.md list them"
        return InvalidArgument(f"there is no setting {name}; {hint}", field=name, value=value)
    if error["type"] == "literal_error":
        wrong = f"allowed are {error['ctx']['expected']}"
    elif error["type"] in _EXPECTED:
        wrong = f"expected {_EXPECTED[error['type']]}"
    else:
        wrong = error["msg"].replace("Input should be", "it must be")
    return InvalidArgument(f"{name} is {value}, {wrong}", field=name, value=value)
