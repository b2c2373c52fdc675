"""Wakes subscriptions that have caught up: the events of a batch are read once for all of them, not once for each.

A subscription waits here with its filter. One task reads what became durable, looks up which of those who wait may want it, and
wakes only these. The others continue from there when they are woken later. After batches that no subscription wanted it
pauses: many small ones are then read together. Each time that as many events have passed as one page examines, all who wait are
woken and told how far they are: who then begins again there has at most one page to examine once more.

A commit may have 100,000 events, and prefixes may have 255 lengths: reading and looking up is for a thread, and what is kept of
a page are its ids and types, never their product with what is wanted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Final, NamedTuple, Self

import trio

from eventstore.event_identity import LogPosition
from eventstore.model import Event
from eventstore.protocol.limits import PAGE_BYTES_DEFAULT
from eventstore.query import QueryItem
from eventstore.records.event_filter import EVERYTHING, EventFilter
from eventstore.records.event_page import decode_page
from eventstore.store.committer import EventCommitter
from eventstore.store.read.reader_place import placed
from eventstore.store.read.scan import EXAMINED_EVENTS_MAX, ScanPage
from eventstore.tags import TAGGED

_PAGES_KEPT: Final = 64
_NAMES_KEPT: Final = 100_000  # ids and types of all pages kept, some hundred bytes each
_FEW: Final = 8  # filters: up to here, searching the bytes for each of them is faster than decoding them once
_PAUSE_S: Final = 0.002


class _Waiting:
    """A subscription that has everything it wants up to `after`."""

    __slots__ = ("after", "wanted", "woken")

    def __init__(self, wanted: EventFilter, after: int) -> None:
        self.wanted = wanted
        self.after = LogPosition(after)
        self.woken = trio.Event()

    @property
    def keys(self) -> Iterable[tuple[str, str]]:
        """What to look it up by: each event that it wants has one of these."""
        wanted = self.wanted
        if wanted.aggregate_id is not None:
            return (("id", wanted.aggregate_id),)
        if wanted.types is not None:
            return [("type", name) for name in wanted.types]
        if wanted.query is not None and all(item.tags or item.types for item in wanted.query.items):
            return {key for item in wanted.query.items for key in _keys_of(item)}
        return (("prefix", wanted.aggregate_prefix or ""),)


def _keys_of(item: QueryItem) -> Iterable[tuple[str, str]]:
    return [("tag", item.tags[0])] if item.tags else [("type", name) for name in item.types]


class _Names(NamedTuple):
    """What the events of a page are looked up by; `ids` ascending."""

    ids: tuple[str, ...]
    types: frozenset[str]
    tags: frozenset[str]

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """Returns those of these events."""
        tags = chain.from_iterable(event.tags for event in events if event[8] & TAGGED)
        return cls(tuple(sorted({event[0] for event in events})), frozenset(event[2] for event in events), frozenset(tags))

    @property
    def size(self) -> int:
        return len(self.ids) + len(self.types) + len(self.tags)

    def has(self, key: tuple[str, str]) -> bool:
        """Whether an event has this key of `_Waiting.keys`."""
        kind, name = key
        if kind == "type" or kind == "tag":
            return name in (self.types if kind == "type" else self.tags)
        place = bisect_left(self.ids, name)
        if place == len(self.ids):
            return False
        return self.ids[place].startswith(name) if kind == "prefix" else self.ids[place] == name

    def among(self, keys: Collection[tuple[str, str]], lengths: Collection[int]) -> set[tuple[str, str]]:
        """Returns those of the keys that events have. `lengths`: of the prefixes in `keys`. It takes as long as the smaller of
        keys and names allows.
        """
        if len(keys) <= len(self.ids) * len(lengths) + self.size:
            return {key for key in keys if self.has(key)}
        found = {("type", name) for name in self.types} | {("tag", name) for name in self.tags}
        found |= {("id", each) for each in self.ids}
        found.update(("prefix", each[:length]) for each in self.ids for length in lengths)
        return found.intersection(keys)


class _Page(NamedTuple):
    """Events that were read: those after `begin` up to `end`. `names`: of all of them; None if they were not decoded."""

    begin: int
    end: int
    names: _Names | None

    @property
    def size(self) -> int:
        return 0 if self.names is None else self.names.size

    def may_have(self, waiting: _Waiting) -> bool:
        return self.names is None or any(map(self.names.has, waiting.keys))


class NewEvents:
    """The subscriptions that wait for events, and the task that looks for them (`run`); `looks` counts how often."""

    def __init__(self, committer: EventCommitter) -> None:
        self.looks = 0
        self._committer = committer
        self._threads = trio.CapacityLimiter(1)
        self._waiting: set[_Waiting] = set()
        self._late: set[_Waiting] = set()  # of these, those that came since the last look began
        self._by_key: dict[tuple[str, str], set[_Waiting]] = {}
        self._prefix_lengths: Counter[int] = Counter()
        self._seen = 0
        self._read: deque[_Page] = deque(maxlen=_PAGES_KEPT)
        self._begun = trio.Event()

    async def wait(self, wanted: EventFilter, after: int) -> LogPosition:
        """Waits until an event after `after` that `wanted` may let pass is durable. Returns the place to continue after; it has
        an identity if there was no such event, but so many others that this is worth telling.
        """
        engine = self._committer.engine
        while engine.durable_sequence <= after:
            if replace(wanted, from_time=None, to_time=None).everything:
                await self._committer.advanced.park()
                continue
            waiting = _Waiting(wanted, after)
            if self._seen < after:
                if not self._waiting:
                    self._seen = engine.durable_sequence  # not `after`: a client may ask for what is beyond the end
                    self._read.clear()
            elif self._had(waiting):
                return waiting.after
            return await self._passed_by(waiting)
        return LogPosition(after)

    def _had(self, waiting: _Waiting) -> bool:
        """Whether something it may want was read after its place, while it did not wait yet."""
        missed = [page for page in self._read if page.end > waiting.after.sequence]
        if self._seen > waiting.after.sequence and (not missed or missed[0].begin > waiting.after.sequence):
            return True
        return any(page.may_have(waiting) for page in missed)

    async def _passed_by(self, waiting: _Waiting) -> LogPosition:
        self._enter(waiting)
        try:
            await waiting.woken.wait()
        finally:
            self._leave(waiting)
        return waiting.after

    def _enter(self, waiting: _Waiting) -> None:
        self._waiting.add(waiting)
        self._late.add(waiting)
        for key in waiting.keys:
            self._by_key.setdefault(key, set()).add(waiting)
            if key[0] == "prefix":
                self._prefix_lengths[len(key[1])] += 1
        self._begun.set()

    def _leave(self, waiting: _Waiting) -> None:
        self._waiting.discard(waiting)
        self._late.discard(waiting)
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
        begin = self._seen
        self.looks += 1
        self._late.clear()
        try:
            page, found = await (self._read_for_few() if len(self._waiting) <= _FEW else self._read_for_many())
        except Exception:  # each of them gets the error of its own scan
            found, self._seen = set(self._waiting), self._committer.engine.durable_sequence
            self._read.clear()
        else:
            found = (found & self._waiting) | {each for each in self._late if page.may_have(each)}
            self._seen = page.end
            self._keep(page)
        for waiting in found:
            waiting.after = LogPosition(max(waiting.after.sequence, begin))
            waiting.woken.set()
        if begin // EXAMINED_EVENTS_MAX < self._seen // EXAMINED_EVENTS_MAX:
            await self._tell_place()
        return bool(found)

    async def _tell_place(self) -> None:
        """Wakes all who wait, and tells them how far they are."""
        scan, page = self._committer.engine.scan, ScanPage(b"", self._seen, False)
        with suppress(Exception):  # the next read tells those who want to read it
            page = await trio.to_thread.run_sync(partial(placed, scan, page), limiter=self._threads)
        if page.identity:
            for waiting in self._waiting - self._late:
                if not waiting.woken.is_set() and waiting.after.sequence < page.next:
                    waiting.after = LogPosition(page.next, page.identity)
                    waiting.woken.set()

    def _keep(self, page: _Page) -> None:
        self._read.append(page)
        size = sum(each.size for each in self._read)
        while size > _NAMES_KEPT:
            size -= self._read.popleft().size

    async def _read_for_few(self) -> tuple[_Page, set[_Waiting]]:
        begin, waiting = self._seen, list(self._waiting)

        def read() -> tuple[int, set[_Waiting]]:
            page = self._scan(begin)
            return page.next, {each for each in waiting if each.wanted.may_match_in(page.records)}

        end, found = await trio.to_thread.run_sync(read, limiter=self._threads)
        return _Page(begin, end, None), found

    async def _read_for_many(self) -> tuple[_Page, set[_Waiting]]:
        begin, keys, lengths = self._seen, list(self._by_key), list(self._prefix_lengths)

        def read() -> tuple[_Page, set[tuple[str, str]]]:
            page = self._scan(begin)
            events = decode_page(page.records)
            names = _Names.of(events)
            return _Page(begin, page.next, names), names.among(keys, lengths)

        read_page, found = await trio.to_thread.run_sync(read, limiter=self._threads)
        return read_page, set[_Waiting]().union(*(self._by_key[key] for key in found if key in self._by_key))

    def _scan(self, begin: int) -> ScanPage:
        return self._committer.engine.scan(begin, EVERYTHING, PAGE_BYTES_DEFAULT, None, durable=True, whole=True)
