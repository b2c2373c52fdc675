"""What replicas say to each other, over a connection that the follower opens and that keeps the order of frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from eventstore_cluster.replica.epochs import LastEpoch
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Seat


@dataclass(frozen=True, slots=True)
class JoinFrame:
    """A follower asks from where to fetch.

    Attributes:
        number: of this attempt.
        run: of the follower's process.
        leader_run: of the process that it wants to follow.
        logs: how its log of each kind ends.
    """

    number: int
    member: Seat
    run: str
    leader_run: str
    logs: tuple[LastEpoch, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """Answers the Join of this number.

    Attributes:
        logs: for each kind the largest epoch not larger than the follower's, and its end.
    """

    number: int
    session: int
    epoch: int
    logs: tuple[LastEpoch, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Asks for what follows `ends`. Everything before is durable at the follower: this is the acknowledgement.

    Attributes:
        last_crcs: of the last record of each kind before `ends`; 0 if there is none.
        sorted_through: the last event file that is sorted there.
    """

    session: int
    epoch: int
    ends: LogEnds
    last_crcs: tuple[int, ...]
    sorted_through: int = 0


@dataclass(frozen=True, slots=True)
class FetchAhead:
    """Asks for what follows `ends`, while what came before it is being stored. It acknowledges nothing.

    Attributes:
        last_crcs: as those of `Fetch`.
    """

    session: int
    epoch: int
    ends: LogEnds
    last_crcs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Acknowledges: everything before `ends` is durable at the follower. It asks for nothing: a FetchAhead did.

    Attributes:
        sorted_through: as that of `Fetch`.
    """

    session: int
    epoch: int
    ends: LogEnds
    sorted_through: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    """Answers a Fetch or FetchAhead: what follows `start`, possibly nothing, and the committed mark."""

    session: int
    epoch: int
    start: LogEnds
    committed: LogEnds
    payload: Any


@dataclass(frozen=True, slots=True)
class NotLeading:
    """The process does not lead in that run or epoch, or the session is not the latest: join again."""

    epoch: int


FromSession: TypeAlias = Fetch | FetchAhead | Stored
"""What a follower says in its session."""
Frame: TypeAlias = JoinFrame | Joined | FromSession | Data | NotLeading
