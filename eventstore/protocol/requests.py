"""The requests to the event store and those that every server answers, each declared once with its code, values and checks.

A request that exists is within its limits, on either side: constructing one raises `InvalidArgument` with field, limit
and value. The exceptions are `Append` and `Send`, of which there are a hundred thousand a second: only their form is
checked, when they are decoded. The store checks ids, expected version and events commit by commit, and a command is checked
by its handler with `check_command`, so that a bad one refuses only itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

from eventstore.aggregate_info import AGGREGATES_PER_PAGE_MAX, AggregateInfo
from eventstore.command_metadata import check_metadata
from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.flat import Scalar
from eventstore.model import ID_BYTES_MAX, TIME_MAX, TIME_MIN, TYPE_BYTES_MAX, VERSION_MAX, WRITES_MAX
from eventstore.protocol import limits
from eventstore.protocol.across import rows_of_each
from eventstore.protocol.answer_form import Form
from eventstore.protocol.answers import Outcomes, Page
from eventstore.protocol.handshake import Welcome, map_values, read_map, read_welcome
from eventstore.protocol.limits import INT64_MAX, INT64_MIN, UINT64_MAX
from eventstore.protocol.reader_start import check_reader_start, check_stored_start
from eventstore.protocol.request_declaration import (
    Answered,
    Count,
    Flag,
    Name,
    Request,
    Rows,
    UncheckedRows,
    integer,
    optional,
    request,
    text,
)
from eventstore.protocol.server_info import ClientInfo
from eventstore.query import Query
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.event_filter import EventFilter
from eventstore.records.raw_commit import RawCommit
from eventstore.security.permissions import ANYONE, Permission, on, on_each, on_filtered, on_rows, on_writes

WireCommand: TypeAlias = "tuple[str, str, str, bytes, bytes | None]"
"""Type, aggregate id, command id, payload, metadata."""


def _type(event_type: object) -> None:
    check_text("types", event_type)


def _command_id(command_id: object) -> None:
    check_text("command_ids", command_id)


def _check_query(_: str, packed: object) -> None:
    if not isinstance(packed, bytes):
        raise InvalidArgument(f"query is bin, not {shown(packed)}", field="query")
    Query.unpacked(packed)


def _layout(layout: object) -> None:
    _check_layout("layout", layout)


CLIENT_ROWS_MAX: Final = 1_000
_check_layout: Final = integer(0, INT64_MAX)
_EventsMax: TypeAlias = Annotated[int | None, optional(integer(0, VERSION_MAX))]
_PageBytes: TypeAlias = Annotated[int, integer(1, limits.PAGE_BYTES_MAX)]
_Prefix: TypeAlias = Annotated[str | None, optional(text(0, ID_BYTES_MAX))]
_OptionalName: TypeAlias = Annotated[str | None, optional(check_text)]
_Layouts: TypeAlias = Annotated[tuple[int, ...], Rows(_layout, 1, low=0)]
_Place: TypeAlias = Annotated[int | str | None, check_stored_start]
_Start: TypeAlias = Annotated[int | str | None, check_reader_start]
_Time: TypeAlias = Annotated[int | None, optional(integer(INT64_MIN, INT64_MAX))]
_Credit: TypeAlias = Annotated[int, integer(0, limits.CREDIT_BYTES_MAX)]
_RequestId: TypeAlias = Annotated[int, integer(1, UINT64_MAX)]
_COMMITS: Final = UncheckedRows(
    "aggregate_id", "expected_version", "command_id", "timestamp", "events", high=limits.COMMITS_PER_FRAME_MAX
)
_COMMANDS: Final = UncheckedRows(
    "type", "aggregate_id", "command_id", "payload", "metadata", high=limits.COMMANDS_PER_FRAME_MAX
)
_PackedQuery: TypeAlias = Annotated[bytes, _check_query]
_Types: TypeAlias = Annotated[tuple[str, ...], Rows(_type, limits.TYPES_MAX, low=0)]


@request(1, needs=ANYONE, form=Form(Welcome.values, read_welcome))
class Hello(Answered[Welcome]):
    """The first frame of a connection. The codec adds and checks the magic that comes before these values.

    `in_parts`: a SEND or APPEND may be answered in parts. `durability`: answers that name commits say how durable these are.
    `token`: says who the client is. `places`: pages of the log say the identity of the event that they end at. Older clients do
    not send them.
    """

    version: Annotated[int, integer(INT64_MIN, UINT64_MAX)]
    client: Annotated[str, text(0, limits.NAME_BYTES_MAX)]
    in_parts: bool = False
    durability: bool = False
    token: Annotated[str | None, optional(text(0, limits.TOKEN_BYTES_MAX))] = None
    places: bool = False

    def __repr__(self) -> str:
        """Does not show the token."""
        return f"Hello({self.version}, {self.client!r}, {self.in_parts}, {self.durability}, places={self.places})"


@request(2, needs=on_rows(Permission.APPEND), frozen=False)
class Append(Answered[Outcomes]):
    """Appends these commits, each whole or not at all, in this order."""

    commits: Annotated[Sequence[RawCommit], _COMMITS]


class WrittenPlace(NamedTuple):
    """Where the last event is that an aggregate got."""

    version: int
    sequence: int


class CommittedJointly(NamedTuple):
    """A commit of several aggregates: `places` has one for each that was written, in the order of the request."""

    duplicate: bool
    durability: int
    places: tuple[WrittenPlace, ...]


def _aggregate(aggregate_id: object, expected_version: object, events: object) -> None:
    check_text("aggregate_id", aggregate_id)
    if expected_version is not None and expected_version is not True:
        check_int("expected_version", expected_version, 0, VERSION_MAX)
    if events is not None and not isinstance(events, bytes):
        raise InvalidArgument(f"the events of an aggregate are bin or nil, not {shown(events)}", field="events")


@request(90, needs=on_writes())
class CommitJointly(Answered[CommittedJointly]):
    """Appends the events of one command to several aggregates, to all of them or to none. `aggregates`: the id of each, the
    version that it must have (nil: any, true: it exists), and its events; nil: it is not written.
    """

    command_id: Name
    timestamp: Annotated[int | None, optional(integer(TIME_MIN, TIME_MAX))]
    aggregates: Annotated[tuple[tuple[str, int | bool | None, bytes | None], ...], Rows(_aggregate, 2 * WRITES_MAX)]


@request(94, needs=on_writes(reads=True))
class CommitUnless(Answered[CommittedJointly]):
    """As `CommitJointly`, unless an event after a place (as in `ReadAll`) passes the query, of the aggregates in the slot of
    `scope`.
    """

    command_id: Name
    timestamp: Annotated[int | None, optional(integer(TIME_MIN, TIME_MAX))]
    query: _PackedQuery
    after: _Place
    scope: Name
    aggregates: Annotated[tuple[tuple[str, int | bool | None, bytes | None], ...], Rows(_aggregate, 2 * WRITES_MAX)]


@request(3, needs=on(Permission.READ, "aggregate_id"))
class Read(Answered[Page]):
    """Asks for a page of one aggregate's events, both versions inclusive (None: the last); `backwards` from the last on."""

    aggregate_id: Name
    from_version: Annotated[int, integer(1, VERSION_MAX)] = 1
    to_version: _EventsMax = None
    backwards: Flag = False
    events_max: _EventsMax = None
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT


def _aggregate_from(aggregate_id: object, from_version: object) -> None:
    check_text("aggregate_id", aggregate_id)
    check_int("from_version", from_version, 1, VERSION_MAX)


@request(95, needs=on_each(Permission.READ, "aggregates"))
class ReadMany(Answered[Page]):
    """Asks for a page of the events of several aggregates, each from a version on, up to a place in the log; None: its end. The
    page says where that is: where a commit ends.
    """

    at: _Start
    bytes_max: _PageBytes
    aggregates: Annotated[tuple[tuple[str, int], ...], Rows(_aggregate_from, limits.AGGREGATES_READ_MAX)]


@request(4, needs=on_filtered(Permission.READ))
class ReadAll(Answered[Page]):
    """Asks for a page of the events after a place (`ReaderStart.wire`); times in microseconds, both inclusive; no types: every
    type.
    """

    after: _Place = 0
    events_max: _EventsMax = None
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT
    aggregate_prefix: _Prefix = None
    aggregate_id: _OptionalName = None
    from_time: _Time = None
    to_time: _Time = None
    types: _Types = ()


@request(78, needs=on_filtered(Permission.READ))
class ReadAllBackwards(Answered[Page]):
    """Asks for a page of the newest events before a place (2^63-1: the end); the rest as in `ReadAll`."""

    before: _Place = VERSION_MAX
    events_max: _EventsMax = None
    bytes_max: _PageBytes = limits.PAGE_BYTES_DEFAULT
    aggregate_prefix: _Prefix = None
    aggregate_id: _OptionalName = None
    from_time: _Time = None
    to_time: _Time = None
    types: _Types = ()


