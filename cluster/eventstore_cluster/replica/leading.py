"""A leader: what its followers fetch, what is committed, who belongs to the in-sync set, and its steps when replicas move,
leadership is handed over, or the shard is split.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from eventstore_cluster.replica.actions import (
    Action,
    BeginFile,
    CommitTo,
    EndProcess,
    HoldBack,
    Open,
    ReadRegistry,
    SendFrame,
    Serve,
    Transact,
)
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.frames import Data, Fetch, FetchAhead, FromSession, Joined, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.places import NOWHERE, LogEnd, LogEnds, least, reaches
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import NOT_PAUSED, Leader, Seat, ShardState


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a replica is behind its leader.

    Attributes:
        in_sync: appends wait for it.
        seconds: since it was level.
        end: of its events; None while it is not connected.
        silent_s: since it last asked for more, as it does often; None while it is not connected.
    """

    node: str
    in_sync: bool
    seconds: float
    end: LogEnd | None
    silent_s: float | None


class Leading:
    """Leads one epoch, from the transaction that won it until the process ends.

    Attributes:
        began_with: the keys as that transaction left them.
        written: the end of the own log.
        synced: how far the own log is durable here.
        committed: durable on every member that counts; None until the epoch's own record is (R10): what is before it may be
            uncommitted too.
        serves: clients are served.
    """

    def __init__(self, me: Leader, registrar: Registrar, logs: tuple[LogTail, ...], limits: Limits, now: float) -> None:
        self.epoch = registrar.state.epoch
        self.began_with = registrar.stood_with or registrar.seen  # a new shard's first leader was made so by its parent's
        self.logs = logs
        self.written: LogEnds = tuple(log.end for log in logs)
        self._nowhere: LogEnds = tuple(NOWHERE for _ in logs)
        self.synced: LogEnds = self.written
        self.committed: LogEnds | None = None
        self.open_at: LogEnds | None = None
        self.sessions = Sessions()
        self.progress: dict[Seat, MemberProgress] = {}
        self.serves = False
        self.splitting = Splitting(registrar, limits)
        self._moving = Moving(registrar, me.member)
        self._me = me
        self._registrar = registrar
        self._limits = limits
        self._handing_over = HandingOver(limits, now)
        self._committed_at = self._read_at = now

    def takes_appends(self, now: float) -> bool:
        """Whether an append may be written: the leader is open, and enough members of the set keep up (R5)."""
        return self.committed is not None and len(self.level_members(now)) >= self._registrar.state.in_sync_min

    def level_members(self, now: float) -> list[Seat]:
        """Returns the members of the in-sync set that are not behind for too long; this one is."""
        return [member for member in self._registrar.state.in_sync if not self._lags(member, now, self._limits.lag_max_s)]

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError with the marks that contradict each other: open at ≤ committed ≤ synced ≤ written,
        and no follower has, or was told of, more than there is.
        """
        marks = f"committed {self.committed}, synced {self.synced}, written {self.written}, open at {self.open_at}"
        assert tuple(log.end for log in self.logs) == self.written, f"{marks}: the logs end at {[log.end for log in self.logs]}"
        assert max(log.last.epoch for log in self.logs) <= self.epoch, f"there are records of later epochs than {self.epoch}"
        assert reaches(self.written, self.synced), f"more is synced than written: {marks}"
        if self.committed is not None:
            assert self.open_at is not None, f"something is committed before the epoch began: {marks}"
            assert reaches(self.committed, self.open_at), f"less than the epoch's record is committed: {marks} (R10)"
            assert reaches(self.synced, self.committed), f"more is committed than synced: {marks}"
        self.sessions.check_invariants()
        for session in self.sessions:
            self._check_session(session)
        for member, progress in self.progress.items():
            known = progress.goal is None or reaches(self.written, progress.goal)
            assert known, f"{member} is to reach {progress.goal}, {marks}"
        self.splitting.check_invariants()

    def _check_session(self, session: FollowerSession) -> None:
        held, acked, told = session.held, session.acked, session.told
        if held is not None:
            fits = (held.session, held.epoch) == (session.number, self.epoch) and reaches(self.written, held.ends)
            assert fits, f"{held} is held for session {session.number} of epoch {self.epoch}, written is {self.written}"
        if acked is not None:
            assert reaches(self.written, acked), f"{session.member} has {acked}, written is {self.written}"
        if told is not None and any(end != NOWHERE for end in told):
            assert self.committed is not None, f"{session.member} was told that {told} is committed, and nothing is"
            assert reaches(self.committed, told), f"{session.member} was told that {told} is committed of {self.committed}"

    # the own log

    def begun(self, ends: LogEnds, now: float) -> list[Action]:
        """Notes that the record that begins the epoch was appended, and that the log ends there."""
        self.open_at = ends
        return self.grown(ends, now)

    def grown(self, ends: LogEnds, now: float) -> list[Action]:
        """Takes the ends of records that were written here. They may be fetched while they are synced, and are never taken back
        (R3).
        """
        self.written = ends
        grown = zip(self.logs, ends, strict=True)
        self.logs = tuple([log if log.end == end else log.grow(self.epoch, end) for log, end in grown])
        return [action for session in self.sessions for action in self._answer(session, now)]

    def durable(self, ends: LogEnds, now: float) -> list[Action]:
        """Notes that the own log is synced up to here."""
        self.synced = ends
        return self.advance(now)

    def advance(self, now: float) -> list[Action]:
        """Moves the committed mark to what every member that counts has made durable."""
        if self.open_at is None:
            return []
        durable = [self._durable_at(member) for member in self._registrar.counting()]  # R1
        if self.committed in durable:
            return []
        ends = least(durable)
        if self.committed is None:
            if not reaches(ends, self.open_at):
                return []
            self._commit(ends, now)
            return [CommitTo(ends), Open(self.epoch)]
        if not reaches(ends, self.committed):
            return []
        self._commit(ends, now)
        step = self._split(now) if self.splitting.holding and self._registrar.unanswered is None else []
        return [CommitTo(ends), *step]  # followers hear of it with what they fetch next

    def _commit(self, ends: LogEnds, now: float) -> None:
        self.committed = ends
        self._committed_at = now

    def _durable_at(self, member: Seat) -> LogEnds:
        if member == self._me.member:
            return self.synced
        session = self.sessions.of(member)
        return self._nowhere if session is None or session.acked is None else session.acked

    def lags(self, now: float) -> list[Lag]:
        """Returns how far other replicas are behind this leader: all members of the set, and all that fetch."""
        members = {*self._registrar.state.in_sync, *(session.member for session in self.sessions)} - {self._me.member}
        return [self._lag(member, now) for member in sorted(members)]

    def _lag(self, member: Seat, now: float) -> Lag:
        ends, session = self._durable_at(member), self.sessions.of(member)
        seconds = 0.0 if ends == self.written else max(0.0, now - self._progress(member, now).level_at)
        is_in = member in self._registrar.state.in_sync
        silent_s = None if session is None or session.acked is None else max(0.0, now - session.heard_at)
        return Lag(member.node, is_in, seconds, None if silent_s is None else ends[0], silent_s)

    # followers

    def join(self, connection: int, join: JoinFrame, now: float) -> list[Action]:
        """Answers where the follower's log may part from this one."""
        if self.open_at is None or join.leader_run != self._me.run or len(join.logs) != len(self.logs):
            return [SendFrame(connection, NotLeading(self.epoch))]
        session = self.sessions.begin(join.member, connection, now)
        answers = tuple(log.at_most(last.epoch) for log, last in zip(self.logs, join.logs, strict=True))
        return [SendFrame(connection, Joined(join.number, session.number, self.epoch, answers))]

    def heard(self, connection: int, frame: FromSession, now: float) -> list[Action]:
        """Takes what a follower has stored, and what it asks for: that is answered as soon as there is more."""
        session = self.sessions.find(frame.session, connection)
        if session is None or frame.epoch != self.epoch or len(frame.ends) != len(self.logs):
            return [SendFrame(connection, NotLeading(self.epoch))]
        if frame.ends != self.written and not reaches(self.written, frame.ends):
            return self.mismatched(session.number, connection)
        if not isinstance(frame, Stored):
            session.asked(frame, now)
        actions = [] if isinstance(frame, FetchAhead) else self._acknowledged(session, frame, now)
        return [*actions, *self._answer(session, now), *self._maybe_add(session), *self._hand_over(now)]

    def _acknowledged(self, session: FollowerSession, frame: Fetch | Stored, now: float) -> list[Action]:
        session.acked, session.sorted_through = frame.ends, frame.sorted_through
        self._progress(session.member, now).acked(frame.ends, self.written, now)
        return self.advance(now)

    def mismatched(self, number: int, connection: int) -> list[Action]:
        """Has the follower join again: its last records differ from the records before its ends here (R3)."""
        session = self.sessions.find(number, connection)
        if session is None:
            return []
        self.sessions.end(session)
        return [SendFrame(connection, NotLeading(self.epoch))]

    def disconnected(self, connection: int) -> None:
        for session in self.sessions.on(connection):
            self.sessions.end(session)

    def _answer(self, session: FollowerSession, now: float) -> list[Action]:
        """Answers what is asked for if there is anything new to say."""
        held = session.held
        if held is None:
            return []
        committed = self.committed or self._nowhere
        waits_s = self._limits.poll_s if session.told == committed else self._limits.mark_s
        waits = now < session.held_since + waits_s
        if waits and held.ends == self.written:
            return []
        copies = self._moving.may_copy(session.member)
        if waits and not copies:
            return []
        if not copies:  # it hears that there is a leader
            session.answered(None, now)
            return [SendFrame(session.connection, Data(session.number, self.epoch, held.ends, committed, None))]
        return self._answer_now(session, now)

    def _answer_now(self, session: FollowerSession, now: float) -> list[Action]:
        """Answers what is asked for, if anything is, whether or not there is anything new to say."""
        held, committed = session.held, self.committed or self._nowhere
        if held is None:
            return []
        session.answered(committed, now)
        return [Serve(session.connection, session.number, self.epoch, held.ends, held.last_crcs, committed)]

    # the in-sync set

    def tick(self, now: float) -> list[Action]:
        actions = [action for session in self.sessions for action in self._answer(session, now)]
        if self._stalled(now) and self._may_be_replaced():
            return [EndProcess(f"nothing was committed for {self._limits.stall_max_s:g} s", sit_out=True)]
        if now >= self._read_at + self._limits.retry_s:
            self._read_at = now
            actions.append(ReadRegistry())
        return [*actions, *self.settle_set(now)]

    def settle_set(self, now: float) -> list[Action]:
        """Takes a member that is behind out of the set, or adds a member that caught up, or goes a step towards the wanted
        replicas; one transaction at a time.
        """
        if self._registrar.unanswered is not None:
            return []
        if actions := self._hand_over(now):
            return actions
        longest_s = self._limits.lag_max_s
        lagging = [each for each in self._registrar.state.in_sync if self._lags(each, now, longest_s) or self._is_gone(each)]
        if lagging and self._may_drop():
            longest = min(lagging, key=lambda member: (self._progress(member, now).level_at, member))
            return self._propose(self._registrar.state.in_sync - {longest})
        for session in self.sessions:
            if actions := self._maybe_add(session):
                return actions
        if actions := self._move(now) or self._split(now):
            return actions
        if self._registrar.uncertain:  # a write settles what a read cannot (R2); until then a lost member may count
            return self._propose(self._registrar.state.in_sync)
        return []

    def _split(self, now: float) -> list[Action]:
        state = self._registrar.state
        may_begin = self.serves and self.takes_appends(now) and state.successor is None and state.wanted is None
        return self.splitting.next_step(self.written, self.committed, now, may_begin=may_begin)

    def _lags(self, member: Seat, now: float, longest_s: float) -> bool:
        return member != self._me.member and now > self._progress(member, now).level_at + longest_s

    def _is_gone(self, member: Seat) -> bool:
        """Whether the member's process has ended: it has no lease any more, and does not fetch."""
        seen = self._registrar.seen
        assert seen is not None
        return (
            seen.running is not None
            and member not in seen.running
            and member != self._me.member
            and not self.sessions.of(member)
        )

    def _may_drop(self) -> bool:
        return self._registrar.state.has_spare(self._registrar.state.in_sync)  # R5

    def _maybe_add(self, session: FollowerSession) -> list[Action]:
        state, member = self._registrar.state, session.member
        if self._registrar.unanswered is not None or member in state.in_sync or member.node not in state.replicas:
            return []
        if session.acked is None or self.open_at is None or not reaches(session.acked, self.open_at):
            return []
        if self.committed is not None and not reaches(session.acked, self.committed):
            return []
        others = frozenset(each for each in state.in_sync if each.node != member.node)
        return self._propose(others | {member})

    def _hand_over(self, now: float) -> list[Action]:
        """Gives leadership up if another member is to lead, keeps up and answers; that member competes before the others. Until
        the registry's answer is known, nothing may be read here. Records that every member has may still be committed.
        """
        state, seen, handing = self._registrar.state, self._registrar.seen, self._handing_over
        if state.successor != handing.successor:
            handing.name(state.successor, now)
        if state.successor is None or self.committed is None or self._registrar.unanswered is not None:
            return []
        member = next((each for each in state.in_sync if each.node == state.successor), self._me.member)
        session = self.sessions.of(member)
        if session is None or self._registrar.yielding or self.splitting.holding or not self._keeps_up(member, now):
            return []
        assert seen is not None
        if seen.running is not None and member not in seen.running:  # paused until its lease was over: it cannot be elected
            return []
        may_begin = self.serves and self.takes_appends(now)
        if (before := handing.next_step(self.written, session, now, may_begin=may_begin)) is not None:
            return before
        if session.follows < handing.named_at or now > session.heard_at + self._limits.hand_over_silence_s:
            return self._answer_now(
                session, now
            )  # a replica that hangs is connected too, and its last Fetch may still be on its way
        return [Transact(self._registrar.propose(state, seen.leader_revision, yields=True))]

    def _move(self, now: float) -> list[Action]:
        """Continues with what is wanted of the replicas, as far as that is possible now."""
        return self._moving.next_step(self.keeping_up(now))

    def keeping_up(self, now: float) -> list[Seat]:
        """Returns the members of the set that answer and are hardly behind; this one is."""
        me = self._me.member
        return [each for each in self._registrar.state.in_sync if each == me or self._keeps_up(each, now)]

    def _keeps_up(self, member: Seat, now: float) -> bool:
        """Whether a follower in the set may be handed leadership."""
        session = self.sessions.of(member)
        return session is not None and session.acked is not None and not self._lags(member, now, self._limits.hand_over_lag_s)

    def _propose(self, in_sync: frozenset[Seat]) -> list[Action]:
        assert self._registrar.seen is not None
        state = replace(self._registrar.state, in_sync=in_sync)
        return [Transact(self._registrar.propose(state, self._registrar.seen.leader_revision))]

    def _progress(self, member: Seat, now: float) -> MemberProgress:
        return self.progress.get(member) or self.progress.setdefault(member, MemberProgress(now))

    def _may_be_replaced(self) -> bool:
        """Whether another member of the set may lead: if none runs, this leader alone can still answer reads."""
        seen = self._registrar.seen
        assert seen is not None
        return seen.running is None or bool(seen.state.in_sync & seen.running - {self._me.member})

    def _stalled(self, now: float) -> bool:
        if self.committed == self.written:
            self._committed_at = now
        return now > self._committed_at + self._limits.stall_max_s


