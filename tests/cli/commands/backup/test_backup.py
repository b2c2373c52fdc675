"""Backups of real servers: what was acknowledged when one began is in it, and what is restored has a history of its own."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore import blocking
from eventstore.event_identity import LogPosition
from tests.cli.commands.offline.test_salvage import histories
from tests.cli.conftest import SMALL_FILES
from tests.cli.processes import Server, output, refused, run
from tests.documents.pages import named_block, text_of

Serve = Callable[..., Server]
SMALL = ("--file-size-bytes", str(SMALL_FILES.file_size_bytes), "--preallocate-bytes", str(SMALL_FILES.preallocate_bytes))


def fill(store: blocking.BlockingStore, begin: int, many: int) -> None:
    events = [es.NewEvent("Happened", {"text": "x" * 300})]
    store.append_many([es.Commit(f"a-{number % 50}", events, es.ANY, f"c-{number}") for number in range(begin, begin + many)])


def test_a_running_store_is_backed_up_while_it_is_written_to_and_its_files_are_sorted(serve: Serve, tmp_path: Path) -> None:
    server, place = serve(*SMALL), tmp_path / "backup"
    with blocking.connect(server.store) as store:
        for number in range(4):
            fill(store, number * 400, 400)
            fresh = ("--incremental",) if number else ()
            before = len(list(store.read_all()))
            made = json.loads(output("backup", place, *fresh, "--json", store=server.store))
            assert made["number"] == number + 1
            assert int(made["ends"]["0"].partition("-")[0]) >= before
        assert "no faults" in output("backup", place, "--check")
        fill(store, 10_000, 100)
        wanted = list(store.read_all())[: int(made["ends"]["0"].partition("-")[0])]
    server.close()
    output("restore", place, tmp_path / "new")
    assert "no faults" in output("verify", tmp_path / "new")
    restored = serve(data=tmp_path / "new")
    with blocking.connect(restored.store) as store:
        *found, begun = store.read_all()
        assert found == wanted
        assert (begun.aggregate_id, begun.type) == ("$timeline", "$Restored")


def test_a_stopped_folder_is_backed_up_without_a_server(folder: Path, tmp_path: Path) -> None:
    output("backup", tmp_path / "place", "--data", folder)
    output("restore", tmp_path / "place", tmp_path / "new")
    found = histories(tmp_path / "new")
    del found["$timeline"]
    assert found == histories(folder)


def test_a_reader_of_the_old_future_is_diverged_and_one_of_before_goes_on(serve: Serve, tmp_path: Path) -> None:
    server, place = serve(), tmp_path / "backup"
    with blocking.connect(server.store) as store:
        fill(store, 0, 10)
        output("backup", place, store=server.store)
        before = LogPosition.at(list(store.read_all())[-1])
        fill(store, 10, 10)
        future = [LogPosition.at(event) for event in store.read_all()][10:]
        again = list(store.read_all())[10:]
    server.close()
    output("restore", place, tmp_path / "new")
    restored = serve(data=tmp_path / "new")
    with blocking.connect(restored.store) as store:
        for event in again:  # the same events are appended once more, at the same times
            same = [es.NewEvent(event.type, event.data)]
            store.append_many([es.Commit(event.aggregate_id, same, es.ANY, event.command_id, event.timestamp)])
        assert len(list(store.read_all(after=before))) == 11
        for place_of_old in future:
            with pytest.raises(es.Diverged):
                list(store.read_all(after=place_of_old))


def test_messages_topics_and_offsets_are_restored_unless_they_are_left_out(serve: Serve, tmp_path: Path) -> None:
    server, place = serve(), tmp_path / "backup"
    with blocking.connect(server.store) as store:
        store.broker.create_topic("orders", queues=2)
        topic = store.topic("orders")
        for number in range(20):
            topic.send(f"m-{number}".encode(), key=f"k-{number}")
        with store.consumer("billing", "orders") as consumer:
            first = next(iter(consumer))
            first.done()
    output("backup", place, store=server.store)
    server.close()
    output("restore", place, tmp_path / "new")
    restored = serve(data=tmp_path / "new")
    with blocking.connect(restored.store) as store, store.consumer("audit", "orders") as consumer:
        assert len({next(iter(consumer)).body for _ in range(20)}) == 20
        assert "billing" in {group.name for group in store.broker.groups()}
    restored.close()
    output("restore", place, tmp_path / "without", "--no-broker")
    without = serve(data=tmp_path / "without")
    with blocking.connect(without.store) as store:
        assert store.broker.topics() == []


def test_one_aggregate_is_restored_into_a_store_of_its_own(folder: Path, tmp_path: Path) -> None:
    output("backup", tmp_path / "place", "--data", folder)
    output("restore", tmp_path / "place", tmp_path / "new", "--prefix", "aggregate-17")
    assert histories(tmp_path / "new") == {"aggregate-17": histories(folder)["aggregate-17"]}


def test_what_is_restored_of_a_commit_of_several_aggregates_is_one_commit(serve: Serve, tmp_path: Path) -> None:
    one = [es.NewEvent("Moved", {})]
    server = serve()
    with blocking.connect(server.store) as store:
        store.commit([es.Write(name, one, 0) for name in ("a-1", "b-1", "a-2")], command_id="c-1")
        store.commit([es.Write(name, one, 1) for name in ("a-2", "a-1")], command_id="c-2")
    server.close()
    output("backup", tmp_path / "place", "--data", server.data)

    def restored(name: str, *options: object) -> list[tuple[str, int, bool]]:
        output("restore", tmp_path / "place", tmp_path / name, *options)

        async def read() -> list[es.Event]:
            async with es.open_store(tmp_path / name) as store:
                return [event async for event in store.read_all()]

        return [(each.aggregate_id, each.version, each.commit_continues) for each in trio.run(read)]

    first = [("a-1", 1, True), ("a-2", 1, False)]
    assert restored("a", "--prefix", "a-") == [*first, ("a-2", 2, True), ("a-1", 2, False)]
    assert restored("b", "--prefix", "b-") == [("b-1", 1, False)]
    assert restored("early", "--prefix", "a-", "--until", "4") == first
    assert restored("none", "--prefix", "a-", "--until", "2") == []


def test_a_restore_refuses_to_overwrite_and_what_is_not_a_backup(folder: Path, tmp_path: Path) -> None:
    output("backup", tmp_path / "place", "--data", folder)
    assert "exists; name a folder that does not exist" in refused("restore", tmp_path / "place", folder)
    assert "there is no backup here" in refused("restore", tmp_path / "nowhere", tmp_path / "new")
    assert "expected a sequence" in refused("restore", tmp_path / "place", tmp_path / "new", "--until", "noon", code=2)
    assert "the backup ends at" in refused("restore", tmp_path / "place", tmp_path / "new", "--until", "999999", code=2)
    assert not (tmp_path / "new").exists()
    assert [each.name for each in tmp_path.iterdir() if "restoring" in each.name] == []


def test_a_backup_is_refused_where_nothing_can_be_read_or_added(serve: Serve, folder: Path, tmp_path: Path) -> None:
    assert "no backup here" in refused("backup", tmp_path / "place", "--data", folder, "--incremental")
    assert not (tmp_path / "place").exists()
    assert "give its address by --store" in refused("backup", tmp_path / "place", store="tcp://127.0.0.1:9")
    server = serve(data=tmp_path / "other")
    serve(data=folder)
    other = refused("backup", tmp_path / "place", "--data", folder, store=server.store)
    assert "name a folder of store" in other


def test_linked_files_are_whole_and_said_to_be_no_protection(folder: Path, tmp_path: Path) -> None:
    said = output("backup", tmp_path / "place", "--data", folder, "--link")
    assert "no protection against the disk" in said
    sorted_file = next((tmp_path / "place").glob("shard-0/events/*.events"))
    assert sorted_file.stat().st_ino in {each.stat().st_ino for each in folder.glob("events/*.events")}
    assert "no faults" in output("backup", tmp_path / "place", "--check")


def test_a_check_names_what_is_damaged(folder: Path, tmp_path: Path) -> None:
    output("backup", tmp_path / "place", "--data", folder)
    damaged = next((tmp_path / "place").glob("shard-0/events/*.events"))
    with damaged.open("r+b") as file:
        file.seek(6_000)
        file.write(b"\xff" * 9)
    result = run("backup", tmp_path / "place", "--check")
    assert result.returncode == 1
    assert f"{damaged}: corrupt at byte offset" in result.stdout
    assert "make a new one elsewhere" in result.stdout


def test_the_server_says_how_old_its_backups_are_also_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    server, place = serve("--http", "127.0.0.1:0"), tmp_path / "backup"
    output("backup", place, store=server.store)
    server.stop()
    server = serve("--http", "127.0.0.1:0")
    metrics = urllib.request.urlopen(f"http://{server.opened['http']}/metrics").read().decode()
    assert re.search(rf'^eventstore_backup_age_seconds{{place="{place}"}} \d', metrics, re.M)
    output("backup", place, "--forget", store=server.store)
    assert server.stats()["backups"] == 0


def test_the_drill_of_the_page_succeeds(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    with blocking.connect(server.store) as store:
        fill(store, 0, 50)
    monkeypatch.chdir(tmp_path)
    for line in named_block("sh drill", text_of("docs/OPERATIONS.md")).splitlines():
        command = line.partition("  #")[0].strip()
        assert command.startswith("eventstore ")
        words = shlex.split(command)[1:]
        output(*words, store=server.store if words[0] == "backup" and "--check" not in words else None)
    assert "no faults" in output("verify", tmp_path / "drill")
