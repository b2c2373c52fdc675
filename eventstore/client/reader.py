"""Who reads what in a consumer group, and how much of it at once: what both clients are told, without an event loop."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from eventstore.broker.allocation import Share
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.fields import check_int, check_text, shown
from eventstore.flat import Scalar
from eventstore.protocol.broker_requests import Join, Leave

COMMIT_INTERVAL_S: Final = 1.0
# Longer, and the group would take the member for dead: servers wait for 15 seconds.
COMMIT_INTERVAL_S_MAX: Final = 5.0
HOLD_MESSAGES: Final = 10_000
HOLD_BYTES: Final = 16 * 1024 * 1024
HOLD_MAX: Final = 10_000_000
HOLD_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
_SHARE_VALUES: Final = 4
Topics = str | Iterable[str] | Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads what. `topics`: the tags that are wanted of each, None for all messages.

    `hold_messages`, `hold_bytes`: how much is held at most, finished or not, about; by one page more at worst.
    """

    group: str
    member: str
    topics: Mapping[str, str | None]
    from_end: bool = False
    hold_messages: int = HOLD_MESSAGES
    hold_bytes: int = HOLD_BYTES

    def __post_init__(self) -> None:
        check_int("hold_messages", self.hold_messages, 1, HOLD_MAX)
        check_int("hold_bytes", self.hold_bytes, 1, HOLD_BYTES_MAX)
        self.join()

    def join(self) -> Join:
        """The request that makes it a member. Raises InvalidArgument."""
        return Join(self.group, self.member, self.from_end, tuple(self.topics.items()))

    def leave(self) -> Leave:
        return Leave(self.group, self.member)


def shares_of(values: Sequence[Scalar]) -> tuple[int, list[Share]]:
    """Generation and shares, as the answer to JOIN says them.

    Raises:
        ProtocolError: it does not.
    """
    generation, rest = values[0] if values else None, values[1:]
    shares = []
    for at in range(0, len(rest), _SHARE_VALUES):
        match rest[at : at + _SHARE_VALUES]:
            case (str(topic), int(queue), int(offset), str() | None as tags):
                shares.append(Share(topic, queue, offset, tags))
    if not isinstance(generation, int) or _SHARE_VALUES * len(shares) != len(rest):
        raise ProtocolError(f"a member's share is a generation and rows of {_SHARE_VALUES} values, not {values!r:.100}")
    return generation, shares


def subscriptions(topics: Topics) -> dict[str, str | None]:
    """Topics and their tags as a user gives them: a name, names, or tags by name.

    Raises:
        InvalidArgument
    """
    if isinstance(topics, str):
        return {topics: None}
    named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
    for topic in named:
        check_text("topic", topic)
    if not named:
        raise InvalidArgument("topics are none; name at least one", field="topics", value=shown(topics))
    return named


def new_reader(
    group: str, topics: Topics, member: str | None, *, from_end: bool, hold_messages: int, hold_bytes: int
) -> Reader:
    """Who reads what; a member without a name gets one that says where it runs.

    Raises:
        InvalidArgument
    """
    name = f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(4)}" if member is None else member
    return Reader(group, name, subscriptions(topics), from_end, hold_messages, hold_bytes)


def check_interval(commit_interval: float) -> None:
    """Raises InvalidArgument."""
    if not 0.01 <= commit_interval <= COMMIT_INTERVAL_S_MAX:
        raise InvalidArgument(
            f"commit_interval is {commit_interval} seconds, allowed are 0.01 to {COMMIT_INTERVAL_S_MAX:g}",
            field="commit_interval",
            limit=str(COMMIT_INTERVAL_S_MAX),
            value=str(commit_interval),
        )
