"""Several aggregates as they were at one position of the log: the same in every way."""

from __future__ import annotations

import random

import anyio
import pytest

import eventstore as es
from eventstore.model import REPLAYED_MAX, REPLAYED_PER_PAGE_MAX
from tests.contract.subjects import Subject, contract, event

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}
NAMES = [f"a{number}-{{t}}" for number in range(6)]


async def write(subject: Subject, rng: random.Random, commits: int, size: int = 10) -> None:
    """Makes commits of one aggregate and of several, of one event and of several."""
    for number in range(commits):
        names = rng.sample(NAMES, rng.choice((1, 1, 2, 3)))
        events = [es.NewEvent("Happened", bytes(size), {"number": number})] * rng.choice((1, 1, 2))
        await subject.store.commit([es.Write(name, events, es.ANY) for name in names])
        if rng.random() < 0.2:
            await subject.store.append(f"other-{number}-{{t}}", [event(number)], es.ANY)


def model(log: list[es.Event], names: list[str], through: int) -> dict[str, list[es.Event]]:
    """Returns what there was of the aggregates, of a log as one list."""
    return {name: [each for each in log if each.aggregate_id == name and each.sequence <= through] for name in names}


def whole(log: list[es.Event], sequence: int) -> int:
    """Returns the sequence of the last event of the commit that has this one."""
    after = [each for each in log if each.sequence >= sequence]
    if not after:
        return sequence
    command = after[0].command_id
    return max(each.sequence for each in after if each.command_id == command)


async def check(subject: Subject, rng: random.Random, times: int) -> None:
    """Compares reads at positions of the log with the log as one list."""
    store = subject.store
    stream = store.read_all()
    log, positions = [], dict[int, es.Position]()
    async for each in stream:
        log.append(each)
        positions[each.sequence] = stream.position
    log = [each for each in log if each.aggregate_id.endswith("{t}")]
    for _ in range(times):
        names = rng.sample([*NAMES, "never-{t}"], rng.randrange(1, 7))
        sequence = rng.choice(log).sequence
        at = positions[sequence] if subject.is_several or rng.random() < 0.5 else sequence
        found, position = await store.replay_many(names, at)
        end = whole(log, sequence)
        assert found == model(log, names, end)
        assert list(found) == names
        ((reached, _),) = position.shards.values()
        assert reached == end
        assert await store.replay_many(names, at=position) == (found, position)


@contract(**SMALL_FILES)
async def test_several_aggregates_are_read_as_they_were_at_any_position(subject: Subject) -> None:
    rng = random.Random(7)
    await write(subject, rng, 30)
    await check(subject, rng, 30)
    await write(subject, rng, 150, 700)
    await subject.sorted()
    await write(subject, rng, 10)
    await check(subject, rng, 30)
    await subject.restart()
    await check(subject, rng, 10)


@contract
async def test_without_a_position_it_is_the_end_which_is_returned(subject: Subject) -> None:
    store = subject.store
    found, position = await store.replay_many(["a-{t}", "b-{t}"])
    assert found == {"a-{t}": [], "b-{t}": []}
    assert await store.replay_many(["a-{t}"], position) == ({"a-{t}": []}, position)
    (done,) = await store.commit([es.Write("a-{t}", [event(1), event(2)], 0)])
    found, now = await store.replay_many(iter(["b-{t}", "a-{t}", "b-{t}"]), es.END)
    assert {name: [each.version for each in events] for name, events in found.items()} == {"b-{t}": [], "a-{t}": [1, 2]}
    assert [place for place, _ in now.shards.values()] == [done.sequence]
    assert es.Position.parse(str(now)) == now
    assert (await store.replay_many(["a-{t}"], 0 if not subject.is_several else position))[0] == {"a-{t}": []}
    assert (await store.replay_many(["a-{t}"], now))[0]["a-{t}"] == found["a-{t}"]


@contract
async def test_its_position_is_one_to_decide_at(subject: Subject) -> None:
    store, query = subject.store, es.Query(["Closed"])
    await store.commit([es.Write(name, [event(1)], 0) for name in NAMES])
    _, position = await store.replay_many(NAMES)
    (done,) = await store.commit([es.Write("b-{t}", [event(1, "Closed")], 0)], unless=query, after=position)
    assert done.version == 1
    with pytest.raises(es.ConditionFailed):
        await store.commit([es.Write("b-{t}", [event(2, "Closed")], 1)], unless=query, after=position)
    if subject.is_several:
        with pytest.raises(es.InvalidArgument, match="is about the shards"):
            await store.query(query, position)
    else:
        assert len((await store.query(query, position))[0]) == 1


