"""What the library raises where this store raises an error of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from eventsourcing.persistence import (
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    PersistenceError,
)

from eventstore.errors import (
    Closed,
    CommandIdReused,
    ConditionFailed,
    CrossShard,
    EventStoreError,
    InvalidArgument,
    UnknownOperation,
    UnsupportedVersion,
    VersionConflict,
)

_RAISED: Final[dict[type[EventStoreError], type[PersistenceError]]] = {
    VersionConflict: IntegrityError,
    ConditionFailed: IntegrityError,
    CommandIdReused: IntegrityError,
    InvalidArgument: DataError,
    CrossShard: NotSupportedError,
    UnknownOperation: NotSupportedError,
    UnsupportedVersion: NotSupportedError,
    Closed: InterfaceError,
}


@contextmanager
def persistence_errors() -> Iterator[None]:
    """Raises an error of the library in place of one of the store, which is its cause: IntegrityError for a conflict, DataError
    for a broken limit, NotSupportedError for what the store cannot do, InterfaceError after `close`, and OperationalError for
    the rest: an append that timed out may be stored.
    """
    try:
        yield
    except EventStoreError as error:
        raise _RAISED.get(type(error), OperationalError)(str(error)) from error
