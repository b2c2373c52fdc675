"""Copies what is new in a source to a store, and notes there how far it came.

Each event is a commit of its own, whose command id is the id that it has in the source, so an event that is there is not stored
twice, whatever was interrupted. One batch is read while the one before it is appended. The checkpoint is an aggregate of the
target: it is written behind what it stands for, so after a crash some events are found again, and none is left out. It is
appended on condition of its version: of two runs at once, one ends.

Versions here are numbered 1, 2, 3. Unless gaps are closed or kept, an event is appended on condition of the version before it:
what the source lacks, and what somebody else has appended here, is found by the store and named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from eventstore.cli.transfer.event_lines import LineRefused, ParsedLine
from eventstore.cli.transfer.line_rules import LineRules
from eventstore.cli.transfer.migration.source import Source, SourceRefused, SourceRow
from eventstore.client.aio.store import NetworkStore
from eventstore.errors import EventStoreError, InvalidArgument, VersionConflict
from eventstore.fields import counted, shown
from eventstore.import_marks import MARKS, with_members
from eventstore.model import ANY, VERSION_MAX, Commit, Committed, Event, NewEvent, fresh_command_id
from eventstore.records.raw_commit import CommitResult

GAPS: Final = ("refuse", "close", "keep")
"""What is done about versions or positions that are missing: end there; number what follows without them; also keep the number
that an event had, in its metadata."""
SOURCE_VERSION: Final = "source_version"
SOURCE_POSITION: Final = "source_position"
_PREFIX: Final = "migration-"
_TYPE: Final = "Migrated"
_SAVE_S: Final = 1.0
_RECONNECT_S: Final = 30.0


@dataclass(frozen=True)
class MigrationRules:
    """What is done with each row. `lines`: marks, and the domain that events have to fit."""

    version_gaps: str = "refuse"
    position_gaps: str = "refuse"
    lines: LineRules = field(default_factory=LineRules)

    def checked(self) -> MigrationRules:
        """Raises InvalidArgument."""
        for name, value in (("version-gaps", self.version_gaps), ("position-gaps", self.position_gaps)):
            if value not in GAPS:
                raise InvalidArgument(
                    f"--{name} is {shown(value)}, allowed are {', '.join(GAPS)}", field=name, value=shown(value)
                )
        return self

    def prepared(self, row: SourceRow) -> ParsedLine:
        """Returns the event as it is stored. Raises SourceRefused."""
        parsed = row.parsed
        kept = {}
        if self.version_gaps == "keep" and parsed.version:
            kept[SOURCE_VERSION] = parsed.version
        if self.position_gaps == "keep":
            kept[SOURCE_POSITION] = row.place
        try:
            event = with_members(parsed.event, kept) if kept else parsed.event
            return self.lines.checked(parsed._replace(event=event))
        except (LineRefused, InvalidArgument) as error:
            what = error.what if isinstance(error, LineRefused) else error.message
            raise SourceRefused(f"the event at position {row.place}, {named(parsed)}: {what}") from None


@dataclass
class MigrationSummary:
    """`place`: in the source, up to which all is in the target; `head`: up to which this run goes."""

    new: int = 0
    repeated: int = 0
    place: int | None = None
    head: int = 0

    @property
    def events(self) -> int:
        return self.new + self.repeated


@dataclass(frozen=True)
class MigrationPlace:
    """How far earlier runs came. `version`: of the aggregate that says so; `place`: None: there were none."""

    version: int = 0
    place: int | None = None
    events: int = 0
    noted: dict[str, Any] = field(default_factory=dict)


def checkpoint_id(name: str) -> str:
    """Returns the aggregate that notes how far a migration came."""
    return f"{_PREFIX}{name}"


def named(parsed: ParsedLine) -> str:
    """Names an event in an error."""
    version = f"version {parsed.version} of " if parsed.version else ""
    return f"{version}aggregate {shown(parsed.aggregate_id)}, id {shown(parsed.command_id)}"


async def load_checkpoint(store: NetworkStore, name: str) -> MigrationPlace:
    """Returns how far earlier runs came. Raises SourceRefused: the aggregate says something else."""
    async with store.read(checkpoint_id(name), backwards=True, limit=1) as events:
        last: Event | None = await anext(events, None)
    if last is None:
        return MigrationPlace()
    try:
        noted = last.json()
        return MigrationPlace(last.version, int(noted["place"]), int(noted["events"]), noted)
    except (EventStoreError, LookupError, TypeError, ValueError):
        what = f"aggregate {checkpoint_id(name)!r} of the target is no checkpoint of a migration; give another --name"
        raise SourceRefused(what) from None


class Migration:
    """One run."""

    def __init__(
        self,
        store: NetworkStore,
        source: Source,
        name: str,
        rules: MigrationRules,
        summary: MigrationSummary,
        *,
        paused: bool,
        accept_form: bool,
        on_progress: Callable[[], None],
    ) -> None:
        """`paused`: nobody writes to the source. `accept_form`: what is read may have other names or types than before."""
        self._store, self._source, self._name, self._rules = store, source, name, rules
        self._summary, self._paused, self._accept_form = summary, paused, accept_form
        self._on_progress = on_progress
        self._checkpoint = MigrationPlace()
        self._saved_at = time.monotonic()
        self._stored = 0
        self._noting: tuple[NewEvent, str, int] | None = None
        self._last_place: int | None = None
        self._ahead: list[SourceRow] | None = None
        self._failed: EventStoreError | None = None

    async def run(self) -> None:
        """Copies up to where the source ends now.

        Raises:
            SourceRefused: the source or one of its rows cannot be copied as it was asked for; all before it is stored.
            EventStoreError: the target does not take it.
        """
        self._checkpoint = await load_checkpoint(self._store, self._name)
        form = dict(self._source.form())
        self._check_same(form)
        head = await self._in_thread(lambda: self._source.head(paused=self._paused))
        place, summary = self._checkpoint.place, self._summary
        summary.head = head
        summary.place = place
        if place is not None and head < place:
            raise SourceRefused(
                f"{self._source.name} ends at {head}, and an earlier run came to {place}: it is another source, or was "
                "restored from an older copy; give another --name to begin again"
            )
        self._last_place = place
        try:
            await self._copy_all(self._source.rows(-1 if place is None else place, head))
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _RECONNECT_S):
                await self._save(form)
        if self._paused and (now := await self._in_thread(lambda: self._source.head(paused=True))) != head:
            raise SourceRefused(f"{self._source.name} was to be paused, and ends at {now} now, at {head} before; run again")

    async def _copy_all(self, batches: Iterator[list[SourceRow]]) -> None:
        form = dict(self._source.form())
        await self._read_ahead(batches)
        while (rows := self._ahead) is not None and self._failed is None:
            prepared = self._prepared(rows)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_ahead, batches)
                await self._append(rows, prepared)
            self._on_progress()
            if time.monotonic() - self._saved_at > _SAVE_S:
                await self._save(form)
        if self._failed is not None:
            raise self._failed

    async def _read_ahead(self, batches: Iterator[list[SourceRow]]) -> None:
        try:
            self._ahead = await self._in_thread(lambda: next(batches, None))
        except EventStoreError as error:  # not raised in the nursery, which would wrap it in a group
            self._failed = self._failed or error
            self._ahead = None

    async def _in_thread(self, ask: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(ask)

    def _prepared(self, rows: list[SourceRow]) -> list[Commit]:
        """Returns the commits of rows, up to the first that must not be stored, which is noted as the failure."""
        exact = self._rules.version_gaps == "refuse"
        prepare, commits = self._rules.prepared, list[Commit]()
        try:
            for row in rows:
                self._check_place(row.place)
                aggregate_id, command_id, at, event, version, *_ = prepare(row)
                commits.append(Commit(aggregate_id, [event], version - 1 if exact and version else ANY, command_id, at))
        except SourceRefused as error:
            self._failed = error
        return commits

    def _check_place(self, place: int) -> None:
        first, last = self._source.first_place, self._last_place
        if first is not None and last is not None and place <= last:
            what = f"two events have position {place}, which does not order them; name another column"
            raise SourceRefused(f"{self._source.name}: {what}")
        if first is not None and self._rules.position_gaps == "refuse":
            expected = first if last is None else last + 1
            if place != expected:
                raise SourceRefused(
                    f"{self._source.name}: position {place} follows {expected - 1}, so {counted(place - expected, 'position')} "
                    "may be missing; --position-gaps close if they were never used, or keep to note each position"
                )
        self._last_place = place

    async def _append(self, rows: list[SourceRow], commits: list[Commit]) -> None:
        try:
            outcomes = await self._outcomes(commits) if commits else []
        except EventStoreError as error:
            self._failed = error
            return
        summary = self._summary
        for row, outcome in zip(rows, outcomes, strict=False):  # the rows behind a failure have no commit
            if not isinstance(outcome, Committed):
                self._failed = self._explained(row, outcome)
                return
            if outcome.duplicate:
                summary.repeated += 1
            else:
                summary.new += 1
            self._stored += 1
            summary.place = row.place

    async def _outcomes(self, commits: list[Commit]) -> list[CommitResult]:
        """Returns what became of commits, up to the first that was refused.

        Nothing behind that one may be stored: it would have changed places with what it waits for. So they are first sent on
        condition of a version that no aggregate has. This stores nothing; it finds what is there, and what would be refused.
        """
        outcomes = list[CommitResult]()
        for part in _without_repetitions(commits):
            found = await self._store.append_many([Commit(*each[:2], VERSION_MAX, *each[3:]) for each in part])
            end, refused = _refused(part, found)
            new = [commit for commit, each in zip(part[:end], found, strict=False) if not isinstance(each, Committed)]
            stored = iter(await self._store.append_many(new) if new else [])
            outcomes += [each if isinstance(each, Committed) else next(stored) for each in found[:end]]
            if refused is not None:
                return [*outcomes, refused]
            if not all(isinstance(each, Committed) for each in outcomes):
                break
        return outcomes

    def _explained(self, row: SourceRow, error: EventStoreError) -> EventStoreError:
        where = f"position {row.place} of {self._source.name}, {named(row.parsed)}"
        if not isinstance(error, VersionConflict):
            return SourceRefused(f"{where}: {error.message}")
        actual = int(str(error.fields["actual"]))
        missing = row.parsed.version - 1 - actual
        if missing > 0:
            return SourceRefused(
                f"{where}: it follows version {actual}, so {counted(missing, 'version is', 'versions are')} missing; "
                "--version-gaps close numbers what follows without them, keep also notes each version"
            )
        return SourceRefused(
            f"{where}: the target has version {actual} of it already, which did not come from there; migrate to a store of its "
            "own"
        )

    # ---- the checkpoint

    def _check_same(self, form: dict[str, str]) -> None:
        """Raises SourceRefused if earlier runs have read something else, or in another way."""
        noted = self._checkpoint.noted
        if not noted:
            return
        before = noted.get("form", {})
        if before != form and not self._accept_form:
            what = [
                f"{name} is {form[name]}, was {before.get(name, 'not there')}"
                for name in form
                if form[name] != before.get(name)
            ]
            what += [f"{name} is gone" for name in before if name not in form]
            raise SourceRefused(
                f"the schema of {self._source.name} changed since the last run: {'; '.join(what)}. Nothing was copied; "
                "--accept-schema goes on"
            )
        for option, value in self._ways().items():
            if noted.get(option) not in (value, "refuse" if value == "close" else value):  # it had none until there
                flag = option.replace("_", "-")
                raise SourceRefused(f"--{flag} was {noted.get(option)} in the last run and is {value}; give the same")

    def _ways(self) -> dict[str, str]:
        return {"version_gaps": self._rules.version_gaps, "position_gaps": self._rules.position_gaps}

    async def _save(self, form: dict[str, str]) -> None:
        """Notes how far all is stored. What was sent and not answered is sent again first, as it was: it may be there."""
        self._saved_at = time.monotonic()
        while (noting := self._noting or self._to_note(form)) is not None:
            self._noting = noting
            event, command_id, stored = noting
            try:
                done = await self._store.append(checkpoint_id(self._name), [event], self._checkpoint.version, command_id)
            except VersionConflict:
                what = f"another run of migration {self._name!r} writes to this target; only one may"
                raise SourceRefused(what) from None
            noted = json.loads(event.data)
            self._noting = None
            self._stored -= stored
            self._checkpoint = MigrationPlace(done.version, noted["place"], noted["events"], noted)

    def _to_note(self, form: dict[str, str]) -> tuple[NewEvent, str, int] | None:
        """Returns what is to be noted, its command id, and how many events it counts; None: there is nothing new."""
        place, before = self._summary.place, self._checkpoint
        if place is None or (place == before.place and form == before.noted.get("form")):
            return None
        noted = {"place": place, "events": before.events + self._stored, "form": form, **self._ways()}
        return NewEvent(_TYPE, noted, dict.fromkeys(MARKS, True)), fresh_command_id(), self._stored


def _refused(commits: list[Commit], found: list[CommitResult]) -> tuple[int, EventStoreError | None]:
    """Returns the place of the first of these commits that will be refused, and the error; or their number, and None. `found`:
    what became of them on condition of a version that no aggregate has.
    """
    versions = dict[str, int]()
    for place, (commit, each) in enumerate(zip(commits, found, strict=True)):
        name, expected = commit.aggregate_id, commit.expected_version
        if isinstance(each, VersionConflict):
            actual = versions.get(name, int(str(each.fields["actual"])))
            if isinstance(expected, int) and expected != actual:
                return place, VersionConflict(name, expected, actual)
            versions[name] = actual + 1
        elif not isinstance(each, Committed):
            return place, each
        elif isinstance(expected, int) and expected + 1 != each.version:
            what = f"version {each.version} has this id already; each event needs one of its own: name another column as id"
            return place, SourceRefused(what)
    return len(commits), None


def _without_repetitions(commits: Iterable[Commit]) -> Iterator[list[Commit]]:
    """Yields commits in parts, of which none has an id of an aggregate twice."""
    part, seen = list[Commit](), set[tuple[str, str]]()
    for each in commits:
        key = each.aggregate_id, each.command_id
        if key in seen:
            yield part
            part, seen = [], set()
        part.append(each)
        seen.add(key)
    yield part
