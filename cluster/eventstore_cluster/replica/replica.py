"""A replica of a shard. It starts as a follower, may be elected, and then leads until its process ends.

The driver calls one method at a time and carries out the returned actions in their order. Nothing here waits, reads a clock or
touches a file: what was decided follows from the inputs alone, so a simulator can replay any history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from eventstore_cluster.replica.actions import Action, Begin, EndProcess, ReadRegistry, SendFrame, Transact
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.following import Following
from eventstore_cluster.replica.frames import Fetch, FetchAhead, Frame, FromSession, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.leading import Lag, Leading
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registrar import Registrar
from eventstore_cluster.replica.registry_state import Known, Leader, Seat, Seen, ShardState

HANDED_OVER: Final = "leadership was handed over"
_OF_FOLLOWERS: Final = (Fetch, FetchAhead, Stored, JoinFrame)
_RESTORED: Final = (
    "it was restored from an older copy. `eventstore cluster lead --accept-loss` begins a new generation, with a node that "
    "says this: it has what the older copy does not know of"
)


class Replica:
    """The replica of one shard in one run of a process.

    `earlier`: incarnations of this folder that a transaction may have left in the registry, latest last (R9). `logs`: the log
    on the disk, synced. `candidate_from`: it is not elected before this time. `known`: what its node has heard of the shard;
    later, what this run has seen itself.

    Attributes:
        me: the member, the run and the address of this process.
        unreached: other replicas do not reach this one, it seems.
    """

    def __init__(
        self,
        me: Leader,
        earlier: tuple[str, ...],
        logs: tuple[LogTail, ...],
        crcs: tuple[int, ...],
        *,
        limits: Limits,
        new_nonce: Callable[[], str],
        now: float,
        candidate_from: float = 0.0,
        known: Known | None = None,
    ) -> None:
        self.me = me
        self.registrar = Registrar(new_nonce)
        self.following = Following(me.member, me.run, logs, crcs, limits)
        self.leading: Leading | None = None
        self.ended = self.unreached = False
        self._earlier = frozenset(Seat(me.member.node, incarnation) for incarnation in earlier)
        self._limits = limits
        self._known = known
        self._lease_until = now
        self._candidate_from = candidate_from
        self._vacant_since: float | None = None
        self._asked_at = now
        self._won = False
        self._early: dict[int, JoinFrame] = {}  # came before the log was open, by connection

    @property
    def last_epoch(self) -> int:
        """The largest epoch in the log that this replica started with."""
        return self.following.last_epoch

    @property
    def ends(self) -> LogEnds:
        """The ends of the log, as this replica wrote it as a leader or stored it as a follower."""
        return self.following.ends if self.leading is None else self.leading.written

    def start(self) -> list[Action]:
        return [ReadRegistry()]

    def may_read(self, now: float) -> bool:
        """Whether a value that was read from the log may be sent: checked after it was read (R11)."""
        leading = self.leading
        if leading is None or leading.committed is None or self.registrar.yielding:
            return False
        return not self.ended and now < self._lease_until

    @property
    def durability(self) -> int:
        """How many replicas have what is committed: all that are in sync, now and at any later time."""
        return len(self.registrar.state.in_sync)

    def takes_appends_for_all(self, now: float) -> bool:
        """Whether every replica of the shard is in sync and keeps up: the condition of an append for all of them."""
        state, level = self.registrar.state, self.level_members(now)
        if state.wanted is not None:  # as many as before and as will be: replicas that come and go need not all be there
            return len(level) >= min(len(state.wanted), len(state.before or state.wanted))
        return {member.node for member in level}.issuperset(state.replicas)

    def lags(self, now: float) -> list[Lag]:
        """Returns how far the others are behind this leader; empty if it does not lead."""
        return [] if self.leading is None else self.leading.lags(now)

    @property
    def is_abandoned(self) -> bool:
        """Whether this leader needs others to commit anything, and none of them fetches from it."""
        others = self.registrar.counting() - {self.me.member}
        return self.leading is not None and bool(others) and not list(self.leading.sessions)

    def level_members(self, now: float) -> list[Seat]:
        """Returns the members of the in-sync set that keep up with this leader; none if it does not lead."""
        return [] if self.leading is None else self.leading.level_members(now)

    def tick(self, now: float, lease_until: float) -> list[Action]:
        """Takes the time, and until when the lease of this process lasts at least."""
        self._lease_until = lease_until
        if self.ended:
            return []
        if self._won:
            if now >= lease_until:
                return self._end("the lease of the leader ran out")
            return self._ending(self.leading.tick(now)) if self.leading is not None else []
        return [*self.following.tick(now), *self._look(now), *self._compete(now)]

    def resign(self, reason: str) -> list[Action]:
        """Ends this run, and lets others lead first: the disk is full or broken. Nothing is taken back (R3)."""
        return [] if self.ended else self._end(reason, sit_out=True)

    def lease_lost(self) -> list[Action]:
        """Ends this run, because the registry knows its lease no more. A run never gets a second lease: the leader's key that a
        late transaction of this run may have written went with the first.
        """
        return [] if self.ended else self._end("the lease of this process ran out")

    # the registry

    def saw(self, seen: Seen, now: float) -> list[Action]:
        """Takes a linearizable read of the registry."""
        if self.ended or not self.registrar.saw(seen):
            return []
        return self._decide(now)

    def answered(self, number: int, applied: int | None, now: float) -> list[Action]:
        """Takes the answer to a transaction: the revision it made, 0 if it was refused, None if the answer was lost."""
        if self.ended:
            return []
        before = self.registrar.seen
        self.registrar.answered(number, applied)
        if self.registrar.seen is before:
            return [ReadRegistry()]
        return self._decide(now)

    def _decide(self, now: float) -> list[Action]:
        seen = self.registrar.seen
        assert seen is not None
        if (later := self._later_than(seen)) is not None:
            return self._end(f"{later}: {_RESTORED}")  # R12
        self._known = Known(seen.state.generation, seen.revision, seen.state.nonce)
        if self._won:
            return self._still_leads(seen, now)
        if seen.leader is not None and (seen.leader.member.node, seen.leader.run) == (self.me.member.node, self.me.run):
            if seen.leader.member != self.me.member:  # it was made the leader of what its folder did not come to hold
                return self._end("another incarnation of this folder leads")
            self._won = True
            return [*self.following.follow(None, seen.state.epoch, now), *self._begin()]
        leader = seen.leader if seen.leader is not None and seen.leader.member.node != self.me.member.node else None
        self._vacant_since = None if seen.leader is not None else self._vacant_since or now
        return [*self.following.follow(leader, seen.state.epoch, now), *self._rename(seen.state), *self._compete(now)]

    def _later_than(self, seen: Seen) -> str | None:
        """Returns what is later here than in the registry; None if nothing is."""
        if seen.state.epoch < self.following.last_epoch:
            return f"the log holds epoch {self.following.last_epoch}, the registry knows {seen.state.epoch}"
        if self._known is not None and self._known.is_later_than(seen.state, seen.revision):
            return f"this node knows revision {self._known.revision} of the shard, the registry has {seen.revision}"
        return None

    def _still_leads(self, seen: Seen, now: float) -> list[Action]:
        if seen.leader is None or seen.leader.run != self.me.run:
            handed = seen.leader is None and seen.state.successor is not None
            return self._end(HANDED_OVER if handed else "another process leads, or the lease was lost")
        if self.leading is None:
            return []
        return self._ending([*self.leading.advance(now), *self.leading.settle_set(now)])

    def _rename(self, state: ShardState) -> list[Action]:
        """Puts this run's incarnation in the place of the folder's earlier one, if that is in the set (R9)."""
        if self.registrar.unanswered is not None or not (known := state.in_sync & self._earlier):
            return []
        return [Transact(self.registrar.propose(replace(state, in_sync=state.in_sync - known | {self.me.member}), None))]

    def _look(self, now: float) -> list[Action]:
        if now < self._asked_at + self._limits.retry_s:
            return []
        self._asked_at = now
        return [ReadRegistry()]

    # election

    def _compete(self, now: float) -> list[Action]:
        """Tries to lead if there is no leader and this replica holds everything that was acknowledged."""
        seen = self.registrar.seen
        if seen is None or seen.leader is not None or self._vacant_since is None or self.registrar.unanswered is not None:
            return []
        state, member = seen.state, self.me.member
        if member not in state.in_sync or now >= self._lease_until or now < max(self._candidate_from, self._turn(state)):
            return []
        others = state.in_sync - {state.leader} if state.has_spare(state.in_sync) else state.in_sync
        in_sync = others | {member}  # the last leader would be waited for
        elected = state.elected(member, in_sync)
        return [Transact(self.registrar.propose(elected, 0, leads=self.me))]

    def _turn(self, state: ShardState) -> float:
        assert self._vacant_since is not None
        node = self.me.member.node
        if node == state.successor:  # by a person or a plan; behind some gateways a sound replica seems unreached
            return self._vacant_since
        left = {self.me.member} | (set() if state.successor else {state.leader})  # a leader that handed over is back soon
        late_s = self._limits.unreached_s if self.unreached and state.in_sync - left else 0.0
        rank = state.replicas.index(node) if node in state.replicas else len(state.replicas)
        head_start_s = self._limits.head_start_s if state.successor in {each.node for each in state.in_sync} else 0.0
        return self._vacant_since + head_start_s + rank * self._limits.rank_s + late_s

    def _begin(self) -> list[Action]:
        return [] if self.following.busy else [Begin(self.registrar.state.epoch)]

    # the disk

    def storing(self, ends: LogEnds, crcs: tuple[int, ...]) -> list[Action]:
        """Notes that what `Store` gave takes a while: where the logs will end after it, and with which records."""
        return [] if self.ended or self._won else self.following.storing(ends, crcs)

    def stored(self, logs: tuple[LogTail, ...], crcs: tuple[int, ...]) -> list[Action]:
        """Takes the result of `Store` or `CutTo`: how the logs end."""
        if self.ended:
            return []
        actions = self.following.stored(logs, crcs)
        return self._begin() if self._won else actions

    def begun(self, before: tuple[LogTail, ...], ends: LogEnds, now: float) -> list[Action]:
        """Takes the result of `Begin`: the log is open for writing and ends with the epoch's record. `before`: the log without
        that record.
        """
        if self.ended:
            return []
        self.leading = leading = Leading(self.me, self.registrar, before, self._limits, now)
        actions = leading.begun(ends, now)
        for connection, join in self._early.items():
            actions += leading.join(connection, join, now)
        self._early.clear()
        return self._ending(actions)

    def grown(self, ends: LogEnds, now: float) -> list[Action]:
        """This leader has written records up to here; they may not be durable yet."""
        return [] if self.ended or self.leading is None else self.leading.grown(ends, now)

    def durable(self, ends: LogEnds, now: float) -> list[Action]:
        """This leader's own log is synced up to here."""
        return [] if self.ended or self.leading is None else self._ending(self.leading.durable(ends, now))

    def serves(self, *, until_now: bool = False) -> None:
        """Notes that clients are served, so that moves and splits may begin. With `until_now`: that the server stops."""
        if self.leading is not None:
            self.leading.serves = not until_now

    def held_back(self, last_file: int, now: float) -> list[Action]:
        """Takes the result of `HoldBack`: event file `last_file` is the last that the new shards get."""
        if self.ended or self.leading is None:
            return []
        self.leading.splitting.held_back(last_file)
        return self._ending(self.leading.settle_set(now))

    # other replicas

    def connected(self, connection: int, run: str, now: float, *, asks_ahead: bool) -> list[Action]:
        """Takes the connection that `Follow` asked for, to the leader of this run. `asks_ahead`: that knows FetchAhead."""
        return [] if self.ended or self._won else self.following.connected(connection, run, now, asks_ahead=asks_ahead)

    def disconnected(self, connection: int, now: float) -> list[Action]:
        if self.ended:
            return []
        if self.leading is not None:
            self.leading.disconnected(connection)
            return []
        self._early.pop(connection, None)
        return [] if self._won else self.following.disconnected(connection, now)

    def received(self, connection: int, frame: Frame, now: float) -> list[Action]:
        """Takes a frame of another replica."""
        if self.ended:
            return []
        if isinstance(frame, _OF_FOLLOWERS):
            return self._asked(connection, frame, now)
        return [] if self._won else self.following.received(connection, frame, now)

    def _asked(self, connection: int, frame: JoinFrame | FromSession, now: float) -> list[Action]:
        if self.leading is None and self._won and isinstance(frame, JoinFrame):
            self._early[connection] = frame
            return []
        if self.leading is None:
            epoch = self.registrar.seen.state.epoch if self.registrar.seen is not None else 0
            return [SendFrame(connection, NotLeading(epoch))]
        if isinstance(frame, JoinFrame):
            return self.leading.join(connection, frame, now)
        return self._ending(self.leading.heard(connection, frame, now))

    def mismatched(self, session: int, connection: int) -> list[Action]:
        """Has a follower join again, whose last records differ from the records that this log holds there."""
        return [] if self.ended or self.leading is None else self.leading.mismatched(session, connection)

    def check_invariants(self) -> None:
        """For tests and simulators, between two calls. Raises AssertionError with the parts that contradict each other."""
        self.registrar.check_invariants()
        self.following.check_invariants()
        assert not (self._won and self.following.follows), f"{self.me.run} leads, and follows"
        assert self._won or self.leading is None, f"{self.me.run} leads without an election"
        assert not self._early or self.leading is None, f"{list(self._early)} joined early, and were not answered"
        if self.leading is None or self.ended:
            return
        self.leading.check_invariants()
        state, epoch, member = self.registrar.state, self.leading.epoch, self.me.member
        assert state.epoch == epoch, f"{self.me.run} leads epoch {epoch}, and has seen {state.epoch}"
        assert member in state.in_sync, f"{self.me.run} leads, and {member} is not in the set {sorted(state.in_sync)}"

    def _end(self, reason: str, *, sit_out: bool = False) -> list[Action]:
        self.ended = True
        return [EndProcess(reason, sit_out)]

    def _ending(self, actions: list[Action]) -> list[Action]:
        if actions and any(isinstance(action, EndProcess) for action in actions):
            self.ended = True
        return actions