# -- followers -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FollowerSession:
    """One follower since its latest join.

    Attributes:
        acked: durable there; None before its first Fetch.
        held: what it asks for and is not answered yet.
        held_since: when that came.
        told: the committed mark that was sent last.
        heard_at: when it asked last, or joined.
        answered_at: when it was answered last.
        follows: the follower was running at some time since then, because it asks again when it has its answer.
        sorted_through: the last event file that it has sorted.
    """

    number: int
    member: Seat
    connection: int
    heard_at: float
    acked: LogEnds | None = None
    held: Fetch | FetchAhead | None = None
    held_since: float = 0.0
    told: LogEnds | None = None
    answered_at: float = 0.0
    follows: float = 0.0
    sorted_through: int = 0

    def asked(self, frame: Fetch | FetchAhead, now: float) -> None:
        self.held, self.held_since, self.heard_at, self.follows = frame, now, now, self.answered_at

    def answered(self, told: LogEnds | None, now: float) -> None:
        self.held, self.answered_at = None, now
        self.told = told or self.told


@dataclass(slots=True)
class MemberProgress:
    """When a member was last level with the leader; kept over its sessions.

    Attributes:
        level_at: it had by then everything that the leader had then.
        goal: what the leader had at `goal_at`, to be reached next.
    """

    level_at: float
    goal: LogEnds | None = None
    goal_at: float = 0.0

    def acked(self, ends: LogEnds, written: LogEnds, now: float) -> None:
        if ends == written:
            self.level_at, self.goal = now, None
            return
        if self.goal is not None and reaches(ends, self.goal):
            self.level_at, self.goal = self.goal_at, None
        if self.goal is None:
            self.goal, self.goal_at = written, now


