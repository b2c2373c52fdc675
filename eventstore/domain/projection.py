"""A projection: a fold over events, one state and one row of a table per key.

The same class runs live (`project`), and as a fold per key over all events in Spark. So it is pure: its methods depend on
their arguments and nothing else, and events of one key come in the order they were appended.
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
from typing import Any, ClassVar, Final, Generic, TypeVar, cast
from uuid import UUID

from eventstore.domain.codec import PayloadCodec, described
from eventstore.domain.event_type import EventType
from eventstore.domain.handling import line_of, text_of
from eventstore.domain.methods import Collecting, can_be_called, marking
from eventstore.errors import DomainRefused, EventStoreError, ProjectionFailed
from eventstore.fields import check_text, shown
from eventstore.model import Event

F = TypeVar("F", bound=Callable[..., object])
S = TypeVar("S")
COLUMN_TYPES: Final = (str, int, float, bool, bytes, datetime, date, Decimal, UUID)
KEY_COLUMN: Final = "key"
STATE_COLUMN: Final = "state"
CHECKPOINTS: Final = "eventstore_checkpoints"
"""The table beside those of the projections that says how far each of them is."""
KEY_BYTES_MAX: Final = 1024
_WITH_STORED: Final = "self, state, event, stored"
_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")  # as long as PostgreSQL takes

Row = dict[str, object]
"""Column → value, of the type that the column was declared with, or None."""


def folds(event: type) -> Callable[[F], F]:
    """Marks the method (self, state, event) of a projection that gives the state after an event of this class; it may take
    the stored event as well: (self, state, event, stored). All may be called `_`.
    """
    return marking(event, "self, state, event", _WITH_STORED)


class Projection(Generic[S], metaclass=Collecting):
    """Base of projections. `name` is that of the table; `columns` says what `row` gives, besides the columns `key` and
    `state` that every table has.

    The state is what JSON can hold, or a dataclass; it is kept beside the row. States are values: a method gives the new
    one, and None deletes the row, after which the key begins anew.
    """

    name: ClassVar[str]
    columns: ClassVar[Mapping[str, type]]
    types: ClassVar[Iterable[str] | None] = None
    """The names of the events it is for; by default those of its `@folds` methods, or all events where it has none."""

    aggregate_prefix: ClassVar[str | None] = None
    """Only events of aggregates whose ids begin so."""

    def __init__(self) -> None:
        self._folds: dict[str, tuple[EventType[Any], Callable[..., object], bool]] = {}
        self.check()
        for name, each in type(self).event_types().items():
            method = type(self).event_methods[each.cls]
            self._folds[name] = each, method, _takes_stored(method)

    def key(self, event: Event) -> str:
        """Which row the event belongs to: 1–1,024 bytes of UTF-8. By default its aggregate's id."""
        return event.aggregate_id

    def initial(self) -> S:
        """The state of a key before its first event; None by default."""
        return cast(S, None)

    def apply(self, state: S, event: Event) -> S | None:
        """The state after the event; None deletes the row. By default what the `@folds` method for it says, and the same
        state where there is none.
        """
        fold = self._folds.get(event.type)
        if fold is None:
            return state
        kind, method, takes_stored = fold
        typed = kind.decode(event)
        return cast("S | None", method(self, state, typed, event) if takes_stored else method(self, state, typed))

    def row(self, key: str, state: S) -> Row:
        """The columns for a state."""
        raise NotImplementedError

    @property
    def wanted_types(self) -> tuple[str, ...] | None:
        """The filter for the subscription; None: all types."""
        if self.types is not None:
            return tuple(self.types)
        return tuple(sorted(self._folds)) or None

    @cached_property
    def _state_codec(self) -> PayloadCodec[Any] | None:
        initial: object = self.initial()
        if not dataclasses.is_dataclass(initial):
            return None
        return PayloadCodec(type(initial), type(initial).__name__, f"projection {self.name!r}: state")

    def encode_state(self, state: S) -> str:
        """The state as JSON."""
        if self._state_codec is not None:
            return self._state_codec.encode(state).decode()
        return json.dumps(state, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def decode_state(self, text: str) -> S:
        """The state that `encode_state` wrote."""
        if self._state_codec is not None:
            return cast(S, self._state_codec.decode(text.encode()))
        return cast(S, json.loads(text))

    def checked_row(self, key: str, state: S) -> tuple[object, ...]:
        """The values of the columns, in their order.

        Raises:
            TypeError: they are not what `columns` says.
        """
        row = self.row(key, state)
        if row.keys() != self.columns.keys():
            raise TypeError(f"row gives the columns {sorted(row)}, declared are {sorted(self.columns)}")
        for name, kind in self.columns.items():
            value = row[name]
            if value is not None and type(value) is not kind:
                raise TypeError(f"column {name!r} is {shown(value)}, declared is {kind.__name__}")
            if kind is int and type(value) is int and not -(2**63) <= value < 2**63:
                raise TypeError(f"column {name!r} is {shown(value)}, which takes more than 64 bits")
            if type(value) is datetime and value.utcoffset() is None:
                raise TypeError(f"column {name!r} is {value}, which has no time zone")
        return tuple(row[name] for name in self.columns)

    def check(self) -> None:
        """Raises DomainRefused where name, columns or methods are not allowed."""
        place = described(type(self))
        name, columns = getattr(self, "name", None), getattr(self, "columns", None)
        if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
            raise DomainRefused(
                f"projection {place}: its name is {shown(name)}; it is the name of a table, as {_IDENTIFIER.pattern}"
            )
        if name == CHECKPOINTS:
            raise DomainRefused(f"projection {place}: {name!r} is the table of the checkpoints; give it another name")
        if not isinstance(columns, Mapping) or not columns:
            raise DomainRefused(f"projection {name!r} ({place}) declares no columns, as columns = {{'cents': int}}")
        for column, kind in columns.items():
            if not isinstance(column, str) or not _IDENTIFIER.fullmatch(column) or column in (KEY_COLUMN, STATE_COLUMN):
                raise DomainRefused(
                    f"projection {name!r}: column {shown(column)} is not of the form {_IDENTIFIER.pattern}, or one of "
                    f"{KEY_COLUMN!r} and {STATE_COLUMN!r}, which every table has",
                    projection=name,
                )
            if kind not in COLUMN_TYPES:
                allowed = ", ".join(each.__name__ for each in COLUMN_TYPES)
                raise DomainRefused(f"projection {name!r}: column {column} has type {shown(kind)}; allowed are {allowed}")
        if isinstance(self.types, str):
            raise DomainRefused(
                f"projection {name!r}: types is the text {self.types!r}; it is a tuple of names", projection=name
            )
        if type(self).row is Projection.row:
            raise DomainRefused(f"projection {name!r} ({place}) has no method row(key, state)", projection=name)


def _takes_stored(method: Callable[..., object]) -> bool:
    """Whether a method under `@folds` is given the stored event as well. One that takes anything is asked what it wraps."""
    with_stored = len(_WITH_STORED.split(","))
    if not can_be_called(method, with_stored) or not can_be_called(method, with_stored - 1):
        return can_be_called(method, with_stored)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_place for each in inspect.signature(method).parameters.values()) >= with_stored


