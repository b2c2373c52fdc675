"""docs/FORMAT.md says how the folder of a replica looks as the code writes it: documents byte for byte, a cut step by step."""

from __future__ import annotations

import json
import secrets
import uuid
from pathlib import Path

import pytest

from eventstore.chunks import witness
from eventstore.chunks.documents import write_document
from eventstore.chunks.files import OsFiles
from eventstore.chunks.opening import LOCK
from eventstore.model import NewEvent
from eventstore.records.cluster_map import ALL_SLOTS
from eventstore.records.commit import FRAMING
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import event_folder
from eventstore.store.opening import open_folder
from eventstore_cluster.nodes.left_folders import LEFT
from eventstore_cluster.nodes.node_file import INTENT as ADOPTING
from eventstore_cluster.nodes.node_file import node_file
from eventstore_cluster.registry.kept_keys import KEPT, Kept, KeptShard
from eventstore_cluster.registry.replicated_keys import ClusterKey, ShardKey
from eventstore_cluster.replica.places import NOWHERE
from eventstore_cluster.replica.registry_state import Seat, ShardState
from eventstore_cluster.replication.logs import cutting, documents, incarnations
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.pieces import Documents
from eventstore_cluster.shard_folders import NODE_FILE
from tests.documents.format_page import blocks, example_bytes, table
from tests.documents.test_format_example import DATA, EVENTS, FIRST, STORE, append, traced
from tests.simulated_disk import SimulatedDisk

JSON = blocks("json")
INTENT = DATA / cutting.INTENT


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimulatedDisk:
    """The example of the page, closed: two commits in chunk 1, one in chunk 2."""
    monkeypatch.setattr(witness, "new_key", lambda: witness.NO_KEY)  # otherwise it is random, and the records with it
    disk = SimulatedDisk(0)
    disk.make_folder(EVENTS)
    event_folder(disk, DATA, STORE).create()
    write_document(disk, DATA / "store.json", {"format": 1, "store": str(STORE), "created": 1_700_000_000_000_000})
    settings = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096, sort=False)
    opened = open_folder(DATA, settings, files=disk, directory=tmp_path, clock=lambda: 1_700_000_000.0)
    append(opened, "order-7", "c-1", NewEvent("OrderPlaced", {"total": 12}))
    append(opened, "order-42", "c-2", NewEvent("OrderPlaced", {"total": 5}, {"by": "web"}), NewEvent("OrderPaid", b"\x01\x02"))
    append(opened, "order-7", "c-3", NewEvent("OrderPrinted", bytes(4000)))
    opened.close()
    return disk


def expanded(mark: str) -> list[str]:
    """The operations of a table of steps; documents and copies are spelled out."""
    replaced = [row[1] for row in table("steps document")]
    found = []
    for operation in [row[1] for row in table(f"steps {mark}")]:
        match operation.split():
            case ["replace", "chunks.json"]:
                found += replaced
            case ["begin", name]:
                begun = [each.replace("chunks.json", name) for each in replaced[4:]]
                found += [each.replace("sync_folder events", "sync_folder data") for each in begun]
            case ["copy", name]:
                made = [f"{each} copy.tmp" for each in ("create", "write_at", "sync")]
                found += [*made, f"rename copy.tmp {name}", "sync_folder cut"]
            case _:
                found.append(operation)
    return found


def intents_of(disk: SimulatedDisk) -> set[str]:
    """Returns the intents that a process which ends at any of the later operations leaves; filled as they come."""
    intents: set[str] = set()

    def look(stopped: SimulatedDisk) -> None:
        left = stopped.survivors("kept")
        if left.exists(INTENT):
            intents.add(left.content(INTENT).decode())

    disk.at_each_operation(look)
    return intents


def test_a_cut_is_made_of_these_steps_and_of_this_intent(disk: SimulatedDisk) -> None:
    intents = intents_of(disk)
    before, folder = disk.content(FIRST), event_folder(disk, DATA, STORE)
    made = traced(disk, lambda: cutting.cut(folder, (1, 4199)))
    assert [each for each in made if not each.startswith("make_folder")] == expanded("cut")
    assert intents == {JSON["cutting.json"]}
    assert disk.content(FIRST)[:128] == example_bytes("header-ongoing")
    assert disk.content(FIRST)[128:] == before[128:4199]
    assert folder.read_document() == (1, 4199)


def test_a_log_that_is_cut_to_nothing_has_an_intent_without_a_header(disk: SimulatedDisk) -> None:
    intents = intents_of(disk)
    folder = event_folder(disk, DATA, STORE)
    cutting.cut(folder, NOWHERE)
    assert intents == {'{\n  "chunk": 0,\n  "end": 0,\n  "kind": 1\n}\n'}
    assert folder.is_unused()


def opened(disk: SimulatedDisk) -> FollowerLog:
    return FollowerLog(event_folder(disk, DATA, STORE), FRAMING, size_bytes=8192, preallocate_bytes=4096)


