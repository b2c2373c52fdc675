"""The operations of one history on disks and on the registry, counted, and the kill that comes at one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

How = Literal["before", "after", "late", "much later", "unanswered", "others", "all"]
ON_A_DISK: Final[tuple[How, ...]] = ("before", "after")
IN_THE_REGISTRY: Final[tuple[How, ...]] = ("before", "after", "late", "much later", "unanswered", "others", "all")
LATE_S: Final[dict[How, float]] = {"late": 1.5, "much later": 4.0}
"""A transaction arrives this long after its process died: before the lease ends, and when there is another leader."""


@dataclass(frozen=True)
class Operation:
    """`machine`: whose process begins it. `transaction`: of the registry, with an answer that may get lost."""

    shard: int
    machine: str
    what: str
    transaction: bool = False


@dataclass(frozen=True)
class Kill:
    """Ends the process that begins operation `number` of a history.

    `how`: `before` the operation takes effect; `after` it did, and before the process hears of it; `late`, `much later`: the
    process dies once it has sent a transaction, which takes effect then; `unanswered`: no process dies, and the answer is lost;
    `others`: all other machines lose power when it takes effect; `all`: this one does, too.
    """

    number: int
    how: How


class Operations:
    """`seen`: those of a history since `begin`, from when on they are `counted`. `struck`: the kill has come."""

    def __init__(self, kill: Kill | None) -> None:
        self.kill = kill
        self.seen: list[Operation] = []
        self.struck = False
        self.counted = self._ended = False

    def begin(self) -> None:
        self.counted = True

    def end(self) -> None:
        """Counts no more: what was asked for is done."""
        self._ended = self.counted

    def begins(self, operation: Operation) -> How | None:
        """Counts the operation. Returns how its process is killed, if it is the one."""
        if not self.counted or self._ended:
            return None
        self.seen.append(operation)
        if self.kill is None or self.struck or self.kill.number != len(self.seen) - 1:
            return None
        self.struck = True
        return self.kill.how

    def kills(self) -> list[Kill]:
        """Returns every kill there can be in a history with the operations of this one."""
        ways = [IN_THE_REGISTRY if each.transaction else ON_A_DISK for each in self.seen]
        return [Kill(number, how) for number, each in enumerate(ways) for how in each]
