"""Mailboxes on trio, with a store and senders that a test can change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from eventstore_mailbox import REFUSED, Batch, Entry, Mailboxes, Options, Ports
from tests.mailbox.history_store import Change, HistoryStore, Outcome
from tests.mailbox.stepped import History, Request, handle

Set = Mailboxes[Request, History, Change, Outcome]


class World:
    """Mailboxes with a store and senders whose behaviour a test can change."""

    def __init__(
        self, options: Options | None = None, refresh: Callable[[str, History], Awaitable[History]] | None = None
    ) -> None:
        self.store = HistoryStore()
        self.answered: list[Entry[Request, Outcome]] = []
        self.unreachable = 0
        self.held: list[Batch[Change, Outcome]] | None = None
        self.restored: list[str] = []
        self.evicted: dict[str, list[str]] = {}
        self.errors: list[str] = []
        self.before_restore: Callable[[str], Awaitable[None]] | None = None
        self.on_answer: Callable[[object], None] = lambda entries: None
        self.handle: Callable[[Request, History], object] = handle
        self.mailboxes: Set = Mailboxes(
            Ports(
                handle=lambda request, history: self.handle(request, history),  # type: ignore[arg-type,return-value]
                restore=self._restore, persist=self._persist, answer=self._answer, clock=trio.current_time,
                refusal=lambda error: (REFUSED, error, 0), unmodified=lambda history: not history.dirty,
                on_error=lambda what, error: self.errors.append(what),
                refresh=refresh, random=lambda: 0.5, evicted=self._evicted,
            ),
            options,
        )  # fmt: skip

    def _answer(self, entries: Sequence[Entry[Request, Outcome]]) -> None:
        self.answered += entries
        self.on_answer(entries)

    async def _restore(self, aggregate_id: str) -> History:
        self.restored.append(aggregate_id)
        if self.before_restore is not None:
            await self.before_restore(aggregate_id)
        return History(aggregate_id, self.store.history(aggregate_id))

    def _evicted(self, aggregate_id: str, history: History) -> None:
        self.evicted[aggregate_id] = history.ids
        self.store.check_stored(aggregate_id, history.ids)

    def _persist(self, batch: Batch[Change, Outcome]) -> None:
        if self.unreachable:
            self.unreachable -= 1
            raise ConnectionError("unreachable")
        if self.held is None:
            batch.deliver(self.store.append(batch.changes, batch.dependents))
        else:
            self.held.append(batch)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for batch in held:
            batch.deliver(self.store.append(batch.changes, batch.dependents))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Set]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.mailboxes.run)
            yield self.mailboxes
            assert await self.mailboxes.stop(60) == 0
