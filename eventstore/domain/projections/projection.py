"""`Projection`: a fold over events, with one state and one table row per key.

The same class runs live (`project`) and as a fold per key over all events in Spark. So its methods must be pure: they depend
only on their arguments. Events of one key arrive in the order they were appended.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, cast
from uuid import UUID

from eventstore.domain.encoding.codec import PayloadCodec, class_path
from eventstore.domain.encoding.event_type import EventType
from eventstore.domain.encoding.values import Exact
from eventstore.domain.event_methods import EventMethods, accepts_positional, several_decorator
from eventstore.domain.handler import line_of, text_of
from eventstore.domain.initial_state import have_in_common
from eventstore.domain.projections.decimal_column import DecimalColumn
from eventstore.errors import DomainRefused, EventStoreError, ProjectionFailed
from eventstore.failures import described, is_fault
from eventstore.fields import check_text, shown
from eventstore.following.log import WantedEvents
from eventstore.json_values import exact_json_text
from eventstore.model import Event
from eventstore.stopped_clock import declared_class, plain, real_class

F = TypeVar("F", bound=Callable[..., object])
S = TypeVar("S")
COLUMN_TYPES: Final = (str, int, float, bool, bytes, real_class(datetime), real_class(date), Decimal, UUID)
ColumnType: TypeAlias = type | DecimalColumn
KEY_COLUMN: Final = "key"
STATE_COLUMN: Final = "state"
CHECKPOINTS: Final = "eventstore_checkpoints"
"""The table with the checkpoints of all projections in a target."""
PARKED: Final = "eventstore_parked"
"""The table with the parked keys of all projections in a target."""
KEPT: Final = "eventstore_kept"
"""The table that says how long the tables of versions are kept that others have taken over from."""
KEY_BYTES_MAX: Final = 1024
_WHOLE_FLOAT_MAX: Final = 2**53
"""Up to here a float holds every whole number."""
_WITH_STORED: Final = "self, state, event, stored"
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")  # the length PostgreSQL allows

Row = dict[str, object]
"""Column → value of the column's declared type, or None."""


def folds(*events: type) -> Callable[[F], F]:
    """Marks the method (self, state, event) of a projection that returns the state after an event of one of these classes. It
    may also take the stored event: (self, state, event, stored). All such methods may be named `_`.
    """
    return several_decorator("folds", events, "self, state, event", _WITH_STORED)


