"""Aggregates: looked up by id or prefix; the events of one, and its state at any version where a domain is loaded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final

import trio
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import open_read
from eventstore.console.console import Console, Visit, link, route
from eventstore.domain.candidates import CandidateClasses
from eventstore.domain.domain import Domain
from eventstore.domain.processes.picture import svg, way_of
from eventstore.domain.processes.process import Process
from eventstore.domain.restore import restore
from eventstore.errors import EventStoreError, InvalidArgument, PermissionDenied, UnknownEvent
from eventstore.fields import read_number
from eventstore.model import Event
from eventstore.records.commit import JointPlace, joint_places_of
from eventstore.records.cursors import AggregateCursor, AggregatePage
from eventstore.records.slots import LOCAL, slot_of
from eventstore.security.audit import AUDITED

PAGE_EVENTS: Final = 50
_PAGE_IDS: Final = 100
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_FOLDED_MAX: Final = 10_000
_FIELD_MAX: Final = 2_000
_OTHERS_EVENTS: Final = 200
_OTHERS_MAX: Final = 20


def aggregate_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/aggregates", _list), route(console, "/aggregates/one", _one)]


async def _list(visit: Visit) -> Response:
    if wanted := visit.asked("id"):
        return RedirectResponse(link("/aggregates/one", id=wanted), 303)
    prefix, after = visit.asked("prefix"), visit.asked("after")
    found = await visit.ask(lambda store: store.aggregates(prefix or None, after or None, _PAGE_IDS))
    more = link("/aggregates", prefix=prefix, after=found[-1].aggregate_id) if len(found) == _PAGE_IDS else None
    several = {each.aggregate_id for each, other in pairwise(found) if each.aggregate_id == other.aggregate_id}
    versions = {each.aggregate_id: None if each.aggregate_id in several else each.version for each in found}
    return visit.page("aggregates.html", found=versions, prefix=prefix, after=after, more=more, link=link)


async def _one(visit: Visit) -> Response:
    wanted, state_at = visit.asked("id"), visit.number("state")
    shards = await visit.ask(partial(_shards_with_their_own, aggregate_id=wanted))
    shard = visit.number("shard") if shards else None
    one = partial(link, "/aggregates/one", id=wanted)
    if len(shards) > 1 and shard is None:
        return visit.page(
            "aggregate.html", id=wanted, shards={each: one(shard=each) for each in shards}, pages={}, rows=(), state=None
        )
    version = await visit.ask(lambda store: store_of(store, wanted, shard).version(wanted))
    first = visit.number("from") or 1
    events, others = await visit.ask(lambda store: _with_others(store_of(store, wanted, shard), wanted, first))
    last = events[-1].version if events else first - 1
    pages = {
        "Newest": one(shard=shard, **{"from": max(1, version - PAGE_EVENTS + 1)}) if last < version else None,
        "Later": one(shard=shard, **{"from": last + 1}) if last < version else None,
        "Earlier": one(shard=shard, **{"from": max(1, first - PAGE_EVENTS)}) if first > 1 else None,
    }
    domain = visit.console.subject.domain
    state = None
    if domain is not None and version and not shards:
        state = await _state(visit, domain, wanted, min(state_at or version, version))
    return visit.page(
        "aggregate.html",
        id=wanted,
        version=version,
        rows=[event_row(each, shard) | {"others": others.get(each.sequence)} for each in events],
        pages=pages,
        state=state,
        state_at=min(state_at or version, version),
        shard=shard,
        link=link,
    )


async def _shards_with_their_own(store: NetworkStore, aggregate_id: str) -> list[int]:
    """Returns the numbers of the shards if each has its own aggregate of this id."""
    return sorted(store._of_shards()) if slot_of(aggregate_id) == LOCAL else []


def store_of(store: NetworkStore, aggregate_id: str, shard: int | None) -> NetworkStore:
    """Returns the store to read an aggregate from. If each shard has its own aggregate of this id, it is the store of `shard`;
    None: of the only shard.

    Raises:
        InvalidArgument: no shard is named, or there is none of this number.
    """
    shards = store._of_shards() if slot_of(aggregate_id) == LOCAL else {}
    chosen = next(iter(shards), None) if shard is None and len(shards) == 1 else shard
    if shards and chosen not in shards:
        raise InvalidArgument(f"each of the {len(shards)} shards has its own {aggregate_id[:40]!r}; name one", field="shard")
    return store if chosen is None or not shards else shards[chosen]


@dataclass(frozen=True, slots=True)
class OtherAggregates:
    """The other aggregates of a commit. `pages`: those that are known, with their pages; `more`: how many are not."""

    pages: Mapping[str, str]
    more: int


class _Pages(AggregateCursor):
    """Knows where the records of an aggregate stand in commits of several."""

    __slots__ = ("places",)

    def __init__(self, aggregate_id: str, first: int) -> None:
        super().__init__(aggregate_id, first, None, False, PAGE_EVENTS)
        self.places: dict[int, JointPlace] = {}

    def take(self, page: AggregatePage) -> list[Event]:
        self.places |= joint_places_of(page.records)
        return super().take(page)


async def _with_others(store: NetworkStore, aggregate_id: str, first: int) -> tuple[list[Event], dict[int, OtherAggregates]]:
    """Returns the events of a page, and the other aggregates of their commits, by the sequences of the events."""
    pages = _Pages(aggregate_id, first)
    own = store
    if (router := store._router) is not None:
        own = store._of_shards()[router.table.known.owner_of(aggregate_id)]
    events = await bounded(open_read(own._connection, pages), PAGE_EVENTS)
    commits = {first_of - place.events_before: place for first_of, place in pages.places.items()}
    others: dict[int, OtherAggregates] = {}
    for begin, place in commits.items():
        own_ones = [event.sequence for event in events if begin <= event.sequence < begin + place.events]
        if own_ones:  # each aggregate has one record in a commit
            others |= dict.fromkeys(own_ones, await _others_of(own, aggregate_id, begin, place))
    return events, others


async def _others_of(store: NetworkStore, aggregate_id: str, begin: int, place: JointPlace) -> OtherAggregates:
    """Returns the other aggregates of a commit whose first event has the sequence `begin`: those that the visitor may read, and
    that this shard still has.
    """
    limit = min(place.events, _OTHERS_EVENTS)
    log = store.read_all(begin - 1, limit=limit)
    pages: dict[str, str] = {}
    try:
        for each in await bounded(log, limit):
            if each.sequence < begin + place.events and each.aggregate_id != aggregate_id and each.aggregate_id not in pages:
                pages[each.aggregate_id] = link("/aggregates/one", id=each.aggregate_id, **{"from": each.version})
    except PermissionDenied:  # the log is not for this visitor
        pages = {}
    shown = dict(islice(pages.items(), _OTHERS_MAX))
    return OtherAggregates(shown, place.records - 1 - len(shown))


async def bounded(stream: AsyncIterator[Any], count: int) -> list[Event]:
    """Returns the first events of a stream: at most this number, and 4 MiB."""
    found: list[Event] = []
    size = 0
    async with aclosing(stream):  # type: ignore[type-var] # a stream has aclose
        async for event in stream:
            found.append(event)
            size += len(event.data)
            if len(found) >= count or size >= PAGE_BYTES_MAX:
                break
    return found


def event_row(event: Event, shard: int | None = None) -> dict[str, Any]:
    """Returns what a page shows of an event. `shard`: where it is; its pages need that if each shard has its own aggregate of
    this id.
    """
    of_shard = {"shard": shard} if slot_of(event.aggregate_id) == LOCAL else {}
    seen_at = {"from": max(1, event.version - 5), "state": event.version}
    return {
        "event": event,
        "is_json": event.is_json or event.type == AUDITED,
        "correlation": event.correlation_id,
        "causation": event.causation_id,
        "cause": _cause(event),
        "others": None,
        "chain": link("/aggregates/chain", id=event.aggregate_id, version=event.version, **of_shard),
        "at": link("/aggregates/one", id=event.aggregate_id, **of_shard, **seen_at),
        "tags": [(tag, link("/log", tag=tag)) for tag in event.tags],
    }


def _cause(event: Event) -> str | None:
    """Returns the page of the event that caused this one, if its causation id says which: ID/VERSION, as reactions write it."""
    name, _, version = event.causation_id.rpartition("/")
    if not name or read_number(version) is None:
        return None
    return link("/aggregates/one", id=name, **{"from": version}) + f"#v{version}"


async def _state(visit: Visit, domain: Callable[[], Domain], aggregate_id: str, version: int) -> dict[str, Any] | None:
    """Returns the aggregate as the domain folds it, or why that cannot be said; None: the domain has no aggregates."""
    if version > _FOLDED_MAX:
        return {"why": f"more than {_FOLDED_MAX:,} events are not folded on a page"}

    async def read(store: NetworkStore) -> list[Event]:
        return [event async for event in store.read(aggregate_id, 1, version)]

    events = await visit.ask(read)
    try:
        return await trio.to_thread.run_sync(_folded, domain, aggregate_id, events, abandon_on_cancel=True)
    except EventStoreError as error:
        return {"why": error.message}


def _folded(load: Callable[[], Domain], aggregate_id: str, events: list[Event]) -> dict[str, Any] | None:
    domain = load()
    if not domain.handlers:
        return None
    candidates = CandidateClasses(domain)
    classes, _ = candidates.narrow(candidates.all, events)
    fitting = [each for each in classes if any(candidates.only(event.type) is each for event in events)] or list(classes)
    if len(fitting) != 1:
        raise UnknownEvent("no class of the domain applies all these events, or several do")
    aggregate = restore(fitting[0], aggregate_id, events)
    fields = {name: value for name, value in vars(aggregate).items() if not name.startswith("_")}
    found: dict[str, Any] = {"class": fitting[0].__qualname__}
    found["fields"] = {name: _short(repr(value)) for name, value in fields.items()}
    if issubclass(fitting[0], Process):
        way = way_of([event.json()["state"] for event in events if event.type.endswith("Stepped")])
        found["picture"] = Markup(svg(fitting[0], way))
    return found


def _short(text: str) -> str:
    return text if len(text) <= _FIELD_MAX else f"{text[:_FIELD_MAX]}…"
