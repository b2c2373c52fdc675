"""An event store for CQRS and event sourcing.

    import eventstore as es

    async with es.connect("tcp://127.0.0.1:7701") as store: ...     # network; trio or asyncio
    async with es.open_store("./data") as store: ...                # embedded; trio
    with es.blocking.connect("tcp://127.0.0.1:7701") as store: ...  # without an event loop

The names in `_LAZY` are imported on first use, so `import eventstore` takes milliseconds.
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
    Diverged,
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
from eventstore.position import END

if TYPE_CHECKING:
    from eventstore import blocking as blocking
    from eventstore.aggregate_info import AggregateInfo as AggregateInfo
    from eventstore.client.aio.broker import NetworkBroker as NetworkBroker
    from eventstore.client.aio.consumer import Consumer as Consumer
    from eventstore.client.aio.store import NetworkStore as NetworkStore
    from eventstore.client.aio.store import connect as connect
    from eventstore.client.aio.topic import NetworkTopic as NetworkTopic
    from eventstore.client.consumer.delivery import Delivery as Delivery
    from eventstore.client.session.message_rows import NewMessage as NewMessage
    from eventstore.client.session.message_rows import SendResult as SendResult
    from eventstore.records.consumer_groups import Retries as Retries
    from eventstore.records.message import Message as Message
    from eventstore.settings.store import StoreSettings as StoreSettings
    from eventstore.store.embedded import EmbeddedStore as EmbeddedStore
    from eventstore.store.open_store import open_store as open_store

__version__ = "0.1.0"
__all__ = [
    "ANY", "END", "EXISTS", "AggregateInfo", "CaughtUp", "Closed", "CommandIdReused", "Commit", "Committed",
    "ConnectionLost", "Consumer", "Corrupt", "Delivery", "Diverged", "DomainRefused", "EmbeddedStore", "Event",
    "EventStoreError", "Fenced", "FolderRefused", "HandlerFailed", "InvalidArgument", "Message", "NetworkBroker",
    "NetworkStore", "NetworkTopic", "NewEvent", "NewMessage", "Overloaded", "PayloadInvalid", "Poisoned",
    "ProjectionFailed", "ProtocolError", "RawCommand", "ReadFailed", "Rebalanced", "Rejected", "Retries", "SendResult",
    "ShuttingDown", "StorageFull", "StoreSettings", "Unchanged", "Unconsumed", "UnknownCommand", "UnknownEvent", "UnknownGroup",
    "UnknownOperation", "UnknownQueue", "UnknownTopic", "UnsupportedVersion", "VersionConflict", "blocking", "connect",
    "open_store",
]  # fmt: skip

_LAZY = {
    "AggregateInfo": ("eventstore.aggregate_info", "AggregateInfo"),
    "connect": ("eventstore.client.aio.store", "connect"),
    "open_store": ("eventstore.store.open_store", "open_store"),
    "Consumer": ("eventstore.client.aio.consumer", "Consumer"),
    "Delivery": ("eventstore.client.consumer.delivery", "Delivery"),
    "EmbeddedStore": ("eventstore.store.embedded", "EmbeddedStore"),
    "Message": ("eventstore.records.message", "Message"),
    "NetworkBroker": ("eventstore.client.aio.broker", "NetworkBroker"),
    "NetworkStore": ("eventstore.client.aio.store", "NetworkStore"),
    "NetworkTopic": ("eventstore.client.aio.topic", "NetworkTopic"),
    "Retries": ("eventstore.records.consumer_groups", "Retries"),
    "NewMessage": ("eventstore.client.session.message_rows", "NewMessage"),
    "SendResult": ("eventstore.client.session.message_rows", "SendResult"),
    "StoreSettings": ("eventstore.settings.store", "StoreSettings"),
    "blocking": ("eventstore.blocking", None),
}


def __dir__() -> list[str]:
    """All public names, imported or not, for `dir` and completion."""
    return sorted({*globals(), *__all__})


def _import_lazily(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    loaded = importlib.import_module(module)
    value: object = loaded if attribute is None else getattr(loaded, attribute)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a type checker would believe in every name that is asked for
    __getattr__ = _import_lazily
