"""The mailboxes on trio: the machine, and tasks for what takes time.

No task waits for a command. There is one that pumps what did not fit into a turn, and there are tasks for restores (as many as
run at once, each serving one aggregate after the other), for async handlers, publications and repetitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, cast

import trio

from eventstore_mailbox.entry import AnyEntry, Entry
from eventstore_mailbox.errors import Stopping, Unrestorable
from eventstore_mailbox.figures import Figures, figures_of
from eventstore_mailbox.lane import Lane
from eventstore_mailbox.machine import Machine
from eventstore_mailbox.options import Options
from eventstore_mailbox.plain import Deliver
from eventstore_mailbox.ports import A, AnyPorts, C, O, Ports, X
from eventstore_mailbox.publisher import Publications
from eventstore_mailbox.steps import stepwise


class Mailboxes(Generic[C, A, X, O]):
    """A set of command mailboxes with their event mailboxes, in one trio run. Not for other threads.

    `submit` and `append` only take in; `kick`, after the last of a round, has it done, on the spot where nothing is to be
    waited for.
    """

    def __init__(self, ports: Ports[C, A, X, O], options: Options | None = None) -> None:
        self._ports = cast("AnyPorts", ports)
        self._tasks = _Tasks(self._ports, Options() if options is None else options)
        self._machine = self._tasks.machine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`. If it is cancelled, whatever is left is answered with STOPPED."""
        await self._tasks.run(task_status)

    def submit(self, entries: Sequence[Entry[C, O]]) -> list[Entry[C, O]]:
        """Accepts commands, in order. `Ports.answer` gets each once it is settled.

        Returns those for which their mailbox has no room: not accepted, status OVERLOADED; they may be submitted again.

        Raises:
            Stopping: none was accepted.
        """
        return cast("list[Entry[C, O]]", self._machine.submit(cast("Sequence[AnyEntry]", entries)))

    def append(self, changes: Sequence[X], deliver: Callable[[list[O]], None], source: object = None) -> None:
        """Plain appends: changes with an expected version of the sender's. `deliver` gets one outcome each, in order, together.

        Raises:
            Stopping, Overloaded: none was accepted.
        """
        self._machine.append(changes, cast("Deliver", deliver), source)

    @trio.lowlevel.enable_ki_protection
    def kick(self) -> None:
        """Does what can be done at once with what was taken in, and hands it to the store."""
        self._machine.pump()

    async def execute(self, entry: Entry[C, O]) -> Entry[C, O]:
        """Waits for room, submits one command, and returns it once it is settled; `Ports.answer` does not get it.

        Cancelling the wait does not take the command back.

        Raises:
            Stopping: it was not accepted.
        """
        return cast("Entry[C, O]", await self._tasks.execute(cast("AnyEntry", entry)))

    @property
    def full(self) -> bool:
        """Whether some mailbox has no room."""
        return self._machine.full

    @property
    def passage_full(self) -> bool:
        """Whether the next plain append would be refused as overloaded, for all that are on their way already."""
        return self._machine.passage.full

    async def wait_for_room(self) -> None:
        """Returns when no mailbox is full.

        Raises:
            Stopping
        """
        await self._tasks.wait_for_room()

    @property
    def depth(self) -> int:
        """Commands and plain appends that were accepted and are not answered yet."""
        return self._machine.depth

    async def stop(self, deadline_s: float) -> int:
        """Accepts nothing more, finishes what was accepted, ends `run`.

        What is left after `deadline_s`, or when this call is cancelled, is answered with STOPPED; returns how many that were.
        """
        return await self._tasks.stop(deadline_s)

    def figures(self) -> Figures:
        return figures_of(self._machine)


class _Tasks:
    """The driver of a machine (see `driver.Driver`)."""

    def __init__(self, ports: AnyPorts, options: Options) -> None:
        self.machine = Machine(replace(ports, answer=self._answer), options, self)
        self._ports = ports
        self._options = options
        self._nursery: trio.Nursery | None = None
        self._work = trio.Event()
        self._stopped = trio.Event()
        self._waiting = trio.lowlevel.ParkingLot()
        self._waiters: dict[AnyEntry, trio.Event] = {}
        self._to_restore: deque[Lane] = deque()
        self._restorers = 0
        self._handlers: dict[Lane, trio.CancelScope] = {}

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
            self.machine.abandon()
            self._stopped.set()
        return left

    async def wait_for_room(self) -> None:
        while not self.machine.stopping:
            if not self.machine.full:
                return
            await self._waiting.park()
        raise Stopping

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

    # -- what the machine asks for ------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._work.set()

    def left(self) -> None:
        if self._waiting:
            self._waiting.unpark_all()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._start(self._act_later, delay_s, action)

    def restore(self, lane: Lane) -> None:
        self._to_restore.append(lane)
        if self._restorers < self._options.restores_max:
            self._restorers += 1
            self._start(self._restore)

    def handle(self, lane: Lane, entry: AnyEntry, coroutine: Coroutine[object, object, object]) -> None:
        scope = self._handlers[lane] = trio.CancelScope()
        self._start(self._handle, lane, entry, coroutine, scope)

    def cancel(self, lane: Lane) -> None:
        self._handlers[lane].cancel()

    def publish(self, publications: Publications) -> None:
        self._start(self._publish, publications)

    # -- and the tasks for it -----------------------------------------------------------------------------------------

    def _start(self, task: Callable[..., Coroutine[object, object, None]], *args: object) -> None:
        assert self._nursery is not None, "run has not been started"
        self._nursery.start_soon(task, *args)

    async def _act_later(self, delay_s: float, action: Callable[[], None]) -> None:
        await trio.sleep(delay_s)
        action()
        self.machine.pump()

    async def _restore(self) -> None:
        """Restores one aggregate after the other; what comes at once is pumped together."""
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

    async def _from_store(self, lane: Lane) -> object:
        known, lane.doubted = lane.doubted, None
        if known is None or self._ports.refresh is None:
            return await self._ports.restore(lane.aggregate_id)
        return await self._ports.refresh(lane.aggregate_id, known)

    async def _handle(
        self, lane: Lane, entry: AnyEntry, coroutine: Coroutine[object, object, object], scope: trio.CancelScope
    ) -> None:
        change: object = None
        failed: BaseException | None = None
        with scope:
            try:
                change = await stepwise(coroutine, self._ports.clock, self._options.slow_handler_s, partial(self._slow, entry))
            except trio.Cancelled:
                raise
            except BaseException as error:  # as in the processor: it fails its own command
                failed = error
        del self._handlers[lane]
        self.machine.handled(lane, entry, change, failed)
        self.machine.pump()

    def _slow(self, entry: AnyEntry, seconds: float) -> None:
        entry.lane.mailbox.slow += 1
        self._ports.on_slow(entry, seconds)

    async def _publish(self, publications: Publications) -> None:
        assert self._ports.publish is not None
        try:
            await self._ports.publish(publications.values())
        except Exception as error:
            self.machine.publish_failed(publications, error)
        else:
            self.machine.published(publications)
        self.machine.pump()
