"""Drives the machine on trio: tasks for restores, async handlers and delays.

No command has a task of its own. One task pumps what did not fit into a turn; restores have as many tasks as run at once, each
serving one aggregate after the other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial

import trio

from eventstore_mailbox.core.machine import Machine
from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import AnyPorts
from eventstore_mailbox.core.state import AggregateQueue, AnyEntry
from eventstore_mailbox.errors import Unrestorable
from eventstore_mailbox.handler_steps import run_stepwise


class TrioDriver:
    """A `Driver`, and the machine it drives."""

    def __init__(self, ports: AnyPorts, options: Options) -> None:
        self.machine = Machine(replace(ports, answer=self._answer), options, self)
        self._ports = ports
        self._options = options
        self._nursery: trio.Nursery | None = None
        self._work = trio.Event()
        self._stopped = trio.Event()
        self._waiting = trio.lowlevel.ParkingLot()
        self._waiters: dict[AnyEntry, trio.Event] = {}
        self._to_restore: deque[AggregateQueue] = deque()
        self._restorers = 0
        self._handlers: dict[AggregateQueue, trio.CancelScope] = {}

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._pump)
                task_status.started()
                await self._stopped.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.machine.abandon()
            self._waiting.unpark_all()

    async def stop(self, deadline_s: float) -> int:
        self.machine.stop()
        self._waiting.unpark_all()
        self.machine.pump()
        try:
            with trio.move_on_after(deadline_s):
                while self.machine.depth:
                    await self._waiting.park()
        finally:
            left = self.machine.depth
            self.machine.lanes.leave()
            self.machine.abandon()
            self._stopped.set()
        return left

    async def execute(self, entry: AnyEntry) -> AnyEntry:
        settled = trio.Event()
        while self.machine.submit([entry]):
            await self._waiting.park()
        self._waiters[entry] = settled
        self.machine.pump()
        await settled.wait()
        return entry

    def _answer(self, entries: Sequence[AnyEntry]) -> None:
        waiters = self._waiters
        if waiters:
            others: list[AnyEntry] = []
            for entry in entries:
                settled = waiters.pop(entry, None)
                if settled is None:
                    others.append(entry)
                else:
                    settled.set()
            entries = others
        if entries:
            self._ports.answer(entries)

    async def _pump(self) -> None:
        while True:
            await self._work.wait()
            self._work = trio.Event()
            self.machine.pump()

    # -- calls of the machine -----------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._work.set()

    def answered(self) -> None:
        if self._waiting:
            self._waiting.unpark_all()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._start(self._call_later, delay_s, action)

    def load(self, aggregate_ids: Collection[str], action: Callable[[], None]) -> None:
        self._start(self._load, aggregate_ids, action)

    def restore(self, lane: AggregateQueue) -> None:
        self._to_restore.append(lane)
        if self._restorers < self._options.restores_max:
            self._restorers += 1
            self._start(self._restore)

    def look_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry]) -> None:
        self._start(self._look_up, lane, entries)

    def run_handler(self, lane: AggregateQueue, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        scope = self._handlers[lane] = trio.CancelScope()
        self._start(self._run_handler, lane, entry, coroutine, scope)

    def cancel_handler(self, lane: AggregateQueue) -> None:
        self._handlers[lane].cancel()

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _start(self, task: Callable[..., Coroutine[object, object, None]], *args: object) -> None:
        assert self._nursery is not None, "run has not been started"
        self._nursery.start_soon(task, *args)

    async def _call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        await trio.sleep(delay_s)
        action()
        self.machine.pump()

    async def _load(self, aggregate_ids: Collection[str], action: Callable[[], None]) -> None:
        assert self._ports.load is not None
        for aggregate_id in aggregate_ids:
            try:
                await self._ports.load(aggregate_id)
            except Exception as error:
                self._ports.on_error("load", error)
        action()
        self.machine.pump()

    async def _look_up(self, lane: AggregateQueue, entries: Sequence[AnyEntry]) -> None:
        assert self._ports.look_up is not None
        outcomes: Sequence[object] = [None] * len(entries)
        try:
            outcomes = await self._ports.look_up(entries)
        except Exception as error:  # then the store says it of their changes
            self._ports.on_error("look_up", error)
        self.machine.looked_up(lane, entries, outcomes)
        self.machine.pump()

    async def _restore(self) -> None:
        """Restores one aggregate after the other. Pumps once for all that were restored in the same turn."""
        clock, turn_s, machine = self._ports.clock, self._options.turn_s, self.machine
        until = clock() + turn_s
        while self._to_restore:
            lane = self._to_restore.popleft()
            try:
                aggregate = await self._from_store(lane)
            except Unrestorable as error:
                machine.unrestorable(lane, error.error)
            except Exception as error:
                machine.restore_failed(lane, error)
            else:
                machine.restored(lane, aggregate)
            if not self._to_restore or clock() >= until:
                machine.pump()
                await trio.lowlevel.checkpoint()
                until = clock() + turn_s
        self._restorers -= 1

    async def _from_store(self, lane: AggregateQueue) -> object:
        if lane.to_load:
            assert self._ports.load is not None
            await self._ports.load(lane.aggregate_id)
            return None
        stale, lane.stale = lane.stale, None
        if stale is None or self._ports.refresh is None:
            return await self._ports.restore(lane.aggregate_id)
        return await self._ports.refresh(lane.aggregate_id, stale)

    async def _run_handler(
        self, lane: AggregateQueue, entry: AnyEntry, coroutine: Coroutine[object, object, object], scope: trio.CancelScope
    ) -> None:
        change: object = None
        failed: BaseException | None = None
        with scope:
            try:
                change = await run_stepwise(
                    coroutine, self._ports.clock, self._options.slow_handler_s, partial(self._on_slow, entry)
                )
            except BaseException as error:
                if trio.current_effective_deadline() == -math.inf and _is_cancellation(error):
                    raise
                failed = error  # as of a sync handler: it fails its own command
        del self._handlers[lane]
        self.machine.handled(lane, entry, change, failed)
        self.machine.pump()

    def _on_slow(self, entry: AnyEntry, seconds: float) -> None:
        entry.lane.mailbox.slow += 1
        self._ports.on_slow(entry, seconds)


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled)
