"""Commands: each takes effect once, no matter how often it is sent, for the whole life of its aggregate."""

from __future__ import annotations

import pytest

import eventstore as es
from tests.contract.subjects import Subject, collect, contract, event

SMALL_FILES = {"file_size_bytes": 64 * 1024, "preallocate_bytes": 16 * 1024}


@contract
async def test_a_repeated_command_has_the_first_result_and_writes_nothing(subject: Subject) -> None:
    store = subject.store
    first = await store.append("a", [event(1), event(2)], 0, "c-1")
    await store.append("a", [event(3)], 2, "c-2")
    for expected in (0, 2, 3, 99, es.ANY, es.EXISTS):
        again = await store.append("a", [event(1), event(2)], expected, "c-1", timestamp=7)
        assert again == es.Committed("a", first.version, first.sequence, duplicate=True)
    assert len(await subject.all()) == 3
    assert int((await store.stats())["duplicates"]) == 6


@contract
async def test_a_command_id_belongs_to_its_aggregate(subject: Subject) -> None:
    await subject.store.append("a", [event(1)], 0, "c-1")
    assert await subject.store.append("b", [event(1)], 0, "c-1") == es.Committed("b", 1, 2)


@contract
async def test_a_command_id_with_other_content_is_refused(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0, "c-1")
    others = [
        [event(1)],
        [event(2), event(1)],
        [event(1), event(2), event(3)],
        [event(1), event(2, "Other")],
        [event(1), es.NewEvent("Happened", {"number": 2}, b"")],
        [event(1), es.NewEvent("Happened", b'{"number":2}')],
    ]
    for events in others:
        with pytest.raises(es.CommandIdReused) as caught:
            await store.append("a", events, es.ANY, "c-1")
        assert caught.value.fields == {"aggregate_id": "a", "command_id": "c-1", "version": 2, "sequence": 2}
    assert len(await subject.all()) == 2


@contract
async def test_a_command_that_conflicted_may_be_retried(subject: Subject) -> None:
    store = subject.store
    with pytest.raises(es.VersionConflict):
        await store.append("a", [event(1)], 1, "c-1")
    assert await store.find_command("a", "c-1") is None
    assert await store.append("a", [event(1)], 0, "c-1") == es.Committed("a", 1, 1)


@contract
async def test_a_command_is_found(subject: Subject) -> None:
    store = subject.store
    await store.append("a", [event(1), event(2)], 0, "c-1")
    await store.append("a", [event(3)], 2, "c-2")
    assert await store.find_command("a", "c-1") == es.Committed("a", 2, 2, duplicate=True)
    assert await store.find_command("a", "c-2") == es.Committed("a", 3, 3, duplicate=True)
    assert await store.find_command("a", "c-3") is None
    assert await store.find_command("b", "c-1") is None


@contract
async def test_a_commit_of_a_single_store_is_on_one_disk_and_that_is_all_of_them(subject: Subject) -> None:
    store = subject.store
    first = await store.append("a", [event(1)], 0, "c-1", replicas="all")
    assert (first.duplicate, first.durability) == (False, 1)
    again = await store.append("a", [event(1)], 0, "c-1", replicas="all")
    assert (again.duplicate, again.durability) == (True, 1)
    commits = [es.Commit("a", [event(2)], es.EXISTS), es.Commit("b", [event(1)], es.ANY), es.Commit("a", [event(3)], 2)]
    assert [done.durability for done in await store.append_many(commits, replicas="all")] == [1, 1, 1]
    assert (await store.find_command("a", "c-1")).durability == 1


@contract
async def test_to_ask_for_all_replicas_changes_nothing_about_the_expected_version(subject: Subject) -> None:
    store = subject.store
    for expected in (1, es.EXISTS):
        with pytest.raises(es.VersionConflict) as conflict:
            await store.append("a", [event(1)], expected, replicas="all")
        assert (conflict.value.expected, conflict.value.actual) == (getattr(expected, "value", expected), 0)
    assert await store.version("a") == 0


@contract
async def test_replicas_are_all_or_the_rule_of_the_shard(subject: Subject) -> None:
    for wanted in (3, "two", True):
        with pytest.raises(es.InvalidArgument, match='it is "all"') as refused:
            await subject.store.append("a", [event(1)], 0, replicas=wanted)
        assert refused.value.field == "replicas"
        with pytest.raises(es.InvalidArgument):
            await subject.store.append_many([es.Commit("a", [event(1)], 0)], replicas=wanted)
    assert await subject.store.version("a") == 0


@contract(durability="async", flush_interval_s=60.0)
async def test_a_commit_with_durability_async_is_on_no_disk_yet(subject: Subject) -> None:
    done = await subject.store.append("a", [event(1)], 0, "c-1")
    assert done.durability == 0
    assert (await subject.store.append("a", [event(1)], 0, "c-1")).durability == 0
    assert (await subject.store.find_command("a", "c-1")).durability == 0


@contract(one_sequence="the files of one store are filled and sorted", **SMALL_FILES)
async def test_commands_are_known_after_sorting_and_after_a_restart(subject: Subject) -> None:
    commits = [es.Commit(f"a-{n % 20}", [es.NewEvent("T", b"%d" % n * 40)] * (1 + n % 2), es.ANY, f"c-{n}") for n in range(480)]
    first = await subject.store.append_many(commits)
    assert all(type(outcome) is es.Committed for outcome in first)
    repeated = [es.Committed(done.aggregate_id, done.version, done.sequence, duplicate=True) for done in first]
    before = await subject.all()

    async def check() -> None:
        assert await subject.store.append_many(commits) == repeated
        for n in range(0, 480, 71):
            assert await subject.store.find_command(f"a-{n % 20}", f"c-{n}") == repeated[n]
            with pytest.raises(es.CommandIdReused):
                await subject.store.append(f"a-{n % 20}", [es.NewEvent("T", b"other")], es.ANY, f"c-{n}")
            assert await subject.store.find_command(f"a-{n % 20}", f"c-{n + 1}") is None
        assert await subject.all() == before

    await check()
    await subject.sorted()
    await check()
    await subject.restart()
    await check()
    for place in range(20):
        own = [each for each in before if each.aggregate_id == f"a-{place}"]
        assert await collect(subject.store.read(f"a-{place}")) == own