def test_a_completed_chunk_at_the_end_is_made_ongoing_again_and_an_empty_one_is_removed(disk: SimulatedDisk) -> None:
    folder = event_folder(disk, DATA, STORE)
    disk.remove(folder.chunk_path(2))
    folder.write_document(1)
    assert folder.read_header(1).completed
    assert opened(disk).tail.end == (1, 4331)
    assert disk.content(FIRST)[:128] == example_bytes("header-ongoing")
    header, checksum = folder.read_header(1), 0x49CF07F9 + 0x9C2FAE7E
    empty = type(header)(header.kind, 2, STORE, 1, 4, header.created).encode() + bytes(4096 - 128)
    completed = header.complete(4331, 4, 2, checksum)
    disk.replace(FIRST, completed.encode() + disk.content(FIRST)[128:4331] + completed.footer())
    disk.replace(folder.chunk_path(2), empty)
    assert opened(disk).tail.end == (1, 4331)
    assert not disk.exists(folder.chunk_path(2))
    assert not folder.read_header(1).completed


def test_the_folder_of_a_node_says_whose_it_is_as_the_page_shows(tmp_path: Path) -> None:
    with node_file(tmp_path, "n1") as folder:
        folder.take(STORE)
        assert (tmp_path / NODE_FILE).read_text() == JSON["node.json"]
        assert folder.folder(3).name == "shard-3"


def test_what_a_node_keeps_of_the_registry_is_as_the_page_shows_and_read_again(tmp_path: Path) -> None:
    leader = Seat("n1", "8899aabbccddeeff")
    state = ShardState(4, frozenset({leader}), ("n1", "n2"), 2, leader)
    shard = KeptShard(17, ShardKey(uuid.UUID("10111213-1415-1617-1819-1a1b1c1d1e1f"), ALL_SLOTS, state))
    kept = Kept(ClusterKey(STORE, 1, 2, 2), {0: shard})
    with node_file(tmp_path, "n1") as folder:
        folder.take(STORE)
        folder.keep(kept)
        assert (tmp_path / KEPT).read_text() == JSON["kept.json"]
    with node_file(tmp_path, "n1") as folder:
        assert folder.kept == kept


def test_incarnations_are_those_of_the_page_and_a_copy_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["0011223344556677", "8899aabbccddeeff", "ffeeddccbbaa9988"])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens))  # otherwise it is random
    files, own, copy = OsFiles(), tmp_path / "shard-0", tmp_path / "copy"
    for folder in (own, copy):
        folder.mkdir()
    assert incarnations.next_incarnation(files, own, "n1").earlier == ("new",)
    assert incarnations.next_incarnation(files, own, "n1").earlier == ("new", "0011223344556677")
    written, mark = (own / incarnations.DOCUMENT).read_text(), (own / incarnations.MARK).stat()
    assert written == JSON["replica.json"].replace("4711-1700000000000000000", f"{mark.st_ino}-{mark.st_ctime_ns}")
    (copy / incarnations.DOCUMENT).write_text(written)
    assert incarnations.next_incarnation(files, copy, "n1").earlier == ()


def test_the_version_of_the_documents_and_their_names_are_those_of_the_page(tmp_path: Path) -> None:
    files = OsFiles()
    documents.write_version(files, tmp_path, (4, 17))
    assert (tmp_path / documents.VERSION).read_text() == JSON["replicated.json"]
    assert not documents.FollowerDocuments(files, tmp_path).led
    documents.write_version(files, tmp_path, (4, 17), led=True)
    led = (tmp_path / documents.VERSION).read_text()
    assert json.loads(led) == {**json.loads(JSON["replicated.json"]), "led": True}
    follower = documents.FollowerDocuments(files, tmp_path)
    assert follower.led
    follower.store(Documents((5, 1), ()))
    assert not follower.led
    assert not documents.FollowerDocuments(files, tmp_path).led
    documents.write_version(files, tmp_path, (4, 17))
    assert documents.read_version(files, tmp_path) == (4, 17)
    names = [name for name, _ in table("replicated-documents")]
    assert sorted(names) == sorted([*documents._NAMES, *documents._PATTERNS, "subjects/NNN.json"])
    made = [name.replace("*", "orders").replace("NNN", "007") for name in names]
    assert all(documents.is_replicated(tmp_path, tmp_path / name) for name in made)
    assert not any(documents.is_replicated(tmp_path, tmp_path / name) for name in ("store.json", "broker/broker.json"))


def test_the_names_of_the_page_are_those_of_the_code() -> None:
    own = (incarnations.DOCUMENT, incarnations.MARK, documents.VERSION, cutting.INTENT)
    named = " ".join(row[0] for row in table("replica-files")).replace("`", "").replace(",", "").split()
    assert named == [
        LOCK,
        NODE_FILE,
        KEPT,
        ADOPTING,
        f"{LEFT}/shard-N-TIME",
        "shard-N",
        *(f"shard-N/{name}" for name in own),
        f"shard-N/broker/{cutting.INTENT}",
    ]
