"""The log: newest events first, by type, tag, prefix and time; and new ones while the page is open.

No page reads more than a bounded number of events: going back, a page offers to continue from the last event that it examined.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import trio
from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.console.console import Console, Visit, link, route
from eventstore.console.pages.aggregates import PAGE_EVENTS, bounded, event_row
from eventstore.console.streaming import Updates, stream
from eventstore.errors import InvalidArgument
from eventstore.model import CaughtUp, Event
from eventstore.position import END
from eventstore.query import Query
from eventstore.security.permissions import Permission

_EXAMINED_MAX: Final = 10_000
_KEPT_BYTES_MAX: Final = 8 * 1024 * 1024
_LOOK_S: Final = 1.0
_LIVE_ROWS: Final = 20
_FORMS: Final = ("%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f")


@dataclass(frozen=True, slots=True)
class Filter:
    """What is shown.

    Attributes:
        since: microseconds since 1970.
        until: microseconds since 1970.
        may_read: the prefix of all ids that the visitor may read here: the store filters by it alone, since it reads to the end
            of its log for an event that passes.
    """

    type: str = ""
    prefix: str = ""
    since: int | None = None
    until: int | None = None
    may_read: str | None = None
    tag: str = ""

    @property
    def query(self) -> Query | None:
        """What the store looks up; None: nothing."""
        return Query(tags=[self.tag]) if self.tag else None

    def passes(self, event: Event) -> bool:
        return (
            (not self.type or event.type == self.type)
            and (not self.tag or self.tag in event.tags)
            and event.aggregate_id.startswith(self.prefix)
            and (self.until is None or event.timestamp <= self.until)
        )


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """Some events of the log.

    Attributes:
        before: where to continue; None: nothing is older.
        examined: how many events were looked at.
    """

    events: list[Event]
    before: int | None
    examined: int


def log_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/log", _log), route(console, "/log/live", _live)]


async def _log(visit: Visit) -> Response:
    wanted, before, shard = _filter(visit), visit.number("before"), visit.number("shard")

    async def find(store: NetworkStore) -> tuple[list[int], dict[int | None, LogExcerpt]]:
        shards = store.shards
        return sorted(shards), {number: await newest(each, wanted, before) for number, each in _chosen(store, shards, shard)}

    shards, found = await visit.ask(find)
    given = {name: visit.asked(name) for name in ("type", "tag", "prefix", "from", "to", "shard")}
    earlier = [each.before for each in found.values()] if len(found) == 1 else [None]
    older = None if earlier[0] is None else link("/log", **given, before=earlier[0])
    events = [(number, event) for number, each in found.items() for event in each.events]
    if len(found) > 1:  # that of one is in its order, whatever times its writers gave
        events.sort(key=_newest_first)
    return visit.page(
        "log.html",
        rows=_rows(events[:PAGE_EVENTS]),
        examined=sum(each.examined for each in found.values()),
        given=given,
        older=older,
        shards=shards,
        live=None if before or given["to"] else link("/log/live", **given),
        newest=link("/log", **given) if before else None,
    )


async def _live(visit: Visit) -> Response:
    wanted, shard = _filter(visit), visit.number("shard")

    async def updates() -> Updates:
        seen: dict[int | None, int] = {}
        while True:
            found = await visit.ask(partial(_appended, wanted=wanted, shard=shard, seen=seen))
            if found:
                yield "rows", visit.part("live_rows.html", rows=_rows(found))
            await trio.sleep(_LOOK_S)

    return stream(visit, updates())


def _chosen(store: NetworkStore, shards: dict[int, NetworkStore], shard: int | None) -> list[tuple[int | None, NetworkStore]]:
    """Returns the shards to look into, with their numbers; None: there is only one."""
    if shard is not None and shard not in shards:
        raise InvalidArgument(f"there is no shard {shard}", field="shard", value=shard)
    return [(None, store)] if not shards else [*shards.items()] if shard is None else [(shard, shards[shard])]


def _newest_first(found: tuple[int | None, Event]) -> int:
    return -found[1].timestamp


def _rows(events: list[tuple[int | None, Event]]) -> list[dict[str, Any]]:
    """Returns what a page shows of events, each with its shard."""
    return [event_row(event, shard) for shard, event in events]


async def _appended(
    store: NetworkStore, wanted: Filter, shard: int | None, seen: dict[int | None, int]
) -> list[tuple[int | None, Event]]:
    """Returns the last of the events that were appended since `seen`, newest first, with their shards."""
    found: list[tuple[int | None, Event]] = []
    for number, each in _chosen(store, store.shards, shard):
        last = await last_sequence(each, wanted)
        after = seen.setdefault(number, last)
        if last > after:
            seen[number] = last
            window = _EXAMINED_MAX // 10 if wanted.type or wanted.tag or wanted.prefix else _LIVE_ROWS
            page = await _between(each, wanted, max(after, last - window), last)
            found += [(number, event) for event in page if wanted.passes(event)]
    return sorted(found, key=_newest_first)[:_LIVE_ROWS]


async def last_sequence(store: NetworkStore, wanted: Filter) -> int:
    """Returns the sequence of the last durable event."""
    items: Any = store.subscribe(END, aggregate_prefix=wanted.may_read)
    async with aclosing(items):
        async for item in items:
            if isinstance(item, CaughtUp):
                return item.sequence
    return 0


async def newest(store: NetworkStore, wanted: Filter, before: int | None) -> LogExcerpt:
    """Returns the newest events before a sequence that pass the filter, newest first; a bounded number is examined."""
    if before is None and wanted.until is not None:
        later = await bounded(
            store.read_all(0, from_time=wanted.until + 1, limit=1, aggregate_prefix=wanted.may_read), 1
        )  # the index of times finds it
        before = later[0].sequence if later else None
    found: list[Event] = []
    examined, last = 0, None
    items: Any = store.read_all(
        backwards=True, before=before, aggregate_prefix=wanted.may_read, query=wanted.query, limit=_EXAMINED_MAX
    )
    async with aclosing(items):
        async for event in items:
            examined, last = examined + 1, event.sequence
            if wanted.since is not None and event.timestamp < wanted.since:
                return LogExcerpt(found, None, examined)
            if wanted.passes(event):
                found.append(event)
                if len(found) == PAGE_EVENTS:
                    break
    more = last is not None and last > 1 and (len(found) == PAGE_EVENTS or examined == _EXAMINED_MAX)
    return LogExcerpt(found, last if more else None, examined)


async def _between(store: NetworkStore, wanted: Filter, low: int, high: int) -> list[Event]:
    """Returns the events after `low` up to `high`, newest first, of these the newest 8 MiB."""
    kept: list[Event] = []
    size = 0
    items: Any = store.read_all(backwards=True, before=high + 1, aggregate_prefix=wanted.may_read, limit=high - low)
    async with aclosing(items):
        async for event in items:
            size += len(event.data)
            if event.sequence <= low or (kept and size > _KEPT_BYTES_MAX):
                break
            kept.append(event)
    return kept


def _filter(visit: Visit) -> Filter:
    prefix = visit.asked("prefix")
    may_read = None if visit.may(Permission.READ) and visit.may(Permission.SUBSCRIBE) else prefix or None
    return Filter(visit.asked("type"), prefix, _time(visit, "from"), _time(visit, "to"), may_read, visit.asked("tag"))


def _time(visit: Visit, name: str) -> int | None:
    text = visit.asked(name)
    if not text:
        return None
    for form in _FORMS:
        try:
            return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() * 1_000_000)
        except (ValueError, OverflowError):
            continue
    raise InvalidArgument(f"{name} is {text[:40]!r}, expected a time such as 2026-11-25T17:30", field=name, value=text[:40])
