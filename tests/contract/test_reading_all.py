"""Reading all events: in commit order, filtered, from any sequence on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, take

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
NAMES = ("order-1", "order-2", "cart-1", "ordé", "order-é")
TYPES = ("Placed", "Paid", "Éxpired")


def commits(count: int, size: int = 10) -> list[es.Commit]:
    """Commits of one to three events of different types on five aggregates, an hour apart."""
    return [
        es.Commit(
            NAMES[n * 7 % 5],
            [es.NewEvent(TYPES[(n + place) % 3], b"%d.%d" % (n, place) + bytes(size)) for place in range(1 + n % 3)],
            es.ANY,
            f"c-{n}",
            timestamp=datetime.fromtimestamp(3_600 * n, UTC),
        )
        for n in range(count)
    ]


FILTERS: list[dict[str, Any]] = [
    {},
    {"types": ["Paid"]},
    {"types": {"Paid", "Éxpired"}},
    {"types": ("Nothing",)},
    {"aggregate_prefix": "order-"},
    {"aggregate_prefix": "ordé"},
    {"aggregate_prefix": "missing"},
    {"aggregate_prefix": ""},
    {"from_time": 3_600_000_000 * 20},
    {"to_time": datetime.fromtimestamp(3_600 * 30, UTC)},
    {"from_time": datetime.fromtimestamp(3_600 * 10, UTC), "to_time": 3_600_000_000 * 11},
    {"from_time": 1, "to_time": 0},
    {"types": iter(["Placed"]), "aggregate_prefix": "order-", "from_time": 3_600_000_000 * 7},
    {"aggregate_id": "order-1"},
    {"aggregate_id": "order-"},
    {"aggregate_id": "order-é", "aggregate_prefix": "order-"},
    {"types": ["Paid"], "aggregate_id": "ordé", "to_time": 3_600_000_000 * 40},
]


def passes(event: es.Event, after: int, filters: dict[str, Any]) -> bool:
    def micros(time: int | datetime) -> int:
        return time if isinstance(time, int) else round(time.timestamp() * 1_000_000)

    return (
        event.sequence > after
        and event.aggregate_id.startswith(filters.get("aggregate_prefix", ""))
        and event.aggregate_id == filters.get("aggregate_id", event.aggregate_id)
        and ("types" not in filters or event.type in filters["types"])
        and ("from_time" not in filters or event.timestamp >= micros(filters["from_time"]))
        and ("to_time" not in filters or event.timestamp <= micros(filters["to_time"]))
    )


def again(filters: dict[str, Any]) -> dict[str, Any]:
    """Returns the filters, with new iterators for those that are iterators."""
    types = filters.get("types")
    return {**filters, "types": iter(["Placed"])} if types is not None and not hasattr(types, "__len__") else filters


def expected(events: list[es.Event], after: int, filters: dict[str, Any]) -> list[es.Event]:
    lasting = {**filters, "types": list(again(filters)["types"])} if "types" in filters else filters
    return [event for event in events if passes(event, after, lasting)]


async def check_all_filters(subject: Subject, events: list[es.Event]) -> None:
    for filters in FILTERS:
        for after in (0, 1, 37, len(events), len(events) + 5):
            wanted = expected(events, after, filters)
            assert await collect(subject.store.read_all(after=after, **again(filters))) == wanted
            for limit in (0, 1, 7, len(wanted) + 1):
                assert await collect(subject.store.read_all(after=after, limit=limit, **again(filters))) == wanted[:limit]
        newest_first = expected(events, 0, filters)[::-1]
        for before in (None, 1, 38, len(events) + 1, len(events) + 5):
            wanted = [event for event in newest_first if before is None or event.sequence < before]
            for limit in (None, 0, 1, 7, len(wanted) + 1):
                stream = subject.store.read_all(backwards=True, before=before, limit=limit, **again(filters))
                assert await collect(stream) == wanted[:limit]


@contract
async def test_everything_is_read_in_commit_order(subject: Subject) -> None:
    given = commits(40)
    await subject.store.append_many(given)
    found = await subject.all()
    subject.check_gapless(found)
    stored = {(each.aggregate_id, each.command_id): place for place, each in enumerate(given)}
    for own in subject.by_shard(found):
        places = [stored[each.aggregate_id, each.command_id] for each in own]
        assert places == sorted(places)
        contents = [(each.type, each.data) for place in dict.fromkeys(places) for each in given[place].events]
        assert [(each.type, each.data) for each in own] == contents


@contract(one_sequence="reads begin after a sequence")
async def test_filters_and_limits_return_exactly_the_matching_events(subject: Subject) -> None:
    await subject.store.append_many(commits(60))
    await check_all_filters(subject, await subject.all())


@contract(one_sequence="reads begin after a sequence", **SMALL_FILES)
async def test_filters_and_limits_return_the_same_from_sorted_files(subject: Subject) -> None:
    await subject.store.append_many(commits(60, size=1_000))
    before = await subject.all()
    await subject.sorted()
    assert subject.by_shard(await subject.all()) == subject.by_shard(before)
    await check_all_filters(subject, before)
    await subject.restart()
    assert subject.by_shard(await subject.all()) == subject.by_shard(before)


@contract(one_sequence="there is an order within a shard only")
async def test_a_log_over_several_pages_is_whole(subject: Subject) -> None:
    await subject.store.append_many(
        [es.Commit(f"a-{n % 9}", [es.NewEvent("T", b"%d" % n + bytes(9_000))], es.ANY, f"c-{n}") for n in range(300)]
    )
    found = await subject.all()
    assert [each.data for each in found] == [b"%d" % n + bytes(9_000) for n in range(300)]
    assert await subject.all(after=150) == found[150:]
    assert await subject.all(after=10, limit=200) == found[10:210]


@contract(one_sequence="reads begin after a sequence")
async def test_a_read_may_start_inside_a_commit(subject: Subject) -> None:
    await subject.store.append("a", [es.NewEvent("T", b"%d" % n) for n in range(5)], 0)
    assert [each.sequence for each in await subject.all(after=2)] == [3, 4, 5]
    assert [each.sequence for each in await subject.all(after=2, limit=2)] == [3, 4]


@contract
async def test_a_read_may_be_left_early(subject: Subject) -> None:
    await subject.store.append_many(commits(40))
    events = subject.store.read_all()
    assert [each.sequence for each in await take(events, 3)] == [1, 2, 3]
    assert [each.sequence async for each in events][:2] == [4, 5]
