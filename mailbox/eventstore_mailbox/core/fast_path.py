"""The fast path of plain appends: past the mailboxes, if none of their aggregates has a command in them.

A call goes to the store at once, as one batch. The store takes batches in the order they are handed on, so the order of the
calls is kept. A command for one of its aggregates that arrives while the call is in flight waits in its lane
(`AggregateQueue.fast_path_calls`).

If the store cannot be reached, calls queue in order and all are retried after a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventstore_mailbox.core.append_call import Deliver
from eventstore_mailbox.core.backoff import RetryDelay
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import AnyBatch, AnyPorts, Batch, Driver, aggregate_id_of, command_id_of
from eventstore_mailbox.core.state import AggregateQueue
from eventstore_mailbox.errors import OutcomesMissing, Stopped


class FastPathCall:
    """One call in flight.

    Attributes:
        lanes: wait until the call is done.
    """

    __slots__ = ("changes", "deliver", "ids", "lanes", "number", "source")

    def __init__(self, number: int, changes: list[object], ids: set[str], deliver: Deliver, source: object) -> None:
        self.number = number
        self.changes = changes
        self.ids = ids
        self.deliver = deliver
        self.source = source
        self.lanes: list[AggregateQueue] = []


class FastPath:
    """Sends calls of plain appends to the store, past the mailboxes.

    Attributes:
        unblocked: is called with a lane each time a call that it waits for is done.
    """

    def __init__(self, ports: AnyPorts, options: Options, driver: Driver, unblocked: Callable[[AggregateQueue], None]) -> None:
        self.depth = self.total = self.failures = 0
        self.unflushed = False
        self._ports = ports
        self._options = options
        self._driver = driver
        self._unblocked = unblocked
        self._in_flight: dict[int, FastPathCall] = {}
        self._queued: list[FastPathCall] = []
        self._number = 0
        self._retry_scheduled = False
        self._backoff = RetryDelay(options.backoff_first_s, options.backoff_max_s)

    @property
    def full(self) -> bool:
        return self.depth >= self._options.fast_path_max

    @property
    def calls(self) -> list[FastPathCall]:
        """All calls, in flight and queued."""
        return [*self._in_flight.values(), *self._queued]

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless `depth` is the sum over all calls and queued calls have a retry scheduled."""
        depth, calls = sum(len(call.changes) for call in self.calls), [call.number for call in self.calls]
        assert self.depth == depth, f"the fast path counts {self.depth} changes, its calls {calls} have {depth}"
        assert len(calls) == len(set(calls)), f"a call is in flight and queued: {calls}"
        retried = not self._queued or self._in_flight or self._retry_scheduled
        assert retried, f"the calls {calls} are queued, and no retry is scheduled"

    def send(self, changes: list[object], ids: set[str], deliver: Deliver, source: object) -> None:
        self._number += 1
        self.depth += len(changes)
        self._persist(FastPathCall(self._number, changes, ids, deliver, source))

    def block(self, lane: AggregateQueue) -> None:
        """Makes the lane wait for all calls in flight that contain its aggregate."""
        for calls in (self._in_flight.values(), self._queued):
            for call in calls:
                if lane.aggregate_id in call.ids:
                    lane.fast_path_calls += 1
                    call.lanes.append(lane)

    def abandon(self) -> None:
        """Refuses everything in flight as stopped; outcomes delivered later are ignored."""
        abandoned = self.calls
        self._in_flight, self._queued, self.depth = {}, [], 0
        for call in sorted(abandoned, key=lambda call: call.number):
            self._deliver(call, [self._refusal(change) for change in call.changes])

    def _refusal(self, change: object) -> object:
        return self._ports.refusal(Stopped(aggregate_id_of(change), command_id_of(change)))

    def _persist(self, call: FastPathCall) -> None:
        if self._queued or self._retry_scheduled:
            self._queued.append(call)
            return
        self._in_flight[call.number] = call

        def ended(_: AnyBatch, result: Sequence[object] | BaseException) -> None:
            if self._in_flight.pop(call.number, None) is not None:
                self._persisted(call, result)

        self.unflushed = True
        batch = Batch(call.changes, [], ended, call.source)
        try:
            self._ports.persist(batch)
        except Exception as error:
            batch.fail(error)

    def _persisted(self, call: FastPathCall, result: Sequence[object] | BaseException) -> None:
        count = len(call.changes)
        if isinstance(result, BaseException):
            self._failed(call, result)
            return
        if len(result) != count:
            self._failed(call, OutcomesMissing(count, len(result)))
            return
        self._backoff.reset()
        self.depth -= count
        self.total += count
        for lane in call.lanes:
            lane.fast_path_calls -= 1
            self._unblocked(lane)
        self._deliver(call, list(result))
        if self._queued:
            self._schedule_retry()

    def _deliver(self, call: FastPathCall, outcomes: list[object]) -> None:
        try:
            call.deliver(outcomes)
        except Exception as error:
            self._ports.on_error("answer", error)
        self._driver.answered()

    def _failed(self, call: FastPathCall, error: BaseException) -> None:
        self._queued.append(call)
        if self._backoff.longest or not self._ports.passes(error):
            self.failures += 1
            self._ports.on_error("persist", error)
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        if self._queued and not self._in_flight and not self._retry_scheduled:
            self._retry_scheduled = True
            self._driver.call_later(self._backoff.next_s(), self._retry)

    def _retry(self) -> None:
        self._retry_scheduled = False
        queued, self._queued = self._queued, []
        for call in sorted(queued, key=lambda call: call.number):
            self._persist(call)  # if one fails at once, the calls after it queue again
