"""The engine against a plain model: a list of events and a dict of commands, with restarts, crashes and full disks.

Commits that are appended but not yet written are pending: checks include them, readers do not see them, and a crash or a full
disk may remove the last of them.

Decisions are commits on the condition that no event passes a query after a place. A place may be of a history that has come to
nothing, or lie anywhere in files that were sorted since.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import or_
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from eventstore.errors import CommandIdReused, ConditionFailed, Diverged, EventStoreError, StorageFull
from eventstore.event_identity import LogPosition
from eventstore.model import ANY, EXISTS, Event, ExpectedVersion, NewEvent
from eventstore.query import Query
from eventstore.records.event_filter import EventFilter
from eventstore.records.raw_commit import AppendCondition, Guarded, Unless
from eventstore.records.slots import slot_of
from eventstore.settings.store import StoreSettings
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE, REFUSED, AppendOutcome, refused
from eventstore.store.memory.tail_recovery import TailRecovery
from eventstore.store.memory.unsorted_tail import TailFile
from eventstore.store.read.conditions import Conditions
from tests.simulated_disk import CRASH_MODES, CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.stepped import Stepped, forget_directory, raw, spare_the_probe

TINY = StoreSettings(file_size_bytes=6_144, preallocate_bytes=4_096, sort=False, preload_aggregates=3)
CACHED_BYTES = 1_500  # about five aggregates: dropped ones must be found again

aggregates = st.sampled_from(["a", "b", "ba", "c-ü", "d" * 40, "{s}e", "f{s}"])
command_ids = st.sampled_from([f"command-{number}" for number in range(40)])
types = st.sampled_from(["Placed", "Paid", "Sent-é", "T" * 40])
payloads = st.sampled_from([b"", b"x", bytes(range(200)), b"y" * 300, b"z" * 2_500])
tags = st.lists(st.sampled_from(["t:1", "t:2", "ü", "t" * 200]), max_size=2)
events = st.builds(NewEvent, types, payloads, st.sampled_from([None, b"", b"meta", b"m" * 260]), tags)
queries = st.builds(Query, st.sets(types, max_size=1), tags)
contents = st.lists(events, min_size=1, max_size=4)
page_sizes = st.sampled_from([1, 300, 1_000, 1 << 20])


@dataclass(frozen=True)
class CommitToAppend:
    """A commit to append; `expected` is relative to the aggregate's version."""

    aggregate_id: str
    command_id: str
    content: list[NewEvent]
    expected: str


expectations = st.sampled_from(["any", "any", "right", "right", "exists", "new", "stale", "ahead"])
commits_to_append = st.builds(CommitToAppend, aggregates, command_ids, contents, expectations)


@dataclass(frozen=True)
class Decision:
    """A commit that is refused if an event of the slot of `scope` passes `query` after the place where `back` events were yet
    to come. `identity`: whether the place has that of its event, of another one, or none.
    """

    commit: CommitToAppend
    query: Query
    scope: str
    back: int
    identity: str


identities = st.sampled_from(["right", "right", "none", "another"])
decisions = st.builds(
    Decision, commits_to_append, st.builds(or_, queries, queries) | queries, aggregates, st.integers(-1, 60), identities
)


