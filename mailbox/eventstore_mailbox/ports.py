"""What the mailboxes are given: the domain, the store, the senders, a clock. All they do to the world, they do through
these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import random
from typing import Final, Generic, NamedTuple, TypeVar, cast

from eventstore_mailbox.batch import Batch
from eventstore_mailbox.entry import Entry
from eventstore_mailbox.routing import slot_of

C = TypeVar("C")
A = TypeVar("A")
X = TypeVar("X")
O = TypeVar("O")  # noqa: E741 - command, aggregate, change, outcome


_FIRST: Final = cast("Callable[[object], int]", itemgetter(0))
_FIRST_TEXT: Final = cast("Callable[[object], str]", itemgetter(0))
_THIRD_TEXT: Final = cast("Callable[[object], str]", itemgetter(2))


class Publication(NamedTuple, Generic[X, O]):
    """A durable change. Published at least once, an aggregate's in order. A DUPLICATE's events may be other than those of
    `change`: what is stored is what the outcome says."""

    aggregate_id: str
    change: X
    outcome: O


def _nothing() -> None:
    pass


def _touched(_: object) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Ports(Generic[C, A, X, O]):
    """
    handle        runs a command on its aggregate, changes it in memory, and returns the change for the store, or None if
                  nothing changed; or a coroutine (of an `async def`) that does. What it raises is the command's error
    restore       the aggregate as the store has it, an empty one where it has none; never None. What it raises means that the
                  store cannot be reached, and it is tried again; except `Unrestorable`
    refresh       the aggregate, brought up to what the store has; raises as `restore` does, and then it is of no use any
                  more. For stores that others write to: before an error or "nothing changed" is told, the aggregate is
                  brought up to the store and the command handled again. None: nobody else writes
    persist       has a batch stored: calls `batch.deliver` with one outcome per change, in order, once they are durable, or
                  `batch.fail` if it does not know; at once or later, on the event loop's thread. Raising is failing. Batches
                  take effect in the order of the calls; where one fails, so do the later ones that are on their way.
                  `batch.followers` are the places of changes that rest on an earlier one of the same aggregate in the same
                  batch: where that is not the aggregate's latest, the follower's outcome must be CONFLICT
    answer        entries that are settled, many at once. Must not raise for the sake of one of them
    clock         seconds, monotonic
    refusal       an outcome with status REFUSED for a plain append that is given up
    flush         called after the last `persist` of a round
    status        the status of an outcome: COMMITTED, DUPLICATE, CONFLICT or REFUSED
    untouched     whether an aggregate is as it was before the handler that raised. If it is not, it is restored
    size          bytes of a change; None: batches are bounded by count alone
    aggregate_id  of a change that comes as a plain append; and its command id
    publish       publishes durable changes, in order; None: nothing is published, and plain appends take the short way. It is
                  called again with the same ones if it raises. A change may come twice
    chance        0 to 1, for how long an aggregate pauses that conflicts again and again
    slot          of an aggregate id, 0–4095
    on_slow       a handler blocked the event loop for as many seconds
    on_error      something failed that is tried again, or an answer raised; for the log
    """

    handle: Callable[[C, A], X | Coroutine[object, object, X | None] | None]
    restore: Callable[[str], Awaitable[A]]
    persist: Callable[[Batch[X, O]], None]
    answer: Callable[[Sequence[Entry[C, O]]], None]
    clock: Callable[[], float]
    refusal: Callable[[Exception], O]
    refresh: Callable[[str, A], Awaitable[A]] | None = None
    flush: Callable[[], None] = _nothing
    status: Callable[[O], int] = _FIRST
    untouched: Callable[[A], bool] = _touched
    size: Callable[[X], int] | None = None
    aggregate_id: Callable[[X], str] = _FIRST_TEXT
    command_id: Callable[[X], str] = _THIRD_TEXT
    publish: Callable[[Sequence[Publication[X, O]]], Awaitable[None]] | None = None
    chance: Callable[[], float] = random
    slot: Callable[[str], int] = slot_of
    on_slow: Callable[[Entry[C, O], float], None] = lambda entry, seconds: None
    on_error: Callable[[str, BaseException], None] = lambda what, error: None


AnyPorts = Ports[object, object, object, object]
