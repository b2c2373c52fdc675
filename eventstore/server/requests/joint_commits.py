"""Commits of several aggregates: those of one turn become one batch for the store.

They do not go through the mailboxes, since each is about several of them. A command that was handled ahead of the disk, and
decided on what such a commit has changed, is in conflict with it and handled again. One that is refused or changes nothing
cannot conflict, so the mailboxes forget the aggregates before the commit is acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import trio

from eventstore.errors import Elsewhere, EventStoreError, Overloaded, ShuttingDown
from eventstore.protocol import encode_answer, encode_error
from eventstore.protocol.joint_commits import raw_of
from eventstore.protocol.reader_start import ReaderStart
from eventstore.protocol.requests import CommitJointly, CommittedJointly, CommitUnless, WrittenPlace
from eventstore.records.raw_commit import RawJointCommit
from eventstore.server.feature import Feature
from eventstore.server.mailbox_wiring import ArrivalOrder, ServerMailboxes
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from eventstore.server.requests.commands import WaitingCommands
from eventstore.server.requests.owned_slots import OwnedSlots
from eventstore.server.shard_layout import ServedLayout
from eventstore.store.append import COMMITTED, DUPLICATE, AppendOutcome, NewCommit, alone, refused
from eventstore.store.committer import to_each_result
from eventstore.store.embedded import EmbeddedStore

_log = logging.getLogger(__name__)
T = TypeVar("T")


class _ConnectionClosed(Exception):
    """Nothing is looked up for a closed connection."""


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that is not answered yet. `request_bytes`: of its request; `size`: see `WaitingCommands`."""

    connection: ServerConnection
    request_id: int
    raw: RawJointCommit
    request_bytes: int
    size: int = 0


class JointCommitBatcher:
    """Collects the commits of a turn. While `stopping`, new ones are refused and those under way are finished.

    A commit whose condition has to be looked up in the log waits as a command does for its handler, and counts as one. It comes
    to nothing if its connection is closed before.
    """

    def __init__(
        self,
        gate: Gate,
        store: EmbeddedStore,
        mailboxes: ServerMailboxes,
        waiting: WaitingCommands,
        order: ArrivalOrder,
        slots: OwnedSlots | None,
        layout: ServedLayout,
        nursery: trio.Nursery,
    ) -> None:
        self._gate = gate
        self._mailboxes = mailboxes
        self._store = store
        self._order = order
        self._slots = slots
        self._layout = layout
        self._nursery = nursery
        self._waiting = waiting
        self._commits: list[_Commit] = []
        self.stopping = False
        self.feature = Feature(routes={CommitJointly: self.commit, CommitUnless: self.commit}, stop=self._stop)

    def _stop(self) -> None:
        self.stopping = True

    def commit(self, connection: ServerConnection, request_id: int, request: Any) -> None:
        """Takes a COMMIT_JOINTLY or COMMIT_UNLESS; it is answered when it is durable.

        Raises:
            ShuttingDown
            Elsewhere: this shard owns none of the aggregates, or has another layout than the place of the condition.
        """
        if self.stopping:
            raise ShuttingDown("the server is stopping; connect again later")
        raw = raw_of(request)
        if isinstance(request, CommitUnless):
            self._layout.filter_of(ReaderStart.parse("after", request.after).layout)
        if self._slots is not None and (error := self._slots.across(raw[0].routed_by)) is not None:
            if isinstance(error, Elsewhere):
                raise error
            raw = cast("RawJointCommit", refused([raw], error)[0])  # a split may have separated them since they were written
        if self._order.collecting is not self:
            self._order.switch_to(self)
        self._gate.owe(connection)
        self._commits.append(_Commit(connection, request_id, raw, connection.request_bytes))

    def hand_over(self) -> None:
        """Hands the commits to the store; those on aggregates that take long to look up follow when these are loaded."""
        commits, self._commits = self._commits, []
        quick = list[_Commit]()
        for each in commits:
            if self._store.engine.is_quick(each.raw[0].unless):
                quick.append(each)
            else:
                self._look_first(each)
        if quick:
            self._load_and_submit(quick)

    def _look_first(self, commit: _Commit) -> None:
        try:
            self._waiting.add(commit, commit.request_bytes)
        except Overloaded as error:
            self._gate.answer(commit.connection, encode_error(commit.request_id, error))
        else:
            self._nursery.start_soon(self._looked_first, commit)

    def _load_and_submit(self, commits: Sequence[_Commit]) -> None:
        names = {name for each in commits for name in each.raw[0].aggregate_ids}
        if self._store.engine.unloaded(names):
            self._nursery.start_soon(self._loaded_first, names, commits)
        else:
            self._submit(commits)

    async def _looked_first(self, commit: _Commit) -> None:
        """Has a thread look for what the condition forbids, as far as the log is visible; the store looks at what is left."""
        try:
            commit.raw = await self._store.look_ahead(commit.raw, partial(self._page, commit.connection))
        except _ConnectionClosed:
            self._gate.answer(commit.connection)
            return
        except Exception:  # a bug of ours, which affects only this connection
            _log.exception("looking for what a condition forbids failed; its connection is closed")
            self._gate.answer(commit.connection)
            self._gate.drop(commit.connection)
            return
        finally:
            self._waiting.remove(commit)
            self._gate.flush()  # it may be read again
        self._load_and_submit([commit])

    async def _page(self, connection: ServerConnection, make: Callable[[], T]) -> T:
        def make_if_open() -> T:
            if connection.closed:
                raise _ConnectionClosed
            return make()

        return await self._gate.scheduler.page(connection, make_if_open)

    async def _loaded_first(self, names: set[str], commits: Sequence[_Commit]) -> None:
        await self._store.load(names)
        self._submit(commits)

    def _submit(self, commits: Sequence[_Commit]) -> None:
        raws = [alone(each.raw) for each in commits]

        def deliver(outcomes: Sequence[AppendOutcome]) -> None:
            durability = self._store.committer.durability()
            committed = [each.raw[0].writes for each, outcome in zip(commits, outcomes, strict=True) if outcome[0] == COMMITTED]
            self._mailboxes.forget([write[0] for writes in committed for write in writes])
            for each, raw, outcome in zip(commits, raws, outcomes, strict=True):
                self._gate.answer(each.connection, _answer(each.request_id, raw, outcome, durability))
            self._gate.flush()

        try:
            self._store.committer.submit(raws, deliver, commits[0].connection)
        except Exception:  # a bug of ours that one client triggered; only the connections of its batch are affected
            _log.exception("a commit failed; its connections are closed")
            for each in commits:
                self._gate.drop(each.connection)
        self._store.committer.kick()


def _answer(request_id: int, commit: NewCommit, outcome: AppendOutcome, durability: int) -> bytes:
    status, first, last = outcome
    if status in (COMMITTED, DUPLICATE):
        places = ((first, last),) if commit[0].__class__ is str else first
        found = CommittedJointly(status == DUPLICATE, durability, tuple([WrittenPlace(*each) for each in places]))
        return encode_answer(request_id, CommitJointly, found)
    error = to_each_result(commit, outcome, durability)
    assert isinstance(error, EventStoreError)
    return encode_error(request_id, error)