def keys_of(projection: Projection[Any], events: Iterable[Event]) -> list[str]:
    """The key of each event.

    Raises:
        ProjectionFailed: `key` raised, or gave no text of 1–1,024 bytes.
    """
    keys: list[str] = []
    for event in events:
        try:
            keys.append(check_text("key", projection.key(event), 1, KEY_BYTES_MAX))
        except Exception as error:
            raise failed(projection, event, error) from error
    return keys


def fold(
    projection: Projection[S], states: dict[str, S | None], events: Sequence[Event], keys: Sequence[str] | None = None
) -> None:
    """Brings `states` (key → state; absent or None: no row) further by the events, in order. `keys` are theirs, if known.

    Raises:
        ProjectionFailed: the projection raised; names it, and aggregate, version and sequence of the event.
    """
    for key, event in zip(keys_of(projection, events) if keys is None else keys, events, strict=True):
        try:
            state = states.get(key)
            states[key] = projection.apply(projection.initial() if state is None else state, event)
        except Exception as error:
            raise failed(projection, event, error) from error


def failed(projection: Projection[Any], event: Event, error: Exception) -> ProjectionFailed:
    text = error.message if isinstance(error, EventStoreError) else f"{type(error).__name__}: {text_of(error)}{line_of(error)}"
    return ProjectionFailed(
        f"projection {projection.name!r} failed at sequence {event.sequence}, aggregate {event.aggregate_id!r}, version "
        f"{event.version}, type {event.type!r}: {text}",
        projection=projection.name,
        aggregate_id=event.aggregate_id,
        version=event.version,
        sequence=event.sequence,
        error=type(error).__name__,
    )
