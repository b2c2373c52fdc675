"""The public values of the event store: events, commits, and the results of appends.

`NewEvent`, `Event`, `Commit` and `Committed` are tuples: building one takes 0.2 µs against 1.1 µs for a frozen dataclass, and
hundreds of thousands are built per second. The layout of `NewEvent` is that of an event on the wire and on disk.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from eventstore.errors import InvalidArgument, PayloadInvalid, SubjectErased
from eventstore.json_values import Json, bytes_of, parsed
from eventstore.stopped_clock import real_class
from eventstore.tags import SEALED, TAGGED, check_subject, checked_tags, enveloped, metadata_in, subject_in, tags_in

ID_BYTES_MAX: Final = 255
TYPE_BYTES_MAX: Final = 255
EVENT_BYTES_MAX: Final = 4 * 1024 * 1024
COMMIT_BYTES_MAX: Final = 16 * 1024 * 1024
COMMIT_EVENTS_MAX: Final = 100_000
WRITES_MAX: Final = 1_000  # aggregates of one commit
REPLAYED_MAX: Final = WRITES_MAX  # aggregates of one `replay_many`: all that one commit may write
REPLAYED_PER_PAGE_MAX: Final = 64  # of one page: each is looked up, and read where it lies, before others have their turn
FILTER_TYPES_MAX: Final = 256  # each costs a look-up per event
VERSION_MAX: Final = 2**63 - 1
TIME_MIN: Final = -62_135_596_800_000_000  # year 1, the first that a datetime can hold
TIME_MAX: Final = 253_402_300_799_999_999  # year 9999, the last

DATA_IS_JSON: Final = 1
METADATA_IS_JSON: Final = 2
STORED_FORMAT: Final = DATA_IS_JSON | METADATA_IS_JSON | TAGGED | SEALED
LEFT_SHIFT: Final = 8  # in memory only: above it, how many events of its joint commit follow the event

_EPOCH = real_class(datetime)(1970, 1, 1, tzinfo=UTC)


class Expected(enum.Enum):
    """Values an append may expect instead of an exact version."""

    ANY = "any"
    EXISTS = "exists"


ANY: Final = Expected.ANY
EXISTS: Final = Expected.EXISTS

ExpectedVersion: TypeAlias = int | Expected
Replicas: TypeAlias = Literal["all"]


class NewEvent(tuple[int, str, bytes, bytes | None]):
    """An event that is not stored yet: a type (1–255 bytes), data and metadata (bytes, or anything JSON can hold), and up to 32
    tags (each 1–255 bytes), by which events of several aggregates are found together.

    `subject`: the person whose data it has, such as "customer:c-17" (1–240 bytes). Its data are encrypted before they leave the
    client, by a key that the store keeps for this subject, until `erase` destroys it. Type, metadata, tags, and the subject's
    name are not.
    """

    __slots__ = ()

    def __new__(
        cls, type: str, data: object = b"", metadata: object = None, tags: Iterable[str] = (), *, subject: str | None = None
    ) -> NewEvent:
        format_ = 0
        if data.__class__ is not bytes:
            data, is_json = bytes_of("data", data)
            format_ = DATA_IS_JSON if is_json else 0
        if metadata is not None and metadata.__class__ is not bytes:
            metadata, is_json = bytes_of("metadata", metadata)
            format_ |= METADATA_IS_JSON if is_json else 0
        if tags != () and (named := checked_tags(tags)):
            metadata, format_ = enveloped(named, metadata), format_ | TAGGED
        event = tuple.__new__(cls, (format_, type, data, metadata))
        return event if subject is None else with_subject(event, subject)

    @property
    def type(self) -> str:
        return self[1]

    @property
    def data(self) -> bytes:
        return self[2]

    @property
    def metadata(self) -> bytes | None:
        return metadata_in(self[3]) if self[0] & TAGGED and self[3] else self[3]

    @property
    def tags(self) -> tuple[str, ...]:
        """In the order of their bytes."""
        return tags_in(self[3]) if self[0] & TAGGED and self[3] else ()

    @property
    def subject(self) -> str | None:
        """The person whose data it has; None: nobody's."""
        return subject_in(self[3]) if self[0] & SEALED and self[3] else None

    def __repr__(self) -> str:
        tagged = f", tags={self.tags!r}" if self[0] & TAGGED else ""
        if self[0] & SEALED:
            tagged += f", subject={self.subject!r}"
        return f"NewEvent(type={self.type!r}, data={self.data!r}, metadata={self.metadata!r}{tagged})"

    def __reduce__(self) -> tuple[Any, ...]:  # by its arguments, bytes that are JSON would become mere bytes
        return _restored_event, (self.__class__, tuple(self))


class UnsealedEvent(NewEvent):
    """An event with a subject, whose data are not encrypted yet. What encodes commits refuses it, since it is no `NewEvent`: so
    no way leads from here to a file or a connection but by a client that has encrypted it.
    """

    __slots__ = ()