@request(5, needs=on(Permission.READ, "aggregate_id"))
class Version(Answered[int]):
    """Asks for the version of an aggregate."""

    aggregate_id: Name


class FoundCommand(NamedTuple):
    """The last event of a command's commit."""

    version: int
    sequence: int


class FoundDurable(NamedTuple):
    """As `FoundCommand`, for a client that asked HELLO for `durability` (see `Committed`)."""

    version: int
    sequence: int
    durability: int | None


@request(6, needs=on(Permission.READ, "aggregate_id"))
class FindCommand(Answered[FoundCommand | FoundDurable | None]):
    """Asks for the outcome of a command."""

    aggregate_id: Name
    command_id: Name


class FoundCommit(NamedTuple):
    """The commit of a command: which of those asked for (from 0), its last event, and the fingerprint of the command."""

    place: int
    version: int
    sequence: int
    fingerprint: Annotated[bytes, "six bytes, all 0 if the commit has none"]


@request(88, needs=on(Permission.READ, "aggregate_id"))
class FindCommands(Answered[list[FoundCommit]]):
    """Asks which of some commands an aggregate has, as a worker does before it handles what may be repeated."""

    aggregate_id: Name
    command_ids: Annotated[tuple[str, ...], Rows(_command_id, limits.COMMANDS_FOUND_MAX)]


@request(7, needs=on_filtered(Permission.SUBSCRIBE))
class Subscribe(Answered[Page]):
    """Asks for all events after `after` (as in `ReadAll`, or the last event), then for new ones, as far as the credit (bytes)
    lasts; the rest as in `ReadAll`.
    """

    after: _Start = 0
    credit: _Credit = limits.CREDIT_BYTES_DEFAULT
    aggregate_prefix: _Prefix = None
    aggregate_id: _OptionalName = None
    from_time: _Time = None
    to_time: _Time = None
    types: _Types = ()


@request(91, needs=on_filtered(Permission.READ))
class ReadMatching(Answered[Page]):
    """As `ReadAll`, for the events that pass a query, `Query.packed`."""

    after: _Place
    events_max: _EventsMax
    bytes_max: _PageBytes
    aggregate_prefix: _Prefix
    aggregate_id: _OptionalName
    from_time: _Time
    to_time: _Time
    query: _PackedQuery


@request(92, needs=on_filtered(Permission.READ))
class ReadMatchingBackwards(Answered[Page]):
    """As `ReadAllBackwards`, for the events that pass a query."""

    before: _Place
    events_max: _EventsMax
    bytes_max: _PageBytes
    aggregate_prefix: _Prefix
    aggregate_id: _OptionalName
    from_time: _Time
    to_time: _Time
    query: _PackedQuery


@request(93, needs=on_filtered(Permission.SUBSCRIBE))
class SubscribeMatching(Answered[Page]):
    """As `Subscribe`, to the events that pass a query."""

    after: _Start
    credit: _Credit
    aggregate_prefix: _Prefix
    aggregate_id: _OptionalName
    from_time: _Time
    to_time: _Time
    query: _PackedQuery


