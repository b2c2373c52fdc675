"""The settings of a server or worker: its own, and the settings of its store, broker and mailboxes."""

# No `from __future__ import annotations`: see `eventstore.settings.setting_declaration`.
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from eventstore.settings.alarms import AlarmSettings
from eventstore.settings.broker import BrokerSettings
from eventstore.settings.mailboxes import MAILBOX_PART
from eventstore.settings.security import SecuritySettings
from eventstore.settings.setting_declaration import (
    GIB,
    KIB,
    MIB,
    Setting,
    SettingsPart,
    check_fields,
    declared_settings,
    settings_of,
)
from eventstore.settings.store import StoreSettings
from eventstore_mailbox.core.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How `eventstore serve` and `eventstore work` work; `load_settings` makes one.

    Raises:
        InvalidArgument: a value is out of range; names the setting, the value and the range.
    """

    data: Annotated[Path, Setting("The data folder; created if it does not exist.", "Server", metavar="FOLDER")] = Path("data")
    listen: Annotated[
        str,
        Setting(
            "Where clients connect. Port 0 takes a free one, which is in the log.",
            "Server",
            unit="address",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:7701"
    http: Annotated[
        str | None,
        Setting("Where /metrics, /health, /console and /api are served.", "Server", unit="address", metavar="HOST:PORT"),
    ] = None
    console: Annotated[
        bool, Setting("Serve the [console](CONSOLE.md) there, if its libraries (the extra `console`) are installed.", "Server")
    ] = True
    http_api: Annotated[
        bool,
        Setting(
            "Serve the [HTTP API](HTTP.md) there: events for programs in other languages. It needs the extra `http`.", "Server"
        ),
    ] = False
    domain: Annotated[
        str | None,
        Setting(
            "The domain that handles commands, such as bank:app. It is looked for in the current folder first.",
            "Server",
            metavar="MODULE:NAME",
        ),
    ] = None
    publish: Annotated[
        str | None,
        Setting(
            "Send every event to this topic of the broker, as a message. See [BROKER](BROKER.md#events-as-messages).",
            "Server",
            metavar="TOPIC",
        ),
    ] = None

    keep_commands: Annotated[
        str | None,
        Setting(
            "Keep the commands that are sent, and what became of them, in this topic of the broker, without their personal "
            "fields, for [`eventstore replay`](CHANGING.md#what-if).",
            "Server",
            metavar="TOPIC",
        ),
    ] = None

    security: Annotated[SecuritySettings, SettingsPart()] = field(default_factory=SecuritySettings)

    store_settings: Annotated[StoreSettings, SettingsPart()] = field(default_factory=StoreSettings)

    subject_key_file: Annotated[
        str | None,
        Setting(
            "The master keys, under which the [keys of subjects](SECURITY.md#erasing-what-is-known-of-a-person) are encrypted: "
            "a line of 64 hexadecimal digits each, the newest first. Without it no events with a subject are stored.",
            "Server",
            metavar="FILE",
        ),
    ] = None

    broker: Annotated[
        bool, Setting("Serve topics and consumer groups. Without it the broker's folder is not opened.", "Broker")
    ] = True
    broker_settings: Annotated[BrokerSettings, SettingsPart("broker_")] = field(default_factory=BrokerSettings)

    mailbox_options: Annotated[Options, MAILBOX_PART] = field(default_factory=Options)
    snapshot_events: Annotated[
        int,
        Setting(
            "An aggregate gets a snapshot if restoring it would replay as many events; 0: there are no "
            "[snapshots](DOMAIN.md#snapshots).",
            "Mailboxes",
            0,
            unit="events",
        ),
    ] = 1_000
    snapshot_bytes_max: Annotated[
        int,
        Setting(
            "Space for snapshots, of which one takes at most a sixteenth; beyond it those that were not used for longest are "
            "removed.",
            "Mailboxes",
            MIB,
        ),
    ] = 256 * MIB

    connections_max: Annotated[
        int,
        Setting(
            "Open connections; more are turned away with `Overloaded`. "
            "Lowered at the start if the limit of open files is too low.",
            "Limits",
            1,
            100_000,
            unit="connections",
        ),
    ] = 1_000
    requests_max: Annotated[
        int,
        Setting(
            "Unanswered requests of one connection; at the limit the server stops reading from it.",
            "Limits",
            1,
            65_536,
            unit="requests",
        ),
    ] = 1_024
    waiting_commands_bytes_max: Annotated[
        int,
        Setting(
            "Requests of one connection whose commands wait for their handlers, or whose conditions are looked up in the log; "
            "at the limit the server stops reading from it. One request may exceed it.",
            "Limits",
            64 * KIB,
        ),
    ] = 32 * MIB
    incoming_bytes_max: Annotated[
        int,
        Setting(
            "Incomplete requests of all connections together. Above it, the connections whose requests began first are closed "
            "with `Overloaded`.",
            "Limits",
            18 * MIB,
        ),
    ] = 256 * MIB
    unsent_bytes_max: Annotated[
        int,
        Setting(
            "Answers that one connection has not taken; at the limit the server stops reading from it. One page may exceed it.",
            "Limits",
            64 * KIB,
        ),
    ] = 4 * MIB
    outgoing_bytes_max: Annotated[
        int,
        Setting(
            "Answers that all connections together have not taken, and pages being made. A quarter of it is for connections "
            "that hold none, in equal shares. Above the rest pages wait, and connections that took nothing for a second are "
            "closed, the longest first.",
            "Limits",
            18 * MIB,
        ),
    ] = 256 * MIB
    hello_timeout_s: Annotated[float, Setting("A connection that has not sent HELLO is closed.", "Timeouts", above=0)] = 10.0
    frame_timeout_s: Annotated[
        float,
        Setting(
            "A request that takes longer to arrive closes its connection. Time in which the server does not read from it does "
            "not count.",
            "Timeouts",
            above=0,
        ),
    ] = 60.0
    idle_timeout_s: Annotated[
        float, Setting("A connection without requests and subscriptions is closed.", "Timeouts", above=0)
    ] = 600.0
    slow_client_timeout_s: Annotated[
        float, Setting("A client that takes none of its answers for this time is disconnected.", "Timeouts", above=0)
    ] = 30.0
    stop_timeout_s: Annotated[
        float, Setting("How long a stop waits for clients to take their answers.", "Timeouts", above=0)
    ] = 10.0
    alarms: Annotated[AlarmSettings, SettingsPart("alarm_")] = field(default_factory=AlarmSettings)

    verify_rate: Annotated[
        int,
        Setting(
            "How many bytes a second of completed files are read and compared with their checksums; 0: none.",
            "Verification",
            0,
            4 * GIB,
            unit="bytes",
        ),
    ] = MIB
    log_format: Annotated[Literal["console", "json"], Setting("Lines for people, or one JSON object per line.", "Logs")] = (
        "console"
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Setting("The least important lines that are logged.", "Logs")
    ] = "info"

    def __post_init__(self) -> None:
        check_fields(self)


def server_settings(written: Mapping[str, object]) -> ServerSettings:
    """Returns the settings out of all values in the form in which an operator writes them, by their names at a server.

    Raises:
        InvalidArgument
    """
    values: dict[str, object] = {}
    for name, each in declared_settings(ServerSettings).items():
        value = written[name]
        values[name] = each.read(Path(str(value)) if each.kind is Path else value)
    return settings_of(ServerSettings, values)