def with_subject(event: NewEvent, subject: str) -> NewEvent:
    """Returns the event as one about this subject. Raises InvalidArgument."""
    envelope = enveloped(event.tags, event.metadata, check_subject(subject))
    return tuple.__new__(UnsealedEvent, (event[0] | TAGGED | SEALED, event[1], event[2], envelope))


def _restored_event(cls: type[NewEvent], values: tuple[int, str, bytes, bytes | None]) -> NewEvent:
    return tuple.__new__(cls, values)


class Event(tuple[str, int, str, bytes, bytes | None, str, int, int, int]):
    """A stored event. Two events are equal when every field is."""

    __slots__ = ()

    @property
    def aggregate_id(self) -> str:
        return self[0]

    @property
    def version(self) -> int:
        """Position within its aggregate, from 1."""
        return self[1]

    @property
    def type(self) -> str:
        return self[2]

    @property
    def data(self) -> bytes:
        return self[3]

    @property
    def metadata(self) -> bytes | None:
        return metadata_in(self[4]) if self[8] & TAGGED and self[4] else self[4]

    @property
    def tags(self) -> tuple[str, ...]:
        """What it is about beside its aggregate, in the order of their bytes."""
        return tags_in(self[4]) if self[8] & TAGGED and self[4] else ()

    @property
    def subject(self) -> str | None:
        """The person whose data it has; None: nobody's."""
        return subject_in(self[4]) if self[8] & SEALED and self[4] else None

    @property
    def erased(self) -> bool:
        """Whether its subject was erased: `data` is empty then, for good."""
        return False

    @property
    def encrypted(self) -> bool:
        """Whether `data` is still encrypted: the reader has no key, may not have it, or lacks the extra `personal`."""
        return bool(self[8] & SEALED)

    @property
    def command_id(self) -> str:
        return self[5]

    @property
    def timestamp(self) -> int:
        """Microseconds since 1970-01-01 UTC."""
        return self[6]

    @property
    def sequence(self) -> int:
        """Position within the shard's log, from 1."""
        return self[7]

    @property
    def is_json(self) -> bool:
        """Whether `data` was given as an object and stored as JSON, and is neither encrypted nor erased."""
        return self[8] & (DATA_IS_JSON | SEALED) == DATA_IS_JSON

    @property
    def commit_continues(self) -> bool:
        """Whether events of other aggregates of its commit follow in the log. Who keeps what was made of events keeps it at one
        for which this is False.
        """
        return bool(self[8] >> LEFT_SHIFT)

    @property
    def time(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self[6])

    def json(self) -> Json:
        """`data` parsed as JSON.

        Raises:
            PayloadInvalid: it is empty, or not JSON.
            SubjectErased: it was about a person who was erased.
        """
        try:
            return parsed(self.data)
        except (ValueError, RecursionError) as error:
            if self.erased:
                raise SubjectErased(self.subject or "") from None
            raise self._not_json("data", self.data, error) from None

    def metadata_json(self) -> Json:
        """`metadata` parsed as JSON; None if there is none. Raises the same errors as `json`."""
        metadata = self.metadata
        if metadata is None:
            return None
        try:
            return parsed(metadata)
        except (ValueError, RecursionError) as error:
            raise self._not_json("metadata", metadata, error) from None

    @property
    def correlation_id(self) -> str:
        """What began the chain of commands and events that this one is part of: `correlation_id` of its JSON metadata, or the
        id of its command, which then began it."""
        return self._text_of_metadata("correlation_id") or self[5]

    @property
    def causation_id(self) -> str:
        """What caused it: `causation_id` of its JSON metadata ("ID/VERSION" of the event, if a reaction sent its command), or
        the id of its command."""
        return self._text_of_metadata("causation_id") or self[5]

    def _text_of_metadata(self, name: str) -> str | None:
        if self[4] is None or not self[8] & METADATA_IS_JSON:
            return None
        try:
            found = parsed(self.metadata or b"")
            value = found.get(name) if isinstance(found, dict) else None
            return value if isinstance(value, str) and len(value.encode()) <= ID_BYTES_MAX else None
        except (ValueError, RecursionError):  # the client flagged it as JSON, and neither that nor the text is checked
            return None

    def _not_json(self, field: str, given: bytes, error: Exception) -> PayloadInvalid:
        found = f"{given!r:.80} and not JSON ({error})" if given else "empty"
        hint = "; ask `is_json` first" if field == "data" else ""
        if field == "data" and self.encrypted:
            found, hint = f"encrypted by the key of {self.subject!r}, which this reader does not have", ", encrypted"
        return PayloadInvalid(
            f"event {self.type!r}, version {self.version} of aggregate {self.aggregate_id!r}: its {field} is {found}; "
            f"`{field}` has the raw bytes{hint}",
            type=self.type,
            field=field,
            aggregate_id=self.aggregate_id,
            version=self.version,
        )

    def __repr__(self) -> str:
        tagged = f", tags={self.tags!r}" if self[8] & TAGGED else ""
        if self[8] & SEALED:
            tagged += f", subject={self.subject!r}" + (", erased" if self.erased else "")
        return (
            f"Event({self.aggregate_id!r} v{self.version} #{self.sequence} {self.type!r}, data={self.data!r}, "
            f"metadata={self.metadata!r}{tagged}, command_id={self.command_id!r}, time={self.time.isoformat()})"
        )


