"""Wakes subscriptions that have caught up: the events of a batch are read once for all of them, not once for each.

A subscription waits here with its filter. One task reads what became durable, looks up which of those who wait may want it, and
wakes only these. The others continue from there when they are woken later. After batches that no subscription wanted it
pauses: many small ones are then read together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import trio

from eventstore.model import Event
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.records.event_filter import EVERYTHING, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.store.committer import Committer

_PAGES_KEPT: Final = 64
_FEW: Final = 8  # filters: up to here, searching the bytes for each of them is faster than decoding them once
_PAUSE_S: Final = 0.002


class _Waiting:
    """A subscription that has everything it wants up to `after`."""

    __slots__ = ("after", "wanted", "woken")

    def __init__(self, wanted: EventFilter, after: int) -> None:
        self.wanted = wanted
        self.after = after
        self.woken = trio.Event()

    @property
    def keys(self) -> Iterable[tuple[str, str]]:
        """What to look it up by: each event that it wants has one of these."""
        wanted = self.wanted
        if wanted.aggregate_id is not None:
            return (("id", wanted.aggregate_id),)
        if wanted.types is not None:
            return [("type", name) for name in wanted.types]
        return (("prefix", wanted.aggregate_prefix or ""),)


class _Page(NamedTuple):
    """Events that were read: those after `begin` up to `end`. `keys`: of all of them, with prefixes of these lengths; None if
    they were not decoded.
    """

    begin: int
    end: int
    keys: frozenset[tuple[str, str]] | None
    lengths: frozenset[int]

    def may_have(self, waiting: _Waiting) -> bool:
        if self.keys is None:
            return True
        return any(key in self.keys or (key[0] == "prefix" and len(key[1]) not in self.lengths) for key in waiting.keys)


class NewEvents:
    """The subscriptions that wait for events, and the task that looks for them (`run`); `looks` counts how often."""

    def __init__(self, committer: Committer) -> None:
        self.looks = 0
        self._committer = committer
        self._threads = trio.CapacityLimiter(1)
        self._waiting: set[_Waiting] = set()
        self._by_key: dict[tuple[str, str], set[_Waiting]] = {}
        self._prefix_lengths: Counter[int] = Counter()
        self._seen = 0
        self._read: deque[_Page] = deque(maxlen=_PAGES_KEPT)
        self._begun = trio.Event()

    async def wait(self, wanted: EventFilter, after: int) -> int:
        """Waits until an event after `after` that `wanted` may let pass is durable. Returns the sequence to continue after."""
        engine = self._committer.engine
        while engine.durable_sequence <= after:
            if wanted.types is None and wanted.aggregate_prefix is None and wanted.aggregate_id is None:
                await self._committer.advanced.park()
                continue
            waiting = _Waiting(wanted, after)
            if self._seen < after:
                if not self._waiting:
                    self._seen = engine.durable_sequence  # not `after`: a client may ask for what is beyond the end
                    self._read.clear()
            elif self._had(waiting):
                return after
            return await self._passed_by(waiting)
        return after

    def _had(self, waiting: _Waiting) -> bool:
        """Whether something it may want was read after its place, while it did not wait yet."""
        missed = [page for page in self._read if page.end > waiting.after]
        if self._seen > waiting.after and (not missed or missed[0].begin > waiting.after):
            return True
        return any(page.may_have(waiting) for page in missed)

    async def _passed_by(self, waiting: _Waiting) -> int:
        self._enter(waiting)
        try:
            await waiting.woken.wait()
        finally:
            self._leave(waiting)
        return waiting.after

    def _enter(self, waiting: _Waiting) -> None:
        self._waiting.add(waiting)
        for key in waiting.keys:
            self._by_key.setdefault(key, set()).add(waiting)
            if key[0] == "prefix":
                self._prefix_lengths[len(key[1])] += 1
        self._begun.set()

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting.discard(waiting)
        for key in waiting.keys:
            same = self._by_key[key]
            same.discard(waiting)
            if not same:
                del self._by_key[key]
            if key[0] == "prefix":
                self._prefix_lengths[len(key[1])] -= 1
                if not self._prefix_lengths[len(key[1])]:
                    del self._prefix_lengths[len(key[1])]

    async def run(self) -> None:
        """Looks for events until cancelled."""
        engine = self._committer.engine
        while True:
            if not self._waiting:
                self._begun = trio.Event()
                await self._begun.wait()
            if engine.durable_sequence <= self._seen:
                await self._committer.advanced.park()
            elif self._waiting and not await self._look() and len(self._waiting) > _FEW:
                await trio.sleep(_PAUSE_S)

    async def _look(self) -> bool:
        """Reads the next page, and wakes those who may want something of it; returns whether there are any."""
        engine, begin = self._committer.engine, self._seen
        self.looks += 1
        try:
            page = await trio.to_thread.run_sync(
                lambda: engine.scan(begin, EVERYTHING, PAGE_BYTES_DEFAULT, None, durable=True, whole=True),
                limiter=self._threads,
            )
        except Exception:  # each of them gets the error of its own scan
            found, self._seen = set(self._waiting), engine.durable_sequence
            self._read.clear()
        else:
            found, keys = self._wanting(page.records)
            self._seen = page.next
            self._read.append(_Page(begin, page.next, keys, frozenset(self._prefix_lengths)))
        for waiting in found:
            waiting.after = max(waiting.after, begin)
            waiting.woken.set()
        return bool(found)

    def _wanting(self, records: bytes) -> tuple[set[_Waiting], frozenset[tuple[str, str]] | None]:
        if len(self._waiting) <= _FEW:
            return {each for each in self._waiting if each.wanted.may_match_in(records)}, None
        keys = frozenset(key for event in decode_page(records) for key in self._keys_of(event))
        return set[_Waiting]().union(*(self._by_key[key] for key in keys if key in self._by_key)), keys

    def _keys_of(self, event: Event) -> Iterator[tuple[str, str]]:
        aggregate_id = event[0]
        yield "type", event[2]
        yield "id", aggregate_id
        for length in self._prefix_lengths:
            yield "prefix", aggregate_id[:length]
