"""All errors that users see: a class each, with fields and a stable code that is the same on the wire and in every language.

A code is never reused for another meaning. `to_wire` and `from_wire` convert an error to (code, text, fields) and back, so a
client raises the same class with the same fields as an embedded store.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Final

Field = str | int | bool | None


class EventStoreError(Exception):
    """Base of all errors of this package. `fields` holds the values in the message, for programs."""

    code: ClassVar[int] = 1
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Field) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Field] = fields

    def __getattr__(self, name: str) -> Field:
        try:
            return self.__dict__["fields"][name]  # type: ignore[no-any-return] # a dict typed Field, seen as Any through __dict__
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies all that the error holds: `Exception` would call the class with the message alone."""
        state = {name: value.copy() if isinstance(value, dict | list) else value for name, value in vars(self).items()}
        return _restored, (self.__class__, self.args), state


def _restored(cls: type[EventStoreError], args: tuple[object, ...]) -> EventStoreError:
    error = cls.__new__(cls)
    error.args = args
    return error


class InvalidArgument(EventStoreError):
    """An argument breaks a rule; `field`, `limit` and `value` name it."""

    code = 2


class VersionConflict(EventStoreError):
    """The aggregate is at another version than the append was based on: read it again and repeat the decision."""

    code = 3

    def __init__(self, aggregate_id: str, expected: int | str, actual: int) -> None:
        super().__init__(
            f"aggregate {aggregate_id!r} is at version {actual}, expected {expected}; read it again and decide again",
            aggregate_id=aggregate_id,
            expected=expected,
            actual=actual,
        )


class CommandIdReused(EventStoreError):
    """The command id was already used on this aggregate for other content: a bug of the application that chose it."""

    code = 4

    def __init__(self, aggregate_id: str, command_id: str, version: int, sequence: int) -> None:
        super().__init__(
            f"command {command_id!r} of aggregate {aggregate_id!r} was already appended (up to version {version}) "
            "with other content; a new command needs a new id",
            aggregate_id=aggregate_id,
            command_id=command_id,
            version=version,
            sequence=sequence,
        )


class Overloaded(EventStoreError):
    """A bound was reached; try again later. If that does not help, raise the limit that the message names."""

    code = 5
    retriable = True


class StorageFull(EventStoreError):
    """The disk is full: nothing of the append was stored. Reads continue; appends work again once there is space."""

    code = 6
    retriable = True


class Poisoned(EventStoreError):
    """A write or sync failed, so the state of the file is unknown: no more appends are accepted. Check the disk and restart."""

    code = 7


class Corrupt(EventStoreError):
    """Bytes on disk are not those that were written; names file and offset. Nothing is cut. Verify, then restore."""

    code = 8

    def __init__(self, file: str, offset: int, what: str) -> None:
        super().__init__(f"{file}: corrupt at byte offset {offset}: {what}", file=file, offset=offset, what=what)


class FolderRefused(EventStoreError):
    """The data folder cannot be opened: in use, no folder, a file missing or foreign, a newer format. Repair what is named."""

    code = 9

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}", path=path, why=why)


class ProtocolError(EventStoreError):
    """The other side sent bytes that the protocol does not allow: it is another program, or a proxy interferes."""

    code = 10


class UnsupportedVersion(EventStoreError):
    """The two sides have no version of the protocol, or of the cluster's format, in common: update the older one. Or the store
    has an older format than the request needs.
    """

    code = 11


class UnknownOperation(EventStoreError):
    """The server does not know this operation: it is older than the client. Update it."""

    code = 12


class ConnectionLost(EventStoreError):
    """The server could not be reached, or went away and did not return in time."""

    code = 13
    retriable = True


class ShuttingDown(EventStoreError):
    """The server is being stopped; connect to it again later."""

    code = 14
    retriable = True


class Closed(EventStoreError):
    """The store or client was used after it was closed."""

    code = 15


class ReadFailed(EventStoreError):
    """The operating system could not read a file: see the kernel's log. This does not mean that it holds nothing."""

    code = 16


class UnknownCommand(EventStoreError):
    """No handler is registered for this type of command: deploy the code that has one."""

    code = 17


class UnknownEvent(EventStoreError):
    """The domain's code does not know the type of an event, or the version of its schema: deploy the code that stored it."""

    code = 18


class OutdatedCode(EventStoreError):
    """A worker's code is older than the one that stored an event of the aggregate, in a version that it does not know: another
    worker may have the newer code. A client that knows several passes it over; else send again once it has been replaced.
    """

    code = 37
    retriable = True


class PayloadInvalid(EventStoreError):
    """A command or an event does not fit its class (perhaps one that changed without an upcast), or data read as JSON is not
    JSON; `type` and `field` say where."""

    code = 19


class Rejected(EventStoreError):
    """The domain refuses the command; nothing changed. `reason`: a stable word for programs, by default the subclass's name."""

    code = 20

    def __init__(self, message: str, **fields: Field) -> None:
        name = self.__class__.__name__
        super().__init__(message, **{"reason": "rejected" if name == "Rejected" else name, **fields})


class HandlerFailed(EventStoreError):
    """The domain's code raised an unexpected error, a bug there, named by `handler` and `error`; nothing changed."""

    code = 21


class DomainRefused(EventStoreError):
    """Domain code cannot be used: it cannot be imported, or a class or handler is declared wrongly."""

    code = 22


class ProjectionFailed(EventStoreError):
    """A projection or a reaction raised an error; names it and the event. Its state is unchanged: fix the code, start again."""

    code = 23


class Fenced(EventStoreError):
    """Another process runs the same projection or reaction on the same target; this one stops, and stored nothing. Run one."""

    code = 24


