"""An event store for CQRS and event sourcing.

    import eventstore as es

    async with es.connect("tcp://127.0.0.1:7701") as store: ...     # network; trio or asyncio
    async with es.open_store("./data") as store: ...                # embedded; trio
    with es.blocking.connect("tcp://127.0.0.1:7701") as store: ...  # without an event loop

What is in `_LAZY` is imported on first use, so that `import eventstore` costs milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from eventstore.commands import RawCommand
from eventstore.errors import (
    Closed,
    CommandIdReused,
    ConnectionLost,
    Corrupt,
    DomainRefused,
    EventStoreError,
    Fenced,
    FolderRefused,
    HandlerFailed,
    InvalidArgument,
    Overloaded,
    PayloadInvalid,
    Poisoned,
    ProjectionFailed,
    ProtocolError,
    ReadFailed,
    Rebalanced,
    Rejected,
    ShuttingDown,
    StorageFull,
    Unconsumed,
    UnknownCommand,
    UnknownEvent,
    UnknownGroup,
    UnknownOperation,
    UnknownQueue,
    UnknownTopic,
    UnsupportedVersion,
    VersionConflict,
)
from eventstore.model import ANY, EXISTS, CaughtUp, Commit, Committed, Event, NewEvent, Unchanged

if TYPE_CHECKING:
    from eventstore import blocking as blocking
    from eventstore.broker.message import Message as Message
    from eventstore.client.delivery import Delivery as Delivery
    from eventstore.client.messages import NewMessage as NewMessage
    from eventstore.client.messages import SendResult as SendResult
    from eventstore.client.store import connect as connect
    from eventstore.config import StoreSettings as StoreSettings
    from eventstore.store.embedded import open_store as open_store

__version__ = "0.1.0"
__all__ = [
    "ANY", "EXISTS", "CaughtUp", "Closed", "CommandIdReused", "Commit", "Committed", "ConnectionLost", "Corrupt",
    "Delivery", "DomainRefused", "Event", "EventStoreError", "Fenced", "FolderRefused", "HandlerFailed",
    "InvalidArgument", "Message", "NewEvent", "NewMessage", "Overloaded", "PayloadInvalid", "Poisoned",
    "ProjectionFailed", "ProtocolError", "RawCommand", "ReadFailed", "Rebalanced", "Rejected", "SendResult",
    "ShuttingDown", "StorageFull", "StoreSettings", "Unchanged", "Unconsumed", "UnknownCommand", "UnknownEvent",
    "UnknownGroup", "UnknownOperation", "UnknownQueue", "UnknownTopic", "UnsupportedVersion", "VersionConflict",
    "blocking", "connect", "open_store",
]  # fmt: skip

_LAZY = {
    "connect": ("eventstore.client.store", "connect"),
    "open_store": ("eventstore.store.embedded", "open_store"),
    "Delivery": ("eventstore.client.delivery", "Delivery"),
    "Message": ("eventstore.broker.message", "Message"),
    "NewMessage": ("eventstore.client.messages", "NewMessage"),
    "SendResult": ("eventstore.client.messages", "SendResult"),
    "StoreSettings": ("eventstore.config", "StoreSettings"),
    "blocking": ("eventstore.blocking", None),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value: object = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value
