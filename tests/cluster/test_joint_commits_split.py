"""Commits of several aggregates that a split has separated."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.cli.transfer.extract_run import Extracted, extract
from eventstore.records.cursors import ManyCursor
from eventstore.records.slots import slot_of
from eventstore.store.verification import verify
from tests.cluster.led_shards import LedShards
from tests.server.commands.accounts import Move, Open


def test_a_repeated_commit_has_its_first_outcome_though_a_split_has_separated_its_aggregates(tmp_path: Path) -> None:
    one = [es.NewEvent("A", {})]
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        leaving = shards.leaving_id(0)
        staying = next(name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving))
        both = [es.Write(staying, one, 0), es.Write(leaving, one, 0)]
        first = [each._replace(duplicate=True) for each in store.commit(both, command_id="c-1")]
        shards.split(0)
        assert shards.owner(staying) != shards.owner(leaving)
        for at in (store, es.blocking.connect(shards.address)):  # one knows the map of before
            with at:
                assert at.commit(both, command_id="c-1") == first
                assert at.commit(both[::-1], command_id="c-1") == first[::-1]
                with pytest.raises(es.CommandIdReused):
                    at.commit([*both, es.Write("z", one, 0)], command_id="c-1")
                with pytest.raises(es.CrossShard):
                    at.commit([es.Write(name, one, 1) for name in (staying, leaving)])


def test_an_extract_keeps_together_what_its_shard_has_of_a_commit(tmp_path: Path) -> None:
    one = [es.NewEvent("A", {})]
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        leaving = shards.leaving_id(0)
        staying = [name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving)][:2]
        store.commit([es.Write(name, one, 0) for name in (staying[0], leaving, staying[1])], command_id="c-1")
        store.commit([es.Write(name, one, 1) for name in staying], command_id="c-2")
        store.commit([es.Write(name, one, 2) for name in staying[::-1]], command_id="c-3")

        def extracted(folder: Path) -> tuple[Extracted, list[tuple[str, int, bool]]]:
            async def run() -> tuple[Extracted, list[es.Event]]:
                done = await extract(shards.address, 0, folder, lambda *_: None)
                async with es.open_store(folder) as single:
                    return done, [event async for event in single.read_all()]

            done, events = trio.run(run)
            assert verify(folder).sound
            return done, [(each.aggregate_id, each.version, each.commit_continues) for each in events]

        done, events = extracted(tmp_path / "before")
        assert (done.events, done.commits, done.parted) == (7, 3, 0)
        both = [(staying[0], 2, True), (staying[1], 2, False), (staying[1], 3, True), (staying[0], 3, False)]
        assert events == [(staying[0], 1, True), (leaving, 1, True), (staying[1], 1, False), *both]
        shards.split(0)
        done, events = extracted(tmp_path / "after")
        assert (done.events, done.commits, done.parted) == (6, 3, 1)
        assert events == [(staying[0], 1, True), (staying[1], 1, False), *both]


def test_a_repeated_command_has_its_first_outcome_after_a_split_and_a_new_one_is_refused_in_words(tmp_path: Path) -> None:
    with (
        LedShards(tmp_path, 1, domain="tests.server.commands.accounts:app") as shards,
        es.blocking.connect(shards.address) as store,
    ):
        leaving = shards.leaving_id(0)
        staying = next(name for name in map("s-{}".format, range(100)) if slot_of(name) < slot_of(leaving))
        store.send(Open(staying, 100), "open")
        first = store.send(Move(staying, leaving, 30), "k")
        shards.split(0)
        assert shards.owner(staying) != shards.owner(leaving)
        assert store.send(Move(staying, leaving, 30), "k")[:4] == first._replace(duplicate=True)[:4]
        for source, target in ((staying, leaving), (leaving, staying)):
            with pytest.raises(es.CrossShard, match="need the same text in braces"):
                store.send(Move(source, target, 1))
        assert [event.json()["cents"] for name in (staying, leaving) for event in store.read(name)] == [100, -30, 30]


def test_aggregates_are_read_at_a_position_of_before_a_split_by_the_shard_that_has_them_now(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        tags = [f"{{{number}}}" for number in range(100)]
        middle = slot_of(shards.leaving_id(0)) // 2
        leaving, staying = (next(tag for tag in tags if (slot_of(tag) > middle + 1) == leaves) for leaves in (True, False))
        before, writes = dict[str, tuple[dict[str, list[es.Event]], es.Position]](), dict[str, list[es.Write]]()
        for tag in (leaving, staying):
            names = [f"a{tag}", f"b{tag}"]
            writes[tag] = [es.Write(name, [es.NewEvent("A", {}), es.NewEvent("B", {})], es.ANY) for name in names]
            store.commit(writes[tag])
            before[tag] = store.replay_many(names)
            store.commit(writes[tag])
        both = [f"a{leaving}", f"a{staying}"]
        together, at = store.replay_many(both)
        assert [len(events) for events in together.values()] == [4, 4]
        shards.split(0)
        assert shards.owner(f"a{staying}") != shards.owner(f"a{leaving}")
        for client in (store, es.blocking.connect(shards.address)):  # one knows the map of before
            with client:
                for tag, (found, position) in before.items():
                    again, reached = client.replay_many(list(found), position)
                    assert again == found
                    assert list(reached.shards) == [shards.owner(f"a{tag}")]
                    assert client.replay_many(list(found), reached) == (again, reached)
                    now, end = client.replay_many(list(found))
                    assert [len(events) for events in now.values()] == [4, 4]
                    with pytest.raises(es.ConditionFailed):
                        client.commit(writes[tag], unless=es.Query(["A"]), after=position)
                    client.commit(
                        [es.Write(f"c-{id(client)}{tag}", [es.NewEvent("C", {})], 0)], unless=es.Query(["A"]), after=end
                    )
                for position in (None, at):
                    with pytest.raises(es.CrossShard, match="same text in braces"):
                        client.replay_many(both, position)


def test_a_read_of_many_pages_continues_over_a_split_between_them(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        tag = next(tag for tag in map("{{{}}}".format, range(100)) if slot_of(tag) > slot_of(shards.leaving_id(0)) // 2 + 1)
        names = [f"{number}{tag}" for number in range(70)]
        store.commit([es.Write(name, [es.NewEvent("A", {})], 0) for name in names])
        cursor = ManyCursor(names)
        position = store._replay_page(cursor, es.END, timeout=None)
        assert not cursor.done
        store.commit([es.Write(name, [es.NewEvent("B", {})], 1) for name in names])
        shards.split(0)
        assert shards.owner(names[0]) == 1
        while not cursor.done:
            position = store._replay_page(cursor, position, timeout=None)
        assert {name: [event.type for event in events] for name, events in cursor.events.items()} == {
            name: ["A"] for name in names
        }
        assert store.replay_many(names, position) == (cursor.events, position)


def test_a_position_of_a_layout_that_a_client_does_not_know_yet_has_it_ask_for_the_map(tmp_path: Path) -> None:
    with LedShards(tmp_path, 1) as shards, es.blocking.connect(shards.address) as store:
        known, write = store._router.table.known, [es.NewEvent("A", {})]
        shards.split(0)
        for name in (shards.id_of(0), shards.id_of(1)):
            store.append(name, write, 0)
            found, position = store.replay_many([name])
            assert position.layout == 2
            store._router.table.known = known
            assert store.replay_many([name], position) == (found, position)
            store._router.table.known = known
            (done,) = store.commit([es.Write(name, write, 1)], unless=es.Query(), after=position, scope=name)
            assert done.version == 2