class Model:
    """All events in order, durable ones first, and the position of each command."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.commands: dict[tuple[str, str], tuple[int, int, list[NewEvent]]] = {}
        self.durable = 0
        self.time = 1_000

    def version(self, aggregate_id: str, sequence: int | None = None) -> int:
        stop = len(self.events) if sequence is None else sequence
        return sum(event.aggregate_id == aggregate_id for event in self.events[:stop])

    def of(self, aggregate_id: str) -> list[Event]:
        return [event for event in self.visible() if event.aggregate_id == aggregate_id]

    def visible(self) -> list[Event]:
        return self.events[: self.durable]

    def refusal(self, unless: Unless) -> type[EventStoreError] | Event | None:
        """Returns what refuses a condition, if anything does: the class of an error, or the first event that it forbids."""
        (after, identity), slot = unless.after, slot_of(unless.scope)
        if after > len(self.events) or (identity and LogPosition.at(self.events[after - 1]).identity != identity):
            return Diverged
        later = (event for event in self.events[after:] if slot_of(event.aggregate_id) == slot)
        return next((event for event in later if unless.query.matches(event)), None)

    def append(
        self,
        aggregate_id: str,
        command_id: str,
        content: list[NewEvent],
        expected: AppendCondition,
        unless: Unless | None = None,
    ) -> tuple[Any, ...]:
        """Returns the outcome that the engine must give. The commit's time is `self.time`."""
        version = self.version(aggregate_id)
        known = self.commands.get((aggregate_id, command_id))
        if known is not None:
            return (DUPLICATE, known[0], known[1]) if known[2] == content else (REFUSED, CommandIdReused)
        if unless is not None and (refusal := self.refusal(unless)) is not None:
            return REFUSED, refusal
        fits = expected is ANY or (version > 0 if expected is EXISTS else version == expected)
        if not fits:
            return CONFLICT, version, 0
        for event in content:
            version += 1
            fields = (aggregate_id, version, event.type, event.data, event[3], command_id, self.time)
            self.events.append(tuple.__new__(Event, (*fields, len(self.events) + 1, event[0])))
        self.commands[aggregate_id, command_id] = (version, len(self.events), content)
        return COMMITTED, version, len(self.events)

    def forget_after(self, sequence: int) -> None:
        """Removes everything after `sequence`, which was never stored."""
        del self.events[sequence:]
        self.commands = {key: found for key, found in self.commands.items() if found[1] <= sequence}

    def ends_a_commit(self, sequence: int) -> bool:
        return sequence == 0 or any(found[1] == sequence for found in self.commands.values())


