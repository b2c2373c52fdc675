"""A leader: what its followers fetch, what is committed, and who belongs to the in-sync set."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eventstore_cluster.replica.actions import Action, CommitTo, EndProcess, Open, ReadRegistry, SendFrame, Serve, Transact
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.frames import Data, Fetch, Joined, JoinFrame, NotLeading
from eventstore_cluster.replica.handing_over import HandingOver
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.moving import Moving
from eventstore_cluster.replica.places import NOWHERE, LogEnd, LogEnds, least, reaches
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Leader, Seat
from eventstore_cluster.replica.sessions import FollowerSession, MemberProgress, Sessions
from eventstore_cluster.replica.splitting import Splitting


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a replica is behind its leader: `seconds` since it was level, `end` of its events, and `silent_s` since it last
    asked for more, as it does often; these two are None while it is not connected. `in_sync`: appends wait for it.
    """

    node: str
    in_sync: bool
    seconds: float
    end: LogEnd | None
    silent_s: float | None


class Leading:
    """Leads one epoch, from the transaction that won it until the process ends. `began_with`: the keys as that left them.

    `written`: the end of the own log, `synced` how far it is durable here. `committed`: durable on every member that counts;
    None until the epoch's own record is (R10): what is before it may be uncommitted too. `serves`: clients are served.
    """

    def __init__(self, me: Leader, registrar: Registrar, logs: tuple[LogTail, ...], limits: Limits, now: float) -> None:
        self.epoch = registrar.state.epoch
        self.began_with = registrar.stood_with or registrar.seen  # a new shard's first leader was made so by its parent's
        self.logs = logs
        self.written: LogEnds = tuple(log.end for log in logs)
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

    # the own log

    def begun(self, ends: LogEnds, now: float) -> list[Action]:
        """The record that begins the epoch was appended; the log ends there."""
        self.open_at = ends
        return self.grown(ends, now)

    def grown(self, ends: LogEnds, now: float) -> list[Action]:
        """Records were written here. They may be fetched while they are synced, and are never taken back (R3)."""
        self.written = ends
        self.logs = tuple(log.grow(self.epoch, end) for log, end in zip(self.logs, ends, strict=True))
        return [action for session in self.sessions for action in self._answer(session, now)]

    def durable(self, ends: LogEnds, now: float) -> list[Action]:
        """The own log is synced up to here."""
        self.synced = ends
        return self.advance(now)

    def advance(self, now: float) -> list[Action]:
        """Moves the committed mark to what every member that counts has made durable."""
        if self.open_at is None:
            return []
        ends = least(self._durable_at(member) for member in self._registrar.counting())  # R1
        if self.committed is None:
            if not reaches(ends, self.open_at):
                return []
            self._commit(ends, now)
            return [CommitTo(ends), Open(self.epoch)]
        if ends == self.committed or not reaches(ends, self.committed):
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
        return tuple(NOWHERE for _ in self.logs) if session is None or session.acked is None else session.acked

    def lags(self, now: float) -> list[Lag]:
        """Returns how far the other members of the set, and those that fetch, are behind this leader."""
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

    def fetch(self, connection: int, fetch: Fetch, now: float) -> list[Action]:
        """Takes a Fetch: it acknowledges everything before its ends, and is answered as soon as there is more."""
        session = self.sessions.find(fetch.session, connection)
        if session is None or fetch.epoch != self.epoch or len(fetch.ends) != len(self.logs):
            return [SendFrame(connection, NotLeading(self.epoch))]
        if not reaches(self.written, fetch.ends):
            return self.mismatched(session.number, connection)
        session.acked = fetch.ends
        session.heard(fetch, now)
        self._progress(session.member, now).acked(fetch.ends, self.written, now)
        actions = [*self.advance(now), *self._answer(session, now), *self._maybe_add(session)]
        return actions + self._hand_over(now)

    def mismatched(self, number: int, connection: int) -> list[Action]:
        """The follower's last records are not those before its ends here: it must join again (R3)."""
        session = self.sessions.find(number, connection)
        if session is None:
            return []
        self.sessions.end(session)
        return [SendFrame(connection, NotLeading(self.epoch))]

    def disconnected(self, connection: int) -> None:
        for session in self.sessions.on(connection):
            self.sessions.end(session)

    def _answer(self, session: FollowerSession, now: float) -> list[Action]:
        """Answers the Fetch that is held if there is anything new to say."""
        held = session.held
        if held is None:
            return []
        committed = self.committed or tuple(NOWHERE for _ in self.logs)
        waits_s = self._limits.poll_s if session.told == committed else self._limits.mark_s
        copies = self._moving.may_copy(session.member)
        if (held.ends == self.written or not copies) and now < session.held_since + waits_s:
            return []
        if not copies:  # it hears that there is a leader
            session.answered(None, now)
            return [SendFrame(session.connection, Data(session.number, self.epoch, held.ends, committed, None))]
        return self._answer_now(session, now)

    def _answer_now(self, session: FollowerSession, now: float) -> list[Action]:
        """Answers the Fetch that is held, if there is one, whether or not there is anything new to say."""
        held, committed = session.held, self.committed or tuple(NOWHERE for _ in self.logs)
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
        """Takes a member that is behind out of the set, or one that caught up into it, or goes a step towards the replicas that
        are wanted; one transaction at a time.
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
        """Gives leadership up if another member is to lead, keeps up and answers; that one competes before the others. Until
        the answer is known nothing may be read here; what every member has may still be committed.
        """
        state, seen, handing = self._registrar.state, self._registrar.seen, self._handing_over
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
            return self._answer_now(session, now)  # one that hangs is connected too, and its last Fetch may still be on its way
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
        return self.progress.setdefault(member, MemberProgress(now))

    def _may_be_replaced(self) -> bool:
        """Whether another member of the set may lead: if none runs, this leader alone can still answer reads."""
        seen = self._registrar.seen
        assert seen is not None
        return seen.running is None or bool(seen.state.in_sync & seen.running - {self._me.member})

    def _stalled(self, now: float) -> bool:
        if self.committed == self.written:
            self._committed_at = now
        return now > self._committed_at + self._limits.stall_max_s
