"""What a replica wants done. The driver carries actions out in order and reports the results to the `Replica`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from eventstore_cluster.replica.frames import Data, Frame
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Leader, Swap


@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Read both keys; report to `saw`."""


@dataclass(frozen=True, slots=True)
class Transact:
    """Send the transaction; report to `answered`."""

    swap: Swap


@dataclass(frozen=True, slots=True)
class Follow:
    """Connect to this leader, closing any other connection to one; report to `connected`, `received` and `disconnected`."""

    leader: Leader


@dataclass(frozen=True, slots=True)
class Unfollow:
    """Close the connection to the leader."""


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame on a connection."""

    connection: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class Serve:
    """Read the log from `start` and send a `Data` with it; report `mismatched` if the records before `start` differ (R3)."""

    connection: int
    session: int
    epoch: int
    start: LogEnds
    last_crcs: tuple[int, ...]
    committed: LogEnds


@dataclass(frozen=True, slots=True)
class Store:
    """Write what a leader sent after the log's end, and sync it; report to `stored`."""

    data: Data


@dataclass(frozen=True, slots=True)
class CutTo:
    """Cut the log back to these ends, durably, keeping a copy of what is cut (R7); report to `stored`."""

    ends: LogEnds


@dataclass(frozen=True, slots=True)
class Begin:
    """Open the logs for writing and append a record that begins the epoch, to at least one; report to `begun`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class BeginFile:
    """Begin a new event file, with a record in it."""


@dataclass(frozen=True, slots=True)
class HoldBack:
    """Take nothing more for the slots that these shards are to get, then begin a new event file; report to `held_back`."""

    shards: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CommitTo:
    """Everything before these ends is committed: may be acknowledged and read."""

    ends: LogEnds


@dataclass(frozen=True, slots=True)
class Open:
    """The epoch's record is committed: take appends and reads."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End this process without acknowledging anything more: a run never leads twice (R3).

    Attributes:
        sit_out: the next process does not compete for a lease's time.
    """

    reason: str
    sit_out: bool = False


Action: TypeAlias = (
    ReadRegistry
    | Transact
    | Follow
    | Unfollow
    | SendFrame
    | Serve
    | Store
    | CutTo
    | Begin
    | CommitTo
    | Open
    | EndProcess
    | BeginFile
    | HoldBack
)
