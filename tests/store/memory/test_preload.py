"""The preload file warms a store; a file that cannot be read counts as empty."""

from __future__ import annotations

import errno
import json

import pytest

from eventstore.store.memory.preload import NAME, PreloadFile
from tests.simulated_disk import SimulatedDisk
from tests.store.conftest import Maker, fill
from tests.store.stepped import DATA, raw


def disk_with(content: bytes | None) -> SimulatedDisk:
    disk = SimulatedDisk(0)
    disk.make_folder(DATA)
    if content is not None:
        disk.replace(DATA / NAME, content)
    return disk


def test_ids_are_read_back_unchanged() -> None:
    disk = disk_with(None)
    preload = PreloadFile(disk, DATA)
    assert preload.read() == []
    for names in (["a"], [], ["ü" * 100, "b", "\u2028"]):
        preload.write(names)
        assert preload.read() == names
    assert disk.names(DATA) == [NAME]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"{}",
        b"null",
        b"7",
        b'"a"',
        bytes(500),
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"a": 1}',
        b"[" + b"9" * 10_000 + b"]",
    ],
)
def test_a_damaged_preload_file_counts_as_empty(content: bytes, opened: Maker) -> None:
    assert PreloadFile(disk_with(content), DATA).read() == []
    store = fill(opened())
    state, disk = store.state(), store.disk
    store.close()
    assert isinstance(disk, SimulatedDisk)
    disk.replace(DATA / NAME, content)
    assert opened(disk).state() == state


def test_values_that_are_not_ids_are_ignored() -> None:
    names = ["good", "", "x" * 256, "ü" * 128, 7, None, ["a"], "\ud800", "also good"]
    disk = disk_with(json.dumps(names).encode())
    assert PreloadFile(disk, DATA).read() == ["good", "also good"]


def test_a_failing_disk_only_leaves_the_cache_cold() -> None:
    disk = disk_with(b'["a"]')
    preload = PreloadFile(disk, DATA)
    for operation in ("open", "read_at", "size"):
        disk.fail(operation, 1, errno.EIO)
        assert preload.read() == []
    assert preload.read() == ["a"]
    for operation in ("create", "write_at", "rename", "remove"):
        disk.fail(operation, 1, errno.ENOSPC)
        preload.write(["b"])
    preload.write(["c"])
    assert preload.read() == ["c"]


def test_a_restarted_store_is_warm_before_its_first_request(opened: Maker) -> None:
    store = opened()
    for number in range(60):
        store.append(raw(f"order-{number % 20}", f"command-{number}"))
    store.sort()
    sorted_part = store.engine._unique.sorted_part
    before = {f"order-{number}": sorted_part(f"order-{number}") for number in range(20)}
    store.close()
    store = opened(store.disk)
    assert {name: store.engine.version_cache.get(name) for name in before} == before
    assert store.engine.version_cache.misses == 0
