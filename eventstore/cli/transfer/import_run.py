"""Sends commits to the store in the order of the file: one batch is in flight while the next is read and parsed.

More batches would gain nothing, because the client splits a batch and keeps several frames in flight.

A refused line or commit holds back what follows of its aggregate: were that stored, the corrected line would come after it for
ever. So nothing is sent behind a commit that may be refused. A commit that breaks a limit is known without asking. A command
id may have been used before only on an aggregate that was there before, or if it is in the files several times. So commits of
all aggregates but those that this import has created are first sent on condition of a version that no aggregate has. This
stores nothing; it finds the commits that the store has, and those whose command id it has with other content. What is left of
the batch is then sent in the order of the file. No batch has a command twice, since the store would know neither.

A line whose aggregate cannot be read holds back everything that follows. If the store stops accepting commits (a full disk)
and some behind the first were stored, the import reports that they have changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

import eventstore as es
from eventstore.cli.terminal.output import print_note
from eventstore.cli.transfer.line_source import CommandLines, LineSource, SourceFailed
from eventstore.cli.transfer.refusals import Refusals
from eventstore.client.aio.store import NetworkStore
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument, VersionConflict
from eventstore.fields import counted
from eventstore.model import ANY, VERSION_MAX, Committed, ExpectedVersion
from eventstore.records.raw_commit import encode_commits

# Large enough to make a round trip to a distant server negligible; takes about 10 ms to parse.
BATCH_COMMITS: Final = 1_000
BATCH_BYTES: Final = 4 * 1024 * 1024
# Other tasks get their turn after this many lines: half a millisecond.
_SLICE: Final = 50
_RECONNECT_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.2
_ABOUT_THE_COMMIT: Final = (InvalidArgument, CommandIdReused, VersionConflict)
_AGGREGATES_KEPT: Final = 100_000  # in each of three dicts: some 10 MB each


class ImportStopped(EventStoreError):
    """The import did not reach the end of its files."""


@dataclass(slots=True)
class Summary:
    """Counts of an import, in events. `repeated` ones were in the store before, or twice in the files; `held_back` ones follow
    a refused line of their aggregate. `misplaced` are those of the repeated that the store has before events that precede them
    in the files.
    """

    new: int = 0
    repeated: int = 0
    held_back: int = 0
    misplaced: int = 0
    commits: int = 0
    interrupted: bool = False
    refusals: Refusals = field(default_factory=Refusals)

    @property
    def refused(self) -> int:
        return self.refusals.events

    @property
    def events(self) -> int:
        return self.new + self.repeated + self.refused + self.held_back


@dataclass(slots=True)
class _Batch:
    """Commits that are sent together."""

    groups: list[CommandLines] = field(default_factory=list)
    commands: set[tuple[str, str]] = field(default_factory=set)
    size_bytes: int = 0
    answered: trio.Event = field(default_factory=trio.Event)

    def add(self, group: CommandLines) -> None:
        self.groups.append(group)
        self.commands.add((group.aggregate_id, group.command_id))
        self.size_bytes += group.size_bytes

    def ends_before(self, group: CommandLines) -> bool:
        if group.is_repeated and (group.aggregate_id, group.command_id) in self.commands:
            return True
        return len(self.groups) >= BATCH_COMMITS or self.size_bytes >= BATCH_BYTES


async def run_import(
    address: str, source: LineSource, summary: Summary, *, strict: bool, on_progress: Callable[[], None]
) -> None:
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
        self, store: NetworkStore, source: LineSource, summary: Summary, *, strict: bool, on_progress: Callable[[], None]
    ) -> None:
        self._store = store
        self._source = source
        self._summary = summary
        self._strict = strict
        self._on_progress = on_progress
        self._sent: _Batch | None = None
        self._failed: EventStoreError | None = None
        self._unread: set[str] = set()  # aggregates of which a line was refused; what was read before it is still sent
        self._nothing_more = False  # such a line may be of any aggregate
        self._held: set[str] = set()  # aggregates of which the store refused a commit
        self._created: dict[str, None] = {}  # aggregates; of others the store is asked once more
        self._stored: dict[str, int] = {}  # by aggregate, the last version in the store of what was sent
        self._named: dict[str, int] = {}  # by aggregate, the last version that a line named

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
        await trio.to_thread.run_sync(self._source.survey, abandon_on_cancel=True)  # it uses nothing that is closed
        failed: SourceFailed | OSError | None = None
        batch = _Batch()
        try:
            for number, group in enumerate(self._groups()):
                if number % _SLICE == 0:
                    await trio.lowlevel.checkpoint()
                if batch.ends_before(group):
                    await self._send(nursery, batch)
                    batch = _Batch()
                batch.add(group)
        except (SourceFailed, OSError) as error:
            failed = error
        await self._send(nursery, batch)
        await self._settle()
        if failed is not None:
            raise failed

    async def _tell_of_losses(self) -> None:
        """Shows that the connection is lost, and how far the survey is. The client itself sends unanswered commits again."""
        while True:
            await trio.sleep(_LOOK_SECONDS)
            if not self._source.is_surveyed:
                self._on_progress()
            if not self._store.connected:
                print_note(f"connection lost, trying again for {_RECONNECT_SECONDS:.0f} s")
                while not self._store.connected:  # noqa: ASYNC110 # rare: not worth an event in every client
                    await trio.sleep(_LOOK_SECONDS)
                print_note("connected again")

    def _groups(self) -> Iterator[CommandLines]:
        """Yields the commits to send, and counts those that are refused or held back without asking the store."""
        for item in self._source.groups():
            if isinstance(item, CommandLines):
                aggregate_id = item.aggregate_id
                is_held = self._nothing_more or aggregate_id in self._unread or aggregate_id in self._held
                if not is_held:
                    self._check_order(item)
                if item.why is None:
                    if is_held:
                        self._summary.held_back += item.lines
                    else:
                        yield item
                    continue
                item = item.refusal(item.at, item.why)
            self._summary.refusals.add(item)
            if self._strict:
                raise SourceFailed(str(item))
            if item.aggregate_id is None:
                self._nothing_more = True
            else:
                self._unread.add(item.aggregate_id)

    def _check_order(self, group: CommandLines) -> None:
        """Refuses a commit whose lines name lower versions than lines before: the files are given in another order."""
        if group.version and group.why is None:
            before = self._named.get(group.aggregate_id, 0)
            if group.version < before and not group.is_repeated:
                group.refuse(
                    group.line,
                    f"version {group.version} stands after version {before} of the aggregate; give files and lines in the "
                    "order of their versions",
                )
            else:
                self._named[group.aggregate_id] = max(before, group.version)

    async def _send(self, nursery: trio.Nursery, batch: _Batch) -> None:
        """Sends a batch after the previous one was answered; returns without waiting for the answer."""
        await self._settle()
        if batch.groups:
            self._sent = batch
            nursery.start_soon(self._append, batch)
            await trio.lowlevel.checkpoint()

    async def _settle(self) -> None:
        """Waits for the batch in flight."""
        batch, self._sent = self._sent, None
        if batch is not None:
            await batch.answered.wait()
            self._on_progress()
        if self._failed is not None:
            raise self._failed

    async def _append(self, batch: _Batch) -> None:
        for group in batch.groups:
            if group.is_repeated:  # with other content, it would be refused
                self._created.pop(group.aggregate_id, None)
        groups = self._valid(batch.groups)
        asked = [group for group in groups if group.aggregate_id not in self._created]
        if asked:
            left = set(map(id, await self._round(asked, VERSION_MAX)))
            groups = [group for group in groups if group.aggregate_id in self._created or id(group) in left]
        if groups and self._failed is None:
            await self._round(groups, ANY)
        self._look_for_misplaced(batch.groups)
        for known in (self._created, self._stored, self._named):
            while len(known) > _AGGREGATES_KEPT:
                del known[next(iter(known))]
        batch.answered.set()

    def _look_for_misplaced(self, groups: list[CommandLines]) -> None:
        for group in groups:
            before = self._stored.get(group.aggregate_id, 0)
            if 0 < group.stored_version < before and not group.is_repeated:
                self._summary.misplaced += group.lines
            self._stored[group.aggregate_id] = max(before, group.stored_version)

    def _valid(self, groups: list[CommandLines]) -> list[CommandLines]:
        """Returns the commits that break no limit, up to the first of each aggregate that does."""
        valid = []
        for group, encoded in zip(groups, encode_commits([group.commit(ANY) for group in groups]), strict=True):
            if isinstance(encoded, InvalidArgument) or group.aggregate_id in self._held:
                self._refuse(group, encoded.message if isinstance(encoded, InvalidArgument) else "")
            else:
                valid.append(group)
        return valid

    async def _round(self, groups: list[CommandLines], expected_version: ExpectedVersion) -> list[CommandLines]:
        """Sends commits. Returns those that were refused for their version only, up to the first refusal of each aggregate."""
        try:
            outcomes = await self._store.append_many([group.commit(expected_version) for group in groups])
        except EventStoreError as error:
            outcomes = [error] * len(groups)
        again: list[CommandLines] = []
        refused: set[str] = set()  # aggregates; `_held` has also those of commits that come after these
        stopped: dict[str, tuple[CommandLines, EventStoreError]] = {}  # by aggregate, the first of each
        overtaken: list[str] = []
        for group, outcome in zip(groups, outcomes, strict=True):
            aggregate_id = group.aggregate_id
            if isinstance(outcome, Committed):
                self._count(group, outcome)
                if not outcome.duplicate and outcome.version == len(group.events):
                    self._created[aggregate_id] = None
                if not outcome.duplicate and aggregate_id in stopped:
                    overtaken.append(aggregate_id)
            elif isinstance(outcome, VersionConflict) and aggregate_id not in refused:
                again.append(group)
            elif isinstance(outcome, _ABOUT_THE_COMMIT):
                refused.add(aggregate_id)
                self._refuse(group, outcome.message)
            else:
                stopped.setdefault(aggregate_id, (group, outcome))
        if stopped and self._failed is None:
            self._failed = ImportStopped(_stopped(*next(iter(stopped.values())), overtaken))
        return again

    def _refuse(self, group: CommandLines, why: str) -> None:
        """Counts a commit that the store refused, or one that follows such a commit of its aggregate."""
        if group.aggregate_id in self._held:
            self._summary.held_back += group.lines
            return
        self._held.add(group.aggregate_id)
        refusal = group.refusal(group.line, why)
        self._summary.refusals.add(refusal)
        if self._strict and self._failed is None:
            self._failed = SourceFailed(str(refusal))

    def _count(self, group: CommandLines, outcome: Committed) -> None:
        summary = self._summary
        summary.commits += 1
        if outcome.duplicate:
            summary.repeated += group.lines
        else:
            summary.new += len(group.events)
            summary.repeated += group.lines - len(group.events)
        group.stored_version = outcome.version


def _stopped(group: CommandLines, error: EventStoreError, overtaken: list[str]) -> str:
    message = f"stopped at {group.file}, line {group.line}: {error.message}"
    if not overtaken:
        return message
    stored = counted(len(overtaken), "commit was", "commits were")
    return f"{message}; {stored} stored before others of the aggregate, the first of {overtaken[0]!r}"
