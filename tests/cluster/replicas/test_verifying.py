"""A byte of a sorted file of a replica changes on its disk: it is found, and the file of another replica takes its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore.store.verification import verify
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.replicas.three_nodes import ThreeNodes
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy
SETTINGS = {"file_size_bytes": 32 * 1024, "preallocate_bytes": 16 * 1024, "verify_rate": 4 << 30}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[ThreeNodes]:
    with ThreeNodes(tmp_path_factory.mktemp("verified"), etcd, "verified", **SETTINGS) as nodes:
        with nodes.client() as store:
            for number in range(200):
                store.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        for name in nodes.nodes:
            wait_until((first_file(nodes, name).with_suffix(".index")).exists, f"{name} sorts a file")
        yield nodes


def first_file(nodes: ThreeNodes, name: str) -> Path:
    return nodes.folder / name / "shard-0/events/0000000001.events"


def flip(path: Path, offset: int = 9000) -> bytes:
    """Changes a byte in place. Returns what the file was."""
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes([good[offset] ^ 1]))
    return good


def metric(nodes: ThreeNodes, name: str, what: str) -> float:
    (line,) = (each for each in nodes.nodes[name].metrics().splitlines() if each.startswith(f"eventstore_{what}{{"))
    return float(line.rpartition(" ")[2])


def mended(nodes: ThreeNodes, name: str, good: bytes) -> bool:
    path = first_file(nodes, name)
    return path.read_bytes() == good and len(list((path.parents[1] / "cut").glob("*-rot-*"))) == 1


@pytest.mark.long
def test_rot_at_a_follower_is_replaced_by_the_leaders_file_and_counted(three: ThreeNodes) -> None:
    name = three.followers()[0]
    wait_until(lambda: metric(three, name, "verified_bytes_total") > 0, "files are read")
    good = flip(first_file(three, name))
    wait_until(lambda: mended(three, name, good), "the file is as it was")
    wait_until(lambda: metric(three, name, "rot_mended_total") == 1, "it is counted")
    assert metric(three, name, "rot_found_total") == 1
    assert metric(three, name, "rot_files") == 0
    (said,) = three.nodes[name].said("rot")
    assert "corrupt at byte offset" in said["error"]
    assert three.nodes[name].said("rot was mended")


@pytest.mark.long
def test_a_leader_with_rot_hands_over_and_mends_it_as_a_follower(three: ThreeNodes) -> None:
    name = three.leader()
    good = flip(first_file(three, name))
    wait_until(lambda: three.leader() != name, "another replica leads")
    wait_until(lambda: mended(three, name, good), "the file is as it was")
    three.wait_until_in_sync()
    with three.client() as store:
        assert len(list(store.read_all())) == 200


@pytest.mark.long
def test_a_file_that_a_replica_has_lost_is_fetched_before_it_starts_and_counted(three: ThreeNodes) -> None:
    name = three.followers()[0]
    good = first_file(three, name).read_bytes()
    three.stop(name)
    first_file(three, name).unlink()
    three.start(name)
    three.wait_until_in_sync()
    assert first_file(three, name).read_bytes() == good
    assert metric(three, name, "rot_found_total") == metric(three, name, "rot_mended_total") == 1
    assert metric(three, name, "rot_files") == 0
    (said,) = three.nodes[name].said("rot")
    assert said["error"] == f"{first_file(three, name)} is missing"
    assert three.nodes[name].said("rot was mended")


@pytest.mark.long
def test_a_lost_file_that_only_a_leader_has_which_waits_for_its_loser_is_fetched(tmp_path: Path, etcd: Etcd) -> None:
    with ThreeNodes(tmp_path, etcd, "lost", replicas=2, **SETTINGS) as nodes:
        with nodes.client() as store:
            for number in range(200):
                store.append(f"a-{number}", [es.NewEvent("Counted", bytes(500))], 0)
        names = nodes.state().replicas
        for name in names:
            wait_until((first_file(nodes, name).with_suffix(".index")).exists, f"{name} sorts a file")
        loser = next(name for name in names if name != nodes.leader())
        lost = first_file(nodes, loser)
        good = lost.read_bytes()
        for name in names:
            nodes.stop(name)
        kept = lost.rename(nodes.folder / "kept")
        for name in names:
            nodes.start(name)
        nodes.wait_until_in_sync()
        assert lost.read_bytes() == good
        with nodes.client() as store:
            assert len(list(store.read_all())) == 200
        other = first_file(nodes, next(name for name in names if name != loser))
        for name in names:
            nodes.stop(name)
        lost.unlink()
        other.unlink()
        for name in names:
            nodes.start(name)
        refused = f"{lost}: is missing; restore it. Nothing was changed"
        wait_until(lambda: refused in nodes.nodes[loser].attention(), "no replica has it, and health names it")
        kept.rename(lost)
        nodes.wait_until_in_sync()
        assert other.read_bytes() == good


@pytest.mark.long
def test_rot_that_no_replica_can_mend_degrades_health_until_one_is_restored(three: ThreeNodes) -> None:
    paths = [first_file(three, each).with_name("0000000002.events") for each in three.nodes]
    for path in paths:
        wait_until(path.with_suffix(".index").exists, f"{path} is sorted")
    good = paths[0].read_bytes()
    for path in paths:
        flip(path, offset=8000)
    led = three.leader()
    said = "0000000002.events"
    wait_until(lambda: all(said in str(each.health()["attention"]) for each in three.nodes.values()), "health names the file")
    assert three.leader() == led, "no replica has it sound, so none is handed over to"
    name = three.followers()[1]
    (three.folder / name / "shard-0/events/0000000002.events").write_bytes(good)
    wait_until(lambda: three.leader() == name, "the one that was restored leads")
    wait_until(lambda: all(path.read_bytes() == good for path in paths), "the others have it from the one that was restored")
    wait_until(lambda: three.nodes[name].health()["attention"] is None, "nothing needs attention")
    for each in list(three.nodes):
        three.stop(each)
        assert verify(three.folder / each / "shard-0").sound
