"""Other accounts cannot read what servers, nodes, embedded stores and commands write, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore.errors import FolderRefused
from eventstore.store.opening import open_folder
from tests.cli.processes import output
from tests.cluster.node_process import NodeProcess
from tests.private_files import modes, open_to_others, umask
from tests.security.access_file import give
from tests.server.outbox.published_shop import Placed
from tests.server.outbox.test_publications import SHOP, append, caught_up
from tests.server_thread import ServerThread
from tests.waiting import wait_until

SMALL = {"file_size_bytes": 65_536, "preallocate_bytes": 4_096}
SMALL_BROKER = {"broker_chunk_size_bytes": 65_536, "broker_preallocate_bytes": 4_096, "broker_queue_chunk_entries": 16}
LARGE = bytes(10_000)


@pytest.fixture(autouse=True)
def _mask_that_hides_nothing() -> Iterator[None]:
    with umask(0):
        yield


def test_what_a_server_writes(tmp_path: Path) -> None:
    data = tmp_path / "in" / "data"
    token = give(data, "ops", "admin")
    with ServerThread(data, domain=SHOP, **SMALL, **SMALL_BROKER) as server:
        with es.blocking.connect(server.address, token=token) as store:
            append(store, "o-1", Placed("Ada", 5))
            for number in range(30):
                store.append(f"a-{number}", [es.NewEvent("Grew", LARGE)], expected_version=0)
            store.broker.create_topic("letters", queues=1)
            for _ in range(30):
                store.topic("letters").send(LARGE)
            with store.consumer("readers", "letters", from_end=False) as consumer:
                next(consumer)
            store.alarms.silence("store_poisoned", 60, who="ada", why="a test")
            wait_until(lambda: caught_up(store), "it is published")
            wait_until(lambda: store.stats()["unsorted_files"] == 1, "full files are sorted")
            assert open_to_others(data) == []
    names = modes(data)
    assert {
        "store.json", "lock", "access.json", "access.json.lock", "recent.json", "silences.json", "events/chunks.json",
        "events/0000000001.events", "events/0000000001.index", "directory/data.mdb", "directory/lock.mdb", "broker/topics.json",
        "broker/offsets.json",
    } <= names.keys()  # fmt: skip
    assert open_to_others(data) == []
    assert names["."] == 0o700
    assert names["store.json"] == 0o600
    assert names["directory"] == 0o700


def test_what_a_node_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, shards=2) as node, es.blocking.connect(node.address) as store:
        store.append("a", [es.NewEvent("Grew", b"1")], expected_version=0)
        assert open_to_others(data) == []
    assert open_to_others(data) == []


async def test_what_an_embedded_store_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with es.open_store(data, es.StoreSettings(**SMALL)) as store:
        for number in range(30):
            await store.append(f"a-{number}", [es.NewEvent("Grew", LARGE)], expected_version=0)
    assert open_to_others(data) == []


def test_what_commands_write(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerThread(tmp_path / "data") as server, es.blocking.connect(server.address) as store:
        store.append("a", [es.NewEvent("Grew", b"{}")], expected_version=0)
        left = tmp_path / "all.jsonl.part"  # by an export that was killed
        left.touch(0o666)
        left.chmod(0o666)
        output("export", "-o", str(tmp_path / "all.jsonl"), "--store", server.address)
    assert os.stat(tmp_path / "all.jsonl").st_mode & 0o777 == 0o600
    output("rebuild", str(data))
    assert open_to_others(data) == []


def test_a_folder_that_others_may_enter_is_closed_to_them_when_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    data.mkdir(0o755)
    (data / "events").mkdir(0o755)
    with ServerThread(data):
        assert modes(data)["."] == 0o700
    assert f"{data} had mode 755 and has 700 now: it is not for other accounts of this machine" in caplog.text
    caplog.clear()
    with ServerThread(data):
        assert "other accounts" not in caplog.text


def test_a_node_closes_its_own_folder_as_well(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(0o777)
    with NodeProcess(data, shards=1):
        assert modes(data)["."] == 0o700


def test_a_folder_that_is_refused_keeps_its_mode(tmp_path: Path) -> None:
    data = tmp_path / "home"
    data.mkdir(0o755)
    (data / "letter").touch()
    with pytest.raises(FolderRefused):
        open_folder(data, es.StoreSettings())
    assert modes(data)["."] == 0o755


def test_a_group_may_read_a_folder_that_is_made_for_it_and_never_the_identities(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o2770)
    give(data, "ops", "admin")
    token = give(data, "writer", "writer")
    with umask(0o022), ServerThread(data, **SMALL) as server:
        with es.blocking.connect(server.address, token=token) as store:
            for number in range(30):
                store.append(f"a-{number}", [es.NewEvent("Grew", LARGE)], expected_version=0)
    found = modes(data)
    secret = {name: found.pop(name) for name in ("access.json", "access.json.previous")}
    assert set(secret.values()) == {0o600}
    assert {name: mode for name, mode in found.items() if mode not in (0o2750, 0o640)} == {}


def test_a_store_is_as_private_in_a_folder_that_a_group_may_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o750)
    with ServerThread(home / "data"):
        assert open_to_others(home / "data") == []
