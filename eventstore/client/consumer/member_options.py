"""The options of a consumer group member: what it reads, how it commits, and how much it holds at once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from eventstore.errors import InvalidArgument
from eventstore.fields import check_int, check_text, shown
from eventstore.protocol.group_requests import Join, Leave
from eventstore.protocol.limits import PULL_MESSAGES_MAX, PULL_WAIT_MS_MAX
from eventstore.records.consumer_groups import Retries

Mode = Literal["parallel", "sequential"]
MODES: Final = ("parallel", "sequential")
Order = Literal["key"]
COMMIT_INTERVAL_S: Final = 1.0
COMMIT_INTERVAL_S_MIN: Final = 0.01
# Servers expire a member after 15 seconds without a request.
COMMIT_INTERVAL_S_MAX: Final = 5.0
HOLD_MESSAGES: Final = 10_000
HOLD_BYTES: Final = 16 * 1024 * 1024
HOLD_MAX: Final = 10_000_000
HOLD_BYTES_MAX: Final = 64 * 1024 * 1024 * 1024
# As large as two pages of events. More messages at once were slower: what a broker looks at before it knows how many fit grows
# with the number requested.
PULL_MESSAGES: Final = 1024
PULL_BYTES: Final = 1024 * 1024
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
# A pull that waits keeps nothing busy. To some routers, a longer silence looks like a dead connection.
PULL_WAIT_S: Final = 20.0
PULL_WAIT_S_MIN: Final = 0.1
PULL_WAIT_S_MAX: Final = PULL_WAIT_MS_MAX / 1000
# Longer than most handlers take, and than a lock or a slow neighbour delays them.
WARN_AFTER_S: Final = 60.0
WARN_AFTER_S_MIN: Final = 0.01
WARN_AFTER_S_MAX: Final = 86_400.0
Topics = str | Iterable[str] | Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """A member of a group, and how it consumes. `topics`: the tags to read of each, None for all messages.

    `hold_messages`, `hold_bytes`: how much is held at most, finished or not; up to one page more in the worst case.
    `pull_messages`, `pull_bytes`: the size of one page. `pull_wait_s`: how long a pull waits for messages. `retries`: the
    group's retry policy, if this member is to set it. `warn_after_s`: how long a message is in hand before the log says so.
    """

    group: str
    member: str
    topics: Mapping[str, str | None]
    mode: Mode = "parallel"
    from_end: bool = False
    commit_interval_s: float = COMMIT_INTERVAL_S
    hold_messages: int = HOLD_MESSAGES
    hold_bytes: int = HOLD_BYTES
    pull_messages: int = PULL_MESSAGES
    pull_bytes: int = PULL_BYTES
    pull_wait_s: float = PULL_WAIT_S
    order: Order | None = None
    retries: Retries | None = None
    warn_after_s: float = WARN_AFTER_S

    def __post_init__(self) -> None:
        check_int("hold_messages", self.hold_messages, 1, HOLD_MAX)
        check_int("hold_bytes", self.hold_bytes, 1, HOLD_BYTES_MAX)
        check_int("pull_messages", self.pull_messages, 1, PULL_MESSAGES_MAX)
        check_int("pull_bytes", self.pull_bytes, 1, PULL_BYTES_MAX)
        _check_seconds("pull_wait", self.pull_wait_s, PULL_WAIT_S_MIN, PULL_WAIT_S_MAX)
        _check_seconds("warn_after", self.warn_after_s, WARN_AFTER_S_MIN, WARN_AFTER_S_MAX)
        self.join()

    def join(self) -> Join:
        """Returns the request to join the group. Raises InvalidArgument."""
        return Join(self.group, self.member, self.from_end, tuple(self.topics.items()))

    def leave(self) -> Leave:
        """Returns the request to leave the group."""
        return Leave(self.group, self.member)


def member_options(
    group: str,
    topics: Topics,
    member: str | None,
    *,
    mode: Mode,
    from_end: bool,
    commit_interval_s: float,
    hold_messages: int,
    hold_bytes: int,
    pull_messages: int,
    pull_bytes: int,
    pull_wait_s: float,
    order: Order | None = None,
    retries: Retries | None = None,
    warn_after_s: float = WARN_AFTER_S,
) -> MemberOptions:
    """Returns a member's options. A generated name, if none is given, has the member's host and process id.

    Raises:
        InvalidArgument
    """
    _check_mode(mode)
    _check_order(order, mode)
    _check_seconds("commit_interval", commit_interval_s, COMMIT_INTERVAL_S_MIN, COMMIT_INTERVAL_S_MAX)
    name = f"{os.uname().nodename[:100]}-{os.getpid()}-{secrets.token_hex(4)}" if member is None else member
    return MemberOptions(
        group,
        name,
        tags_by_topic(topics),
        mode,
        from_end,
        commit_interval_s,
        hold_messages,
        hold_bytes,
        pull_messages,
        pull_bytes,
        pull_wait_s,
        order,
        retries,
        warn_after_s,
    )


def tags_by_topic(topics: Topics) -> dict[str, str | None]:
    """Returns tags by topic, from a name, names, or tags by name.

    Raises:
        InvalidArgument
    """
    if isinstance(topics, str):
        return {topics: None}
    named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics)
    for topic in named:
        check_text("topic", topic)
    if not named:
        raise InvalidArgument("no topics were given; name at least one", field="topics", value=shown(topics))
    return named


def _check_mode(mode: object) -> None:
    if mode not in MODES:
        raise InvalidArgument(f"mode is {mode!r:.80}; allowed are {' and '.join(MODES)}", field="mode", value=f"{mode!r:.80}")


def _check_order(order: object, mode: Mode) -> None:
    if order is None:
        return
    if order != "key":
        raise InvalidArgument(f'order is {shown(order)}; allowed are "key" and None', field="order", value=shown(order))
    if mode != "parallel":
        raise InvalidArgument('order="key" is for mode "parallel"; mode "sequential" orders the whole queue', field="order")


def _check_seconds(name: str, seconds: float, low: float, high: float) -> None:
    if not low <= seconds <= high:  # NaN is refused as well
        message = f"{name} is {seconds} seconds, allowed are {low:g} to {high:g}"
        raise InvalidArgument(message, field=name, limit=str(high), value=str(seconds))
