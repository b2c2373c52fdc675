"""A shard is copied out of a cluster as a store of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import eventstore as es
from eventstore.blocking import connect
from eventstore.chunks.files import OsFiles
from eventstore.protocol.answers import Ok
from eventstore.protocol.reaction_requests import RecordParking
from eventstore.store.verification import verify
from tests.cli.processes import run
from tests.cluster.node_process import NodeProcess
from tests.records.parking_fields import unparked
from tests.server.commands.tallies import AddOften, Raise
from tests.server.raw import RawClient
from tests.server_process import ServerProcess

TALLIES = "tests.server.commands.tallies:app"


def extract(address: str, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run("cluster", "extract", *words, store=address)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NodeProcess:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data", 2) as node:
        with connect(node.address) as store:
            for number in range(60):
                events = [es.NewEvent("Made", {"total": number}, {"by": "web"}), es.NewEvent("Paid", bytes([number, 255]))]
                store.append(f"a-{number}", events, 0, command_id=f"c-{number}")
                store.append(f"a-{number}", [es.NewEvent("Shipped", b"")], 2)
        yield node


def test_an_extract_is_served_and_has_the_events_of_the_shard_byte_for_byte(node: NodeProcess, tmp_path: Path) -> None:
    done = json.loads(extract(node.address, "1", str(tmp_path / "one"), "--json").stdout)
    with connect(node.address) as cluster:
        own = list(cluster.shards[1].read_all())
        position = es.Position.parse(done["position"])
        assert list(cluster.shards[1].read_all(after=position)) == []
    assert (done["shard"], done["events"], done["sequence"]) == (1, len(own), own[-1].sequence)
    assert verify(tmp_path / "one").sound
    with ServerProcess(tmp_path / "one") as server, connect(server.address) as store:
        copied = list(store.read_all())
        assert [tuple(event)[:7] for event in copied] == [tuple(event)[:7] for event in own]
        assert [event.sequence for event in copied] == list(range(1, len(own) + 1))
        first = own[0]
        again = store.find_command(first.aggregate_id, first.command_id)
        assert again is not None
        assert again.version == 2, "both events of its commit"
        assert store.append(first.aggregate_id, [es.NewEvent("More", b"")], 3).version == 4


def test_what_is_left_out_is_counted_so_that_the_sum_is_what_the_status_shows(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", 1) as node:
        (row,) = node.rows()
        with connect(node.address) as store:
            store.append("a", [es.NewEvent("Made")] * 3, 0)
        with RawClient(int(str(row.leader).rpartition(":")[2])) as client:
            assert isinstance(client.ask(RecordParking("$parked{a}", "$Unparked", unparked())), Ok)
        (row,) = node.rows()
        said = extract(node.address, "0", str(tmp_path / "zero")).stdout
        done = json.loads(extract(node.address, "0", str(tmp_path / "again"), "--json").stdout)
    assert row.events == 4
    assert f"3 events of shard 0, up to its sequence 4, are in {tmp_path / 'zero'}; 1 is left out" in said
    assert (done["events"], done["sequence"], done["left_out"]) == (3, 4, 1)


def test_an_extract_knows_the_commands_that_its_commits_were_made_for(tmp_path: Path) -> None:
    """The amounts lead to equal events: only the fingerprint tells the commands apart."""
    with NodeProcess(tmp_path / "data", 1, domain=TALLIES) as node, connect(node.address) as store:
        store.append("b", [es.NewEvent("Appended", b"1")], 0, command_id="plain")
        for tally in ("t", "u"):
            store.send(Raise(tally, 5), command_id="c-1")
            store.send(AddOften(tally, 3), command_id="c-2")
        extract(node.address, "0", str(tmp_path / "one"))
    with ServerProcess(tmp_path / "one", domain=TALLIES) as server, connect(server.address) as store:
        for tally in ("t", "u"):
            for command, command_id in ((Raise(tally, 5), "c-1"), (AddOften(tally, 3), "c-2")):
                again = store.send(command, command_id=command_id)
                assert isinstance(again, es.Committed)
                assert again.duplicate
            for command, command_id in ((Raise(tally, 6), "c-1"), (AddOften(tally, 4), "c-2")):
                with pytest.raises(es.CommandIdReused):
                    store.send(command, command_id=command_id)
        assert store.append("b", [es.NewEvent("Appended", b"1")], 0, command_id="plain").duplicate


def test_what_cannot_be_extracted_is_refused_and_leaves_nothing(node: NodeProcess, tmp_path: Path) -> None:
    assert "there is no shard 7; the shards are: 0, 1" in extract(node.address, "7", str(tmp_path / "seven"), code=2).stderr
    (tmp_path / "there").mkdir()
    assert "exists; name a folder that does not exist" in extract(node.address, "1", str(tmp_path / "there"), code=1).stderr
    assert "create it first" in extract(node.address, "1", str(tmp_path / "not/there"), code=1).stderr
    with ServerProcess(tmp_path / "single") as server:
        assert "this is a single store" in extract(server.address, "0", str(tmp_path / "zero"), code=2).stderr
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"there", "single"}


def test_a_folder_that_another_process_fills_is_refused_and_left_alone(node: NodeProcess, tmp_path: Path) -> None:
    filled = tmp_path / "one.extracting"
    filled.mkdir()
    lock = OsFiles().lock(filled / "lock")
    (filled / "store").mkdir()
    assert "in use by process" in extract(node.address, "1", str(tmp_path / "one"), code=1).stderr
    assert (filled / "store").is_dir()
    lock.release()  # as if it was killed
    extract(node.address, "1", str(tmp_path / "one"))
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
