"""Sends commits to the store, in the order of the file: one batch is on its way while the next is read and parsed.

Only one: the client takes a batch to pieces and keeps several frames in flight anyway, so more would gain nothing; and if
the store stops taking commits (a full disk), little of what follows the first refusal can be stored before it. Where that
happens all the same, the import says so: an aggregate's events would have changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

import eventstore as es
from eventstore.cli.line_source import Group, Source, SourceFailed
from eventstore.cli.output import print_note
from eventstore.cli.refusals import Refusal, Refusals
from eventstore.client.store import NetworkStore
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument, VersionConflict
from eventstore.model import Commit, Committed

# Large enough that a round trip to a distant server does not count; about 10 ms of parsing.
BATCH_COMMITS: Final = 1_000
BATCH_BYTES: Final = 4 * 1024 * 1024
# Other tasks get their turn after so many lines: half a millisecond.
_SLICE: Final = 50
_RECONNECT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_ABOUT_THE_COMMIT: Final = (InvalidArgument, CommandIdReused, VersionConflict)


class Stopped(EventStoreError):
    """The import did not reach the end of its files."""


@dataclass(slots=True)
class Summary:
    """What an import did, in events. `repeated`: they were in the store before."""

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
    """Commits on their way together, and what they came from."""

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
    """Imports everything in `source`, and keeps `summary` up to date. `strict`: the first refusal stops it.

    Raises:
        Stopped: the store or a file could not go on; everything counted as new is durable.
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
            except (EventStoreError, OSError) as error:  # kept out of the nursery, which would wrap it into a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _send_all(self, nursery: trio.Nursery) -> None:
        failed: SourceFailed | OSError | None = None
        batch = _Batch()
        try:
            for place, group in enumerate(self._groups()):
                if place % _SLICE == 0:
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
        """Says why nothing seems to happen. What is unanswered is sent again by the client, without doing anything here."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            if not self._store.connected:
                print_note(f"connection lost, trying again for {_RECONNECT_SECONDS:.0f} s")
                while not self._store.connected:  # noqa: ASYNC110 # twice in a lifetime: not worth an event in every client
                    await trio.sleep(_LOOK_SECONDS)
                print_note("connected again")

    def _groups(self) -> Iterator[Group]:
        """The commits to send; what is refused without asking the store is counted here."""
        for item in self._source.groups():
            if isinstance(item, Group) and item.why is None:
                yield item
                continue
            if isinstance(item, Group):
                item = item.refusal(item.at, item.why or "")
            self._refuse(item)

    async def _send(self, nursery: trio.Nursery, batch: _Batch) -> None:
        """Hands a batch to the client once the one before it was answered; returns without waiting for its answer."""
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
        """Waits for the batch on its way, and counts what became of it."""
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
    said = f"stopped at {group.file}, line {group.line}: {error.message}"
    if not overtaken:
        return said
    return f"{said}; {len(overtaken)} commits were stored before others of their aggregate, the first of {overtaken[0]!r}"
