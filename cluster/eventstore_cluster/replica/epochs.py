"""Where epochs begin and end in a log: what two replicas compare to find the last place they have in common (R4).

One run of one process writes all records of an epoch, so two logs that hold the same epoch up to the same place hold the same
bytes up to there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from eventstore_cluster.replica.places import NOWHERE, LogEnd


@dataclass(frozen=True, slots=True)
class Beginning:
    """An epoch that has records in a log.

    Attributes:
        after: the end of the log before the first of them.
    """

    epoch: int
    after: LogEnd


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """An epoch, and the place where its last record ends. An empty log has epoch 0."""

    epoch: int
    end: LogEnd


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log of one kind and the epochs in it, in ascending order."""

    end: LogEnd = NOWHERE
    beginnings: tuple[Beginning, ...] = ()

    @property
    def last(self) -> LastEpoch:
        return LastEpoch(self.beginnings[-1].epoch if self.beginnings else 0, self.end)

    def at_most(self, epoch: int) -> LastEpoch:
        """Returns the largest epoch in the log that is not larger than `epoch`, and where it ended."""
        end = self.end
        for beginning in reversed(self.beginnings):
            if beginning.epoch <= epoch:
                return LastEpoch(beginning.epoch, end)
            end = beginning.after
        return LastEpoch(0, NOWHERE)

    def grow(self, epoch: int, end: LogEnd) -> LogTail:
        """Returns the tail after records of this epoch were appended up to `end`."""
        if end == self.end:
            return self
        if epoch < self.last.epoch:
            raise ValueError(f"a record of epoch {epoch} after one of epoch {self.last.epoch}")
        begun = () if epoch == self.last.epoch else (Beginning(epoch, self.end),)
        return LogTail(end, self.beginnings + begun)

    def cut(self, end: LogEnd) -> LogTail:
        """Returns the tail of the log that ends at `end`, which is not after its end now."""
        return replace(self, end=end, beginnings=tuple(each for each in self.beginnings if each.after < end))

    def common_end(self, other: LastEpoch) -> LogEnd:
        """Returns how much of this log can be kept, given the answer of a leader to a Join (R4).

        Less than all of it means that the next answer may be smaller still: cut back, then ask again.
        """
        return min(other.end, self.at_most(other.epoch).end)
