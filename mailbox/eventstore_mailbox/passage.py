"""The short way of plain appends: past the mailboxes, as long as none of their aggregates has anything in them.

A call goes to the store as it is, as one batch, at once. Nothing is in front of it, so its order is that of the calls; the
store takes batches in the order they are handed on. What a command for one of its aggregates must know, while the call is on
its way, is that it is: the command's lane waits for it (`Lane.passing`).

Where the store cannot be reached, calls queue, in order, and all are tried again after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from eventstore_mailbox.backoff import Backoff
from eventstore_mailbox.batch import AnyBatch, Batch
from eventstore_mailbox.driver import Driver
from eventstore_mailbox.errors import OutcomesMissing, Stopped
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.options import Options
from eventstore_mailbox.plain import Deliver
from eventstore_mailbox.ports import AnyPorts


class Passing:
    """One call on its way."""

    __slots__ = ("changes", "deliver", "ids", "lanes", "number", "source")

    def __init__(self, number: int, changes: list[object], ids: set[str], deliver: Deliver, source: object) -> None:
        self.number = number
        self.changes = changes
        self.ids = ids
        self.deliver = deliver
        self.source = source
        self.lanes: list[Lane] | None = None


class Passage:
    """`drained` is called with a lane that has nothing left to wait for here."""

    def __init__(self, ports: AnyPorts, options: Options, driver: Driver, drained: Callable[[Lane], None]) -> None:
        self.depth = self.passed = self.failures = 0
        self.unflushed = False
        self._ports = ports
        self._options = options
        self._driver = driver
        self._drained = drained
        self._flying: dict[int, Passing] = {}
        self._stalled: list[Passing] = []
        self._number = 0
        self._retrying = False
        self._backoff = Backoff(options.backoff_first_s, options.backoff_max_s)

    @property
    def full(self) -> bool:
        return self.depth >= self._options.passing_max

    def send(self, changes: list[object], ids: set[str], deliver: Deliver, source: object) -> None:
        self._number += 1
        self.depth += len(changes)
        self._go(Passing(self._number, changes, ids, deliver, source))

    def hold_up(self, lane: Lane) -> None:
        """The lane waits for all calls on their way that its aggregate is among."""
        for passings in (self._flying.values(), self._stalled):
            for passing in passings:
                if lane.aggregate_id in passing.ids:
                    lane.passing += 1
                    passing.lanes = passing.lanes or []
                    passing.lanes.append(lane)

    def give_up(self) -> None:
        """Everything on its way is refused as stopped; whatever is delivered later is ignored."""
        given_up = [*self._flying.values(), *self._stalled]
        self._flying, self._stalled, self.depth = {}, [], 0
        for passing in sorted(given_up, key=lambda passing: passing.number):
            self._tell(passing, [self._refusal(change) for change in passing.changes])

    def _refusal(self, change: object) -> object:
        return self._ports.refusal(Stopped(self._ports.aggregate_id(change), self._ports.command_id(change)))

    def _go(self, passing: Passing) -> None:
        if self._stalled or self._retrying:
            self._stalled.append(passing)
            return
        self._flying[passing.number] = passing

        def ended(_: AnyBatch, result: Sequence[object] | BaseException) -> None:
            if self._flying.pop(passing.number, None) is not None:
                self._ended(passing, result)

        self.unflushed = True
        batch = Batch(passing.changes, [], ended, passing.source)
        try:
            self._ports.persist(batch)
        except Exception as error:
            batch.fail(error)

    def _ended(self, passing: Passing, result: Sequence[object] | BaseException) -> None:
        if not isinstance(result, BaseException) and len(result) != len(passing.changes):
            result = OutcomesMissing(len(passing.changes), len(result))
        if isinstance(result, BaseException):
            self._stall(passing, result)
            return
        self._backoff.reset()
        self.depth -= len(passing.changes)
        self.passed += len(passing.changes)
        for lane in passing.lanes or ():
            lane.passing -= 1
            self._drained(lane)
        self._tell(passing, list(result))
        self._try_again_later()

    def _tell(self, passing: Passing, outcomes: list[object]) -> None:
        try:
            passing.deliver(outcomes)
        except Exception as error:
            self._ports.on_error("answer", error)
        self._driver.left()

    def _stall(self, passing: Passing, error: BaseException) -> None:
        self.failures += 1
        self._stalled.append(passing)
        self._ports.on_error("persist", error)
        self._try_again_later()

    def _try_again_later(self) -> None:
        if self._stalled and not self._flying and not self._retrying:
            self._retrying = True
            self._driver.later(self._backoff.next_s(), self._again)

    def _again(self) -> None:
        self._retrying = False
        stalled, self._stalled = self._stalled, []
        self._send_all(sorted(stalled, key=lambda passing: passing.number))

    def _send_all(self, passings: Iterable[Passing]) -> None:
        for passing in passings:
            self._go(passing)  # if one fails at once, those after it queue behind it