class UnknownTopic(EventStoreError):
    """No topic has this name."""

    code = 25


class UnknownQueue(EventStoreError):
    """The topic has no queue of this number that accepts messages."""

    code = 26


class UnknownGroup(EventStoreError):
    """No consumer group has this name."""

    code = 27


class Rebalanced(EventStoreError):
    """The member is no longer in its consumer group, or not in this generation. Nothing was stored; consumers join again. If
    it happens often, handlers delay their heartbeats."""

    code = 28


class Unconsumed(EventStoreError):
    """Consumer groups have not consumed all messages that were to be removed; nothing was. Let the named groups do so."""

    code = 29


class Diverged(EventStoreError):
    """A checkpoint, named by `what` and `sequence`, is at an event that the store does not have: the store is an older copy,
    or lost what was not durable. Build what was derived from it again: it is never continued."""

    code = 30


class NotEnoughReplicas(EventStoreError):
    """Too few replicas of the shard are in sync, `have` of `needed`; nothing was stored. Append again when they are back."""

    code = 32
    retriable = True


class Unauthenticated(EventStoreError):
    """The server does not know who the client is, or no longer: give it a valid token or certificate."""

    code = 33


class PermissionDenied(EventStoreError):
    """The client may not do this: have an operator grant its identity the `permission` that is named."""

    code = 34


class TimedOut(EventStoreError):
    """A call took longer than its `timeout`. `outcome`: "none", it changed nothing and will not; "unknown", it was sent and may
    have been carried out, or may still be: repeat it with the same command id, or look."""

    code = 35
    retriable = True


class MessagesFailed(EventStoreError):
    """Messages that were sent with `wait=False` were not stored, or that is not known: `failed` since the last report. The
    error of the first is its `__cause__`."""

    code = 36

    def __init__(self, failed: int, first: EventStoreError) -> None:
        what = f"{failed} message that was" if failed == 1 else f"{failed} messages that were"
        said = f"{what} sent with wait=False failed; the first: {first}; send again what matters"
        super().__init__(said, failed=failed)


class Elsewhere(EventStoreError):
    """The shard does not own the slot of the aggregate: another shard of the cluster does. Nothing was stored.

    `slot`: None at the address of a node, which has only the map, and for a reader of a log, which named another `layout` than
    that by which the shard has its slots. Clients ask for a map of `map_version` or newer, and send again.
    """

    code = 31
    retriable = True

    def __init__(self, slot: int | None, map_version: int, layout: int | None = None) -> None:
        where = "this address has no shard" if slot is None else f"slot {slot} is of another shard: connect to a node"
        where = where if layout is None else f"the shard has its slots by layout {layout}"
        fields = {"slot": slot, "map_version": map_version} | ({} if layout is None else {"layout": layout})
        super().__init__(f"{where} of the cluster; ask for its map, version {map_version} or newer", **fields)


class CrossShard(EventStoreError):
    """A commit, or a read of several aggregates, names some of several shards; nothing was stored. Ids with the same text in
    braces are in one shard.
    """

    code = 38

    def __init__(self, aggregate_id: str, other: str, shard: int | None = None, other_shard: int | None = None) -> None:
        where = "" if shard is None else f" (shard {shard} and shard {other_shard})"
        super().__init__(
            f"aggregates {aggregate_id!r} and {other!r} are in different shards{where}; ids that are to be written or read "
            "together need the same text in braces, as order-{o-9} and payment-{o-9}",
            aggregate_id=aggregate_id,
            other=other,
        )


class ConditionFailed(EventStoreError):
    """An event has come up that passes the query of a commit, which was decided without it: query again and decide again."""

    code = 39

    def __init__(self, aggregate_id: str, type: str, sequence: int) -> None:
        super().__init__(
            f"event {sequence} ({type!r} of aggregate {aggregate_id!r}) passes the query of the commit, and came after the "
            "place where it was decided (without after, none may exist); query again and decide again",
            aggregate_id=aggregate_id,
            type=type,
            sequence=sequence,
        )


class SubjectErased(EventStoreError):
    """The subject was erased, for good: its events cannot be read, and nothing more can be stored about it. A person who comes
    back is another subject.
    """

    code = 44

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"subject {subject!r} was erased: its data cannot be read, and no more are stored; a person who comes back is "
            "another subject, with a name of its own",
            subject=subject,
        )


_CLASSES: Final[tuple[type[EventStoreError], ...]] = (EventStoreError, *EventStoreError.__subclasses__())
_BY_CODE: Final = {cls.code: cls for cls in _CLASSES}

assert len(_BY_CODE) == len(_CLASSES), "two errors have the same code"


def to_wire(error: EventStoreError) -> list[Field]:
    """Returns [code, message, key, value, key, value, …]: flat, like everything on the wire."""
    flat: list[Field] = [error.code, error.message]
    for key, value in error.fields.items():
        flat += (key, value)
    return flat


def copy_error(error: EventStoreError) -> EventStoreError:
    """Returns a copy of the error: one object raised in several tasks would collect all their tracebacks."""
    return copy.copy(error)


def from_wire(flat: list[Field]) -> EventStoreError:
    """Returns the error that `to_wire` encoded; an unknown code becomes a plain EventStoreError."""
    code, message = flat[0], str(flat[1])
    cls = _BY_CODE.get(code if isinstance(code, int) else 1, EventStoreError)
    error = cls.__new__(cls)
    EventStoreError.__init__(error, message)
    error.fields = {str(key): value for key, value in zip(flat[2::2], flat[3::2], strict=False)}
    return error