class StoreAgainstModel(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 1_000))
    def begin(self, seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.disk = SimulatedDisk(seed)
        self.model = Model()
        self.open()

    def open(self) -> None:
        self.store = Stepped(self.disk, Path(self.folder.name) / "lmdb", TINY)
        self.store.engine.version_cache._generation_bytes_max = CACHED_BYTES

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
            self.folder.cleanup()

    @property
    def pending(self) -> bool:
        return len(self.model.events) > self.model.durable

    # -- appending

    @rule(batch=st.lists(commits_to_append, min_size=1, max_size=5), at_once=st.booleans())
    def append(self, batch: list[CommitToAppend], at_once: bool) -> None:
        for wanted in batch:
            expected = self.expected(wanted)
            commit = raw(wanted.aggregate_id, wanted.command_id, *wanted.content, expected=expected, when=self.model.time)
            (outcome,) = self.store.engine.append_batch([commit])
            due = self.model.append(wanted.aggregate_id, wanted.command_id, wanted.content, expected)
            self.compare(outcome, due)
        if at_once:
            self.persist()

    def expected(self, wanted: CommitToAppend) -> ExpectedVersion:
        """Returns the condition of a commit that is appended now."""
        self.model.time += 7
        version = self.model.version(wanted.aggregate_id)
        found: dict[str, ExpectedVersion] = {
            "any": ANY, "exists": EXISTS, "new": 0, "right": version, "stale": max(0, version - 1), "ahead": version + 1,
        }  # fmt: skip
        return found[wanted.expected]

    def compare(self, outcome: AppendOutcome, due: tuple[Any, ...]) -> None:
        if due[0] != REFUSED:
            assert outcome == due
            return
        assert outcome[0] == REFUSED
        if isinstance(due[1], Event):
            assert isinstance(outcome[1], ConditionFailed)
            assert outcome[1].fields["sequence"] == due[1].sequence
        else:
            assert isinstance(outcome[1], due[1])

    @rule(decision=decisions, between=st.lists(commits_to_append, max_size=2), at_once=st.booleans())
    def decide(self, decision: Decision, between: list[CommitToAppend], at_once: bool) -> None:
        """A decision is looked ahead for, as far as the log is visible; then others are appended, and it after them."""
        wanted = decision.commit
        unless = Unless(decision.query, self.place(decision), decision.scope)
        raw_commit = raw(wanted.aggregate_id, wanted.command_id, *wanted.content, when=None)
        try:
            ahead: Unless | EventStoreError = self.looked_ahead(unless)
        except Diverged as error:
            ahead = error
        for each in between:
            expected = self.expected(each)
            commit = raw(each.aggregate_id, each.command_id, *each.content, expected=expected, when=self.model.time)
            self.store.engine.append_batch([commit])
            self.model.append(each.aggregate_id, each.command_id, each.content, expected)
        expected = self.expected(wanted)
        if isinstance(ahead, Unless):
            condition = Guarded(expected, ahead)
            raw_commit = (raw_commit[0], condition, raw_commit[2], self.model.time, raw_commit[4])
        else:
            raw_commit = refused([raw_commit], ahead)[0]
        (outcome,) = self.store.engine.append_batch([raw_commit])
        self.compare(outcome, self.model.append(wanted.aggregate_id, wanted.command_id, wanted.content, expected, unless))
        if at_once:
            self.persist()

    def place(self, decision: Decision) -> LogPosition:
        visible = self.model.visible()
        if decision.back < 0:
            return LogPosition(len(self.model.events) + 9)  # beyond the end
        after = max(0, len(visible) - decision.back)
        if not after or decision.identity == "none":
            return LogPosition(after)
        known = LogPosition.at(visible[after - 1])
        if decision.identity == "right":
            self.store.engine.note_identity(*known)
            return known
        return LogPosition(after, LogPosition.at(visible[0]).identity if after > 1 else "00000000")

    def looked_ahead(self, unless: Unless) -> Unless:
        """Does what a thread does for a condition that is not checked quickly. Raises Diverged."""
        engine = self.store.engine
        while not engine.is_quick(unless) and (end := engine.visible_sequence) >= 0:
            unless = engine.look_ahead(unless)
            if unless.after.sequence >= end:
                break
        return unless

    @rule()
    def persist(self) -> None:
        try:
            self.store.persist()
        except StorageFull:
            assert self.disk.capacity_bytes is not None
            self.model.forget_after(self.store.engine.visible_sequence)
            assert self.model.ends_a_commit(len(self.model.events))
        assert self.store.engine.barrier == len(self.model.events)
        self.model.durable = len(self.model.events)

    @rule(content=contents, command_id=command_ids, aggregate_id=aggregates)
    def append_the_same_again(self, content: list[NewEvent], command_id: str, aggregate_id: str) -> None:
        """Sends a command again, as a client without an answer does."""
        known = self.model.commands.get((aggregate_id, command_id))
        if known is not None:
            (outcome,) = self.store.engine.append_batch([raw(aggregate_id, command_id, *known[2], expected=0)])
            assert outcome == (DUPLICATE, known[0], known[1])

    # -- reading

    @rule(
        aggregate_id=aggregates, low=st.integers(1, 12), length=st.integers(0, 12) | st.none(),
        backwards=st.booleans(), page_bytes=page_sizes,
    )  # fmt: skip
    def read(self, aggregate_id: str, low: int, length: int | None, backwards: bool, page_bytes: int) -> None:
        high = None if length is None else low + length - 1
        due = self.model.of(aggregate_id)[low - 1 : high]
        found = self.store.read(aggregate_id, low, high, backwards=backwards, page_bytes=page_bytes)
        assert found == (due[::-1] if backwards else due)

    @rule(
        after=st.integers(0, 60), page_bytes=page_sizes, events_max=st.sampled_from([None, 1, 2, 5]),
        wanted_types=st.none() | st.frozensets(st.sampled_from(["Placed", "Paid", "Sent-é", "Nothing"]), max_size=2),
        prefix=st.none() | st.sampled_from(["b", "ba", "c-ü", "d", "zz"]),
        times=st.tuples(st.none() | st.integers(900, 1_500), st.none() | st.integers(1_000, 1_800)),
        query=st.none() | queries,
    )  # fmt: skip
    def read_all(
        self, after: int, page_bytes: int, events_max: int | None, wanted_types: frozenset[str] | None, prefix: str | None,
        times: tuple[int | None, int | None], query: Query | None,
    ) -> None:  # fmt: skip
        wanted = EventFilter(wanted_types if query is None else None, prefix, *times, query=query)
        due = [event for event in self.model.visible()[after:] if wanted.matches(event)]
        assert self.store.read_all(after, wanted, page_bytes=page_bytes, events_max=events_max) == due

    @rule(aggregate_id=aggregates, command_id=command_ids)
    def find_command(self, aggregate_id: str, command_id: str) -> None:
        view = self.store.engine.find_command(aggregate_id, command_id)
        known = self.model.commands.get((aggregate_id, command_id))
        if known is None or known[1] > self.model.durable:
            assert view is None
        else:
            assert view is not None
            assert (view.last_version, view.last_sequence) == known[:2]

    @invariant()
    def versions_are_those_of_the_model(self) -> None:
        if hasattr(self, "store"):
            for aggregate_id in ("a", "b", "d" * 40, "nobody"):
                assert self.store.engine.version(aggregate_id) == self.model.version(aggregate_id, self.model.durable)

    # -- files, processes, power

    @rule()
    def sort_a_file(self) -> None:
        if self.disk.capacity_bytes is None:
            self.store.sort(files=1)

    @precondition(lambda self: not self.pending)
    @rule()
    def restart(self) -> None:
        self.disk.capacity_bytes = None
        self.store.close()
        self.open()
        assert self.store.state() == self.model.events

    @rule(mode=st.sampled_from(CRASH_MODES), keep_directory=st.booleans())
    def crash(self, mode: CrashMode, keep_directory: bool) -> None:
        """Removes all pending commits, of which none was written."""
        self.model.forget_after(self.model.durable)
        self.restart_after_crash(mode, keep_directory)
        assert self.store.state() == self.model.events

    @precondition(lambda self: self.pending)
    @rule(nth=st.integers(1, 12), mode=st.sampled_from(CRASH_MODES), keep_directory=st.booleans())
    def crash_while_writing(self, nth: int, mode: CrashMode, keep_directory: bool) -> None:
        """A prefix of the pending commits may exist, each whole or not at all."""
        self.disk.capacity_bytes = None
        self.disk.crash_at(nth)
        try:
            self.store.persist()
            self.model.durable = len(self.model.events)
        except SimulatedCrash:
            self.model.durable = self.store.engine.visible_sequence
        self.restart_after_crash(mode, keep_directory)
        stored = self.store.engine.visible_sequence
        assert self.model.durable <= stored <= len(self.model.events)
        assert self.model.ends_a_commit(stored)
        self.model.forget_after(stored)
        self.model.durable = stored
        assert self.store.state() == self.model.events

    def restart_after_crash(self, mode: CrashMode, keep_directory: bool) -> None:
        self.disk = self.disk.crash(mode)
        self.disk.capacity_bytes = None
        self.store.abandon()
        if keep_directory:
            spare_the_probe(self.store.directory)
        else:
            forget_directory(self.store.directory)
        self.open()

    @rule()
    def zero_ahead(self) -> None:
        self.store.engine.writer.zero_ahead.step()

    @rule(room=st.integers(0, 3_000))
    def fill_the_disk(self, room: int) -> None:
        self.disk.capacity_bytes = self.disk.allocated_bytes + room

    @rule()
    def make_space(self) -> None:
        self.disk.capacity_bytes = None


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def _one_too_low(file: TailFile, tags: Sequence[str], first: int) -> list[array[int]] | None:
    """Takes the last commit of a tag for one that came before it."""
    found = [known for tag in tags if (known := file.tags.get(tag)) is not None and known[-1] > first]
    return sorted(found, key=len) if len(found) == len(tags) else None


def _checks_nothing(conditions: Conditions, place: LogPosition) -> None:
    """Lets a place of any history pass."""


def _notes_none(recovery: TailRecovery, *_: object) -> None:
    """Forgets the tags of commits that it finds in the files."""


@pytest.mark.parametrize(
    ("owner", "method", "wrong"),
    [
        (TailRecovery, "_note_tags", _notes_none),
        (TailFile, "_of", _one_too_low),
        (Conditions, "_check_identity", _checks_nothing),
    ],
    ids=[
        "tags are forgotten at a start",
        "a remembered place is too low",
        "any history will do",
    ],
)
def test_a_mistake_in_what_conditions_are_checked_against_is_found(owner: type, method: str, wrong: Any) -> None:
    quickly = settings(TestStoreAgainstModel.settings, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    with mock.patch.object(owner, method, wrong), pytest.raises((AssertionError, EventStoreError, IndexError)):
        run_state_machine_as_test(StoreAgainstModel, settings=quickly)
