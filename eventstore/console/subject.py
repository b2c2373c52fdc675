"""The subject of a console, and how the console reaches it: given by the server or node that has the listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from eventstore.client.options import ClientOptions
    from eventstore.domain.domain import Domain
    from eventstore.security.access_list import Identity

LIBRARIES = ("starlette", "jinja2", "hypercorn")
"""The libraries of the extra `console`."""
CONNECTIONS_MAX: Final = 256
"""Of HTTP at once, with a console or without; more are closed."""


class ClusterDoor(Protocol):
    """What a node tells the console of its cluster, and does to it. Called on threads."""

    def look(self) -> dict[str, Any] | None:
        """Returns `nodes`, `shards` by number, what is `under_way`, and whether all moves are `paused`, `paused_by` whom; None
        if there is no cluster.
        """

    def hand_over(self, shard: int, node: str, who: str) -> str:
        """Has another node lead a shard; returns a sentence that says so."""

    def take_back(self, shard: int, who: str) -> str:
        """Cancels the pending move or hand-over of a shard; returns a sentence that says so."""

    def pause(self, paused: bool, shard: int | None, who: str) -> str:
        """Pauses or resumes the move of a shard, or all moves; returns a sentence that says so."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A server or node with a console.

    Attributes:
        address: of the server or node itself; the console is a client of it, with the visitor's token.
        options: returns how the console connects, from the token (None: identities are off) and the name that the server's log
            shows.
        figures: returns what `/health` shows; called on a thread.
        identity_of: returns whose token it is; None in its place: identities are off.
        is_local: only this machine reaches the listener.
        folder: where the data are.
        domain: returns what folds aggregates; called on a thread, may raise DomainRefused.
        cluster: of a node with replicas.
    """

    title: str
    address: str
    options: Callable[[str | None, str], ClientOptions]
    figures: Callable[[], Mapping[str, Any]]
    identity_of: Callable[[str], Identity | None] | None
    is_local: bool
    folder: str
    domain: Callable[[], Domain] | None = None
    cluster: ClusterDoor | None = None


def is_installed() -> bool:
    """Whether the libraries of the extra are there."""
    return all(find_spec(each) is not None for each in LIBRARIES)
