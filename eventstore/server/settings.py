"""Settings of the server: command line, then environment (`EVENTSTORE_…`), then a TOML file, then these defaults."""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from eventstore.broker.settings import DAY_S, BrokerSettings
from eventstore.config import MIB, StoreSettings
from eventstore.errors import FolderRefused, InvalidArgument

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_PREFIX: Final = "EVENTSTORE_"


class ServerSettings(BaseSettings):
    """Everything `eventstore serve` can be told. Unknown names are refused, so that a typo does not pass for a setting."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True)

    data: Path = Path("./data")
    listen: str = "127.0.0.1:7701"
    http: str | None = None
    durability: Literal["sync", "async"] = "sync"
    file_size_bytes: int = 512 * MIB
    preallocate_bytes: int = 64 * MIB
    flush_interval_s: float = 0.1
    waiting_bytes_max: int = 64 * MIB
    cached_bytes_max: int = 256 * MIB
    preload_aggregates: int = 20_000
    preload_interval_s: float = 10.0
    page_bytes: int = 512 * 1024
    open_files_max: int = 512
    sort: bool = True

    domain: str | None = None
    mailboxes: int = Field(4, ge=1, le=4_096)
    mailbox_capacity: int = Field(16_384, ge=1, le=1_000_000)
    aggregates_max: int = Field(100_000, ge=1, le=100_000_000)
    reruns_max: int = Field(100, ge=1, le=1_000_000)

    publish: str | None = None
    broker: bool = True
    broker_durability: Literal["sync", "async"] = "sync"
    broker_chunk_size_bytes: int = 256 * MIB
    broker_preallocate_bytes: int = 64 * MIB
    broker_waiting_bytes_max: int = 64 * MIB
    broker_recent_messages_max: int = 10_000
    broker_recent_bytes_max: int = 64 * MIB
    broker_open_files_max: int = 256
    broker_create_topics: bool = False
    broker_default_queues: int = 4
    broker_member_timeout_s: float = 15.0
    broker_retry_delays_s: str = "1,10,60,300"
    broker_retained_chunks_max: int = 100
    broker_retained_age_s: float = 7 * DAY_S
    broker_retained_bytes_max: int = 0
    broker_retention: Literal["any", "all"] = "any"
    broker_ignore_unconsumed: bool = False

    connections_max: int = Field(1_000, ge=1, le=100_000)
    requests_max: int = Field(1_024, ge=1, le=65_536)
    hello_timeout_s: float = Field(10.0, gt=0)
    frame_timeout_s: float = Field(60.0, gt=0)
    idle_timeout_s: float = Field(600.0, gt=0)
    slow_client_timeout_s: float = Field(30.0, gt=0)
    incoming_bytes_max: int = Field(256 * MIB, ge=18 * MIB)
    unsent_bytes_max: int = Field(4 * MIB, ge=64 * 1024)
    outgoing_bytes_max: int = Field(256 * MIB, ge=18 * MIB)
    stop_timeout_s: float = Field(10.0, gt=0)
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def store(self) -> StoreSettings:
        """The part that the store takes.

        Raises:
            InvalidArgument
        """
        return StoreSettings(
            durability=self.durability,
            file_size_bytes=self.file_size_bytes,
            preallocate_bytes=self.preallocate_bytes,
            flush_interval_s=self.flush_interval_s,
            waiting_bytes_max=self.waiting_bytes_max,
            cached_bytes_max=self.cached_bytes_max,
            preload_aggregates=self.preload_aggregates,
            preload_interval_s=self.preload_interval_s,
            page_bytes=self.page_bytes,
            open_files_max=self.open_files_max,
            sort=self.sort,
        )

    def broker_settings(self) -> BrokerSettings:
        """The part that the broker takes.

        Raises:
            InvalidArgument
        """
        try:
            return BrokerSettings(
                durability=self.broker_durability,
                chunk_size_bytes=self.broker_chunk_size_bytes,
                preallocate_bytes=self.broker_preallocate_bytes,
                flush_interval_s=self.flush_interval_s,
                waiting_bytes_max=self.broker_waiting_bytes_max,
                recent_messages_max=self.broker_recent_messages_max,
                recent_bytes_max=self.broker_recent_bytes_max,
                open_files_max=self.broker_open_files_max,
                create_topics=self.broker_create_topics,
                default_queues=self.broker_default_queues,
                member_timeout_s=self.broker_member_timeout_s,
                retry_delays_s=_seconds(self.broker_retry_delays_s),
                retained_chunks_max=self.broker_retained_chunks_max or None,
                retained_age_s=self.broker_retained_age_s or None,
                retained_bytes_max=self.broker_retained_bytes_max or None,
                retention=self.broker_retention,
                ignore_unconsumed=self.broker_ignore_unconsumed,
            )
        except InvalidArgument as error:  # there the settings have no prefix
            name = f"broker_{error.fields['field']}"
            raise InvalidArgument(f"broker_{error.message}", **{**error.fields, "field": name}) from None


def _seconds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        name = "retry_delays_s"
        raise InvalidArgument(
            f"{name} is {text!r}, expected seconds with commas between them", field=name, value=text
        ) from None


def load_settings(toml: Path | None, **given: object) -> ServerSettings:
    """The settings out of all sources; what is None in `given` was not given.

    Raises:
        InvalidArgument: names the setting, its value and what is allowed; or the file, and the line that is no TOML.
    """
    if toml is not None and not toml.is_file():
        raise InvalidArgument(f"there is no settings file {toml}", field="config", value=str(toml))

    class Sourced(ServerSettings):
        model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="forbid", frozen=True, toml_file=toml)

    try:
        return Sourced(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type] # pydantic checks
    except ValidationError as error:
        raise _refused(error.errors()[0]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not TOML: {error}"
        message = f"the settings file {toml} cannot be read: {why}; correct it, or start without --config"
        raise InvalidArgument(message, field="config", value=str(toml)) from None


def misspelled_variables() -> dict[str, str]:
    """Variables of the environment that look as if they were meant for a setting, and the name of that one. Only what is close
    is: others may begin with the same word and be meant for somebody else.
    """
    names = [name.upper() for name in (*ServerSettings.model_fields, "store")]
    given = {name.removeprefix(_PREFIX) for name in map(str.upper, os.environ) if name.startswith(_PREFIX)}
    close = {name: difflib.get_close_matches(name, names, 1, _CLOSE) for name in sorted(given.difference(names))}
    return {_PREFIX + name: _PREFIX + found[0] for name, found in close.items() if found}


_CLOSE: Final = 0.8  # EVENTSTORE_PORT, which Kubernetes sets for a service called eventstore, is not to pass for SORT
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


def _refused(error: ErrorDetails) -> InvalidArgument:
    """What pydantic found, in words for whoever wrote the setting."""
    name = ".".join(map(str, error["loc"]))
    given = error["input"]
    value = repr(given) if isinstance(given, str) else str(given)
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, ServerSettings.model_fields, 1)
        hint = f"did you mean {close[0]}?" if close else "`eventstore serve --help` and docs/OPERATIONS.md list them"
        return InvalidArgument(f"there is no setting {name}; {hint}", field=name, value=value)
    if error["type"] == "literal_error":
        wrong = f"allowed are {error['ctx']['expected']}"
    elif error["type"] in _EXPECTED:
        wrong = f"expected {_EXPECTED[error['type']]}"
    else:
        wrong = error["msg"].replace("Input should be", "it must be")
    return InvalidArgument(f"{name} is {value}, {wrong}", field=name, value=value)


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Host and port of `host:port`.

    Raises:
        InvalidArgument
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgument(f"{field} is {text!r}, expected HOST:PORT such as 127.0.0.1:7701", field=field, value=text)
    return host, int(port)


def cannot_listen(address: str, error: OSError) -> FolderRefused:
    """The error about an address that is taken, or not ours."""
    return FolderRefused(
        address, f"cannot listen there ({error.strerror or error}); choose another address, or stop who listens there"
    )