class Sessions:
    """A session per node, the latest one: frames of an earlier session count no more (R4)."""

    def __init__(self) -> None:
        self._by_node: dict[str, FollowerSession] = {}
        self._numbers = 0

    def begin(self, member: Seat, connection: int, now: float) -> FollowerSession:
        self._numbers += 1
        session = self._by_node[member.node] = FollowerSession(self._numbers, member, connection, now, answered_at=now)
        return session

    def find(self, number: int, connection: int) -> FollowerSession | None:
        """Returns the session if it is the latest of its node, and the frame came on its connection."""
        for session in self._by_node.values():
            if session.number == number and session.connection == connection:
                return session
        return None

    def of(self, member: Seat) -> FollowerSession | None:
        session = self._by_node.get(member.node)
        return session if session is not None and session.member == member else None

    def end(self, session: FollowerSession) -> None:
        if self._by_node.get(session.member.node) is session:
            del self._by_node[session.member.node]

    def on(self, connection: int) -> list[FollowerSession]:
        return [session for session in self._by_node.values() if session.connection == connection]

    def __iter__(self) -> Iterator[FollowerSession]:
        return iter(list(self._by_node.values()))

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless each node has a session of its own, of its own member."""
        numbers = {node: session.number for node, session in self._by_node.items()}
        assert len(set(numbers.values())) == len(numbers), f"two nodes have one session: {numbers}"
        assert all(number <= self._numbers for number in numbers.values()), f"{numbers}, {self._numbers} were begun"
        for node, session in self._by_node.items():
            assert session.member.node == node, f"the session of {session.member} is that of {node}"


# -- moving ----------------------------------------------------------------------------------------------------------------


class Moving:
    """The next step from a shard's replicas to the wanted ones: one transaction of its leader `me`.

    1  the wanted nodes are named as replicas: they start a process, which fetches, and is added to the set
    2  when all wanted replicas are in the set and keep up, a leader that is not wanted is to hand over to the first of them
    3  the others leave, the set and the replicas at once, and nothing more is wanted; a shard that had only one replica
       needs two in sync from then on

    The next step follows from the state alone, so any later leader continues where the last one ended. A step that cannot be
    done yet is waited for: the earlier replicas serve meanwhile, and count. While all moves, or the moves of this shard, are
    paused, no step is begun, and nothing is copied to new replicas.

    Copying needs a ticket, of which the cluster has few. The leader takes a ticket with the first step, or takes another one if
    an earlier leader had it. It gives the ticket back with the last step, or its lease does. While the shard is paused alone,
    its ticket is given back too, so that others copy meanwhile.
    """

    def __init__(self, registrar: Registrar, me: Seat) -> None:
        self._registrar: Final = registrar
        self._me: Final = me

    def next_step(self, level: Collection[Seat]) -> list[Action]:
        """Returns the transaction that may be sent now. `level`: see `next_state`."""
        seen, registrar = self._registrar.seen, self._registrar
        assert seen is not None
        if registrar.unanswered is not None or registrar.yielding:
            return []
        state = None if seen.paused else next_state(seen.state, self._me, level)
        lacks_ticket = seen.holds is None and bool(copied(seen.state))
        takes = seen.ticket if lacks_ticket and not seen.paused else None
        frees = seen.holds if (state or seen.state).wanted is None or seen.state.pause.on else None
        if takes is None and frees is None and (state is None or lacks_ticket):
            return []
        return [Transact(registrar.propose(state or seen.state, seen.leader_revision, takes=takes, frees=frees))]

    def may_copy(self, member: Seat) -> bool:
        """Whether a replica may be sent the log now. A new replica waits for the ticket, and while moves are paused."""
        seen = self._registrar.seen
        if seen is None or seen.state.wanted is None:
            return True
        return (seen.holds is not None and not seen.paused) or member.node not in copied(seen.state)


def copied(state: ShardState) -> set[str]:
    """Returns the nodes whose replicas are still to be copied."""
    members = {member.node for member in state.in_sync}
    return set() if state.wanted is None else set(state.wanted).difference(state.before or (), members)


def next_state(state: ShardState, leader: Seat, level: Collection[Seat]) -> ShardState | None:
    """Returns the state to write next; None if nothing can be done yet, or nothing is wanted. `level`: members of the in-sync
    set that keep up with the leader.
    """
    if state.wanted is None:
        return None
    if missing := tuple(node for node in state.wanted if node not in state.replicas):
        return replace(state, replicas=state.replicas + missing)
    if not {member.node for member in level}.issuperset(state.wanted) or len(state.wanted) < state.in_sync_min:
        return None  # R5
    if leader.node not in state.wanted:
        return None if state.successor in state.wanted else state.to_be_led_by(state.wanted[0], state.by)
    in_sync = frozenset(member for member in state.in_sync if member.node in state.wanted)
    least = least_in_sync(len(state.before or ()), len(state.wanted), state.in_sync_min)
    return replace(state, replicas=state.wanted, in_sync=in_sync, wanted=None, before=None, in_sync_min=least, pause=NOT_PAUSED)


def least_in_sync(before: int, wanted: int, in_sync_min: int) -> int:
    """Returns how many replicas must be in sync once a shard that had `before` has as many as are wanted."""
    return 2 if before == 1 < wanted else in_sync_min


# -- handing over ----------------------------------------------------------------------------------------------------------


class HandingOver:
    """A leader that is to hand over has its successor sort what it would read first, while clients are still served.

        the file that is written is large           ─► a new one is begun
        the successor has not sorted earlier files  ─► it is waited for, for some time, unless they are few and small

    A new leader reads the events that are not sorted before it answers anything: a second for 100 MB of small events.

    Attributes:
        successor: who is to lead, as seen last.
        named_at: since when that is so.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self.successor: str | None = None
        self.named_at = now
        self._asked: Seat | None = None
        self._waits_since = now
        self._sort_s, self._lacking = limits.hand_over_sort_s, limits.hand_over_files_lacking
        self._files = NewFiles(limits.hand_over_file_bytes, limits.files_begun_max)

    def name(self, successor: str | None, now: float) -> None:
        self.successor, self.named_at, self._asked = successor, now, None

    def next_step(self, written: LogEnds, session: FollowerSession, now: float, *, may_begin: bool) -> list[Action] | None:
        """Returns what is to be done before the follower of this session, which keeps up, may lead. An empty list: wait for it.
        None: it may lead.

        The time to wait begins when this is first asked, as the successor may have been behind before. It begins again when the
        successor's process is another one, because what the earlier process was sorting is not sorted.

        `may_begin`: clients are served, and a file can be begun.
        """
        if self._asked != session.member:
            self._asked, self._waits_since = session.member, now
            self._files.reset()
        if now > self._waits_since + self._sort_s:
            return None
        return self._files.next_step(written[0], session.sorted_through + self._lacking, may_begin=may_begin)


