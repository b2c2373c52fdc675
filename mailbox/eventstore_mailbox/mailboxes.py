"""`Mailboxes`, the public class: a set of command mailboxes with their event mailboxes, on trio."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, cast
from weakref import WeakSet

import trio

from eventstore_mailbox.core.options import Options
from eventstore_mailbox.core.ports import A, AnyPorts, C, O, Ports, X
from eventstore_mailbox.core.state import AnyEntry, Entry
from eventstore_mailbox.errors import OfParent
from eventstore_mailbox.stats import MailboxesStats, stats_of
from eventstore_mailbox.trio_driver import TrioDriver

_told: Final[WeakSet[Mailboxes[Any, Any, Any, Any]]] = WeakSet()


class Mailboxes(Generic[C, A, X, O]):
    """A set of mailboxes in one trio run. Not thread-safe.

    `submit` and `append` only accept; call `kick` after the last of a round. It runs the commands and hands their changes to
    the store, on the spot if no command has to wait.
    """

    def __init__(self, ports: Ports[C, A, X, O], options: Options | None = None) -> None:
        self._driver = TrioDriver(cast("AnyPorts", ports), Options() if options is None else options)
        self._machine = self._driver.machine
        _told.add(self)

    def forked(self) -> None:
        """In a child: accepts nothing. What was accepted before is answered in the parent."""
        self._machine.refuse = partial(OfParent, os.getppid())
        self._machine.stop()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until `stop`. If it is cancelled, everything that is left is answered with STOPPED."""
        await self._driver.run(task_status)

    def submit(self, entries: Sequence[Entry[C, O]]) -> list[Entry[C, O]]:
        """Accepts commands, in order. `Ports.answer` gets each once it is settled.

        If a mailbox has no room for a command, it is not accepted: it is returned with status OVERLOADED, and may be submitted
        again.

        Raises:
            Stopping: none was accepted.
        """
        return cast("list[Entry[C, O]]", self._machine.submit(cast("Sequence[AnyEntry]", entries)))

    def append(
        self,
        changes: Sequence[X],
        deliver: Callable[[list[O]], None],
        source: object = None,
        deliver_some: Callable[[Sequence[int], list[O]], None] | None = None,
        size_bytes: int | None = None,
    ) -> Sequence[int]:
        """Accepts plain appends: changes with the sender's own expected version.

        `deliver` gets one outcome each, in order, together, if no aggregate has commands in its mailbox. Otherwise
        `deliver_some` gets all outcomes, each with its place and as soon as it is there. `size_bytes`: of all, at most; None:
        each is measured. Returns the places of the appends that wait for commands. An append that a mailbox has no room for has
        the outcome `Ports.refusal(MailboxFull)`.

        Raises:
            Stopping, MailboxFull: none was accepted.
        """
        machine: Any = self._machine
        waiting: Sequence[int] = machine.append(changes, deliver, source, deliver_some, size_bytes)
        return waiting

    @trio.lowlevel.enable_ki_protection
    def kick(self) -> None:
        """Runs what was accepted, as far as possible at once, and hands the changes to the store."""
        self._machine.pump()

    async def execute(self, entry: Entry[C, O]) -> Entry[C, O]:
        """Waits for room, submits one command, and returns it once it is settled; `Ports.answer` does not get it.

        Cancelling the wait does not withdraw the command.

        Raises:
            Stopping: it was not accepted.
        """
        return cast("Entry[C, O]", await self._driver.execute(cast("AnyEntry", entry)))

    def forget(self, aggregate_ids: Iterable[str]) -> None:
        """Drops aggregates from memory, because the store has changes of them, already readable, that did not come from here.
        A command that is not handled yet is handled on an aggregate restored after this call.
        """
        self._machine.forget(aggregate_ids)

    @property
    def fast_path_full(self) -> bool:
        """Whether the next plain append would be refused as overloaded, because too many are in flight."""
        return self._machine.fast_path.full

    @property
    def depth(self) -> int:
        """Commands and plain appends that were accepted and are not answered yet."""
        return self._machine.depth

    async def stop(self, deadline_s: float) -> int:
        """Accepts nothing more, finishes what was accepted, ends `run`.

        What is left after `deadline_s`, or when this call is cancelled, is answered with STOPPED; returns how many that were.
        """
        return await self._driver.stop(deadline_s)

    def stats(self) -> MailboxesStats:
        return stats_of(self._machine)


def _tell_of_fork() -> None:
    for each in list(_told):
        each.forked()


os.register_at_fork(after_in_child=_tell_of_fork)
