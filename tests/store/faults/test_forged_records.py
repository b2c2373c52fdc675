"""An event or a message that holds forged records, torn at any byte, does not keep a store from starting."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from eventstore.chunks.record import CRC_FROM, MARK, PREFIX, TRAILER, TRAILER_MARK
from eventstore.errors import Corrupt
from eventstore.model import NewEvent
from eventstore.records import commit, message
from tests.broker.stepped import Stepped as SteppedBroker
from tests.broker.stepped import raw as raw_message
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import EVENTS, SMALL, Stepped, raw

KIB = 1024
FIRST = EVENTS / "0000000001.events"
MESSAGES = Path("/data/messages/0000000001.messages")
LARGE = replace(SMALL, file_size_bytes=4 * KIB * KIB, preallocate_bytes=64 * KIB)


def forged(header_bytes: int, bytes_: int) -> bytes:
    """Returns good records that each claim that the file was durable up to another byte before them."""
    made = []
    length = header_bytes + TRAILER.size
    for place in range(bytes_ // length):
        durable = 4096 + place * length
        head = PREFIX.struct.pack(MARK, header_bytes - 2, 0, 0, length, durable, 10**6, 1, 1).ljust(header_bytes, b"\0")
        record = bytearray(head + TRAILER.struct.pack(TRAILER_MARK, length))
        struct.pack_into("<I", record, 2, crc32c(bytes(record[CRC_FROM:])))
        made.append(bytes(record))
    return b"".join(made)


@pytest.mark.parametrize("seed", range(3))
def test_a_torn_event_that_holds_forged_records_is_cut(tmp_path: Path, seed: int) -> None:
    disk, choose = SimulatedDisk(seed), random.Random(seed)
    store = Stepped(disk, tmp_path / "lmdb", LARGE)
    store.append(raw("a-1", "c-1"))
    end = store.engine.front.end
    store.append(raw("a-1", "c-2", NewEvent("Forged", forged(commit.HEADER_BYTES, 256 * KIB))))
    after = store.engine.front.end
    store.abandon()
    content = disk.content(FIRST)
    for cut in sorted(choose.sample(range(end + 1, after), 6)):
        torn = disk.crash("kept")
        torn.replace(FIRST, content[:cut])
        again = Stepped(torn, tmp_path / "lmdb", LARGE)
        assert [event.command_id for event in again.state()] == ["c-1"]
        again.append(raw("a-1", "c-3"))
        again.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_torn_message_that_holds_forged_records_is_cut(seed: int) -> None:
    disk = SimulatedDisk(seed)
    broker = SteppedBroker(disk)
    broker.topic()
    broker.send(raw_message(b"first"))
    end = broker.engine.front.end
    broker.send(raw_message(forged(message.HEADER_BYTES, 1536)))
    after = broker.engine.front.end
    content = disk.content(MESSAGES)
    for cut in range(end + 1, after, 100):
        torn = disk.crash("kept")
        torn.replace(MESSAGES, content[:cut])
        again = SteppedBroker(torn)
        assert again.engine.front.end == end
        again.engine.close()


def test_rot_before_an_acknowledged_commit_is_refused_although_it_holds_forged_records(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    store = Stepped(disk, tmp_path / "lmdb", LARGE)
    start = store.engine.front.end if store.engine.front.chunk else 4096
    store.append(raw("a-1", "c-1", NewEvent("Forged", forged(commit.HEADER_BYTES, 64 * KIB))))
    store.append(raw("a-1", "c-2"))
    store.abandon()
    rotten = disk.crash("kept")
    content = bytearray(rotten.content(FIRST))
    content[start + 30_000] ^= 1
    rotten.replace(FIRST, bytes(content))
    with pytest.raises(Corrupt, match="nothing was cut"):
        Stepped(rotten, tmp_path / "lmdb", LARGE)


def test_a_folder_of_an_older_program_goes_on_and_is_protected_from_the_first_start_on(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    store = Stepped(disk, tmp_path / "lmdb", LARGE)
    store.engine.front.key = store.engine.writer.key = b""  # as older programs wrote
    store.append(raw("a-1", "c-1"))
    store.abandon()
    assert b"witness_key" not in disk.content(EVENTS / "chunks.json")
    disk = disk.crash("kept")
    second = Stepped(disk, tmp_path / "lmdb", LARGE)
    assert b"witness_key" in disk.content(EVENTS / "chunks.json")
    second.append(raw("a-1", "c-2"))
    second.append(raw("a-1", "c-3", NewEvent("Forged", forged(commit.HEADER_BYTES, 64 * KIB))))
    after = second.engine.front.end
    second.abandon()
    disk = disk.crash("kept")
    disk.replace(FIRST, disk.content(FIRST)[: after - 100])
    third = Stepped(disk, tmp_path / "lmdb", LARGE)
    assert [event.command_id for event in third.state()] == ["c-1", "c-2"]
    third.close()


def test_each_start_draws_another_key(tmp_path: Path) -> None:
    disk = SimulatedDisk(0)
    keys = set()
    for number in range(3):
        store = Stepped(disk, tmp_path / "lmdb")
        store.append(raw("a-1", f"c-{number}"))
        keys.add(store.engine.writer.key)
        store.close()
    assert len(keys) == 3