class PersonalEvent(Event):
    """An event with a subject. As a tuple it has what is stored, so its identity is that of the stored bytes, whoever reads it;
    `data` is what a client has decrypted.

    Attributes:
        place: among the events of its commit on this aggregate, from 0.
        opened: the data; None: not decrypted.
        forgotten: the subject was erased.
    """

    place = 0
    opened: bytes | None = None
    forgotten = False

    @property
    def data(self) -> bytes:
        if self.opened is not None:
            return self.opened
        return b"" if self.forgotten else self[3]

    @property
    def is_json(self) -> bool:
        return self.opened is not None and bool(self[8] & DATA_IS_JSON)

    @property
    def erased(self) -> bool:
        return self.forgotten

    @property
    def encrypted(self) -> bool:
        return self.opened is None and not self.forgotten


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Marks where a subscription has delivered every stored event; later events are live. `sequence`: that of the last one; of
    several shards the sum of theirs, which is not a place: `stream.position` is.
    """

    sequence: int


def fresh_command_id() -> str:
    """Returns 128 random bits in hex, as unique as a random UUID at a quarter of its cost."""
    return os.urandom(16).hex()


class Commit(tuple[str, Sequence[NewEvent], ExpectedVersion, str, int | datetime | None]):
    """The events of one command on one aggregate, appended whole or not at all.

    `expected_version`: the exact version the command was decided on (0: must not exist), `ANY` or `EXISTS`.
    `command_id`: generated unless given, so appending the same `Commit` again is safe.
    `timestamp`: microseconds since 1970 or an aware datetime; the server's clock unless given.
    """

    __slots__ = ()

    def __new__(
        cls,
        aggregate_id: str,
        events: Sequence[NewEvent],
        expected_version: ExpectedVersion,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
    ) -> Commit:
        if command_id is None:
            command_id = fresh_command_id()
        return tuple.__new__(cls, (aggregate_id, events, expected_version, command_id, timestamp))

    @property
    def aggregate_id(self) -> str:
        return self[0]

    @property
    def events(self) -> Sequence[NewEvent]:
        return self[1]

    @property
    def expected_version(self) -> ExpectedVersion:
        return self[2]

    @property
    def command_id(self) -> str:
        return self[3]

    @property
    def timestamp(self) -> int | datetime | None:
        return self[4]

    def __repr__(self) -> str:
        return (
            f"Commit({self.aggregate_id!r}, {self.events!r}, expected_version={self.expected_version!r}, "
            f"command_id={self.command_id!r}, timestamp={self.timestamp!r})"
        )

    def __getnewargs__(self) -> tuple[str, Sequence[NewEvent], ExpectedVersion, str, int | datetime | None]:
        return self[0], self[1], self[2], self[3], self[4]


class Write(NamedTuple):
    """What one of several aggregates gets by one command: see `commit` of a store.

    `expected_version`: as in `Commit`.
    """

    aggregate_id: str
    events: Sequence[NewEvent]
    expected_version: ExpectedVersion


class At(NamedTuple):
    """What must hold for an aggregate that a commit does not write. `version`: as `expected_version` in `Commit`."""

    aggregate_id: str
    version: ExpectedVersion


class Committed(NamedTuple):
    """The commit is durable. `version` and `sequence` are those of its last event; `duplicate`: it was already stored.

    `durability`: on how many disks it is, when this is answered: 1 for a single store, in a cluster as many as replicas are in
    sync. 0: on none yet, the store has durability `async`. None: the server does not say.
    """

    aggregate_id: str
    version: int
    sequence: int
    duplicate: bool = False
    durability: int | None = 1


class Unchanged(NamedTuple):
    """The command was handled without a change: no event was stored, so it has neither version nor sequence."""

    aggregate_id: str
    version: None = None
    sequence: None = None
    duplicate: bool = False


def sequence_of(done: Iterable[Committed | Unchanged]) -> int | None:
    """Returns the greatest sequence of these outcomes; None if one has none: what it was decided on is stored, somewhere before
    the end of the log.
    """
    sequences = [each.sequence for each in done]
    return max((each for each in sequences if each is not None), default=None) if None not in sequences else None


def micros(time: int | datetime | None, field: str = "timestamp") -> int | None:
    """Returns microseconds since 1970 UTC. `field`: the name of the argument, for errors.

    Raises:
        InvalidArgument: a datetime without time zone, or neither a datetime nor a whole number.
    """
    if time is None or time.__class__ is int:
        return time
    if not isinstance(time, datetime):
        raise InvalidArgument(
            f"{field} is {time!r:.80}, allowed are whole microseconds and datetimes", field=field, value=f"{time!r:.80}"
        )
    if time.utcoffset() is None:
        raise InvalidArgument(f"{field} {time} has no time zone; use datetime.now(UTC)", field=field, value=str(time))
    return (time - _EPOCH) // timedelta(microseconds=1)
