"""The events that belong to an event: all that have its correlation id, from what began it to what followed."""

from __future__ import annotations

from contextlib import aclosing
from operator import itemgetter
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from eventstore.client.aio.store import NetworkStore
from eventstore.client.aio.streams import NetworkEventStream
from eventstore.console.console import Console, Visit, route
from eventstore.console.pages.aggregates import PAGE_BYTES_MAX, bounded, event_row, store_of
from eventstore.errors import InvalidArgument
from eventstore.model import Event

_EXAMINED_MAX: Final = 10_000
_BACK_US: Final = 60_000_000
"""In other shards than the event's own, the first event that is examined is at most so much older."""
_DATA: Final = itemgetter(3)  # of an Event


def chain_routes(console: Console) -> list[Route]:
    """Returns the routes."""
    return [route(console, "/aggregates/chain", _chain)]


async def _chain(visit: Visit) -> Response:
    aggregate_id, version, shard = visit.asked("id"), visit.number("version") or 1, visit.number("shard")

    async def find(store: NetworkStore) -> tuple[Event, Chain]:
        of = await bounded(store_of(store, aggregate_id, shard).read(aggregate_id, version, version), 1)
        if not of:
            raise InvalidArgument(f"there is no version {version} of {aggregate_id[:40]!r}", field="version", value=version)
        return of[0], await _belonging(store, of[0], shard)

    event, chain = await visit.ask(find)
    own = event_row(event, shard)
    return visit.page("chain.html", event=event, at=own["at"], rows=_indented(chain), examined=chain.examined)


class Chain:
    """The events with a correlation id, oldest first, each with its shard.

    Attributes:
        examined: among how many events they were found.
    """

    def __init__(self, correlation: str) -> None:
        self.examined = 0
        self._correlation, self._bytes = correlation, correlation.encode(errors="surrogatepass")
        self._found: list[tuple[int | None, Event]] = []

    @property
    def events(self) -> list[tuple[int | None, Event]]:
        return sorted(self._found, key=lambda each: (each[1].timestamp, each[1].sequence))

    async def examine(self, shard: int | None, stream: NetworkEventStream, before: int | None = None) -> int:
        """Examines the events of a stream, until their data are 4 MiB or a page more; with `before`, only events before this
        sequence. Returns the size of their data.
        """
        size = 0
        async with aclosing(stream):
            while size < PAGE_BYTES_MAX and (page := await stream.page()) is not None:
                if before is not None and page and page[-1].sequence >= before:  # limits count events, and a split leaves gaps
                    page = [event for event in page if event.sequence < before]
                self.examined += len(page)
                size += sum(map(len, map(_DATA, page)))
                self._found += [(shard, event) for event in page if self._has(event)]
        return size

    def _has(self, event: Event) -> bool:
        """Whether an event has the correlation id. Parses the metadata only if they can hold it: parsing all takes longer than
        reading them.
        """
        metadata = event[4]
        if event[5] != self._correlation and (
            metadata is None or (self._bytes not in metadata and b"\\" not in metadata and b"\0" not in metadata)
        ):
            return False
        return event.correlation_id == self._correlation


async def _belonging(store: NetworkStore, event: Event, shard: int | None) -> Chain:
    """Examines the events around the event in its shard, and events of about its time in other shards. `shard`: if it was
    named.
    """
    shards = store.shards
    parts: list[tuple[int | None, NetworkStore]] = [*shards.items()] or [(None, store)]
    own = (await store.cluster_map()).owner_of(event.aggregate_id) if shard is None and shards else shard
    chain, each_max = Chain(event.correlation_id), _EXAMINED_MAX // len(parts)
    for number, part in parts:
        if number == own:
            await _around(chain, number, part, event.sequence, each_max)
        else:
            stream: Any = part.read_all(0, from_time=event.timestamp - _BACK_US, limit=each_max)
            await chain.examine(number, stream)
    return chain


async def _around(chain: Chain, shard: int | None, part: NetworkStore, sequence: int, most: int) -> None:
    """Examines up to half as many events before a sequence, and the rest from it on.

    Not by time: the store would read each older event of the files that are not sorted yet. It goes backwards in steps, so that
    among large events the nearest are examined.
    """
    high, size, step = sequence, 0, max(1, most // 4)
    for _ in range(2):
        low = max(0, high - 1 - step)
        if low < high - 1 and size < PAGE_BYTES_MAX:
            before: Any = part.read_all(low, limit=high - 1 - low)
            size += await chain.examine(shard, before, high)
            high = low + 1
    after: Any = part.read_all(sequence - 1, limit=most - (sequence - high))
    await chain.examine(shard, after)


def _indented(chain: Chain) -> list[dict[str, Any]]:
    """Returns the rows of a page. Each event is one step further in than the event that caused it."""
    depths: dict[str, int] = {}
    rows = []
    for shard, each in chain.events:
        depth = depths[f"{each.aggregate_id}/{each.version}"] = min(depths.get(each.causation_id, -1) + 1, 6)
        rows.append({**event_row(each, shard), "depth": depth})
    return rows
