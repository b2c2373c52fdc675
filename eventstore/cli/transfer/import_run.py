"""Sends commits to the store in the order of the file: one batch is in flight while the next is read and parsed.

More batches would gain nothing, because the client splits a batch and keeps several frames in flight.

A refused line or commit holds back what follows of its aggregate: were that stored, the corrected line would come after it for
ever. A line whose command cannot be read also holds back what precedes it (see `line_source`).

So nothing is sent behind a commit that may be refused. A commit that breaks a limit is known without asking. A command id may
have been used before only on an aggregate that was there before, or if it is in the files several times. So commits of all
aggregates but those that this import has created are first sent on condition of a version that no aggregate has. This stores
nothing; it finds the commits that the store has, and those whose command id it has with other content. What is left of the
batch is then sent in the order of the file. No batch has a command twice, since the store would know neither: a repetition with
the same content is only counted, one with other content begins the next batch.

A commit of several aggregates is sent with others that share no aggregate with it, and what follows waits for their answers: so
nothing is sent behind one of them that is refused. Then all its aggregates are held back.

If the store stops accepting commits (a full disk) and some behind the first were stored, the import reports that they have
changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

import trio

import eventstore as es
from eventstore.cli.terminal.output import print_note
from eventstore.cli.transfer.known_aggregates import KnownAggregate, KnownAggregates
from eventstore.cli.transfer.line_source import CommandLines, JointLines, LineSource, SourceFailed
from eventstore.cli.transfer.refusals import Refusal, Refusals
from eventstore.client.aio.store import NetworkStore
from eventstore.errors import CommandIdReused, CrossShard, EventStoreError, InvalidArgument, VersionConflict
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
_JOINT_AT_ONCE: Final = 100  # commits of several aggregates, each a request of its own


class ImportStopped(EventStoreError):
    """The import did not reach the end of its files."""


@dataclass(slots=True)
class Summary:
    """Counts of an import, in events.

    `repeated`: they were in the store before, or are twice in the files. `held_back`: they follow a refused line of their
    aggregate, or a line whose command cannot be read may belong to their commit. `misplaced`: of the repeated ones, how many
    the store has before events that precede them in the files.
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
    """Commits that are sent together: of one aggregate each, or of several."""

    groups: dict[tuple[str, str], CommandLines] = field(default_factory=dict)  # by aggregate and command id
    joint: list[JointLines] = field(default_factory=list)
    joint_aggregates: set[str] = field(default_factory=set)
    size_bytes: int = 0
    answered: trio.Event = field(default_factory=trio.Event)

    def take(self, group: CommandLines | JointLines) -> bool:
        """Adds a commit, or counts it as a repetition. Returns False if it has to be in the next batch."""
        if isinstance(group, JointLines):
            return self._take_joint(group)
        if self.joint:
            return False
        command = (group.aggregate_id, group.command_id)
        first = self.groups.get(command)
        if first is not None:
            return first.repeat(group)
        if len(self.groups) >= BATCH_COMMITS or self.size_bytes >= BATCH_BYTES:
            return False
        self.groups[command] = group
        self.size_bytes += group.size_bytes
        return True

    def _take_joint(self, commit: JointLines) -> bool:
        names = commit.aggregate_ids
        if self.groups or len(self.joint) >= _JOINT_AT_ONCE or self.size_bytes >= BATCH_BYTES:
            return False
        if not self.joint_aggregates.isdisjoint(names):
            return False
        self.joint.append(commit)
        self.joint_aggregates.update(names)
        self.size_bytes += commit.size_bytes
        return True


