"""What a replica knows of the registry, and which of its transactions may still apply (R2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from eventstore_cluster.replica.registry_state import Leader, Seat, Seen, ShardState, Swap


class Registrar:
    """What is known of the registry, and which transactions are open. One transaction is under way at a time; transactions
    whose answer was lost stay open beside it.

    A transaction can apply only while the state has the revision it compares. So it is settled by seeing a later revision, no
    matter who wrote it, and by a refusal; never by a read that shows the same revision (R2).

    Attributes:
        stood_with: the keys as this run's last transaction to win the election leaves them. Earlier such transactions whose
            answers were lost differ from it in their nonces alone.
    """

    def __init__(self, new_nonce: Callable[[], str]) -> None:
        self.seen: Seen | None = None
        self.stood_with: Seen | None = None
        self.unanswered: int | None = None
        self._open: Final[dict[int, Swap]] = {}
        self._new_nonce = new_nonce
        self._numbers = 0

    @property
    def state(self) -> ShardState:
        assert self.seen is not None
        return self.seen.state

    def saw(self, seen: Seen) -> bool:
        """Takes a read of the registry. Returns False if it is older than what is known."""
        if self.seen is not None and seen.at < self.seen.at:
            return False
        self.seen = seen
        for number, swap in list(self._open.items()):
            if self._settled(swap, seen):
                self._settle(number)
        return True

    def _settled(self, swap: Swap, seen: Seen) -> bool:
        return seen.revision > swap.revision  # R2

    def _settle(self, number: int) -> None:
        del self._open[number]
        if self.unanswered == number:
            self.unanswered = None

    @property
    def uncertain(self) -> bool:
        """Whether a transaction without an answer may still apply."""
        return bool(self._open)

    @property
    def yielding(self) -> bool:
        """Whether a transaction of ours may have ended, or may still end, this leadership."""
        return bool(self._open) and any(swap.yields for swap in self._open.values())

    def propose(
        self,
        state: ShardState,
        leader_revision: int | None,
        leads: Leader | None = None,
        *,
        yields: bool = False,
        gifts: tuple[tuple[int, frozenset[Seat]], ...] = (),
        takes: int | None = None,
        frees: int | None = None,
    ) -> Swap:
        """Returns a transaction on what was seen last. From now on it counts as a transaction that may apply."""
        assert self.seen is not None
        assert self.unanswered is None
        self._numbers += 1
        state = state.written_by(self._new_nonce())
        swap = Swap(self._numbers, self.seen.revision, leader_revision, state, leads, yields, gifts, takes, frees)
        self._open[swap.number] = swap
        self.unanswered = swap.number
        if leads is not None:
            self.stood_with = replace(self.seen, state=state)
        return swap

    def answered(self, number: int, applied: int | None) -> None:
        """Takes an answer. `applied`: the revision that the transaction made; 0 if it was refused; None if the answer was
        lost.
        """
        if self.unanswered == number:
            self.unanswered = None
        swap = self._open.get(number)
        if swap is None or applied is None:
            return
        if not applied:
            del self._open[number]
            return
        assert self.seen is not None
        leader, created = self.seen.leader, self.seen.leader_revision
        if swap.leads is not None or swap.yields:
            leader, created = swap.leads, applied if swap.leads is not None else 0
        seen = replace(self.seen, at=applied, state=swap.state, revision=applied, leader=leader, leader_revision=created)
        if swap.takes is not None or swap.frees is not None:
            seen = replace(seen, ticket=None, holds=swap.takes)  # which are free is read again
        self.saw(seen)

    def counting(self) -> frozenset[Seat]:
        """Returns the members that count: the members of the set, and members that a transaction of ours may have added
        (R1).
        """
        in_sync = self.state.in_sync
        return in_sync.union(*(swap.state.in_sync for swap in self._open.values())) if self._open else in_sync

    def check_invariants(self) -> None:
        """For tests. Raises AssertionError unless the transaction that waits for its answer is open, and each open transaction
        may still apply.
        """
        waits = self.unanswered is None or self.unanswered in self._open
        assert waits, f"transaction {self.unanswered} waits for its answer, open are {list(self._open)}"
        for number, swap in self._open.items():
            assert number == swap.number <= self._numbers, f"transaction {swap.number} of {self._numbers} is open as {number}"
            assert self.seen is not None, f"transaction {number} is open, and nothing was seen that it compares"
            may_apply = swap.revision >= self.seen.revision
            assert may_apply, f"transaction {number} is open on revision {swap.revision}, seen was {self.seen.revision} (R2)"