@contract
async def test_a_transfer_is_in_both_accounts_or_in_none(subject: Subject) -> None:
    """While transfers are made, the sum of the accounts is the same at each position, and what a position shows stays. The
    accounts take two pages.
    """
    store, ended = subject.store, anyio.Event()
    accounts = [f"account-{number}-{{t}}" for number in range(REPLAYED_PER_PAGE_MAX + 6)]
    await store.commit([es.Write(name, [es.NewEvent("Moved", {"cents": 100})], 0) for name in accounts])
    seen = list[tuple[es.Position, dict[str, list[es.Event]]]]()

    async def transfer(number: int) -> None:
        rng = random.Random(number)
        for _ in range(25):
            source, target = rng.sample(accounts, 2)
            cents = rng.randrange(9)
            moved = [(source, -cents), (target, cents)]
            await store.commit([es.Write(name, [es.NewEvent("Moved", {"cents": each})], es.ANY) for name, each in moved])

    async def read() -> None:
        while not ended.is_set():
            found, position = await store.replay_many(accounts)
            assert sum(each.json()["cents"] for events in found.values() for each in events) == 100 * len(accounts)
            for events in found.values():
                assert [each.version for each in events] == list(range(1, len(events) + 1))
            seen.append((position, found))

    async with anyio.create_task_group() as readers:
        readers.start_soon(read)
        async with anyio.create_task_group() as writers:
            for number in range(4):
                writers.start_soon(transfer, number)
        ended.set()
    assert len(seen) > 1
    for position, found in seen:
        assert (await store.replay_many(accounts, position))[0] == found


@contract
async def test_more_than_one_page_holds_is_read_up_to_one_position(subject: Subject) -> None:
    store, large = subject.store, [es.NewEvent("Large", bytes(200_000))]
    names = [f"p{number}-{{t}}" for number in range(2 * REPLAYED_PER_PAGE_MAX + 5)]
    await store.commit([es.Write(name, [event(1)], 0) for name in names])
    for _ in range(5):
        await store.commit([es.Write(name, large, es.ANY) for name in names[60:68:3]])
    _, position = await store.replay_many(names[:1])
    await store.commit([es.Write(name, large, es.ANY) for name in names[58:70]])
    found, reached = await store.replay_many(names, position)
    assert reached == position
    assert {name: len(events) for name, events in found.items()} == {name: 6 if name in names[60:68:3] else 1 for name in names}
    late, _ = await store.replay_many(names[60:62])
    assert [len(events) for events in late.values()] == [7, 2]


@contract
async def test_bad_arguments_are_refused_by_field(subject: Subject) -> None:
    store = subject.store
    for ids, at, field in (
        ([], None, "ids"),
        ("a-{t}", None, "ids"),
        ([f"{number}-{{t}}" for number in range(REPLAYED_MAX + 1)], None, "ids"),
        ([""], None, "ids"),
        (["x" * 256], None, "ids"),
        ([7], None, "ids"),
        ([["a-{t}"]], None, "ids"),
        (7, None, "ids"),
        (["a-{t}"], -1, "at"),
        (["a-{t}"], "p1", "at"),
        *([(["a-{t}"], 3, "at")] if subject.is_several else []),
    ):
        with pytest.raises(es.InvalidArgument) as error:
            await store.replay_many(ids, at)
        assert error.value.fields["field"] == field


@contract
async def test_a_position_of_another_history_is_refused(subject: Subject) -> None:
    await subject.store.append("a-{t}", [event(1)], 0)
    async with subject.another() as other:
        _, position = await other.replay_many(["a-{t}"])
        if subject.embedded:
            with pytest.raises(es.InvalidArgument, match="place in cluster"):
                await subject.store.replay_many(["a-{t}"], position)
    _, position = await subject.store.replay_many(["a-{t}"])
    for sequence, digits in ((1, "00000000"), (99, ""), (99, "00000000")):
        shards = dict.fromkeys(position.shards, (sequence, digits))
        with pytest.raises(es.Diverged):
            await subject.store.replay_many(["a-{t}"], es.Position(position.cluster, position.layout, shards))
    if not subject.is_several:  # whose client asks all nodes for that layout
        with pytest.raises(es.InvalidArgument, match="layout"):
            await subject.store.replay_many(["a-{t}"], es.Position(position.cluster, 9, position.shards))
    with pytest.raises(es.InvalidArgument, match="is about the shards"):
        await subject.store.replay_many(["a-{t}"], es.Position(position.cluster, position.layout, {77: (1, "")}))


@contract
async def test_aggregates_of_several_shards_are_refused(subject: Subject) -> None:
    names = [f"a-{number}" for number in range(100)]
    if not subject.is_several:
        assert len((await subject.store.replay_many(names))[0]) == 100
        return
    with pytest.raises(es.CrossShard, match="same text in braces"):
        await subject.store.replay_many(names)
    own = [f"{number}-{{t}}" for number in range(REPLAYED_PER_PAGE_MAX)]
    assert len((await subject.store.replay_many(own))[0]) == len(own)
    refused = 0
    for number in range(10):  # which another page would be about
        try:
            await subject.store.replay_many([*own, f"a-{{{number}}}"])
        except es.CrossShard:
            refused += 1
    assert refused