async def run_import(
    address: str, source: LineSource, summary: Summary, *, strict: bool, on_progress: Callable[[], None]
) -> None:
    """Imports everything in `source`, and keeps `summary` up to date. With `strict` the first refusal stops it.

    Raises:
        ImportStopped, SourceFailed, OSError: the store refused to continue, or a file could not be read. All events that are
            counted as new are durable.
        EventStoreError: the server cannot be reached.
    """
    async with es.connect(address, reconnect_timeout=_RECONNECT_SECONDS, name="eventstore import") as store:
        importing = _Import(store, source, summary, strict=strict, on_progress=on_progress)
        with closing(importing.known):
            await importing.run()


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
        self._failed: EventStoreError | OSError | None = None
        self.known = KnownAggregates()

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
                if not batch.take(group):
                    await self._send(nursery, batch)
                    batch = _Batch()
                    batch.take(group)
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

    def _groups(self) -> Iterator[CommandLines | JointLines]:
        """Yields the commits to send, and counts those that are refused or held back without asking the store."""
        for item in self._source.groups():
            if isinstance(item, JointLines):
                if self._may_be_sent(item):
                    yield item
                    continue
                for name in item.aggregate_ids:
                    self.known[name].is_unread = True
                if item.why is None:
                    self._summary.held_back += item.lines
                    continue
                item = item.refusal(item.at, item.why)
            elif isinstance(item, CommandLines):
                known = self.known[item.aggregate_id]
                is_held = known.is_unread or known.is_refused or self._source.may_lack_lines(item.aggregate_id)
                if not is_held:
                    _check_order(item, known, self._source.unread_before(item))
                if item.why is None:
                    if is_held:
                        self._summary.held_back += item.lines
                    else:
                        yield item
                    continue
                known.is_unread = True
                item = item.refusal(item.at, item.why)
            self._summary.refusals.add(item)
            if self._strict:
                raise SourceFailed(str(item))

    def _may_be_sent(self, commit: JointLines) -> bool:
        """Whether none of its aggregates is held back, and its lines are in order; otherwise it may be refused now."""
        names = commit.aggregate_ids
        known = [self.known[name] for name in names]
        if any(each.is_unread or each.is_refused for each in known) or any(map(self._source.may_lack_lines, names)):
            return False
        for part in commit.parts:
            _check_order(part, self.known[part.aggregate_id], self._source.unread_before(part))
        commit.check()
        return commit.why is None

    async def _send(self, nursery: trio.Nursery, batch: _Batch) -> None:
        """Sends a batch after the previous one was answered; returns without waiting for the answer."""
        await self._settle()
        if batch.groups or batch.joint:
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
        try:
            if batch.joint:
                async with trio.open_nursery() as nursery:
                    for commit in batch.joint:
                        nursery.start_soon(self._commit, commit)
            else:
                await self._append_all([*batch.groups.values()])
        except OSError as error:
            self._failed = error
        batch.answered.set()

    async def _append_all(self, groups: list[CommandLines]) -> None:
        for group in groups:
            if group.is_repeated:  # with other content, it would be refused
                self.known[group.aggregate_id].is_created = False
        sent = self._valid(groups)
        asked = [group for group in sent if not self.known[group.aggregate_id].is_created]
        if asked:
            settled = {*map(id, asked)}.difference(map(id, await self._round(asked, VERSION_MAX)))
            sent = [group for group in sent if id(group) not in settled]
        if sent and self._failed is None:
            await self._round(sent, ANY)
        for group in groups:
            self._note_stored(group)

    async def _commit(self, commit: JointLines) -> None:
        try:
            await self._commit_jointly(commit)
        except OSError as error:  # not raised in the nursery, which would wrap it in a group
            self._failed = error

    async def _commit_jointly(self, commit: JointLines) -> None:
        """Sends a commit of several aggregates."""
        if any(self.known[name].is_refused for name in commit.aggregate_ids):
            self._refuse_jointly(commit, "")
            return
        try:
            outcomes = await self._store.commit(commit.writes(), command_id=commit.command_id, timestamp=commit.parts[0].time)
        except (*_ABOUT_THE_COMMIT, CrossShard) as error:
            self._refuse_jointly(commit, error.message)
        except EventStoreError as error:
            if self._failed is None:
                self._failed = ImportStopped(_stopped(commit, error, []))
        else:
            self._summary.commits += 1
            for part, outcome in zip(commit.parts, outcomes, strict=True):
                self._count(part, outcome)
                self._note_stored(part)

    def _note_stored(self, group: CommandLines) -> None:
        """Notes the version that a commit has in the store, and whether others of its aggregate have passed it."""
        known = self.known[group.aggregate_id]
        if 0 < group.stored_version < known.version_stored and not group.is_repeated:
            self._summary.misplaced += group.lines
        known.version_stored = max(known.version_stored, group.stored_version)

    def _valid(self, groups: list[CommandLines]) -> list[CommandLines]:
        """Returns the commits that break no limit, up to the first of each aggregate that does."""
        valid = []
        for group, encoded in zip(groups, encode_commits([group.commit(ANY) for group in groups]), strict=True):
            if isinstance(encoded, InvalidArgument) or self.known[group.aggregate_id].is_refused:
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
        refused: set[str] = set()  # aggregates, of which a commit before was refused
        stopped: dict[str, tuple[CommandLines, EventStoreError]] = {}  # by aggregate, the first of each
        overtaken: list[str] = []
        for group, outcome in zip(groups, outcomes, strict=True):
            aggregate_id = group.aggregate_id
            if isinstance(outcome, Committed):
                self._summary.commits += 1 + group.repetitions
                self._count(group, outcome)
                if not outcome.duplicate and outcome.version == len(group.events):
                    self.known[aggregate_id].is_created = True
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
        known = self.known[group.aggregate_id]
        self._summary.held_back += group.repeated_lines
        if known.is_refused:
            self._summary.held_back += group.lines
            return
        known.is_refused = True
        self._add_refusal(group.refusal(group.line, why))

    def _refuse_jointly(self, commit: JointLines, why: str) -> None:
        """Does what `_refuse` does, for all aggregates of a commit."""
        was_refused = any(self.known[name].is_refused for name in commit.aggregate_ids)
        for name in commit.aggregate_ids:
            self.known[name].is_refused = True
        if was_refused:
            self._summary.held_back += commit.lines
        else:
            self._add_refusal(commit.refusal(commit.line, why))

    def _add_refusal(self, refusal: Refusal) -> None:
        self._summary.refusals.add(refusal)
        if self._strict and self._failed is None:
            self._failed = SourceFailed(str(refusal))

    def _count(self, group: CommandLines, outcome: Committed) -> None:
        summary = self._summary
        summary.repeated += group.repeated_lines
        if outcome.duplicate:
            summary.repeated += group.lines
        else:
            summary.new += len(group.events)
            summary.repeated += group.lines - len(group.events)
        group.stored_version = outcome.version


def _check_order(group: CommandLines, known: KnownAggregate, unread: str | None) -> None:
    """Refuses a commit whose lines name lower versions than lines before: the files are given in another order. `unread`: where
    a line before it cannot be read. What is left of a line of any aggregate may be in there, so versions must not have a gap.
    """
    if group.version and group.why is None:
        before = known.version_read
        if unread is not None and group.version - len(group.events) > before and not group.is_repeated:
            group.refuse(
                group.line,
                f"version {group.version} follows version {before} of the aggregate; what is between them may be lost in "
                f"{unread}, which cannot be read",
            )
        elif group.version < before and not group.is_repeated:
            group.refuse(
                group.line,
                f"version {group.version} stands after version {before} of the aggregate; give files and lines in the "
                "order of their versions",
            )
        else:
            known.version_read = max(before, group.version)


def _stopped(group: CommandLines | JointLines, error: EventStoreError, overtaken: list[str]) -> str:
    message = f"stopped at {group.file}, line {group.line}: {error.message}"
    if not overtaken:
        return message
    stored = counted(len(overtaken), "commit was", "commits were")
    return f"{message}; {stored} stored before others of the aggregate, the first of {overtaken[0]!r}"
