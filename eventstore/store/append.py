"""The hot path: checks commits in memory and writes their records into the front buffer.

Makes two passes over a batch. The first takes one commit at a time, because each is checked against the state that the
previous one left. It is one loop with local names; rare cases leave it for a method. The second turns the accepted commits into
records column by column, in C loops. With one method per step the same work took 6.2 µs for a commit of one event, as a single
pass 3.4 µs, in this form 2.7 µs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import repeat
from operator import add as concat
from operator import attrgetter, itemgetter
from struct import Struct
from typing import Any, NamedTuple, TypeAlias, cast

from eventstore.checksum import crc32c
from eventstore.chunks.front import FrontBuffer
from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.errors import CommandIdReused, ConditionFailed, EventStoreError, Poisoned, UnsupportedVersion
from eventstore.fields import RESERVED, check_int, reserved_id_refused
from eventstore.model import (
    ANY,
    COMMIT_BYTES_MAX,
    COMMIT_EVENTS_MAX,
    EXISTS,
    ID_BYTES_MAX,
    TIME_MAX,
    TIME_MIN,
    VERSION_MAX,
    Event,
)
from eventstore.records.commit import (
    AFTER_CRC,
    FIXED_BYTES,
    HEADER_BYTES,
    ID_PREFIX,
    IN_JOINT_COMMIT,
    LONG_AFTER_CRC,
    LONG_FIXED_BYTES,
    LONG_HEADER,
    LONG_MARK,
    NO_FINGERPRINT,
    CommitView,
    check_id,
)
from eventstore.records.raw_commit import (
    AfterCommand,
    AppendCondition,
    Guarded,
    JointWrites,
    OnAllReplicas,
    Packed,
    RawJointCommit,
    Unless,
    check_joint_total,
    check_joint_writes,
    split_fingerprint,
)
from eventstore.records.slots import slot_of
from eventstore.store.event_checks import EventsCheck, is_plain_event
from eventstore.store.memory.unsorted_tail import NO_COMMIT, TailFile, UnsortedTail
from eventstore.store.memory.version_cache import VersionCache, may_hold, version_of
from eventstore.store.sorted.event_files import EventFiles
from eventstore.store.uniqueness import Uniqueness
from eventstore.tags import TaggedEvents
from eventstore.trace_context import MARK as TRACE_MARK
from eventstore.trace_context import without_trace

COMMITTED, DUPLICATE, CONFLICT, REFUSED = 0, 1, 2, 3

NewCommit: TypeAlias = tuple[str | JointWrites, AppendCondition, str, int | None, bytes | Packed]
"""A `RawCommit`, one whose events need no further check, or one of several aggregates."""


AppendOutcome: TypeAlias = tuple[int, Any, int]
"""(COMMITTED or DUPLICATE, version, sequence) | (CONFLICT, actual version, 0) | (REFUSED, error, 0).

For `JointWrites`: (COMMITTED or DUPLICATE, a pair of version and sequence for each write, last sequence) | (CONFLICT,
(aggregate id, condition, actual version), 0) | (REFUSED, error, 0).
"""


Row: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, bytes, bytes]
"""Length of the record, sequence, events, time, first version, aggregate id, command id, fingerprint, events."""


class _Write(NamedTuple):
    """What is written to one of several aggregates, checked; the aggregate's version, and whether it may have the command."""

    aggregate_id: str
    ids: bytes
    events: bytes
    events_count: int
    fingerprint: bytes
    key: int
    version: int
    may_have: bool


class _Refused(NamedTuple):
    """A condition that never holds, because nothing may be written now. Commands that were written before are still found."""

    why: EventStoreError


def aggregates_of(commit: NewCommit) -> list[str]:
    """Returns the aggregates that a commit is about."""
    return commit[0].aggregate_ids if isinstance(commit[0], JointWrites) else [commit[0]]