AnyRead: TypeAlias = ReadAll | ReadMatching
AnyReadBackwards: TypeAlias = ReadAllBackwards | ReadMatchingBackwards
AnySubscribe: TypeAlias = Subscribe | SubscribeMatching


def filter_of(request: AnyRead | AnyReadBackwards | AnySubscribe) -> EventFilter:
    """Returns the filter that a request asks for."""
    rest = request.aggregate_prefix, request.from_time, request.to_time, request.aggregate_id
    if isinstance(request, ReadAll | ReadAllBackwards | Subscribe):
        return EventFilter(frozenset(request.types) or None, *rest)
    return EventFilter(None, *rest, Query.unpacked(request.query))


def read_request(
    start: int | str | None, events_max: int | None, wanted: EventFilter, *, backwards: bool
) -> AnyRead | AnyReadBackwards:
    """Returns the request for a page of the events after `start`, or before it."""
    page = (start, events_max, limits.PAGE_BYTES_DEFAULT, *_filter_values(wanted))
    if wanted.query is not None:
        return (ReadMatchingBackwards if backwards else ReadMatching)(*page, wanted.query.packed())
    return (ReadAllBackwards if backwards else ReadAll)(*page, tuple(sorted(wanted.types or ())))


def subscribe_request(start: int | str | None, credit: int, wanted: EventFilter) -> AnySubscribe:
    """Returns the request for a subscription that begins after `start`."""
    values = (start, credit, *_filter_values(wanted))
    if wanted.query is not None:
        return SubscribeMatching(*values, wanted.query.packed())
    return Subscribe(*values, tuple(sorted(wanted.types or ())))


def _filter_values(wanted: EventFilter) -> tuple[str | None, str | None, int | None, int | None]:
    return wanted.aggregate_prefix, wanted.aggregate_id, wanted.from_time, wanted.to_time


@request(8, needs=ANYONE)
class Credit(Request):
    """Adds this many bytes to the credit of a subscription. Has request id 0 and no answer."""

    subscription: _RequestId
    credit: _Credit


@request(9, needs=ANYONE)
class Unsubscribe(Answered[None]):
    """Ends a subscription, or a request that waits."""

    subscription: _RequestId


@request(10, needs=on(Permission.STATS))
class Stats(Answered[dict[str, Scalar]]):
    """Asks for the server's counters."""


@request(11, needs=ANYONE)
class Ping(Answered[None]):
    """Asks whether the server still answers."""


@request(12, needs=on_rows(Permission.COMMAND), frozen=False)
class Send(Answered[Outcomes]):
    """Has these commands handled by the domain, those of one aggregate in this order."""

    commands: Annotated[Sequence[WireCommand], _COMMANDS]


@request(39, needs=on(Permission.READ, "prefix"))
class ListAggregates(Answered[list[AggregateInfo]]):
    """Asks for the ids that begin with `prefix` and come after the id `after`, in order, with their versions. `layouts`: that
    of the shard's slots, if it took part in a split.
    """

    prefix: _Prefix = None
    after: _Prefix = None
    limit: Annotated[int, integer(1, AGGREGATES_PER_PAGE_MAX)] = AGGREGATES_PER_PAGE_MAX
    layouts: _Layouts = ()


@request(71, needs=on(Permission.STATS), across=rows_of_each())
class ListClients(Answered[list[ClientInfo]]):
    """Asks for up to `limit` of those who are connected, after the first `skip` of them."""

    skip: Count = 0
    limit: Annotated[int, integer(1, CLIENT_ROWS_MAX)] = CLIENT_ROWS_MAX


@request(70, needs=ANYONE, form=Form(map_values, read_map))
class Map(Answered[ClusterMap]):
    """Asks for the map of the cluster once it is newer than version `after`; with 0 at once."""

    after: Count = 0


def check_command(command: WireCommand) -> None:
    """Raises InvalidArgument if a limit is broken."""
    name, aggregate_id, command_id, payload, metadata = command
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
    if metadata is not None:
        check_metadata(metadata)
