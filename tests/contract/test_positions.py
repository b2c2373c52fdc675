"""Positions: where a stream stands, as text, and what becomes of it when the store is no longer the one it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event, take
from tests.waiting import DEADLINE_SECONDS

IDS = [f"a-{number}" for number in range(12)]  # some on each shard


async def fill(store: Any, *numbers: int, type_: str = "Happened") -> None:
    for number in numbers:
        await store.append_many([es.Commit(each, [event(number, type_)], es.ANY) for each in IDS])


async def end_of(items: Any) -> str:
    """Returns the position after all stored events."""
    assert await collect(items)
    return str(items.position)


def folders(below: Path) -> list[Path]:
    return [*below.glob("data"), *below.glob("shard-*")]


def keep(below: Path) -> None:
    for each in folders(below):
        shutil.copytree(each, below / "older" / each.name)


def restore(below: Path) -> None:
    for each in folders(below):
        shutil.rmtree(each)
        shutil.copytree(below / "older" / each.name, each)


def key(events: list[es.Event]) -> list[tuple[str, int]]:
    return sorted((each.aggregate_id, each.version) for each in events)


@contract
async def test_a_stream_continues_at_the_position_of_another_wherever_that_was_left(subject: Subject) -> None:
    await fill(subject.store, 1, 2, 3)
    everything = key(await subject.all())
    for count in (0, 1, 7, 35, 36):
        items = subject.store.read_all()
        some = await take(items, count)
        rest = await collect(subject.store.read_all(es.Position.parse(str(items.position))))
        assert key([*some, *rest]) == everything
        items = subject.store.subscribe()
        some = await take(items, count)
        rest = [each for each in await take(subject.store.subscribe(items.position), 37 - count) if isinstance(each, es.Event)]
        assert key([*some, *rest]) == everything


@contract
async def test_backwards_the_newest_events_of_each_shard_come_first_and_a_position_continues(subject: Subject) -> None:
    store = subject.store
    await fill(store, 1, 2, 3)
    forwards = subject.by_shard(await subject.all())
    assert subject.by_shard(await collect(store.read_all(backwards=True))) == [each[::-1] for each in forwards]
    for count in (0, 1, 7, 35, 36):
        items = store.read_all(backwards=True)
        some = await take(items, count)
        position = es.Position.parse(str(items.position))
        rest = await collect(store.read_all(backwards=True, before=position))
        assert subject.by_shard([*some, *rest]) == [each[::-1] for each in forwards]
        first = store.read_all(backwards=True, limit=count)
        assert len(await collect(first)) == count
        rest = await collect(store.read_all(backwards=True, before=first.position))
        assert len(rest) == 36 - count


@contract
async def test_backwards_what_cannot_be_meant_is_refused_by_the_name_of_the_argument(subject: Subject) -> None:
    store = subject.store
    await fill(store, 1)
    for refused, field, why in (
        ({"backwards": True, "after": 1}, "after", "give before"),
        ({"before": 5}, "before", "give backwards=True with it"),
        ({"backwards": True, "before": es.END}, "before", "without `before`"),
        ({"backwards": True, "before": -1}, "before", "0 to"),
        ({"backwards": 1}, "backwards", "true or false"),
        ({"backwards": True, "before": es.Position("0" * 32, 1, {0: (1, "")})}, "before", "is a place in cluster"),
    ):
        with pytest.raises(es.InvalidArgument, match=why) as caught:
            store.read_all(**refused)
        assert caught.value.fields["field"] == field


@contract
async def test_a_position_identifies_each_last_event_and_stays_over_a_restart_and_an_empty_read(
    subject: Subject,
) -> None:
    store = subject.store
    assert all(place == (0, "") for place in store.read_all().position.shards.values())
    await fill(store, 1)
    items = store.read_all()
    await collect(items)
    assert all(len(identity) == 8 for _, identity in items.position.shards.values())
    await subject.restart()
    rest = subject.store.read_all(items.position)
    assert await collect(rest) == []
    assert rest.position == items.position
    nothing = subject.store.subscribe(items.position, types=["Other"])
    assert isinstance((await take(nothing, 1))[0], es.CaughtUp)
    assert nothing.position == items.position


@contract
async def test_a_position_is_checked_although_the_new_filter_leaves_out_its_event(subject: Subject) -> None:
    await fill(subject.store, 1)
    position = es.Position.parse(await end_of(subject.store.read_all()))
    await fill(subject.store, 2, type_="Other")
    assert len(await collect(subject.store.read_all(position, types=["Other"]))) == len(IDS)
    assert len(await take(subject.store.subscribe(position, types=["Other"]), len(IDS))) == len(IDS)


@pytest.mark.parametrize("types", [None, ["Happened"]])
@contract
async def test_a_position_is_refused_once_a_restored_store_has_overtaken_it(subject: Subject, types: list[str] | None) -> None:
    await fill(subject.store, 1)
    await subject.changed(keep)
    old = es.Position.parse(await end_of(subject.store.read_all(types=types)))
    await fill(subject.store, 2)
    await fill(subject.store, 3, type_="Other")
    position = es.Position.parse(await end_of(subject.store.read_all(types=types)))
    await subject.changed(restore)
    for diverged in ("has no such event|the store ends at", "has another event there"):
        for items in (subject.store.read_all(position), subject.store.subscribe(position)):
            with pytest.raises(es.Diverged, match=diverged):
                await take(items, 1)
        await fill(subject.store, 7, 8, 9, 10)
    assert len(await collect(subject.store.read_all(old))) == 8 * len(IDS)
    unchecked = es.Position(position.cluster, position.layout, {shard: (n, "") for shard, (n, _) in position.shards.items()})
    assert await collect(subject.store.read_all(es.Position.parse(str(unchecked))))


@contract
async def test_a_read_that_is_interrupted_continues_only_if_the_store_still_has_its_last_event(subject: Subject) -> None:
    if subject.embedded:
        pytest.skip("embedded: a read ends with its store")
    await subject.changed(keep)
    large = es.NewEvent("Happened", bytes(400_000))  # about one a page
    for _ in range(3):
        await subject.store.append_many([es.Commit(each, [large], es.ANY) for each in IDS])
    await subject.restart()
    items = subject.store.read_all()
    await take(items, 1)
    await subject.restart()
    assert len(await collect(items)) == 3 * len(IDS) - 1
    items = subject.store.read_all()
    await take(items, 1)
    await subject.changed(restore)
    await subject.store.append_many([es.Commit(each, [large], es.ANY) for each in IDS * 4])
    with pytest.raises(es.Diverged, match=r"another event there|no such event"):  # it may ask before the append
        await collect(items)


@contract
async def test_a_position_of_another_store_is_refused_by_name(subject: Subject) -> None:
    position = subject.store.read_all().position
    foreign = es.Position("ab" * 16, position.layout, position.shards)
    for begin in (subject.store.read_all, subject.store.subscribe):
        with pytest.raises(es.InvalidArgument, match=f"cluster {'ab' * 16}|store {'ab' * 16}"):
            begin(foreign)


@contract
async def test_a_stream_from_the_end_has_a_position_once_that_is_known(subject: Subject) -> None:
    await fill(subject.store, 1)
    items = subject.store.subscribe(after=es.END)
    with pytest.raises(es.InvalidArgument, match="CaughtUp"):
        _ = items.position
    assert isinstance((await take(items, 1))[0], es.CaughtUp)
    assert sum(sequence for sequence, _ in items.position.shards.values()) == len(IDS)
    await fill(subject.store, 2)
    await take(items, len(IDS))
    assert all(identity for _, identity in items.position.shards.values())


def reached(items: Any) -> int:
    return sum(sequence for sequence, _ in items.position.shards.values())


@pytest.mark.parametrize("filters", [{"types": ["Never"]}, {"aggregate_prefix": "never-"}])
@contract
async def test_a_filter_that_nothing_passes_moves_on_with_what_was_read(subject: Subject, filters: dict[str, Any]) -> None:
    await fill(subject.store, 1, 2)
    read = subject.store.read_all(**filters)
    assert await collect(read) == []
    subscribed = subject.store.subscribe(**filters)
    assert isinstance((await take(subscribed, 1))[0], es.CaughtUp)
    for items in (read, subscribed):
        assert reached(items) == 2 * len(IDS)
        assert all(len(identity) == 8 for _, identity in items.position.shards.values())
        assert await collect(subject.store.read_all(es.Position.parse(str(items.position)))) == []
    await subject.restart()
    await fill(subject.store, 3)
    assert len(await collect(subject.store.read_all(subscribed.position))) == len(IDS)
    back = subject.store.read_all(**filters, backwards=True)
    assert await collect(back) == []
    assert await collect(subject.store.read_all(backwards=True, before=back.position)) == []


@contract
async def test_a_position_stands_at_an_event_until_its_page_is_handed_out_whole(subject: Subject) -> None:
    await fill(subject.store, 1)
    await fill(subject.store, 2, type_="Other")
    wanted = subject.store.read_all(types=["Happened"])
    await take(wanted, len(IDS) - 1)
    assert reached(wanted) < 2 * len(IDS)
    await collect(wanted)
    assert reached(wanted) == 2 * len(IDS)
    limited = subject.store.read_all(types=["Happened"], limit=1)
    await collect(limited)
    rest = await collect(subject.store.read_all(limited.position, types=["Happened"]))
    assert len(rest) == len(IDS) - 1


@contract
async def test_a_position_of_what_was_left_out_is_refused_once_the_store_has_another_history(subject: Subject) -> None:
    await fill(subject.store, 1)
    await subject.changed(keep)
    await fill(subject.store, 2, type_="Other")
    position = es.Position.parse(str(await passed(subject.store.read_all(types=["Happened"]))))
    await subject.changed(restore)
    await fill(subject.store, 3)
    with pytest.raises(es.Diverged, match="another event there"):
        await collect(subject.store.read_all(position, types=["Happened"]))


async def passed(items: Any) -> es.Position:
    await collect(items)
    found: es.Position = items.position
    return found


@contract
async def test_a_subscription_that_waits_moves_on_with_the_events_that_it_leaves_out(subject: Subject) -> None:
    """Who continues there has at most as many to examine again as one page does."""
    items = subject.store.subscribe(types=["Wanted"])
    assert isinstance((await take(items, 1))[0], es.CaughtUp)
    found = list[es.Event]()

    async def follow() -> None:
        found.extend(await take(items, 1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        with anyio.fail_after(DEADLINE_SECONDS):
            while not reached(items):
                many = [event(0, "Other")] * 1000
                outcomes = await subject.store.append_many([es.Commit(each, many, es.ANY) for each in IDS])
                assert all(isinstance(each, es.Committed) for each in outcomes)
            assert not found
            await subject.store.append(IDS[0], [event(1, "Wanted")], es.ANY)
    assert [each.type for each in found] == ["Wanted"]
    moved = [identity for sequence, identity in items.position.shards.values() if sequence]
    assert moved
    assert all(map(len, moved))
    assert await collect(subject.store.read_all(items.position, types=["Wanted"])) == []
