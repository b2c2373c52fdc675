# Generated from eventstore/client/aio/store.py by `make generate`: do not edit.
"""The event store over the network: appends, commands, reads and subscriptions; topics and consumers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from operator import itemgetter
from ssl import SSLContext
from typing import Any, TypeVar, cast

from eventstore.aggregate_info import AGGREGATES_PER_PAGE_MAX, AggregateInfo
from eventstore.client.blocking.consumer import BlockingConsumers
from eventstore.client.blocking.limited import TIMEOUT_S, limited
from eventstore.client.blocking.member import BlockingMember
from eventstore.client.blocking.opened import BlockingOpened
from eventstore.client.blocking.operated import BlockingOperated
from eventstore.client.blocking.routing import (
    BlockingMergedEvents,
    BlockingMergedSubscription,
    follow_shards,
    read_shards,
    shards_member,
)
from eventstore.client.blocking.streams import (
    BlockingEventStream,
    BlockingLogStream,
    BlockingRecordBatches,
    BlockingSubscriptionStream,
    follow_log,
    open_read,
    read_log,
)
from eventstore.client.blocking.subject_keys import BlockingKeys
from eventstore.client.blocking.topic import BlockingTopic
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.limit import seconds_of, within
from eventstore.client.options import ClientOptions
from eventstore.client.outdated import CommandsSent, PassedOver, as_they_are
from eventstore.client.routing.queues import appends, sends
from eventstore.client.session.command_rows import encode_command, encode_commands
from eventstore.client.session.commit_rows import committed_of
from eventstore.client.session.page_requests import aggregates_request, many_request
from eventstore.errors import (
    ConnectionLost,
    CrossShard,
    EventStoreError,
    InvalidArgument,
    OutdatedCode,
    PermissionDenied,
    SubjectErased,
    UnknownOperation,
    copy_error,
)
from eventstore.event_identity import LogPosition
from eventstore.fields import check_text
from eventstore.model import (
    At,
    Commit,
    Committed,
    Event,
    ExpectedVersion,
    NewEvent,
    Replicas,
    Unchanged,
    Write,
    fresh_command_id,
    sequence_of,
)
from eventstore.position import (
    END,
    After,
    Position,
    begin_of_read,
    cluster_of,
    position_at,
    position_in,
    start_of,
    starts_of,
    stored_start,
    stored_starts,
)
from eventstore.protocol.joint_commits import committed_of as joint_result
from eventstore.protocol.joint_commits import request_of as joint_request
from eventstore.protocol.limits import SUBJECTS_PER_REQUEST_MAX
from eventstore.protocol.reaction_requests import CheckParking, FollowReactions, RecordParking, WaitProjection
from eventstore.protocol.request_declaration import Answered
from eventstore.protocol.requests import CommitJointly, CommitUnless, FindCommand, ReadMany, Version
from eventstore.protocol.subject_requests import ErasedSubject, EraseSubject
from eventstore.protocol.timer_requests import ChangeTimer, RecordTimers, SetTimer
from eventstore.query import Query, check_query
from eventstore.records.cluster_map import ClusterMap
from eventstore.records.cursors import AggregateCursor, LogCursor, ManyCursor
from eventstore.records.event_filter import event_filter
from eventstore.records.raw_commit import (
    CommitResult,
    CommitsToSeal,
    RawCommit,
    RawJointCommit,
    Unsealed,
    condition_of,
    encode_commit,
    encode_commits,
    encode_joint_commit,
    is_whole,
)
from eventstore.records.slots import slot_of
from eventstore.records.timer_record import due, timers_id

A = TypeVar("A")


def connect(
    address: str,
    *,
    timeout: float | None = TIMEOUT_S,
    connect_timeout: float = 5.0,
    reconnect_timeout: float = 30.0,
    silence_timeout: float = 20.0,
    name: str = "eventstore-python",
    ssl_context: SSLContext | None = None,
    token: str | None = None,
) -> BlockingStore:
    """Returns the store of the server at tcp://host:port, or of the cluster at tcp://n1:7701,n2:7701, for use in `with`.
    A blocking one may do without, see `BlockingStore`.

    Args:
        address: of several, the one that answered last is tried first; all are asked once it is silent for 2 seconds.
        timeout: seconds for each call that is given none, see `BlockingStore`; None: it waits for its answer.
        connect_timeout: seconds for one attempt to connect.
        reconnect_timeout: how many seconds calls wait for a lost connection to come back before they raise ConnectionLost.
        silence_timeout: how many seconds a connection may be silent while an answer is due before it counts as lost.
        name: shown in the server's log.
        ssl_context, token: for tls://host:port, and for a server that asks who you are; else as `ClientOptions.completed` says.

    Raises:
        InvalidArgument: a malformed address or a negative timeout; entering it raises ConnectionLost and others.
    """
    waits = (connect_timeout, reconnect_timeout, silence_timeout)
    return BlockingStore(address, ClientOptions(*waits, name, ssl_context, token, timeout))


class BlockingStore(BlockingOpened, BlockingOperated, BlockingConsumers):
    """A store in another process. Tasks may share one, and their appends travel together. Threads may share a blocking one:
    that of a single server in turns.

    A call that is cancelled, or ended by the exception of a signal handler (Ctrl-C, an alarm), may or may not have been carried
    out; an append's command id settles it. The exception of a handler also closes the connection to a single server: what other
    threads wait for fails with ConnectionLost, and the next call connects again.

    A blocking store connects when it is entered, or else at its first call, as one that has lost its connection; then it is
    open until `close` or the exit of the process. In a forked child it has a connection of its own, and what was under way at
    the fork fails; any other store is refused with Closed.

    Each call takes a `timeout` in seconds, whatever it waits for: a connection (otherwise the reconnect timeout), a silent
    server (the silence timeout), or an answer (for ever). Then it raises TimedOut, or has it as the outcome of what was not
    answered; its `outcome` is "none" if nothing was changed or will be, and "unknown" if the request was sent. A call that is
    given none has the `timeout` of the client: 10 seconds for a blocking one, no limit for an async one. Of many items
    (`append_many`) that is the time until the next outcomes. `math.inf` is no limit. A subscription, and a consumer, wait for
    as long as there is nothing.
    """

    @property
    def store_uuid(self) -> bytes:
        """The store that answers at this address. Raises ConnectionLost while not connected."""
        if (welcome := self._connection.welcome) is None:
            raise ConnectionLost("the store is not connected")
        return welcome.store

    @property
    def origin(self) -> str:
        """The uuid that positions name, as 32 hexadecimal digits: of the cluster, or of a store that is in none. It is the same
        for as long as there is an event. Raises ConnectionLost while not connected."""
        return self.store_uuid.hex() if self._router is None else cluster_of(self._router.table.known)

    @property
    def shards(self) -> dict[int, BlockingStore]:
        """The store of each shard by itself, while this one is open; none of a single one. A split ends its readers."""
        return {} if self._several is None else self._of_shards()

    def _of_shards(self) -> dict[int, BlockingStore]:
        found: dict[int, BlockingStore] = {}
        if (router := self._router) is not None:
            for number, layout in router.table.known.layouts().items():
                store = found[number] = BlockingStore.__new__(BlockingStore)
                store._connection, store._router, store._layout = router.shard(number), None, layout
                store._timeout, store._one_way = self._timeout, self._one_way
        return found

    @property
    def _layout_now(self) -> int:
        return self._connection.session.layout if self._layout is None else self._layout

    def append(
        self,
        aggregate_id: str,
        events: Sequence[NewEvent],
        expected_version: ExpectedVersion,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
        *,
        replicas: Replicas | None = None,
        timeout: float | None = None,
    ) -> Committed:
        """Appends the events as one commit, which is durable when this returns. With `replicas="all"` only if all replicas of
        the shard are in sync; if one is lost before it has the commit, `Committed.durability` is less than all.

        Raises:
            VersionConflict: the aggregate is at another version than `expected_version`.
            NotEnoughReplicas: too few replicas are in sync; nothing was stored.
            CommandIdReused: the command id was used for other content.
            InvalidArgument: a limit is broken; nothing was sent.
            SubjectErased: the subject of an event was erased; a command that was stored before is answered nevertheless.
            ConnectionLost: the server did not come back in time; append again with the same command id to find out.
            TimedOut: `outcome` says whether it may be stored; then append again with the same command id to find out.
        """
        if (seconds := seconds_of(timeout, self._timeout)) is not None:
            with within(seconds):
                return self.append(aggregate_id, events, expected_version, command_id, timestamp, replicas=replicas)
        try:
            commit = encode_commit(aggregate_id, events, expected_version, command_id, timestamp, replicas)
        except Unsealed:
            command_id = fresh_command_id() if command_id is None else check_text("command_id", command_id)
            try:
                events = self._keys.sealed(events, check_text("aggregate_id", aggregate_id), command_id)
            except SubjectErased:
                if (before := self.find_command(aggregate_id, command_id)) is None:
                    raise
                return before
            commit = encode_commit(aggregate_id, events, expected_version, command_id, timestamp, replicas)
        if self._router is not None:
            return cast(Committed, self._router.put(appends, aggregate_id, commit))
        return self._connection.put(self._connection.session.appends, commit)

    @property
    def _keys(self) -> BlockingKeys:
        return self._connection.keys if self._router is None else self._router.keys

    def append_many(
        self, commits: Iterable[Commit], *, replicas: Replicas | None = None, timeout: float | None = None
    ) -> list[CommitResult]:
        """Appends each commit, whole or not at all, in this order. Returns Committed or an error for each."""
        if (seconds := seconds_of(timeout, self._timeout)) is not None:
            with within(seconds, of_wait=timeout is None):
                return self.append_many(commits, replicas=replicas)
        to_seal = CommitsToSeal(replicas)
        outcomes = self._put_commits(commits, to_seal.encode)
        if to_seal.held:
            sealed = self._append_sealed(to_seal.held, partial(encode_commits, replicas=replicas))
            outcomes[to_seal.before : to_seal.before + len(sealed)] = sealed
        return outcomes

    def _put_commits(
        self, commits: Iterable[Commit], encode: Callable[[Sequence[Commit]], Sequence[RawCommit | InvalidArgument]]
    ) -> list[CommitResult]:
        if self._router is not None:
            return self._router.put_many(appends, commits, encode, itemgetter(0))
        return self._connection.put_many(self._connection.session.appends, commits, encode)

    def _append_sealed(
        self, commits: Sequence[Commit], encode: Callable[[Sequence[Commit]], Sequence[RawCommit | InvalidArgument]]
    ) -> list[CommitResult]:
        """Appends commits of which some have events to be encrypted: in groups, with one request for the keys of each."""
        outcomes: list[CommitResult] = []
        for first in range(0, len(commits), SUBJECTS_PER_REQUEST_MAX):
            group = commits[first : first + SUBJECTS_PER_REQUEST_MAX]
            made: list[Commit | CommitResult] = []
            try:
                self._keys.prepare([event for commit in group if is_whole(commit) for event in commit.events])
            except (PermissionDenied, InvalidArgument):  # of one of them, perhaps: each is asked for by itself
                pass
            except EventStoreError as error:
                outcomes += [copy_error(error) for _ in group]
                continue
            for commit in group:
                try:
                    if is_whole(commit):
                        sealed = self._keys.sealed(commit.events, commit.aggregate_id, commit.command_id)
                        made.append(Commit(commit[0], sealed, *commit[2:]))
                    else:
                        made += cast("list[CommitResult]", encode([commit]))  # which refuses it
                except SubjectErased as error:
                    made.append(self.find_command(commit.aggregate_id, commit.command_id) or error)
                except (PermissionDenied, InvalidArgument) as error:
                    made.append(error)
            answers = iter(self._put_commits([each for each in made if isinstance(each, Commit)], encode))
            outcomes += [next(answers) if isinstance(each, Commit) else each for each in made]
        return outcomes

    @limited
    def commit(
        self,
        writes: Sequence[Write],
        *,
        only_if: Sequence[At] = (),
        unless: Query | None = None,
        after: After | None = None,
        scope: str | None = None,
        command_id: str | None = None,
        timestamp: int | datetime | None = None,
        timeout: float | None = None,
    ) -> list[Committed]:
        """Appends the events of one command to up to 1,000 aggregates, to all of them or to none; durable on return. Returns
        what became of each, in the order of `writes`.

        `only_if`: aggregates that are not written, and the versions that they must have for the others to be written. `unless`:
        nothing is written if an event after `after` passes this query, of those whose aggregates are in the slot of `scope`, an
        id or a text in braces; without it, in the slot of the aggregates that are written. `after`: a sequence, or the position
        of the `query` that was decided on.

        The same command again returns the first outcome.

        Raises:
            VersionConflict: one of the aggregates is at another version; it is named.
            ConditionFailed: an event passes the query.
            Diverged: the event at `after` is another one now, or there is none.
            CommandIdReused: one of the aggregates has this command id with other content, or with other aggregates beside it.
            CrossShard: the aggregates are in several shards of a cluster; give their ids the same text in braces.
            InvalidArgument: a limit is broken, or an aggregate is given twice.
            UnsupportedVersion: the store has format 1; see the setting `upgrade_format`.
            ConnectionLost: the server did not come back in time; commit again with the same command id to find out.
            TimedOut: `outcome` says whether it may be stored; then commit again with the same command id to find out.
        """
        condition = condition_of(unless, after, scope, writes)
        try:
            raw = encode_joint_commit(writes, only_if, command_id, timestamp, condition)
        except Unsealed:
            command_id = fresh_command_id() if command_id is None else check_text("command_id", command_id)
            try:
                sealed = [
                    Write(each[0], self._keys.sealed(each[1], check_text("aggregate_id", each[0]), command_id), each[2])
                    for each in writes
                ]
            except SubjectErased:
                found = [self.find_command(each[0], command_id) for each in writes]
                if None in found:
                    raise
                return [each for each in found if each is not None]
            raw = encode_joint_commit(sealed, only_if, command_id, timestamp, condition)
        return self._commit_raw(raw, after)

    def _commit_raw(self, raw: RawJointCommit, after: After | None) -> list[Committed]:
        router = self._router
        if router is None:
            start = stored_start(after or 0, self._connection.session.store, self._layout_now)
            return joint_result(raw, self._connection.call(joint_request(raw, start, self._layout_now)))
        first = raw[0].routed_by[-1]
        router.reach(after or 0)

        def request(known: ClusterMap) -> CommitJointly | CommitUnless:
            shard = known.owners[slot_of(first)]
            return joint_request(raw, stored_starts(after or 0, known, only=shard)[shard], known.layout_of(shard))

        try:
            return joint_result(raw, router.call(first, request))
        except CrossShard:
            router.table.check_one_shard(raw[0].routed_by)  # by now it knows the shards, and names them
            raise

    def send(
        self,
        command: object,
        command_id: str | None = None,
        *,
        metadata: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Committed | Unchanged:
        """Has the domain handle a command; its changes are durable when this returns.

        `command`: an object of a class of commands, or a `RawCommand`. `metadata`: JSON of up to 16 KiB, stored with each of
        its events; `correlation_id` and `causation_id` in it are what the properties of these events answer.

        Raises:
            Rejected: the domain rejects it; HandlerFailed: its handler raised something else.
            UnknownCommand, PayloadInvalid: the server's domain does not know the command, or a field does not fit.
            OutdatedCode: no worker of the addresses has code that knows an event of the aggregate.
            InvalidArgument: a limit is broken; nothing was sent.
            ConnectionLost: the server did not come back in time; send again with the same command id to find out.
            TimedOut: `outcome` says whether it may be handled; then send again with the same command id to find out.
        """
        if (seconds := seconds_of(timeout, self._timeout)) is not None:
            with within(seconds):
                return self.send(command, command_id, metadata=metadata)
        row = encode_command(command, command_id, metadata)
        if self._router is not None:
            return cast("Committed | Unchanged", self._router.put(sends, row[1], row))
        connection, passed = self._connection, None
        while True:
            asked = connection.address
            try:
                return connection.put(connection.session.sends, row)
            except OutdatedCode:
                passed = passed or PassedOver(connection)
                if not passed.another(asked):
                    raise

    @limited
    def send_later(
        self,
        command: object,
        command_id: str | None = None,
        *,
        after: str | timedelta | None = None,
        at: datetime | None = None,
        name: str | None = None,
        metadata: Mapping[str, object] | None = None,
        timeout: float | None = None,
    ) -> Committed:
        """Has the domain handle a command when it is due: `after` now, such as "30m", "1h30m" or a timedelta, or `at` a time.
        Returns once that is durable. The timer belongs to the aggregate of the command; with the same `command_id` again
        nothing is changed.

        `name`: by which it is moved and cancelled; one of the same name that is pending is replaced. `metadata`: as in `send`.

        Raises:
            InvalidArgument: a limit is broken, or neither or both of `after` and `at` are given; nothing was sent.
            UnknownCommand, PayloadInvalid: the server's domain does not know the command, or a field does not fit.
            ConnectionLost, TimedOut: as in `send`.
        """
        type_, aggregate_id, id_, payload, encoded = encode_command(command, command_id, metadata)
        when = due(after, at)
        request = SetTimer(aggregate_id, id_, type_, payload, when.get("after_us"), when.get("at_us"), name, encoded)
        done = self._call_owner(aggregate_id, request)
        return Committed(timers_id(aggregate_id), done.version, done.sequence, durability=None)

    @limited
    def move_later(
        self,
        aggregate_id: str,
        timer: str,
        *,
        after: str | timedelta | None = None,
        at: datetime | None = None,
        who: str = "a client",
        why: str = "moved",
        timeout: float | None = None,
    ) -> None:
        """Makes the command of a timer due at another time. `timer`: its name, or the id that `timers` shows. `who`, `why`:
        kept with it. Needs the permission `timers` on the aggregate.

        Raises:
            InvalidArgument: the aggregate has no such timer that is pending or parked.
            UnknownOperation: no timers run at this address.
        """
        when = due(after, at)
        at_us = when["at_us"] if "at_us" in when else time.time_ns() // 1_000 + when["after_us"]
        self._call_owner(aggregate_id, ChangeTimer(aggregate_id, timer, "move", at_us, who, why))

    @limited
    def run_now(
        self,
        aggregate_id: str,
        timer: str,
        *,
        who: str = "a client",
        why: str = "run now",
        timeout: float | None = None,
    ) -> None:
        """Makes the command of a timer due now; also of one that is parked. Arguments and errors as `move_later`."""
        self._call_owner(aggregate_id, ChangeTimer(aggregate_id, timer, "run", None, who, why))

    @limited
    def cancel_later(
        self,
        aggregate_id: str,
        timer: str,
        *,
        who: str = "a client",
        why: str = "cancelled",
        timeout: float | None = None,
    ) -> None:
        """Cancels a timer, unless its command was sent or is on its way. Arguments and errors as `move_later`."""
        self._call_owner(aggregate_id, ChangeTimer(aggregate_id, timer, "cancel", None, who, why))

    def _call_owner(self, aggregate_id: str, request: Answered[A]) -> A:
        if self._router is not None:
            return self._router.call(aggregate_id, request)
        return self._connection.call(request)

    @limited
    def append_timers(self, rows: Sequence[tuple[str, str, NewEvent]], *, timeout: float | None = None) -> list[CommitResult]:
        """Records what a worker has to say of timers (see `EmbeddedStore.append_timers`). Raises the first error, after which
        some of the events may be stored.
        """
        found: list[CommitResult] = []
        sequences = self._only("`append_timers`").call(
            RecordTimers(tuple((name, command_id, event[1], event[2], event[3]) for name, command_id, event in rows))
        )
        for (name, _, _), sequence in zip(rows, sequences, strict=True):
            found.append(Committed(name, 0, sequence, durability=None))
        return found

    def send_many(
        self, commands: Iterable[object], *, timeout: float | None = None
    ) -> list[Committed | Unchanged | EventStoreError]:
        """Sends commands, or tuples of command, id and (if any) metadata, in order for each aggregate. Returns all outcomes.
        What a worker refuses with OutdatedCode is sent to another one, as by `send`.
        """
        if (seconds := seconds_of(timeout, self._timeout)) is not None:
            with within(seconds, of_wait=timeout is None):
                return self.send_many(commands)
        if self._router is not None:
            return self._router.put_many(sends, commands, encode_commands, itemgetter(1))
        connection, sent, passed = self._connection, CommandsSent(), None
        asked = connection.address
        outcomes = connection.put_many(connection.session.sends, commands, sent.encode)
        while refused := sent.outdated(outcomes):
            passed = passed or PassedOver(connection)
            if not passed.another(asked):
                break
            asked = connection.address
            again = connection.put_many(connection.session.sends, refused.values(), as_they_are)
            for place, outcome in zip(refused, again, strict=True):
                outcomes[place] = outcome
        return outcomes

    def read(
        self,
        aggregate_id: str,
        from_version: int = 1,
        to_version: int | None = None,
        backwards: bool = False,
        limit: int | None = None,
        *,
        timeout: float | None = None,
    ) -> BlockingEventStream:
        """Returns the aggregate's events in order of version, both ends inclusive; none if it does not exist. `timeout`: how
        many seconds it may take until the next of them are there.
        """
        connection = self._connection if self._router is None else self._router.of(aggregate_id)
        cursor = AggregateCursor(aggregate_id, from_version, to_version, backwards, limit)
        return open_read(connection, cursor, self._timeout if timeout is None else timeout)

    def read_all(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        limit: int | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
        backwards: bool = False,
        before: After | None = None,
        timeout: float | None = None,
    ) -> BlockingLogStream | BlockingMergedEvents:
        """Returns the events after sequence `after`, in commit order, that pass every filter; ends at the last one stored.

        `aggregate_id`: of this aggregate alone. `query`: by types and tags, in place of `types`. Times are microseconds since
        1970 or aware datetimes, both ends inclusive. Of several shards, each has an order of its own. `after`: the `position`
        of an earlier call; Diverged if it is lost.
        `backwards`: the newest first, of those before `before` (a sequence, or the `position` of an earlier call that read
        backwards; None: of all), down to the first. `timeout`: as of `read`; after TimedOut, continue at the `position`.
        """
        timeout = self._timeout if timeout is None else timeout
        wanted = event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query)
        begin, field = begin_of_read(after, before, backwards)

        def cursor(start: LogPosition) -> LogCursor:
            return LogCursor(start, limit, wanted, backwards=backwards)

        if self._router is not None:
            return read_shards(self._router, begin, limit, cursor, aggregate_id, timeout, field)
        start = stored_start(begin, self._connection.session.store, self._layout_now, field)
        return read_log(self._connection, cursor(start), self._layout, timeout)

    def read_all_arrow(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
        timeout: float | None = None,
    ) -> BlockingRecordBatches:
        """As `read_all`, in Arrow record batches of some thousand events: for pandas, polars, DuckDB, without an object for
        each event. `domain.EventColumns` makes columns of the fields of an event class. `position` is that after the last
        batch. Needs the extra `arrow`.

        Columns: sequence, aggregate_id, version, type, timestamp, command_id, data, is_json, metadata, tags.
        """
        from eventstore.records.arrow_page import ArrowCursor

        timeout = self._timeout if timeout is None else timeout
        wanted = event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query)

        def cursor(start: LogPosition) -> LogCursor:
            return ArrowCursor(start, wanted)

        if self._router is not None:
            return cast(BlockingRecordBatches, read_shards(self._router, after, None, cursor, aggregate_id, timeout))
        start = stored_start(after, self._connection.session.store, self._layout_now)
        return cast(BlockingRecordBatches, read_log(self._connection, cursor(start), self._layout, timeout))

    def query(
        self, query: Query, after: After = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[Event], Position]:
        """Returns the events after `after` that pass the query, of all aggregates and shards, and the position after what was
        examined: a decision that is made of them is committed `unless` others have come up after it. `limit`: how many events
        at most. `timeout`: seconds to wait for each page.

        Raises:
            Diverged: the event at `after` is another one now, or there is none.
        """
        stream = self.read_all(after, limit=limit, query=check_query(query), timeout=timeout)
        events: list[Event] = []
        for event in stream:
            events.append(event)
        return events, stream.position

    def replay_many(
        self, ids: Iterable[str], at: After | None = None, *, timeout: float | None = None
    ) -> tuple[dict[str, list[Event]], Position]:
        """Returns the events of each of 1 to 1,000 aggregates, all as they were at one position of the log, and that position:
        a joint commit is in all of them or in none. An aggregate that did not exist then has no events.

        `at`: a sequence or a position; if a commit is not complete there, where it is complete. None: the end of the log. The
        position can be given here again, and as `after` of a commit; in a cluster it is of the shard of the aggregates alone.
        `timeout`: seconds to wait for each page.

        Raises:
            CrossShard: the aggregates are in several shards of a cluster; give their ids the same text in braces.
            Diverged: the event at `at` is another one now, or there is none.
            UnknownOperation: the server is older.
        """
        cursor = ManyCursor(ids)
        position = self._replay_page(cursor, END if at is None else at, timeout=timeout)
        while not cursor.done:
            position = self._replay_page(cursor, position, timeout=timeout)
        return cursor.events, position

    @limited
    def _replay_page(self, cursor: ManyCursor, at: After, *, timeout: float | None) -> Position:
        """Takes the next page, and returns the position that it is of."""
        router = self._router
        if router is None:
            layout = self._layout_now
            start = start_of(at, self._connection.session.store, layout, "at")
            page = self._connection.call(many_request(cursor, start, layout))
            cursor.take(page)
            if cursor.personal:
                self._keys.open(cursor.personal)
            return position_at(cursor.place, self._connection.session.store, layout)
        first, asked = next(iter(cursor.events)), list[ClusterMap]()
        router.reach(at, "at")

        def request(known: ClusterMap) -> ReadMany:
            asked.append(known)
            router.table.check_one_shard(tuple(cursor.events))
            shard = known.owners[slot_of(first)]
            return many_request(cursor, starts_of(at, known, "at", shard)[shard], known.layout_of(shard))

        page = router.call(first, request)
        cursor.take(page)
        if cursor.personal:
            self._keys.open(cursor.personal)
        return position_in(asked[-1], {asked[-1].owners[slot_of(first)]: cursor.place})

    def subscribe(
        self,
        after: After = 0,
        types: Iterable[str] | None = None,
        aggregate_prefix: str | None = None,
        *,
        aggregate_id: str | None = None,
        query: Query | None = None,
        from_time: int | datetime | None = None,
        to_time: int | datetime | None = None,
        timeout: float | None = None,
    ) -> BlockingSubscriptionStream | BlockingMergedSubscription:
        """As `read_all`, but of durable events, and continues with new ones; CaughtUp comes once, between the two. With
        `after=END` it is the first item, and what is appended from then on follows. `timeout`: how many seconds it waits for
        the next item before it raises TimedOut, and continues with the next call; None: for as long as there is none.
        """
        wanted = event_filter(types, aggregate_prefix, from_time, to_time, aggregate_id, query)
        if self._router is not None:
            return follow_shards(self._router, after, wanted, timeout)
        start = start_of(after, self._connection.session.store, self._layout_now)
        return follow_log(self._connection, start, wanted, self._layout, timeout)

    def version(self, aggregate_id: str, *, timeout: float | None = None) -> int:
        """Returns the version of the aggregate's last event; 0 if it does not exist."""
        if (seconds := seconds_of(timeout, self._timeout)) is not None:
            with within(seconds):
                return self.version(aggregate_id)
        if self._router is not None:
            return self._router.call(aggregate_id, Version(aggregate_id))
        return self._connection.call(Version(aggregate_id))

    @limited
    def find_command(self, aggregate_id: str, command_id: str, *, timeout: float | None = None) -> Committed | None:
        """Returns what a command was committed as; None if it was never appended."""
        request = FindCommand(aggregate_id, command_id)
        if self._router is not None:
            return committed_of(aggregate_id, self._router.call(aggregate_id, request))
        return committed_of(aggregate_id, self._connection.call(request))

    @limited
    def wait_for(
        self,
        projection: str,
        *done: Committed | Unchanged,
        follows: Committed | Unchanged | None = None,
        timeout: float | None = None,
    ) -> None:
        """Returns once the tables of a projection have the events of these outcomes; without any, all events that there are
        now. What is read of them afterwards has these events, unless their key is parked. `follows`: also everything that the
        reactions of the server's domain make of this outcome, and of what they made of it, unless it is parked.

        The projectors look at their tables after this call began, so it is true also right after a failover or a rebuild. Of a
        projection that runs several times, all tables that are connected have the events. While none is, it is waited for.

        Raises:
            TimedOut: not in time; `eventstore projections` says how far they are.
            UnknownOperation: the server is older.
            Overloaded: too many wait.
            InvalidArgument: `follows`, and no reactions run in the server.
        """
        if isinstance(follows, Unchanged):
            done = (*done, follows)
        elif follows is not None:
            made, all_is_known = self._made_of(follows)
            done = (*done, *made) if all_is_known else ()
        if not done:
            self._ask_all(WaitProjection(projection))
        of_shards = dict[int, list[Committed | Unchanged]]()
        for each in done:
            of_shards.setdefault(self._shard_of(each.aggregate_id), []).append(each)
        for own in of_shards.values():
            name = own[0].aggregate_id
            self._ask_owner(name, WaitProjection(projection, name, sequence_of(own)))

    def _made_of(self, done: Committed) -> tuple[list[Committed], bool]:
        """Waits until reactions have handled an outcome, and what they made of it, and so on. Returns the last of these commits
        of each shard, and whether no other commit was made of it.
        """
        correlation_id, all_is_known = None, True
        furthest, followed = {self._shard_of(done.aggregate_id): done}, dict[int, int]()
        while ahead := [each for shard, each in furthest.items() if each.sequence > followed.get(shard, 0)]:
            name, sequence = ahead[0].aggregate_id, ahead[0].sequence
            found = self._ask_owner(name, FollowReactions(name, sequence, correlation_id))
            followed[self._shard_of(name)], correlation_id, chains = sequence, found.correlation_id, [found]
            if all_is_known and not found.known:  # what was made before that process began is stored by now
                all_is_known = False
                chains += self._ask_all(FollowReactions(correlation_id=correlation_id))
            for place in chain.from_iterable(each.places for each in chains):
                shard = self._shard_of(place.aggregate_id)
                if shard not in furthest or furthest[shard].sequence < place.sequence:
                    furthest[shard] = Committed(place.aggregate_id, 0, place.sequence)
        return list(furthest.values()), all_is_known

    def _shard_of(self, aggregate_id: str) -> int:
        return 0 if self._router is None else self._router.table.shard_of(aggregate_id)

    def _ask_owner(self, aggregate_id: str, request: Answered[A]) -> A:
        if self._router is None:
            return self._connection.call(request)
        return self._router.call(aggregate_id, request)

    def _ask_all(self, request: Answered[A]) -> list[A]:
        if self._router is None:
            return [self._connection.call(request)]
        return self._router.call_all(lambda _: request)

    @limited
    def aggregates(
        self,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = AGGREGATES_PER_PAGE_MAX,
        *,
        timeout: float | None = None,
    ) -> list[AggregateInfo]:
        """Returns a page of the ids that begin with `prefix` and come after the id `after`, with their versions, in the order
        of their bytes in UTF-8. `limit`: 1 to 1,000; a page with fewer is the last one.
        """
        request_of = partial(aggregates_request, prefix, after, limit)
        if self._router is None:
            return self._connection.call(request_of(self._layout_now))
        pages = self._router.call_all(request_of)
        return sorted(chain.from_iterable(pages), key=lambda each: each.aggregate_id.encode())[:limit]

    @limited
    def erase(self, subject: str, because: str, *, timeout: float | None = None) -> ErasedSubject:
        """Erases a subject, for good: its key is destroyed, and what was stored about it cannot be read by anyone who has no
        lease of the key any longer, `leased_until_us` at the latest. A second time it returns the first record.

        `because`: stored with the record of the erasure. Needs the permission `erase` on the subject.
        """
        return self._ask_owner(subject, EraseSubject(subject, because))

    @limited
    def append_reserved(self, aggregate_id: str, event: NewEvent, *, timeout: float | None = None) -> Committed:
        """Appends a record of what a worker's reactions have parked. Raises InvalidArgument for anything else."""
        call = self._only("`append_reserved`").call
        recorded = call(RecordParking(aggregate_id, event[1], event[2]))
        return Committed(aggregate_id, recorded.version, recorded.sequence, duplicate=False, durability=None)

    @limited
    def check_parking(self, *, timeout: float | None = None) -> None:
        """Raises PermissionDenied if the client may not record what reactions have parked, of no aggregate. An older server,
        which does not know the question, permits it here.
        """
        with contextlib.suppress(UnknownOperation):
            if self._router is None:
                self._connection.call(CheckParking())
            else:
                self._router.call_all(lambda _: CheckParking())

    def topic(self, name: str, *, resend: bool = True) -> BlockingTopic:
        """Returns a topic to send messages to. `resend`: see `BlockingTopic`. Raises InvalidArgument."""
        return BlockingTopic(self, name, resend=resend)

    def _new_member(self, options: MemberOptions) -> Any:
        return BlockingMember(self._connection, options) if self._router is None else shards_member(self._router, options)
