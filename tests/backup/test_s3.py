"""Backups in an object store, on moto's server: as in a folder, the manifest on a condition, and no secrets in errors."""

from __future__ import annotations

import http.client
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

import eventstore as es
from eventstore.backup.checking import check_backup, manifest_of
from eventstore.backup.making import Made, make_backup
from eventstore.backup.restoring import Restored, RestoreEnd, restore_shard
from eventstore.backup.s3 import S3Target
from eventstore.errors import Diverged, FolderRefused, InvalidArgument
from tests.backup.stages import Stage, stages
from tests.cli.conftest import SMALL_FILES
from tests.cli.processes import output, refused
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import DATA, Stepped

pytest.importorskip("obstore", reason="needs the extra s3")
moto_server = pytest.importorskip("moto.server", reason="needs moto[server], an S3 server")

SECRET = "a-very-secret-key"
numbers = itertools.count()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    yield port
    server.stop()


@pytest.fixture
def address(port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{next(numbers)}"
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    connection.close()
    return f"s3://{bucket}/shop"


def backed_up(address: str, disk: SimulatedDisk, stage: Stage) -> Made:
    stage.put(disk)
    source, made = stage.source(disk), Made()
    make_backup({0: source}, S3Target(address), made, taken=1)
    source.close()
    return made


def test_each_stage_of_a_store_is_backed_up_and_restored(address: str) -> None:
    disk = SimulatedDisk(1)
    for stage in stages():
        backed_up(address, disk, stage)
        target = S3Target(address)
        assert target.names() == manifest_of(target).objects()
        assert not check_backup(target).faults
        fresh = SimulatedDisk(2)
        restore_shard(target, manifest_of(target).shards[0], fresh, DATA, RestoreEnd(), Restored())
        with TemporaryDirectory() as folder:
            store = Stepped(fresh, Path(folder) / "lmdb")
            assert tuple(store.state()) == stage.events
            store.close()


def test_a_store_of_another_history_is_refused(address: str) -> None:
    disk = SimulatedDisk(1)
    backed_up(address, disk, stages()[2])
    with pytest.raises(Diverged):
        backed_up(address, disk, stages()[1])


def test_of_two_backups_at_the_same_time_one_is_refused(address: str) -> None:
    disk = SimulatedDisk(1)
    backed_up(address, disk, stages()[0])
    one, other = S3Target(address), S3Target(address)
    assert one.manifest() == other.manifest()
    other.replace_manifest(b"{}")
    with pytest.raises(FolderRefused, match="another backup was made here meanwhile"):
        one.replace_manifest(b"[]")
    assert S3Target(address).manifest() == b"{}"


def test_two_first_backups_at_the_same_time_are_one(address: str) -> None:
    one, other = S3Target(address), S3Target(address)
    assert one.manifest() is other.manifest() is None
    one.replace_manifest(b"{}")
    with pytest.raises(FolderRefused, match="meanwhile"):
        other.replace_manifest(b"[]")


def test_what_fails_in_the_middle_leaves_no_object(address: str) -> None:
    target = S3Target(address)

    def parts() -> Iterator[bytes]:
        yield from [bytes(3 * 1024 * 1024)] * 4
        raise OSError("the disk fails")

    with pytest.raises(OSError, match="the disk fails"):
        target.put("shard-0/events/half", parts())
    assert target.names() == set()


def test_an_object_larger_than_a_part_is_read_as_it_was_written(address: str) -> None:
    target, content = S3Target(address), bytes(range(256)) * 80_000
    target.put("shard-0/x", [content[:9_000_000], b"", content[9_000_000:]])
    file = target.open(target.path("shard-0/x"))
    assert file.size() == len(content)
    for offset, length in ((0, 10), (8_388_600, 20), (20_479_990, 50), (4_096, 12_000_000), (len(content), 5)):
        assert file.read_at(offset, length) == content[offset : offset + length]
    file.close()


def test_no_error_has_a_secret(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for refused_one in ("s3://AKID:secret@bucket/x", "s3://", "s3:///x"):
        with pytest.raises(InvalidArgument) as found:
            S3Target(refused_one)
        assert "secret@" not in found.value.message
    with pytest.raises(FolderRefused, match="no such bucket") as missing:
        S3Target("s3://nowhere/x").put("x", [b"1"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{SECRET}.invalid:1")
    with pytest.raises(FolderRefused, match="does not answer as it should") as away:
        S3Target(address).names()
    assert SECRET not in f"{missing.value.message}{away.value.message}"


def test_the_commands_take_a_bucket(address: str, tmp_path: Path) -> None:
    async def fill() -> None:
        async with es.open_store(tmp_path / "data", SMALL_FILES) as store:
            for number in range(500):
                await store.append(f"a-{number % 9}", [es.NewEvent("Happened", b"x" * 300)], es.ANY)
            await store.maintenance.wait_until_sorted()

    trio.run(fill)
    output("backup", address, "--data", tmp_path / "data")
    output("backup", address, "--data", tmp_path / "data", "--incremental")
    assert "no faults" in output("backup", address, "--check")
    output("restore", address, tmp_path / "new")
    assert "no faults" in output("verify", tmp_path / "new")
    assert "leave out --link" in refused("backup", f"{address}/2", "--data", tmp_path / "data", "--link", code=2)
