"""Interfaces of the mailboxes: the ports to domain, store and senders, the batch that a store gets, and the driver that does
everything that takes time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from random import random
from typing import Final, Generic, Protocol, TypeAlias, TypeVar, cast
from zlib import crc32

from eventstore_mailbox.core.state import AggregateQueue, AnyEntry, Entry

C = TypeVar("C")
A = TypeVar("A")
X = TypeVar("X")
O = TypeVar("O")  # noqa: E741 - command, aggregate, change, outcome

status_of: Final = cast("Callable[[object], int]", itemgetter(0))
"""The status of an outcome, which is a tuple: COMMITTED, DUPLICATE, CONFLICT or REFUSED, then what the sender gets."""
aggregate_id_of: Final = cast("Callable[[object], str]", itemgetter(0))
"""The aggregate id of a plain append, which is a tuple: aggregate id, expected version, command id, …"""
id_of: Final = cast("Callable[[AnyEntry], str]", attrgetter("aggregate_id"))
"""The aggregate id of an entry."""
command_id_of: Final = cast("Callable[[object], str]", itemgetter(2))

Ended: TypeAlias = Callable[["Batch[X, O]", "Sequence[O] | BaseException"], None]


class Batch(Generic[X, O]):
    """Changes that are persisted together: what a store sees of the mailboxes.

    Attributes:
        changes: in order; do not modify the list.
        dependents: ascending places of changes that depend on an earlier change of the same aggregate in this batch. Commit
            such a change only if the one before it, by its command id, is the aggregate's latest; else its outcome is CONFLICT.
            A change the store already has is DUPLICATE, dependent or not.
        source: the sender, if the batch has only one change; else the batch itself.
    """

    __slots__ = ("_ended", "changes", "dependents", "source")

    def __init__(self, changes: list[X], dependents: list[int], ended: Ended[X, O], source: object = None) -> None:
        self.changes = changes
        self.dependents = dependents
        self.source = self if source is None else source
        self._ended: Ended[X, O] | None = ended

    def deliver(self, outcomes: Sequence[O]) -> None:
        """Delivers one outcome per change, in order. Calls after the first `deliver` or `fail` are ignored."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, outcomes)

    def fail(self, error: BaseException) -> None:
        """Reports that the outcome of the changes is not known; the mailboxes persist them again later, with the same command
        ids."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self, error)


AnyBatch: TypeAlias = Batch[object, object]


def _flush_nothing() -> None:
    pass


def _no_joint_commands(command: object, aggregates: object) -> None:
    raise AssertionError("no command is about several aggregates")


def _slot(aggregate_id: str) -> int:
    return crc32(aggregate_id.encode("utf-8", "surrogatepass"))


def _assume_modified(_: object) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Ports(Generic[C, A, X, O]):
    """Functions that connect the mailboxes to domain, store and senders.

    Attributes:
        handle: runs a command on its aggregate, changes it in memory, and returns the change for the store, or None if nothing
            changed; or returns a coroutine that does. An exception becomes the command's error; `ChangesFirst` has it wait.
        restore: returns the aggregate as stored, an empty one if the store has none; never None. `Unrestorable` fails the
            command. Any other exception means that the store cannot be reached, and the restore is retried.
        refresh: returns the aggregate, brought up to date with the store. Before an error or "nothing changed" is answered, the
            aggregate is refreshed and the command handled again, because others may have written to the store. After an
            exception, which means the same as from `restore`, the aggregate is not used again. None: this process is the only
            writer.
        persist: stores a batch: calls `batch.deliver` with one outcome per change, in order, once they are durable, or
            `batch.fail` if it does not know; at once or later, on the event loop's thread. An exception counts as `fail`.
            Batches take effect in the order of the calls; if one fails, the later ones in flight must fail too.
        answer: receives settled entries, many at once. Must not raise because of one of them.
        clock: returns seconds, monotonic.
        refusal: returns an outcome with status REFUSED for a plain append that is abandoned, or has no room in its mailbox.
        flush: is called after the last `persist` of a round.
        lane: returns the name of the lane in which a command takes its turn; None of one that takes it with the commands of its
            aggregate, as all do without this port. What `restore` returns by that name stands for the aggregate there.
        others: returns the other aggregates that a command is about, all different, besides that of its entry; none of most.
            None: no command is about several.
        handle_jointly: does what `handle` does for a command about several aggregates, which it gets in the order of their ids:
            that of the entry, then `others`. What it raises or returns, and `unmodified` afterwards, is as for `handle`.
        unloaded: returns the aggregates that the store must `load` before it can check a change without waiting for the disk;
            called on the event loop for each call of plain appends and each batch. None: the store never waits.
        load: loads such an aggregate; an exception means the same as from `restore`. Until it returns, plain appends to the
            aggregate wait in its lane, and so does a batch with a change of it.
        evicted: is called with an aggregate that leaves memory to keep to `aggregates_max`, or because the mailboxes stop; all
            its changes are stored. It must be quick, and must not raise. None: nobody wants to know.
        unmodified: returns whether an aggregate is as it was before the handler that raised. If not, it is restored.
        same: returns whether two commands under the same id are equal. If they are, a command in flight answers the other.
        look_up: returns the outcome of each command that the store has, as of a change with status DUPLICATE; None for one that
            it does not have, or of which that is not known. Asked for commands of an aggregate of which some were repeated, so
            that they are not run, and the aggregate restored, only to find that out. None: never asked.
        size: returns the bytes of a change; None: batches are bounded by count alone.
        creates: returns whether a change creates its aggregate.
        slot: returns the number of an aggregate id, the same each time; its mailbox is this modulo `mailboxes`.
        random: returns a number from 0 to 1, for the pauses of an aggregate that conflicts repeatedly.
        passes: returns whether the error of a batch that failed goes by itself, as that of a store that hands a part of its
            aggregates over. Such a batch is retried as others are, and counted and reported only once it is retried with the
            longest delay.
        on_slow: is called if a handler blocked the event loop, with the seconds.
        on_created: is called with the outcome if a command would have created its aggregate and another writer has created it.
            The command is handled again.
        on_error: is called if an operation failed and is retried, or an answer raised; for the log.
    """

    handle: Callable[[C, A], X | Coroutine[object, object, X | None] | None]
    restore: Callable[[str], Awaitable[A]]
    persist: Callable[[Batch[X, O]], None]
    answer: Callable[[Sequence[Entry[C, O]]], None]
    clock: Callable[[], float]
    refusal: Callable[[Exception], O]
    refresh: Callable[[str, A], Awaitable[A]] | None = None
    lane: Callable[[C], str | None] | None = None
    others: Callable[[C], Sequence[str]] | None = None
    handle_jointly: Callable[[C, Sequence[A]], X | Coroutine[object, object, X | None] | None] = _no_joint_commands
    flush: Callable[[], None] = _flush_nothing
    unloaded: Callable[[set[str]], Collection[str]] | None = None
    load: Callable[[str], Awaitable[None]] | None = None
    evicted: Callable[[str, A], None] | None = None
    unmodified: Callable[[A], bool] = _assume_modified
    same: Callable[[C, C], bool] = lambda one, other: True
    look_up: Callable[[Sequence[Entry[C, O]]], Awaitable[Sequence[O | None]]] | None = None
    size: Callable[[X], int] | None = None
    creates: Callable[[X], bool] = lambda change: False
    slot: Callable[[str], int] = _slot
    random: Callable[[], float] = random
    passes: Callable[[BaseException], bool] = lambda error: False
    on_slow: Callable[[Entry[C, O], float], None] = lambda entry, seconds: None
    on_created: Callable[[Entry[C, O], O], None] = lambda entry, outcome: None
    on_error: Callable[[str, BaseException], None] = lambda what, error: None


AnyPorts: TypeAlias = Ports[object, object, object, object]


class Driver(Protocol):
    """Runs operations that take time: on trio in a server, step by step in a test.

    Each call returns at once; what it started ends in a call of the machine. After such calls, and after each action of
    `call_later`, the driver calls `Machine.pump`, once for several.
    """

    def restore(self, lane: AggregateQueue) -> None:
        """Starts a restore, or the `AggregateQueue.to_load`. It ends in `restored`, `unrestorable` or `restore_failed`."""

    def load(self, aggregate_ids: Collection[str], action: Callable[[], None]) -> None:
        """Starts to load aggregates that the store may have dropped while they were in memory here; calls the action then, also
        if that failed: the store reports why."""

    def look_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry]) -> None:
        """Starts to look up these commands of the lane; it ends in `looked_up`, for all of them."""

    def run_handler(self, lane: AggregateQueue, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        """Starts an async handler; it ends in `handled`."""

    def cancel_handler(self, lane: AggregateQueue) -> None:
        """Cancels the lane's running handler, which is no longer needed; it still ends in `handled`."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Calls the action after that many seconds."""

    def wake(self) -> None:
        """Calls `pump` in the next turn of the event loop: there is more work than fits into this one."""

    def answered(self) -> None:
        """Notes that commands were answered: there may be room, or nothing left."""
