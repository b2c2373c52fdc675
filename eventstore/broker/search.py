"""A pull on its way: which queues it looks at, what it has found, and how it waits for more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import trio

from eventstore.broker.pulling import Pulled
from eventstore.broker.queue_log import QueueLog
from eventstore.broker.state_record import QueueKey
from eventstore.broker.tag_filter import TagFilter

NOTHING: Final = Pulled(b"", 0, 0, 0, 0)
# Whoever waits with a filter learns so late that nothing of what came was for it: a group's backlog, and what may be deleted,
# follow from that. An answer for each such message would cost as much as no filter.
_LEFT_OUT_SECONDS: Final = 1.0


@dataclass(slots=True, eq=False)
class Sought:
    """A queue that is looked for; `place` among those of its pull. `offset` moves on from `asked`.

    `page`: what the last look found. `delay_s`: in a retry queue, how long messages wait in it. `due_at`: when its next one is.
    """

    place: int
    log: QueueLog
    tags: TagFilter | None
    asked: int
    offset: int
    delay_s: float | None
    page: Pulled
    due_at: float | None = None


class Search:
    """A pull on its way. `left`: what is to be looked at in this round, the last first; `again`: in the next one.

    `found`: there is something to answer. Made by `Pulls.search`.
    """

    def __init__(self, sought: list[Sought], messages_max: int, bytes_max: int, deadline: float) -> None:
        self.sought = sought
        self.deadline = deadline
        self._bounds = messages_max, bytes_max
        self.restart()

    def restart(self) -> None:
        """What was found is thrown away."""
        self.messages_max, self.bytes_max = self._bounds
        self.found = False
        self.seen = -1  # up to which position of the log the first round has looked, where it was one
        self.left = self.sought[::-1]
        self.again: list[Sought] = []
        for each in self.sought:
            each.offset, each.page, each.due_at = each.asked, NOTHING, None

    @property
    def full(self) -> bool:
        """Nothing more is taken: of what is left to look at, only where it begins and ends is still said."""
        return self.messages_max <= 0 or self.bytes_max <= 0

    def close(self) -> None:
        """Makes it full."""
        self.messages_max = 0

    def go_on(self, news: Iterable[Sought]) -> None:
        """The next round looks at these, in the order they were asked for."""
        self.left = sorted(news, key=lambda each: each.place, reverse=True)

    def take(self, each: Sought, page: Pulled) -> None:
        """Everything up to `page.next_offset` was looked at. Where a filter left all of it out, that is not kept for long."""
        if page.next_offset > each.offset and not page.count:
            self.deadline = min(self.deadline, trio.current_time() + _LEFT_OUT_SECONDS)
        each.page, each.offset, each.due_at = page, page.next_offset, None
        self.messages_max -= page.count
        self.bytes_max = max(0, self.bytes_max - len(page.records))
        self.found = self.found or page.count > 0 or page.clamped is not None
        if page.due_s is not None:
            each.due_at = trio.current_time() + page.due_s
        elif page.next_offset < page.end:
            self.again.append(each)

    def pages(self) -> list[Pulled]:
        return [each.page for each in self.sought]


class Waiter:
    """A search that waits. `woken`: its queues that have news since it was asked last."""

    def __init__(self, search: Search) -> None:
        self.by_key = {each.log.key: each for each in search.sought}
        self.woken: set[QueueKey] = set()
        self.event = trio.Event()

    def wake(self, key: QueueKey) -> None:
        self.woken.add(key)
        self.event.set()

    def take(self) -> list[Sought]:
        woken, self.woken, self.event = self.woken, set(), trio.Event()
        return [self.by_key[key] for key in woken]