SECOND_FORMAT = 2  # that of joint commits and of tags
_WARM_COMMITS_MIN = 8
_TAG_BYTES = 160
"""What a tag takes in the tail, with the first of its commits: measured with tags of 12 bytes."""
_LENGTHS = Struct("<II")
_DIGEST_BYTES = LONG_HEADER["digest"].size
_ids = attrgetter("ids")
_aggregate_id = itemgetter(0)


class Appender:
    """Checks commits and appends the accepted ones to the front buffer and the tail.

    Attributes:
        failed: why no more appends are accepted; None if they are.
        shortage: see `Replication`.
        joint_commits: commits that are about several aggregates, written or only asserted.
        joint_commits_apart: of these, those whose aggregates have different slots.
        on_conflict: is called with the aggregates and the command id of a commit of several aggregates, or with a condition by
            query, that was refused for what others have written.
    """

    def __init__(
        self,
        files: EventFiles,
        tail: UnsortedTail,
        version_cache: VersionCache,
        unique: Uniqueness,
        front: FrontBuffer,
        epoch: int,
        clock: Callable[[], float] = time.time,
        *,
        find: Callable[[Unless, int], Event | None],
        tag_memory_bytes: int,
    ) -> None:
        """`find`: see `Conditions.first_event`. `tag_memory_bytes`: see the setting."""
        self.failed: EventStoreError | None = None
        self.shortage: Callable[[], EventStoreError | None] = lambda: None
        self.on_conflict: Callable[[str | JointWrites, str], None] = lambda names, command_id: None
        self.duplicates = self.conflicts = self.refused = self.joint_commits = self.joint_commits_apart = 0
        self._files = files
        self._tail = tail
        self._version_cache = version_cache
        self._unique = unique
        self._front = front
        self._epoch = epoch
        self._clock = clock
        self._check_events = EventsCheck()
        self._find = find
        self._tags_max = tag_memory_bytes // _TAG_BYTES

    def append_batch(self, commits: Sequence[NewCommit]) -> list[AppendOutcome]:
        """Checks each commit and puts the accepted ones into the front buffer. Never raises because of a commit's contents.

        Any other error (no memory, a bug) may have left commits in memory that have no record. From then on no commit is
        accepted; the next start reads the true state from the files.
        """
        try:
            return self._append_all(commits)
        except BaseException as error:
            self.failed = Poisoned(f"an append was interrupted ({error!r}); restart the process. Acknowledged commits are safe")
            raise

    def _append_all(self, commits: Sequence[NewCommit]) -> list[AppendOutcome]:
        now = int(self._clock() * 1_000_000)
        outcomes: list[AppendOutcome] = []
        rows: list[Row] = []
        self._version_cache.asked += len(commits)
        self._version_cache.take_offers()
        if len(commits) >= _WARM_COMMITS_MIN:
            self._warm(commits)
        try:
            self._accept(commits, now, outcomes, rows)
        finally:  # accepted commits are in the tail already, and must not be there without a record
            self._frame(rows)
        if self._tail.files and len(self._tail.files[-1].tags) > self._tags_max:
            self._front.end_chunk()
        return outcomes

    def _accept(self, commits: Sequence[NewCommit], now: int, outcomes: list[AppendOutcome], rows: list[Row]) -> None:
        """Makes the first pass: adds an outcome for each commit, and a row for each accepted one."""
        front, cached, any_version, end, limit = self._front, self._version_cache.young.get, ANY, 0, -1
        tagged, tags = TaggedEvents, set[str]()  # those of rows, and perhaps of some that have a record already
        every: Sequence[Any] = commits  # mypy follows `isinstance` only, which is a call for each commit
        for aggregate_id, condition, command_id, when, given in every:
            try:
                try:
                    ids, command = aggregate_id.encode(), command_id.encode()
                except (UnicodeEncodeError, AttributeError):
                    if aggregate_id.__class__ is not JointWrites:
                        raise _bad_ids(aggregate_id, command_id) from None
                    self._frame(rows)
                    end, limit = 0, -1  # what follows looks at the file again
                    outcomes.append(self._append_jointly(aggregate_id, condition, command_id, when, now))
                    continue
                id_bytes, command_bytes = len(ids), len(command)
                if not (0 < id_bytes <= ID_BYTES_MAX and 0 < command_bytes <= ID_BYTES_MAX):
                    raise _bad_ids(aggregate_id, command_id)
                if given.__class__ is tuple:
                    events, count, fingerprint = given
                    if events.__class__ is not bytes:
                        self._check_tags_allowed()
                elif aggregate_id[0] == RESERVED:
                    raise reserved_id_refused(aggregate_id)
                elif is_plain_event(given):
                    events, count, fingerprint = given, 1, NO_FINGERPRINT
                else:
                    events, count, fingerprint = self._checked(given)
                length = FIXED_BYTES + id_bytes + command_bytes + len(events)
                if end + length > limit:
                    if rows:
                        self._frame(rows)
                    file = self._room_for(length)
                    heads, commands, versions, previous = file.heads, file.commands, file.versions, file.previous
                    end, limit, sequence, several = front.end, front.limit, front.next_sequence, len(self._tail.files) > 1
                ordinal = heads.get(aggregate_id)
                in_sorted = cached(aggregate_id)
                if in_sorted is None:
                    in_sorted = self._unique.sorted_part(aggregate_id)
                version = self._version_elsewhere(aggregate_id, in_sorted) if ordinal is None else versions[ordinal]
                key = hash((aggregate_id, command_id))  # as tail.command_key
                if version and (key in commands or several or in_sorted):
                    repeated = self._repeated(rows, key, aggregate_id, command_id, events, fingerprint, in_sorted)
                    if repeated is not None:
                        outcomes.append(repeated)
                        continue
                if condition.__class__ is Guarded:
                    if rows and _may_forbid(condition.unless, tags, front.next_sequence):
                        self._frame(rows)
                        tags.clear()
                    self._check_unless(condition.unless)
                    condition = condition.condition
                if condition is not any_version and condition != version and not self._holds(condition, aggregate_id, version):
                    self.conflicts += 1
                    outcomes.append((CONFLICT, version, 0))
                    continue
                when = now if when is None else check_int("timestamp", when, TIME_MIN, TIME_MAX)
                rows.append((length, sequence, count, when, version + 1, ids, command, fingerprint, events))
                if events.__class__ is tagged:
                    tags.update(events.tags)
                version += count
                sequence += count
                end += length
                mine = len(versions)  # as tail.add_heads from here; the head last: readers on other threads follow it
                versions.append(version)
                previous.append(NO_COMMIT if ordinal is None else ordinal)
                heads[aggregate_id] = mine
                if commands.setdefault(key, mine) != mine:
                    file.collided.setdefault(key, []).append(mine)
                outcomes.append((COMMITTED, version, sequence - 1))
            except EventStoreError as error:
                if isinstance(error, ConditionFailed):
                    self.conflicts += 1
                    self.on_conflict(aggregate_id, command_id)
                else:
                    self.refused += 1
                outcomes.append((REFUSED, _without_frames(error), 0))

    def _append_jointly(
        self, joint: JointWrites, condition: AppendCondition, command_id: str, when: int | None, now: int
    ) -> AppendOutcome:
        """Appends the commits of several aggregates as consecutive records of one file, or none of them."""
        writes = self._checked_writes(joint, command_id)
        repeated = self._repeated_jointly(writes, command_id)
        if repeated is not None:
            self.duplicates += 1
            return repeated
        if isinstance(condition, _Refused):
            raise condition.why
        if joint.unless is not None:
            self._check_unless(joint.unless)
        conditions = [(each[0], each[1], write.version) for each, write in zip(joint.writes, writes, strict=True)]
        if joint.only_if:
            conditions += [(name, expected, self._asserted_version(name)) for name, expected in joint.only_if]
        for name, expected, version in conditions:
            if expected is not ANY and expected != version and not self._holds(expected, name, version):
                self.conflicts += 1
                self.on_conflict(joint, command_id)
                return CONFLICT, (name, expected, version), 0
        when = now if when is None else check_int("timestamp", when, TIME_MIN, TIME_MAX)
        written = self._write_jointly(writes, command_id.encode(), when)
        slots = {slot_of(name) for name, _, _ in conditions}
        if joint.unless is not None:
            slots.add(slot_of(joint.unless.scope))
        if len(conditions) > 1 or joint.unless is not None:
            self.joint_commits += 1
            self.joint_commits_apart += len(slots) > 1
        return COMMITTED, *written

    def _check_unless(self, unless: Unless) -> None:
        """Raises ConditionFailed, Diverged, Corrupt, ReadFailed."""
        event = self._find(unless, self._front.next_sequence - 1)
        if event is not None:
            raise ConditionFailed(event.aggregate_id, event.type, event.sequence)

    def _checked_writes(self, joint: JointWrites, command_id: str) -> list[_Write]:
        """Raises InvalidArgument."""
        check_id("command_id", command_id)
        count = len(joint.writes)
        if count > 1 and self._files.folder.format < SECOND_FORMAT:
            raise _format_needed(f"a commit of {count} aggregates", self._files.folder.format)
        check_joint_writes(joint)
        writes, events_count, size, cached = list[_Write](), 0, 0, self._version_cache.young.get
        every: Sequence[Any] = joint.writes  # mypy follows `isinstance` only, which is a call for each
        for aggregate_id, _, given in every:
            ids = check_id("aggregate_id", aggregate_id)
            packed: Packed
            if given.__class__ is tuple:
                packed = given
            elif aggregate_id[0] == RESERVED:
                raise reserved_id_refused(aggregate_id)
            else:
                packed = (given, 1, NO_FINGERPRINT) if is_plain_event(given) else self._checked(given)
            in_sorted = cached(aggregate_id)
            if in_sorted is None:
                in_sorted = self._unique.sorted_part(aggregate_id)
            key, version, in_tail = hash((aggregate_id, command_id)), -1, False  # as tail.command_key
            for file in self._tail.files:
                in_tail = in_tail or key in file.commands
                if (ordinal := file.heads.get(aggregate_id)) is not None:
                    version = file.versions[ordinal]
            if version < 0:
                version = version_of(in_sorted)
            may_have = in_tail or (bool(in_sorted) and self._may_hold(key, command_id, in_sorted))
            writes.append(_Write(aggregate_id, ids, *packed, key, version, may_have))
            events_count, size = events_count + packed[1], size + len(packed[0])
        check_joint_total("events", COMMIT_EVENTS_MAX, events_count)
        check_joint_total("commit", COMMIT_BYTES_MAX, size)
        return writes

    def _asserted_version(self, aggregate_id: str) -> int:
        check_id("aggregate_id", aggregate_id)
        return self._unique.version(aggregate_id)

    def _repeated_jointly(self, writes: Sequence[_Write], command_id: str) -> AppendOutcome | None:
        """Returns the original outcome of a repeated command, or None if it is new to all aggregates.

        Raises:
            CommandIdReused: one of the aggregates has this command with other content, or with another set of aggregates.
        """
        if True not in [each.may_have for each in writes]:
            return None
        views = [self._unique.find_command(each.aggregate_id, command_id) for each in writes]
        found = [view for view in views if view is not None]
        if not found:
            return None
        digest = None if len(writes) == 1 else digest_of(writes)
        for write, view in zip(writes, views, strict=True):
            if view is None or not self._is_same(write, view, digest):
                first = found[0] if view is None else view
                raise CommandIdReused(first.aggregate_id, command_id, first.last_version, first.last_sequence)
        return DUPLICATE, tuple((view.last_version, view.last_sequence) for view in found), max(v.last_sequence for v in found)

    @staticmethod
    def _is_same(write: _Write, view: CommitView, digest: bytes | None) -> bool:
        # A command that is handled again may decide otherwise; its fingerprint says that it is the same.
        handled = write.fingerprint != NO_FINGERPRINT and view.fingerprint == write.fingerprint
        if view.joint is None:  # it stands alone: also one that was imported, which no longer knows of the others
            return handled or view.events == write.events or without_trace(view.events) == without_trace(write.events)
        return digest is not None and (handled or view.joint.digest == digest)

    def _write_jointly(self, writes: Sequence[_Write], command: bytes, when: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Puts the records into the front buffer. Returns version and sequence of each, and the last sequence."""
        alone, many = len(writes) == 1, len(writes)
        command_bytes, prefix, trailer = len(command), ID_PREFIX[len(command)] + command, TRAILER.struct.pack
        fixed = (FIXED_BYTES if alone else LONG_FIXED_BYTES) + command_bytes
        lengths = [fixed + len(each.ids) + len(each.events) for each in writes]
        file, front = self._room_for(sum(lengths)), self._front
        events, digest = sum([each.events_count for each in writes]), b"" if alone else digest_of(writes)
        pack, own_mark = (AFTER_CRC.pack, HEADER_BYTES - 2) if alone else (LONG_AFTER_CRC.pack, LONG_MARK)
        sequence, witness, durable, before = front.next_sequence, front.witness(), front.durable, 0
        records, crcs, sequences, places = list[bytes](), list[int](), list[int](), list[tuple[int, int]]()
        for place, (_, ids, packed, count, fingerprint, _, version, _) in enumerate(writes):
            length, id_bytes = lengths[place], len(ids)
            joint = () if alone else (IN_JOINT_COMMIT, 0, many, place, events, before, digest)
            header = pack(
                witness, length, durable, sequence, self._epoch, count, when, version + 1, id_bytes, command_bytes,
                fingerprint, *joint,
            )  # fmt: skip
            body = b"".join((header, ID_PREFIX[id_bytes], ids, prefix, packed, trailer(TRAILER_MARK, length)))
            crcs.append(crc := crc32c(body))
            records.append(THROUGH_CRC.pack(MARK, own_mark, crc) + body)
            sequences.append(sequence)
            sequence, before = sequence + count, before + count
            places.append((version + count, sequence - 1))
        file.add_heads(
            [each.aggregate_id for each in writes], [each.key for each in writes], [version for version, _ in places]
        )
        _note_tags(file, [each.events for each in writes])
        file.add_places(front.end, lengths, sequences, writes[-1].events_count)
        front.extend(records, sum(crcs), sum(lengths), events)
        return tuple(places), sequence - 1

    def _checked(self, raw: bytes) -> Packed:
        fingerprint, events = split_fingerprint(raw)
        count, canonical = self._check_events(events)
        if canonical.__class__ is TaggedEvents:
            self._check_tags_allowed()
        return canonical, count, fingerprint

    def _check_tags_allowed(self) -> None:
        """Raises UnsupportedVersion if the store writes a format without tags."""
        if self._files.folder.format < SECOND_FORMAT:
            raise _format_needed("an event with tags", self._files.folder.format)

    def _warm(self, commits: Sequence[NewCommit]) -> None:
        """Looks up the aggregates of a large batch in one pass over the directory, at a third of the cost of single lookups."""
        if not self._files.ranges:
            return
        young = self._version_cache.young
        missing = set(map(_aggregate_id, commits)).difference(young)
        with contextlib.suppress(EventStoreError):  # the commits that need the damaged part will report it
            names = [name for name in missing if name.__class__ is str and name.isascii() and 0 < len(name) <= ID_BYTES_MAX]
            self._version_cache.misses += self._unique.warm(names, _WARM_COMMITS_MIN)

    def _frame(self, rows: list[Row]) -> None:
        """Turns accepted commits into records of the current file, which has room for all of them."""
        if not rows:
            return
        front, file = self._front, self._tail.files[-1]
        lengths, sequences, counts, times, versions, ids, commands, fingerprints, events = zip(*rows, strict=True)
        rows.clear()
        id_lengths, command_lengths = list(map(len, ids)), list(map(len, commands))
        headers = map(
            AFTER_CRC.pack,
            repeat(front.witness()),
            lengths,
            repeat(front.durable),
            sequences,
            repeat(self._epoch),
            counts,
            times,
            versions,
            id_lengths,
            command_lengths,
            fingerprints,
        )
        prefix = ID_PREFIX.__getitem__
        trailers = map(TRAILER.struct.pack, repeat(TRAILER_MARK), lengths)
        parts = zip(
            headers, map(prefix, id_lengths), ids, map(prefix, command_lengths), commands, events, trailers, strict=True
        )
        bodies = list(map(b"".join, parts))
        crcs = list(map(crc32c, bodies))
        starts = map(THROUGH_CRC.pack, repeat(MARK), repeat(HEADER_BYTES - 2), crcs)
        if TaggedEvents in set(map(type, events)):
            _note_tags(file, events)
        file.add_places(front.end, lengths, sequences, counts[-1])
        front.extend(list(map(concat, starts, bodies)), sum(crcs), sum(lengths), sum(counts))

    def _room_for(self, length: int) -> TailFile:
        """Returns the file for the next record; begins a new one if the record does not fit into the current one."""
        if self.failed is not None:
            raise self.failed
        front = self._front
        if front.begins_chunk(length):
            front.begin_chunk()
            self._tail.begin(front.chunk, front.next_sequence)
            created = int(self._clock() * 1_000_000)
            self._files.add(self._files.folder.new_header(front.chunk, self._epoch, front.next_sequence, created))
        return self._tail.files[-1]

    def _holds(self, condition: AppendCondition, aggregate_id: str, version: int) -> bool:
        """Returns whether a condition that is neither `ANY` nor the version itself holds."""
        if isinstance(condition, _Refused):
            raise condition.why
        if condition is EXISTS:
            return version > 0
        if isinstance(condition, AfterCommand):
            return condition.version == version and self._is_latest(aggregate_id, condition.command_id)
        if isinstance(condition, OnAllReplicas):
            expected = condition.condition
            if expected is not ANY and expected != version and not self._holds(expected, aggregate_id, version):
                return False
            if (shortage := self.shortage()) is not None:
                raise shortage
            return True
        check_int("expected_version", condition, 0, VERSION_MAX)
        return False

    def _is_latest(self, aggregate_id: str, command_id: str) -> bool:
        """Returns whether the aggregate's latest commit is the commit of this command. False if the commit is sorted already:
        then no caller can be about to follow it.

        `AfterCommand` needs this and the version: the version can match by accident, and the command can be a repetition whose
        second decision differs from the stored one.
        """
        key = hash((aggregate_id, command_id))  # as tail.command_key
        for file in reversed(self._tail.files):
            ordinal = file.heads.get(aggregate_id)
            if ordinal is not None:
                return file.commands.get(key) == ordinal or ordinal in file.collided.get(key, ())
        return False

    def _version_elsewhere(self, aggregate_id: str, in_sorted: bytes) -> int:
        """Returns the version of an aggregate that has no commit in the current file."""
        for file in reversed(self._tail.files[:-1]):
            ordinal = file.heads.get(aggregate_id)
            if ordinal is not None:
                return file.versions[ordinal]
        return version_of(in_sorted)

    def _may_hold(self, key: int, command_id: str, in_sorted: bytes) -> bool:
        """Whether the aggregate may have the command, as far as memory says."""
        in_tail = any(key in file.commands for file in self._tail.files)
        return in_tail or may_hold(in_sorted, command_id, self._files.command_hashes.all)

    def _repeated(
        self, rows: list[Row], key: int, aggregate_id: str, command_id: str, events: bytes, fingerprint: bytes, in_sorted: bytes
    ) -> AppendOutcome | None:
        """Returns the original outcome of a repeated command, or None if the command is new.

        A command with the same fingerprint is the same, whatever its handler decided this time. A commit without one answers
        any command. If the new one has none, the events decide.

        Raises:
            CommandIdReused: it was appended before with other content.
        """
        if not self._may_hold(key, command_id, in_sorted):
            return None
        self._frame(rows)  # the first use may be in this batch
        view = self._unique.find_command(aggregate_id, command_id)
        if view is None:
            return None
        if fingerprint == NO_FINGERPRINT:
            differs = view.events != events and without_trace(view.events) != without_trace(events)
        else:
            differs = view.fingerprint not in (fingerprint, NO_FINGERPRINT)
        if differs or view.joint is not None:
            raise CommandIdReused(aggregate_id, command_id, view.last_version, view.last_sequence)
        self.duplicates += 1
        return DUPLICATE, view.last_version, view.last_sequence


def _may_forbid(unless: Unless, tags: set[str], next_sequence: int) -> bool:
    """Returns whether commits that have no record yet may have an event which a condition forbids, or the one of its place, by
    their tags. `next_sequence`: of the first of them.
    """
    query = unless.query
    if not query.by_tags or unless.after.sequence >= next_sequence:
        return True
    return any(tags.issuperset(item.tags) for item in query.items)


def _note_tags(file: TailFile, events: Sequence[bytes]) -> None:
    """Notes the tags of the commits whose places are added next."""
    for ordinal, each in enumerate(events, len(file.offsets)):
        if isinstance(each, TaggedEvents):
            file.add_tags(ordinal, each.tags)


def alone(commit: RawJointCommit) -> NewCommit:
    """Returns the commit of one aggregate that a joint one comes to, if it asks for no other slot; else the same. It takes a
    third of the time.
    """
    joint, condition, command_id, when, _ = commit
    if len(joint.writes) > 1 or joint.only_if:
        return commit
    ((name, expected, events),) = joint.writes
    if joint.unless is not None:
        if joint.unless.scope != name and slot_of(joint.unless.scope) != slot_of(name):
            return commit
        expected = Guarded(expected, joint.unless)  # type: ignore[arg-type] # a request has no other
    return name, condition if isinstance(condition, _Refused) else expected, command_id, when, events


def refused(commits: Sequence[NewCommit], why: EventStoreError) -> list[NewCommit]:
    """Returns the commits so that each is a repetition of what was written before, or refused: for the first reason given."""
    return [
        commit if isinstance(commit[1], _Refused) else cast("NewCommit", (commit[0], _Refused(why), *commit[2:]))
        for commit in commits
    ]


def _format_needed(what: str, format_: int) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{what} needs format {SECOND_FORMAT} of the store, which has format {format_}; "
        "start it once with --upgrade-format, or raise a cluster by `eventstore cluster upgrade`",
        limit=format_,
        value=SECOND_FORMAT,
    )


def digest_of(writes: Sequence[_Write]) -> bytes:
    """Returns what tells one commit of several aggregates from another: BLAKE2b of their ids and events, by id. In which trace
    they are appended makes no difference.
    """
    parts: list[bytes] = []
    for write in sorted(writes, key=_ids):
        ids, events = write.ids, write.events
        if TRACE_MARK in events:
            events = without_trace(events)
        parts += _LENGTHS.pack(len(ids), len(events)), ids, events
    return blake2b(b"".join(parts), digest_size=_DIGEST_BYTES).digest()


def _bad_ids(aggregate_id: str, command_id: str) -> EventStoreError:
    """Returns the error of the first id that is refused, with its name and the reason."""
    try:
        check_id("aggregate_id", aggregate_id)
        check_id("command_id", command_id)
    except EventStoreError as error:
        return error
    raise AssertionError("both ids are valid")


def _without_frames(error: EventStoreError) -> EventStoreError:
    """Drops the error's traceback. Its frames hold the commits of the whole batch and the outcomes, which hold the error: a
    reference cycle of megabytes that only the garbage collector would find, and late.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
