"""A follower: joins the leader, cuts back what the leader does not have, and writes what the leader has more."""

from __future__ import annotations

from eventstore_cluster.replica.actions import Action, CommitTo, CutTo, Follow, ReadRegistry, SendFrame, Store, Unfollow
from eventstore_cluster.replica.epochs import LogTail
from eventstore_cluster.replica.frames import Data, Fetch, FetchAhead, Frame, Joined, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.places import LogEnds, least, reaches
from eventstore_cluster.replica.registry_state import Leader, Seat


class Following:
    """Follows one leader at a time.

    Attributes:
        logs: of the own disk, synced.
        ends: where they end.
        busy: the disk is writing or cutting.
        sorted_through: the last event file that is sorted, for the leader.
    """

    def __init__(self, member: Seat, run: str, logs: tuple[LogTail, ...], crcs: tuple[int, ...], limits: Limits) -> None:
        self.logs = logs
        self.ends: LogEnds = tuple(log.end for log in logs)
        self.busy = False
        self.committed: LogEnds | None = None
        self.sorted_through = 0
        self._crcs = crcs
        self._member = member
        self._run = run
        self._limits = limits
        self._leader: Leader | None = None
        self._epoch = 0
        self._connection: int | None = None
        self._session: int | None = None
        self._asks_ahead = False
        self._asked: LogEnds | None = None  # from where, without an answer yet
        self._storing = self.ends, crcs  # how the logs end, or will when the disk is done
        self._ahead: Data | None = None  # came while the disk wrote what is before it
        self._joins = 0
        self._heard_at = 0.0
        self._rejoin_at: float | None = None

    @property
    def last_epoch(self) -> int:
        """The largest epoch in the own log."""
        return max(log.last.epoch for log in self.logs)

    @property
    def follows(self) -> bool:
        """Whether it fetches from a leader."""
        return self._session is not None

    def follow(self, leader: Leader | None, epoch: int, now: float) -> list[Action]:
        """Follows this leader of this epoch from now on; an older one is not listened to any more (R11)."""
        if (leader, epoch) == (self._leader, self._epoch):
            return []
        had = self._leader is not None
        self._leader, self._epoch = leader, epoch
        return self._connect(now, had)

    def _connect(self, now: float, had: bool) -> list[Action]:
        self._connection = None
        self._end_session()
        self._heard_at = now
        if self._leader is None:
            return [Unfollow()] if had else []
        return [Follow(self._leader)]

    def _end_session(self) -> None:
        self._session = self._asked = self._ahead = None

    def connected(self, connection: int, run: str, now: float, *, asks_ahead: bool) -> list[Action]:
        """Takes an open connection to the leader of this run, and joins it. `asks_ahead`: the leader knows FetchAhead."""
        if self._leader is None or run != self._leader.run:
            return []
        self._connection, self._heard_at, self._asks_ahead = connection, now, asks_ahead
        self._end_session()
        return self._join()

    def disconnected(self, connection: int, now: float) -> list[Action]:
        if connection != self._connection:
            return []
        self._connection = None
        self._end_session()
        self._heard_at = now
        return [ReadRegistry()]

    def tick(self, now: float) -> list[Action]:
        if self.busy:
            self._heard_at = now  # it was not listened to
        if self._leader is None or self.busy:
            return []
        if now > self._heard_at + self._limits.silence_s:
            return [ReadRegistry(), *self._connect(now, True)]
        return self._join() if self._rejoin_at is not None and now >= self._rejoin_at else []

    def received(self, connection: int, frame: Frame, now: float) -> list[Action]:
        if connection != self._connection:
            return []
        self._heard_at = now
        match frame:
            case Joined():
                return self._joined(frame)
            case Data():
                return self._data(frame)
            case NotLeading():
                self._end_session()
                self._rejoin_at = now + self._limits.rejoin_s
                return [ReadRegistry()]
        return []

    def _join(self) -> list[Action]:
        self._rejoin_at = None
        if self._connection is None or self.busy:
            return []  # joined when the disk is done
        assert self._leader is not None
        self._joins += 1
        logs = tuple(log.last for log in self.logs)
        return [SendFrame(self._connection, JoinFrame(self._joins, self._member, self._run, self._leader.run, logs))]

    def _joined(self, joined: Joined) -> list[Action]:
        if joined.number != self._joins or self._session is not None or self.busy:
            return []
        if joined.epoch != self._epoch or joined.epoch < self.last_epoch:
            return []  # R11: a leader of an older epoch never makes this log shorter
        ends = tuple(log.common_end(other) for log, other in zip(self.logs, joined.logs, strict=True))
        if ends != self.ends:
            self.busy = True
            return [CutTo(ends)]  # then join again, until both agree (R4)
        self._session = joined.session
        return self._fetch()

    def _fetch(self) -> list[Action]:
        assert self._connection is not None
        assert self._session is not None
        self._asked = self.ends
        return [SendFrame(self._connection, Fetch(self._session, self._epoch, self.ends, self._crcs, self.sorted_through))]

    def _fetch_ahead(self) -> list[Action]:
        if self._connection is None or self._session is None or not self._asks_ahead:
            return []
        self._asked, crcs = self._storing
        return [SendFrame(self._connection, FetchAhead(self._session, self._epoch, self._asked, crcs))]

    def storing(self, ends: LogEnds, crcs: tuple[int, ...]) -> list[Action]:
        """Notes where the logs will end when the disk is done, which takes a while: asks for what follows meanwhile."""
        self._storing = ends, crcs
        return self._fetch_ahead() if self.busy else []

    def _data(self, data: Data) -> list[Action]:
        if data.session != self._session or data.epoch != self._epoch or data.start != self._asked:
            return []
        self._asked = None
        if not self.busy:
            return self._take(data)
        if data.payload is None:
            return [*self._learn(data.committed), *self._fetch_ahead()]
        self._ahead = data
        return []

    def _take(self, data: Data) -> list[Action]:
        actions = self._learn(data.committed)
        if data.payload is None:
            return [*actions, *self._fetch()]
        self.busy = True
        return [*actions, Store(data)]

    def _learn(self, committed: LogEnds) -> list[Action]:
        """Takes the leader's committed mark, as far as the own log reaches (R10)."""
        ends = least((committed, self.ends))
        if self.committed is not None and (ends == self.committed or not reaches(ends, self.committed)):
            return []
        self.committed = ends
        return [CommitTo(ends)]

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless the session is with the leader that it follows, and the log reaches the
        committed mark.
        """
        link = self._leader, self._connection, self._session
        assert self._session is None or self._connection is not None, f"a session without a connection: {link}"
        assert self._connection is None or self._leader is not None, f"a connection to no leader: {link}"
        asks = f"asked from {self._asked}, has ahead {self._ahead}"
        assert self._session is not None or (self._asked is None and self._ahead is None), f"without a session it {asks}"
        assert self._asked is None or self._ahead is None, f"it has an answer, and waits for it: {asks}"
        assert self._ahead is None or self.busy, f"the disk is done, and it {asks}"
        if self._session is not None:
            assert self._asked is not None or self.busy, f"it follows, waits for no answer, and the disk is done: {link}"
            assert self.last_epoch <= self._epoch, f"it follows epoch {self._epoch}, and has records of {self.last_epoch} (R11)"
        if self.committed is not None:
            assert reaches(self.ends, self.committed), f"the log ends at {self.ends}, committed is {self.committed}"

    def stored(self, logs: tuple[LogTail, ...], crcs: tuple[int, ...]) -> list[Action]:
        """Takes how the logs end, synced, after the disk has stored or cut."""
        self.busy = False
        self.logs, self._crcs = logs, crcs
        self.ends = tuple([log.end for log in logs])
        actions = self._keep_to_log()
        if self._connection is None:
            return actions
        if self._session is None:
            return actions + self._join()
        ahead, self._ahead = self._ahead, None
        if ahead is None and self._asked is None:
            return actions + self._fetch()
        actions.append(SendFrame(self._connection, Stored(self._session, self._epoch, self.ends, self.sorted_through)))
        return actions if ahead is None else actions + self._take(ahead)

    def _keep_to_log(self) -> list[Action]:
        """Lowers the mark after a cut below it: a person accepted that loss. The records that replace what was cut are not
        committed yet (R6).
        """
        if self.committed is None or reaches(self.ends, self.committed):
            return []
        self.committed = least((self.committed, self.ends))
        return [CommitTo(self.committed)]