class Projection(Generic[S], metaclass=EventMethods):
    """Base class of projections. `name` is the name of the table; `columns` declares the columns that `row` returns. Every
    table also has the columns `key` and `state`.

    The state is a JSON value or a dataclass, stored with the row. A JSON value consists of dicts with text as keys, lists,
    text, numbers, bool and None, so that a state that was read is the one that was written. Treat states as values: a method
    returns the new one. None deletes the row, and the next event of the key starts from `initial`.
    """

    name: ClassVar[str]
    columns: ClassVar[Mapping[str, ColumnType]]
    types: ClassVar[Iterable[str] | None] = None
    """Event types it handles; by default those of its `@folds` methods, or all events if it has none."""

    aggregate_prefix: ClassVar[str | None] = None
    """Restricts it to events of aggregates whose ids start with this prefix."""

    version: ClassVar[int] = 1
    """Raise it when the same events give other rows or states: a table made by another version is refused, not continued."""

    on_failure: ClassVar[Literal["stop", "park"]] = "stop"
    """What an event that raises does: it stops the projection, or parks its key, whose row then stays as it was until
    `eventstore project --retry-parked`; other keys continue. An event whose `key` raises always stops it.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        columns = cls.__dict__.get("columns")
        if isinstance(columns, Mapping):
            cls.columns = {name: declared_class(kind) for name, kind in columns.items()}

    def __init__(self) -> None:
        self._folds: dict[str, tuple[EventType[Any], Callable[..., object], bool]] = {}
        self.check()
        for name, each in type(self).event_types().items():
            method = type(self).event_methods[each.cls]
            self._folds[name] = each, method, _takes_stored(method)

    def key(self, event: Event) -> str:
        """Returns the key of the event's row: 1–1,024 bytes of UTF-8. By default the aggregate's id.

        If there is a `@folds` method for the event, its data are those of the event that the method gets: after upcasts.
        """
        return event.aggregate_id

    def initial(self) -> S:
        """Returns the state of a key before its first event, a new one each time if it can change; None by default."""
        return cast(S, None)

    def apply(self, state: S, event: Event) -> S | None:
        """Returns the state after the event; None deletes the row. By default calls the `@folds` method for the event; without
        one, the state does not change.
        """
        fold = self._folds.get(event.type)
        if fold is None:
            return state
        kind, method, takes_stored = fold
        typed = kind.decode(event)
        return cast("S | None", method(self, state, typed, event) if takes_stored else method(self, state, typed))

    def row(self, key: str, state: S) -> Row:
        """Returns the columns for a state."""
        raise NotImplementedError

    @property
    def wanted_types(self) -> tuple[str, ...] | None:
        """Event types to subscribe to; None: all."""
        if self.types is not None:
            return tuple(self.types)
        return tuple(sorted(self._folds)) or None

    @cached_property
    def _state_codec(self) -> PayloadCodec[Any] | None:
        initial: object = self.initial()
        if not dataclasses.is_dataclass(initial):
            return None
        return PayloadCodec(type(initial), type(initial).__name__, f"projection {self.name!r}: state")

    @cached_property
    def _exact(self) -> Exact | None:
        """Returns whether a state that is a dataclass is read back with the same types and digits; None: it always is."""
        return None if self._state_codec is None else self._state_codec.exact

    def encode_state(self, state: S) -> str:
        """Returns the state as JSON.

        Raises:
            TypeError, ValueError, PayloadInvalid: JSON cannot hold it, or it would be read back as another.
        """
        if self._state_codec is not None:
            return self._state_codec.proven(state).decode()
        return exact_json_text(state, "the state")

    def decode_state(self, text: str) -> S:
        """Returns the state from the JSON of `encode_state`."""
        if self._state_codec is not None:
            return cast(S, self._state_codec.decode(text.encode()))
        return cast(S, json.loads(text))

    def check_states(self) -> None:
        """Raises DomainRefused if `initial` raises, gives all keys the same list or dict, or a state that would be read back as
        another.
        """
        try:
            one, other = self.initial(), self.initial()
            if self._state_codec is not None:
                self._state_codec.check()
            if one is not None:
                self.encode_state(one)
        except BaseException as error:
            if not is_fault(error):
                raise
            text = text_of(error) if isinstance(error, EventStoreError) else described(error)
            raise DomainRefused(f"projection {self.name!r}: initial(): {text}", projection=self.name) from error
        if have_in_common(one, other):
            raise DomainRefused(
                f"projection {self.name!r}: initial() gives all keys the same {type(one).__name__}, {shown(one)}; return a "
                "new one each time",
                projection=self.name,
            )

    def checked_row(self, key: str, state: S) -> tuple[object, ...]:
        """Returns the values of the columns, in order.

        Raises:
            TypeError: names or types do not match `columns`.
        """
        row = self.row(key, state)
        if row.keys() != self.columns.keys():
            raise TypeError(f"row returned the columns {sorted(row)}, but the projection declares {sorted(self.columns)}")
        return tuple(_stored(key, name, kind, row[name]) for name, kind in self.columns.items())

    def check(self) -> None:
        """Raises DomainRefused if name, columns or methods are invalid."""
        place = class_path(type(self))
        name, columns = getattr(self, "name", None), getattr(self, "columns", None)
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise DomainRefused(
                f"projection {place}: its name is {shown(name)}, but must be a table name that matches {_IDENTIFIER.pattern}"
            )
        if name in (CHECKPOINTS, PARKED, KEPT):
            raise DomainRefused(f"projection {place}: {name!r} is the name of a table of the projector; use another name")
        if not isinstance(columns, Mapping) or not columns:
            raise DomainRefused(
                f"projection {name!r} ({place}) declares no columns; add them, as in columns = {{'cents': int}}"
            )
        for column, kind in columns.items():
            if not isinstance(column, str) or not _IDENTIFIER.fullmatch(column) or column in (KEY_COLUMN, STATE_COLUMN):
                raise DomainRefused(
                    f"projection {name!r}: column {shown(column)} must match {_IDENTIFIER.pattern}, and must not be "
                    f"{KEY_COLUMN!r} or {STATE_COLUMN!r}, which every table has",
                    projection=name,
                )
            if kind not in COLUMN_TYPES and not isinstance(kind, DecimalColumn):
                allowed = ", ".join(each.__name__ for each in COLUMN_TYPES) + ", d.DecimalColumn(precision, scale)"
                raise DomainRefused(f"projection {name!r}: column {column} has type {shown(kind)}; allowed are {allowed}")
        if self.on_failure not in ("stop", "park"):
            raise DomainRefused(
                f"projection {name!r}: on_failure is {shown(self.on_failure)}, but must be 'stop' or 'park'", projection=name
            )
        if type(self.version) is not int or not 1 <= self.version < 2**31:
            raise DomainRefused(
                f"projection {name!r}: version is {shown(self.version)}, but must be an int from 1 to {2**31 - 1}",
                projection=name,
            )
        if isinstance(self.types, str):
            raise DomainRefused(
                f"projection {name!r}: types is the text {self.types!r}, but must be a tuple of names", projection=name
            )
        if type(self).row is Projection.row:
            raise DomainRefused(
                f"projection {name!r} ({place}) has no method row(self, key, state); add one that returns its columns",
                projection=name,
            )


def _stored(key: str, name: str, kind: ColumnType, value: object) -> object:
    """Returns the value of a column as every target gets it. Raises TypeError: it does not match the type of the column."""
    value = plain(value)
    if value is None:
        return None
    what = f"column {name!r} of row {shown(key)} is {shown(value)}"
    if kind is float and type(value) is int and abs(value) <= _WHOLE_FLOAT_MAX:  # as in JSON that another program wrote
        return float(value)
    declared = Decimal if isinstance(kind, DecimalColumn) else kind
    if type(value) is not declared:
        raise TypeError(f"{what}, but is declared as {declared.__name__}")
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise TypeError(f"{what}, which does not fit into 64 bits")
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise TypeError(f"{what}, which has no time zone; use datetime.now(UTC), for instance")
    if isinstance(kind, DecimalColumn) and isinstance(value, Decimal):
        try:
            return kind.stored(value)
        except ValueError as error:
            raise TypeError(f"{what}, which {error}") from None
    return value


def _takes_stored(method: Callable[..., object]) -> bool:
    """Returns whether a `@folds` method takes the stored event. With `*args`, the signature of the wrapped function decides."""
    with_stored = len(_WITH_STORED.split(","))
    if not accepts_positional(method, with_stored) or not accepts_positional(method, with_stored - 1):
        return accepts_positional(method, with_stored)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_place for each in inspect.signature(method).parameters.values()) >= with_stored


def wanted_by(projection: Projection[Any]) -> WantedEvents:
    """Returns which events the projection subscribes to."""
    return WantedEvents(projection.wanted_types, projection.aggregate_prefix)


def event_for_key(projection: Projection[Any], event: Event) -> Event:
    """Returns the event as `key` gets it. Raises PayloadInvalid, UnknownEvent."""
    fold = projection._folds.get(event.type)
    return event if fold is None else fold[0].current(event)


def keys_of(projection: Projection[Any], events: Iterable[Event]) -> list[str]:
    """Returns the key of each event.

    Raises:
        ProjectionFailed: `key` raised, or returned something other than text of 1–1,024 bytes.
    """
    if type(projection).key is Projection.key:
        return [event.aggregate_id for event in events]
    keys: list[str] = []
    for event in events:
        try:
            keys.append(check_text("key", projection.key(event_for_key(projection, event)), 1, KEY_BYTES_MAX))
        except BaseException as error:
            raise projection_failure(projection, event, error) from error
    return keys


def fold(
    projection: Projection[S], states: dict[str, S | None], events: Sequence[Event], keys: Sequence[str] | None = None
) -> None:
    """Applies the events to `states` (key → state; absent or None: no row), in order. `keys`: of the events, if known.

    Raises:
        ProjectionFailed: the projection raised; names it, and aggregate, version and sequence of the event.
    """
    for key, event in zip(keys_of(projection, events) if keys is None else keys, events, strict=True):
        try:
            states[key] = next_state(projection, states.get(key), event)
        except BaseException as error:
            raise projection_failure(projection, event, error) from error


def next_state(projection: Projection[S], state: S | None, event: Event) -> S | None:
    """Returns the state after the event as the next batch will read it, so rows do not depend on where batches end."""
    after = projection.apply(projection.initial() if state is None else state, event)
    exact = projection._exact
    if exact is None or after is None or exact(after):
        return after
    return projection.decode_state(projection.encode_state(after))


def projection_failure(projection: Projection[Any], event: Event, error: BaseException) -> ProjectionFailed:
    """Returns the failure that what a projection raised is. Raises what is no fault of it: an interruption."""
    if not is_fault(error):
        raise error
    own = isinstance(error, EventStoreError)
    text = text_of(error) if own else f"{type(error).__name__}: {text_of(error)}{line_of(error)}"
    return ProjectionFailed(
        f"projection {projection.name!r} failed at sequence {event.sequence}, aggregate {event.aggregate_id!r}, version "
        f"{event.version}, type {event.type!r}: {text}",
        projection=projection.name,
        aggregate_id=event.aggregate_id,
        version=event.version,
        sequence=event.sequence,
        error=type(error).__name__,
    )
