"""Sends commits to the store in the order of the file: one batch is in flight while the next is read and parsed.

More batches would gain nothing, because the client splits a batch and keeps several frames in flight. With one batch, few
commits can be stored after the first refusal if the store stops accepting commits (a full disk). If some of them belong to
the aggregate of a refused one, its events have changed places, and the import reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

import eventstore as es
from eventstore.cli.terminal.output import print_note
from eventstore.cli.transfer.line_source import Group, Source, SourceFailed
from eventstore.cli.transfer.refusals import Refusal, Refusals
from eventstore.client.aio.store import NetworkStore
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument, VersionConflict
from eventstore.fields import counted
from eventstore.model import Commit, Committed

# Large enough to make a round trip to a distant server negligible; takes about 10 ms to parse.
BATCH_COMMITS: Final = 1_000
BATCH_BYTES: Final = 4 * 1024 * 1024
# Other tasks get their turn after this many lines: half a millisecond.
_SLICE: Final = 50
_RECONNECT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_ABOUT_THE_COMMIT: Final = (InvalidArgument, CommandIdReused, VersionConflict)


class Stopped(EventStoreError):
    """The import did not reach the end of its files."""


@dataclass(slots=True)
class Summary:
    """Counts of an import, in events. `repeated` ones were in the store before."""

    new: int = 0
    repeated: int = 0
    commits: int = 0
    interrupted: bool = False
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def refused(self) -> int:
        return self.refusals.events

    @property
    def events(self) -> int:
        return self.new + self.repeated + self.refused


@dataclass(slots=True)
class _Batch:
    """Commits that are sent together, with the lines they came from."""

    groups: list[Group] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    size_bytes: int = 0
    outcomes: list[Committed | EventStoreError] = field(default_factory=list)
    answered: trio.Event = field(default_factory=trio.Event)

    def add(self, group: Group) -> None:
        self.groups.append(group)
        self.commits.append(group.commit())
        self.size_bytes += group.size_bytes

    @property
    def full(self) -> bool:
        return len(self.commits) >= BATCH_COMMITS or self.size_bytes >= BATCH_BYTES


async def run_import(
    address: str, source: Source, summary: Summary, *, strict: bool, on_progress: Callable[[], None]
) -> None:  # fmt: skip
    """Imports everything in `source`, and keeps `summary` up to date. With `strict` the first refusal stops it.

    Raises:
        Stopped: the store refused to continue, or a file could not be read; all events counted as new are durable.
        EventStoreError: the server cannot be reached.
    """
    async with es.connect(address, reconnect_timeout=_RECONNECT_SECONDS, name="eventstore import") as store:
        await _Import(store, source, summary, strict=strict, on_progress=on_progress).run()


class _Import:
    """One import over one connection."""

    def __init__(
        self, store: NetworkStore, source: Source, summary: Summary, *, strict: bool, on_progress: Callable[[], None]
    ) -> None:  # fmt: skip
        self._store = store
        self._source = source
        self._summary = summary
        self._strict = strict
        self._on_progress = on_progress
        self._sent: _Batch | None = None

    async def run(self) -> None:
        failed: EventStoreError | OSError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_of_losses)
            try:
                await self._send_all(nursery)
            except (EventStoreError, OSError) as error:  # not raised in the nursery, which would wrap it in a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _send_all(self, nursery: trio.Nursery) -> None:
        failed: SourceFailed | OSError | None = None
        batch = _Batch()
        try:
            for number, group in enumerate(self._groups()):
                if number % _SLICE == 0:
                    await trio.lowlevel.checkpoint()
                batch.add(group)
                if batch.full:
                    await self._send(nursery, batch)
                    batch = _Batch()
        except (SourceFailed, OSError) as error:
            failed = error
        await self._send(nursery, batch)
        await self._settle()
        if failed is not None:
            raise failed

    async def _tell_of_losses(self) -> None:
        """Shows that the connection is lost. The client itself sends unanswered commits again."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            if not self._store.connected:
                print_note(f"connection lost, trying again for {_RECONNECT_SECONDS:.0f} s")
                while not self._store.connected:  # noqa: ASYNC110 # rare: not worth an event in every client
                    await trio.sleep(_LOOK_SECONDS)
                print_note("connected again")

    def _groups(self) -> Iterator[Group]:
        """Yields the commits to send, and counts those that are refused without asking the store."""
        for item in self._source.groups():
            if isinstance(item, Group) and item.why is None:
                yield item
                continue
            if isinstance(item, Group):
                item = item.refusal(item.at, item.why or "")
            self._refuse(item)

    async def _send(self, nursery: trio.Nursery, batch: _Batch) -> None:
        """Sends a batch after the previous one was answered; returns without waiting for the answer."""
        await self._settle()
        if batch.commits:
            self._sent = batch
            nursery.start_soon(self._append, batch)
            await trio.lowlevel.checkpoint()

    async def _append(self, batch: _Batch) -> None:
        try:
            batch.outcomes = await self._store.append_many(batch.commits)
        except EventStoreError as error:
            batch.outcomes = [error] * len(batch.commits)
        batch.answered.set()

    async def _settle(self) -> None:
        """Waits for the batch in flight, and counts its results."""
        batch, self._sent = self._sent, None
        if batch is None:
            return
        await batch.answered.wait()
        stopped: dict[str, tuple[Group, EventStoreError]] = {}  # by aggregate, the first of each
        overtaken: list[str] = []
        for group, outcome in zip(batch.groups, batch.outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._count(group, outcome)
                if not outcome.duplicate and group.aggregate_id in stopped:
                    overtaken.append(group.aggregate_id)
            elif isinstance(outcome, _ABOUT_THE_COMMIT):
                self._refuse(group.refusal(group.line, outcome.message))
            else:
                stopped.setdefault(group.aggregate_id, (group, outcome))
        self._on_progress()
        if stopped:
            raise Stopped(_stopped(*next(iter(stopped.values())), overtaken))

    def _refuse(self, refusal: Refusal) -> None:
        self._summary.refusals.add(refusal)
        if self._strict:
            raise SourceFailed(str(refusal))

    def _count(self, group: Group, outcome: Committed) -> None:
        summary = self._summary
        summary.commits += 1
        if outcome.duplicate:
            summary.repeated += group.lines
        else:
            summary.new += group.lines


def _stopped(group: Group, error: EventStoreError, overtaken: list[str]) -> str:
    message = f"stopped at {group.file}, line {group.line}: {error.message}"
    if not overtaken:
        return message
    stored = counted(len(overtaken), "commit was", "commits were")
    return f"{message}; {stored} stored before others of the aggregate, the first of {overtaken[0]!r}"