# -- splitting -------------------------------------------------------------------------------------------------------------


class Splitting:
    """A leader splits its shard: it waits for clones of its log, holds the leaving slots back, and gives them away.

        clones lack few completed files   ─► the file that is written is small enough, or a new one is begun
        leaving slots are held back       ─► a new file is begun: the new shards end with the one before
        its first record is committed     ─► one transaction gives the slots away

    Until the transaction nothing has changed for anybody else; the leader may die, and the next one begins again. Slots that
    are held back are never taken again by this run: if they cannot be given away, the run ends. While the split is paused,
    nothing is held back.

    Attributes:
        holding: it holds slots back.
    """

    def __init__(self, registrar: Registrar, limits: Limits) -> None:
        self._registrar, self._limits = registrar, limits
        self._held_at: float | None = None
        self._held_for: tuple[int, ...] = ()
        self._last_file: int | None = None
        self._splits_before = 0
        self._files = NewFiles(limits.split_file_bytes, limits.files_begun_max)

    @property
    def holding(self) -> bool:
        return self._held_at is not None

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless a leader that holds slots back knows for which shards."""
        held = self._held_at, self._held_for, self._last_file
        assert self._held_at is None or self._held_for, f"slots are held back for no shard: {held}"
        assert self._held_at is not None or self._last_file is None, f"a last file, and no slots are held back: {held}"

    def held_back(self, last_file: int) -> None:
        """Notes that a file was begun after `last_file`, and that no record of the leaving slots is written after
        `last_file`.
        """
        self._last_file = last_file

    def next_step(self, written: LogEnds, committed: LogEnds | None, now: float, *, may_begin: bool) -> list[Action]:
        """Returns what is to be done about the wanted split, if anything. Call it only while no transaction waits for its
        answer. `may_begin`: the shard takes appends, and no other replica is to lead it.
        """
        state = self._registrar.state
        if self._held_at is not None:
            return self._give(committed, self._held_at, now)
        if not state.split or state.pause.on or committed is None or not may_begin:
            return []
        if (through := self._cloned()) is None:
            return []
        if (before := self._files.next_step(written[0], through + self._limits.split_files_lacking)) is not None:
            return before
        self._held_at, self._held_for, self._splits_before = now, state.split, state.splits
        return [HoldBack(state.split)]

    def _give(self, committed: LogEnds | None, held_at: float, now: float) -> list[Action]:
        state, seen = self._registrar.state, self._registrar.seen
        assert seen is not None
        if state.splits > self._splits_before:
            self._held_at = self._last_file = None
            self._files.reset()
            return []
        if state.split != self._held_for:  # another one may have been asked for since, of other slots
            return [EndProcess("the split was called off, and slots are held back for it")]
        if now > held_at + self._limits.split_max_s:
            return [EndProcess(f"the split was not settled within {self._limits.split_max_s:g} s")]
        if self._last_file is None or committed is None or committed[0][0] <= self._last_file or self._registrar.uncertain:
            return []
        gifts = tuple((shard, self._members(shard)) for shard in state.split)
        if any(len(members) < state.in_sync_min for _, members in gifts):
            return []
        given = replace(state, split=(), splits=state.splits + 1, pause=NOT_PAUSED)
        return [Transact(self._registrar.propose(given, seen.leader_revision, gifts=gifts))]

    def _members(self, shard: int) -> frozenset[Seat]:
        """Returns the clones on the nodes of the in-sync set: what their parent's replicas have, they have."""
        seen = self._registrar.seen
        assert seen is not None
        nodes = {member.node for member in seen.state.in_sync}
        return frozenset(each.member for each in seen.clones if each.shard == shard and each.member.node in nodes)

    def _cloned(self) -> int | None:
        """Returns the last file that all needed clones have; None if a clone is missing or stuck. A stuck clone cannot be left
        out: if it cannot link files, it lacks few of them in a small shard, and could not serve its slots.
        """
        seen = self._registrar.seen
        assert seen is not None
        found = {(each.shard, each.member.node): each.through for each in seen.clones if not each.stuck}
        needed = [(shard, member.node) for shard in seen.state.split for member in seen.state.in_sync]
        return min(found[each] for each in needed) if needed and all(each in found for each in needed) else None


# -- new files -------------------------------------------------------------------------------------------------------------


class NewFiles:
    """Begins new event files for one purpose, until the file that is written has `bytes_max` at most and all files before it
    are ready. Begins `begun_max` files at most.
    """

    def __init__(self, bytes_max: int, begun_max: int) -> None:
        self._bytes_max, self._begun_max = bytes_max, begun_max
        self.reset()

    def reset(self) -> None:
        """Begins to count again, for another purpose."""
        self._begun, self._begun_at_file = 0, -1

    def next_step(self, written: LogEnd, ready_through: int, *, may_begin: bool = True) -> list[Action] | None:
        """Returns what to do now; an empty list: wait; None: all is ready, or enough files were begun.

        `written`: the end of the events. `ready_through`: the last file that is ready.
        """
        number, size = written
        if ready_through < number - 1 or number == self._begun_at_file:
            return []
        if size <= self._bytes_max or self._begun >= self._begun_max:
            return None
        if not may_begin:
            return []
        self._begun, self._begun_at_file = self._begun + 1, number
        return [BeginFile()]
