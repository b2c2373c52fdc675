"""An event store for CQRS and event sourcing.

    import eventstore as es

    async with es.connect("tcp://127.0.0.1:7701") as store: ...     # network; trio or asyncio
    async with es.open_store("./data") as store: ...                # embedded; trio
    with es.blocking.connect("tcp://127.0.0.1:7701") as store: ...  # without an event loop

Every name is imported on first use, so `import eventstore` takes next to no time.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this
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
    from eventstore.commands import RawCommand
    from eventstore.errors import (
        Closed,
        CommandIdReused,
        ConditionFailed,
        ConnectionLost,
        Corrupt,
        CrossShard,
        Diverged,
        DomainRefused,
        Elsewhere,
        EventStoreError,
        Fenced,
        FolderRefused,
        HandlerFailed,
        InvalidArgument,
        MessagesFailed,
        NotEnoughReplicas,
        OutdatedCode,
        Overloaded,
        PayloadInvalid,
        PermissionDenied,
        Poisoned,
        ProjectionFailed,
        ProtocolError,
        ReadFailed,
        Rebalanced,
        Rejected,
        ShuttingDown,
        StorageFull,
        TimedOut,
        Unauthenticated,
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
    from eventstore.model import ANY, EXISTS, At, CaughtUp, Commit, Committed, Event, NewEvent, Unchanged, Write
    from eventstore.position import END as END
    from eventstore.position import Position as Position
    from eventstore.query import Query as Query
    from eventstore.records.consumer_groups import Retries as Retries
    from eventstore.records.message import Message as Message
    from eventstore.settings.store import StoreSettings as StoreSettings
    from eventstore.store.embedded import EmbeddedStore as EmbeddedStore
    from eventstore.store.open_store import open_store as open_store

__version__ = "0.1.0"
__all__ = [
    "ANY",
    "END",
    "EXISTS",
    "AggregateInfo",
    "At",
    "CaughtUp",
    "Closed",
    "CommandIdReused",
    "Commit",
    "Committed",
    "ConditionFailed",
    "ConnectionLost",
    "Consumer",
    "Corrupt",
    "CrossShard",
    "Delivery",
    "Diverged",
    "DomainRefused",
    "Elsewhere",
    "EmbeddedStore",
    "Event",
    "EventStoreError",
    "Fenced",
    "FolderRefused",
    "HandlerFailed",
    "InvalidArgument",
    "Message",
    "MessagesFailed",
    "NetworkBroker",
    "NetworkStore",
    "NetworkTopic",
    "NewEvent",
    "NewMessage",
    "NotEnoughReplicas",
    "OutdatedCode",
    "Overloaded",
    "PayloadInvalid",
    "PermissionDenied",
    "Poisoned",
    "Position",
    "ProjectionFailed",
    "ProtocolError",
    "Query",
    "RawCommand",
    "ReadFailed",
    "Rebalanced",
    "Rejected",
    "Retries",
    "SendResult",
    "ShuttingDown",
    "StorageFull",
    "StoreSettings",
    "SubjectErased",
    "TimedOut",
    "Unauthenticated",
    "Unchanged",
    "Unconsumed",
    "UnknownCommand",
    "UnknownEvent",
    "UnknownGroup",
    "UnknownOperation",
    "UnknownQueue",
    "UnknownTopic",
    "UnsupportedVersion",
    "VersionConflict",
    "Write",
    "blocking",
    "connect",
    "open_store",
]

# Where each name is. Nothing is imported before it is used: a program should be able to catch Ctrl-C from its first line on.
_NAMES = {
    "eventstore.aggregate_info": "AggregateInfo",
    "eventstore.client.aio.broker": "NetworkBroker",
    "eventstore.client.aio.consumer": "Consumer",
    "eventstore.client.aio.store": "NetworkStore connect",
    "eventstore.client.aio.topic": "NetworkTopic",
    "eventstore.client.consumer.delivery": "Delivery",
    "eventstore.client.session.message_rows": "NewMessage SendResult",
    "eventstore.commands": "RawCommand",
    "eventstore.errors": (
        "Closed CommandIdReused ConditionFailed ConnectionLost Corrupt CrossShard Diverged DomainRefused Elsewhere "
        "EventStoreError Fenced "
        "FolderRefused HandlerFailed InvalidArgument MessagesFailed NotEnoughReplicas OutdatedCode Overloaded PayloadInvalid "
        "Poisoned "
        "ProjectionFailed ProtocolError PermissionDenied ReadFailed Rebalanced Rejected ShuttingDown StorageFull SubjectErased "
        "TimedOut Unauthenticated Unconsumed UnknownCommand UnknownEvent UnknownGroup UnknownOperation UnknownQueue "
        "UnknownTopic UnsupportedVersion VersionConflict"
    ),
    "eventstore.model": "ANY At CaughtUp Commit Committed EXISTS Event NewEvent Unchanged Write",
    "eventstore.position": "END Position",
    "eventstore.query": "Query",
    "eventstore.records.consumer_groups": "Retries",
    "eventstore.records.message": "Message",
    "eventstore.settings.store": "StoreSettings",
    "eventstore.store.embedded": "EmbeddedStore",
    "eventstore.store.open_store": "open_store",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    """All public names, imported or not, for `dir` and completion."""
    return sorted({*globals(), *__all__})


def _import_lazily(name: str) -> object:
    from importlib import import_module

    if name == "blocking":
        return import_module("eventstore.blocking")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # a type checker would believe in every name that is asked for
    __getattr__ = _import_lazily
