"""The subject of a console and of the HTTP API, and how these reach it: given by the server or node that has the listener."""

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
API_LIBRARIES = ("starlette", "hypercorn")
"""The libraries of the extra `http`."""
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
    """A server or node with a console or the HTTP API.

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
        pages: the console is to be served.
        api: the HTTP API is to be served.
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
    pages: bool = True
    api: bool = False

    @property
    def open_to_strangers(self) -> bool:
        """Whether a browser on this machine could be led here by a stranger's page, and could then do everything."""
        return self.is_local and self.identity_of is None


def is_installed() -> bool:
    """Whether the libraries of the extra `console` are there."""
    return all(find_spec(each) is not None for each in LIBRARIES)


def is_api_installed() -> bool:
    """Whether the libraries of the extra `http` are there."""
    return all(find_spec(each) is not None for each in API_LIBRARIES)
