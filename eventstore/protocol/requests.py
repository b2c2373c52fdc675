"""Requests: what a client may ask, as frozen values that check themselves. Those to the broker are in `broker_requests`.

A request that exists is within its limits, on either side: constructing one raises `InvalidArgument` with field, limit
and value. The exceptions are `Append` and `Send`, of which there are a hundred thousand a second: only their shape is
checked when they are decoded. Ids, expected version and events are checked by the store, commit by commit, and a command by
whoever handles it, with `check_command`, so that a bad one refuses only itself.

The fields of a class, in this order, are its values on the wire (`types` is spread out as the last ones: rows of one value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from eventstore.errors import InvalidArgument
from eventstore.fields import check_flag, check_int, check_optional_int, check_text
from eventstore.flat import Scalar
from eventstore.model import TYPE_BYTES_MAX, VERSION_MAX
from eventstore.protocol import limits
from eventstore.protocol.broker_requests import BrokerRequest

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

WireExpected: TypeAlias = "int | bool | str | None"
"""None: any version; True: the aggregate exists; an int: exactly this version; a str "VERSION/COMMAND": exactly this
version, and its latest commit is that of this command, which was appended a moment ago."""
WireCommit: TypeAlias = "tuple[str, WireExpected, str, int | None, bytes]"
"""Aggregate id, expected version, command id, timestamp, events as flat msgpack."""


WireCommand: TypeAlias = "tuple[str, str, str, bytes]"
"""Type, aggregate id, command id, payload."""


class Append(NamedTuple):
    """Append these commits, each whole or not at all, in this order."""

    commits: Sequence[WireCommit]


class Send(NamedTuple):
    """Have these commands handled by the domain, those of one aggregate in this order."""

    commands: Sequence[WireCommand]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection. The magic is checked when decoding, and not part of the value."""

    version: int
    client: str

    def __post_init__(self) -> None:
        check_int("version", self.version, INT64_MIN, UINT64_MAX)
        check_text("client", self.client, 0, limits.NAME_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Read:
    """A page of one aggregate's events, both versions inclusive (None: the last); from the end on if `backwards`."""

    aggregate_id: str
    from_version: int = 1
    to_version: int | None = None
    backwards: bool = False
    events_max: int | None = None
    bytes_max: int = limits.PAGE_BYTES_DEFAULT

    def __post_init__(self) -> None:
        check_text("aggregate_id", self.aggregate_id)
        check_int("from_version", self.from_version, 1, VERSION_MAX)
        check_optional_int("to_version", self.to_version, 0, VERSION_MAX)
        check_flag("backwards", self.backwards)
        check_optional_int("events_max", self.events_max, 0, VERSION_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class ReadAll:
    """A page of the log behind sequence `after`; times in microseconds, both inclusive; no types: every type."""

    after: int = 0
    events_max: int | None = None
    bytes_max: int = limits.PAGE_BYTES_DEFAULT
    aggregate_prefix: str | None = None
    from_time: int | None = None
    to_time: int | None = None
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_int("after", self.after, 0, INT64_MAX)
        check_optional_int("events_max", self.events_max, 0, VERSION_MAX)
        check_int("bytes_max", self.bytes_max, 1, limits.PAGE_BYTES_MAX)
        _check_prefix(self.aggregate_prefix)
        check_optional_int("from_time", self.from_time, INT64_MIN, INT64_MAX)
        check_optional_int("to_time", self.to_time, INT64_MIN, INT64_MAX)
        _check_types(self.types)


@dataclass(frozen=True, slots=True)
class Version:
    """The version an aggregate is at."""

    aggregate_id: str

    def __post_init__(self) -> None:
        check_text("aggregate_id", self.aggregate_id)


@dataclass(frozen=True, slots=True)
class FindCommand:
    """What became of a command."""

    aggregate_id: str
    command_id: str

    def __post_init__(self) -> None:
        check_text("aggregate_id", self.aggregate_id)
        check_text("command_id", self.command_id)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Everything behind sequence `after`, and then what is appended, as long as there is credit (bytes)."""

    after: int = 0
    credit: int = limits.CREDIT_BYTES_DEFAULT
    aggregate_prefix: str | None = None
    types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_int("after", self.after, 0, INT64_MAX)
        check_int("credit", self.credit, 0, limits.CREDIT_BYTES_MAX)
        _check_prefix(self.aggregate_prefix)
        _check_types(self.types)


@dataclass(frozen=True, slots=True)
class Credit:
    """So many bytes more may be sent for a subscription. Has request id 0 and no answer."""

    subscription: int
    credit: int

    def __post_init__(self) -> None:
        check_int("subscription", self.subscription, 1, UINT64_MAX)
        check_int("credit", self.credit, 0, limits.CREDIT_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription, or a pull that waits."""

    subscription: int

    def __post_init__(self) -> None:
        check_int("subscription", self.subscription, 1, UINT64_MAX)


@dataclass(frozen=True, slots=True)
class Stats:
    """The server's numbers."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""


Request: TypeAlias = (
    Append | Send | Hello | Read | ReadAll | Version | FindCommand | Subscribe | Credit | Unsubscribe | Stats | Ping
    | BrokerRequest
)  # fmt: skip


def check_command(command: WireCommand) -> None:
    """Raises InvalidArgument where a limit is broken."""
    name, aggregate_id, command_id, payload = command
    check_text("type", name, 1, TYPE_BYTES_MAX)
    check_text("aggregate_id", aggregate_id)
    check_text("command_id", command_id)
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise InvalidArgument(
            f"the command's payload has {len(payload)} bytes, the limit is {limits.PAYLOAD_BYTES_MAX}",
            field="payload",
            limit=limits.PAYLOAD_BYTES_MAX,
            value=len(payload),
        )


def _check_prefix(prefix: Scalar) -> None:
    if prefix is not None:
        check_text("aggregate_prefix", prefix, 0)


def _check_types(types: Sequence[Scalar]) -> None:
    if len(types) > limits.TYPES_MAX:
        raise InvalidArgument(
            f"{len(types)} event types, the limit is {limits.TYPES_MAX}",
            field="types",
            limit=limits.TYPES_MAX,
            value=len(types),
        )
    for name in types:
        check_text("types", name)
