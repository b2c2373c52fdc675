"""Message chunks and queue chunks on disk: maps and their watermarks, damage, refused folders."""

from __future__ import annotations

import os
import uuid
from array import array
from dataclasses import dataclass
from pathlib import Path

import pytest

from eventstore.broker.log.engine import MessageEngine
from eventstore.broker.log.memory_pressure import memory_used
from eventstore.broker.log.message_files import WARMED_CHUNKS
from eventstore.broker.log.queue_chunks import DOCUMENT, QueueChunks
from eventstore.broker.log.queue_reader import QueueRead
from eventstore.broker.opening import open_broker_folder
from eventstore.errors import Corrupt, FolderRefused, InvalidArgument, ReadFailed
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import DATA, Stepped, numbered, raw
from tests.simulated_disk import SimulatedDisk

FIRST = DATA / "messages" / "0000000001.messages"
QUEUE = DATA / "queues" / "0000000001-00000" / "0000000001.queue"


@dataclass
class Machine:
    """Memory and time, as set by a test."""

    used: float = 0.0
    now: float = 1_000.0


def filled(machine: Machine | None = None, seed: int = 0) -> tuple[Stepped, SimulatedDisk]:
    """Two hundred messages over several chunks, all but the last few in the queue index."""
    machine, disk = machine or Machine(), SimulatedDisk(seed)
    broker = Stepped(disk, clock=lambda: machine.now, memory=lambda: machine.used)
    broker.topic()
    broker.send(*numbered(200))
    broker.index()
    return broker, disk


def test_a_chunk_is_mapped_while_it_is_read_and_released_when_memory_is_short() -> None:
    machine = Machine()
    broker, _ = filled(machine)
    files = broker.engine.files
    broker.messages()
    assert files.mapped == list(range(1, files.last)), "all but the current one"
    machine.now += 100
    assert files.release_idle() == [], "there is enough memory"
    machine.used = 0.5
    broker.pull(0, messages_max=1)
    assert files.release_idle() == list(range(2, files.last))
    assert files.mapped == [1], "it is in use"
    machine.used = 0.8
    assert len(broker.messages()) == 200
    assert files.mapped == [1], "above the second watermark no chunk is mapped"


def test_the_last_three_chunks_are_read_ahead_within_the_limits() -> None:
    disk, machine = SimulatedDisk(0), Machine()
    broker = Stepped(disk, clock=lambda: machine.now, memory=lambda: machine.used)
    broker.topic()
    broker.send(*numbered(400))
    broker.index()
    broker = broker.reopen()
    files, visible = broker.engine.files, broker.engine.visible_position
    assert len(files.headers) > WARMED_CHUNKS
    sizes = [header.end for _, header in sorted(files.headers.items())[-3:-1]]
    written = visible & 0xFFFFFFFF
    assert files.warm(1 << 30, visible, lambda: False) == 0
    assert files.warm(100, visible, lambda: True) == 100
    assert files.mapped == []
    assert files.warm(1 << 30, visible, lambda: True) == sum(sizes) + written
    assert files.mapped == [files.last - 2, files.last - 1]
    machine.used = 0.8
    assert files.warm(1 << 30, visible, lambda: True) == 0


def test_the_used_memory_of_the_machine_is_a_share() -> None:
    assert 0 < memory_used() < 1


def mapped_kib(path: Path) -> int:
    """Returns how many bytes of a file are in this process's memory, as the kernel reports; -1 if it is not mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    found = [place for place, line in enumerate(lines) if line.endswith(str(path))]
    return (
        sum(int(next(line for line in lines[place:] if line.startswith("Rss:")).split()[1]) for place in found) if found else -1
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="no /proc/self/smaps")
@pytest.mark.parametrize(
    ("release_above", "map_below"), [(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)], ids=["short", "plenty", "far too short"]
)
def test_chunks_are_in_real_memory_between_the_watermarks(release_above: float, map_below: float, tmp_path: Path) -> None:
    """Uses the memory of this machine, which is certainly above a watermark of 0 and below one of 1."""
    opened = open_broker_folder(
        tmp_path,
        BrokerSettings(
            chunk_size_bytes=262_144, preallocate_bytes=4096, recent_messages_max=0, idle_release_s=0,
            release_above=release_above, map_below=map_below,
        ),
    )  # fmt: skip
    opened.topics.create("orders", 1)
    engine: MessageEngine = opened.engine
    engine.send(opened.topics.get("orders"), numbered(600, size=500))
    while (segment := engine.take()) is not None:
        engine.write(segment)
        engine.mark_written(segment, durable=True)
    chunk = tmp_path / "messages" / "0000000001.messages"
    page: QueueRead = engine.reader.pull(engine.queues[1, 0], 0, engine.visible_position, 400, 1 << 20)
    assert (page.count, len(page.records) > 200_000) == (400, True)
    if not map_below:
        assert mapped_kib(chunk) == -1
    else:
        assert mapped_kib(chunk) >= 195, "the bytes that were read"
        assert engine.files.release_idle() == ([] if release_above else [1])
        assert (mapped_kib(chunk) == -1) == (not release_above)
    opened.close()
    assert mapped_kib(chunk) == -1


@pytest.mark.parametrize("byte", [0, 1, 120])
def test_rot_in_a_message_is_reported_with_file_and_offset_and_its_neighbours_are_readable(byte: int) -> None:
    broker, disk = filled()
    messages = broker.messages()
    victim = messages[3]
    disk.flip(FIRST, (victim.position & 0xFFFFFFFF) + byte, 3)
    broker.engine.files.close()
    assert broker.bodies(offset=4) == [message.body for message in messages[4:]]
    assert broker.pull(0, messages_max=3).count == 3
    with pytest.raises(Corrupt) as error:
        broker.pull(3)
    assert (error.value.file, error.value.offset) == (str(FIRST), victim.position & 0xFFFFFFFF)


@pytest.mark.parametrize("used", [0.0, 1.0], ids=["mapped", "by position"])
def test_a_read_that_fails_is_an_error_and_not_an_empty_answer(used: float) -> None:
    broker, disk = filled(Machine(used))
    broker.engine.files.close()
    disk.fail("open", 1, 5, times=1000, path_contains=".messages")
    disk.fail("read_at", 1, 5, times=1000, path_contains=".messages")
    with pytest.raises(ReadFailed):
        broker.pull(0)


def test_rot_anywhere_in_a_queue_chunk_is_noticed_and_the_index_is_rebuilt_from_the_messages() -> None:
    for bit in range(8):
        broker, disk = filled()
        for byte in range(32):
            disk.flip(QUEUE, 4096 + 5 * 32 + byte, bit)
            broker.engine.index._pages.clear()
            with pytest.raises(Corrupt) as error:
                broker.pull(0, tags="a")
            assert error.value.offset == 4096 + 5 * 32
            disk.flip(QUEUE, 4096 + 5 * 32 + byte, bit)
        disk.flip(QUEUE, 4096 + 5 * 32 + 20, bit)
        broker.close()
        disk.remove(DATA / DOCUMENT)
        again = Stepped(disk)
        again.index()
        assert len(again.messages()) == 200
        again.reopen().close()


def test_a_queue_chunk_of_another_queue_is_noticed() -> None:
    broker, disk = filled()
    broker.send(*(raw(bytes(300), queue=1) for _ in range(60)))
    broker.index()
    other = DATA / "queues" / "0000000001-00001" / QUEUE.name
    disk.replace(QUEUE, disk.content(other))
    broker.engine.index._pages.clear()
    with pytest.raises(Corrupt):
        broker.pull(0)


def test_a_queue_chunk_is_completed_when_it_is_full() -> None:
    broker, disk = filled()
    header = disk.content(QUEUE)[:128]
    assert int.from_bytes(header[12:14], "little") == 1
    assert len(disk.content(QUEUE)) == 4096 + 16 * 32 + 64
    assert int.from_bytes(header[72:80], "little") == 4096 + 16 * 32
    broker.close()


def test_rot_in_the_last_chunk_is_reported_at_opening_and_nothing_is_cut() -> None:
    broker, disk = filled()
    last = DATA / "messages" / f"{broker.engine.files.last:010d}.messages"
    broker.close()
    disk.flip(last, 4200, 0)
    before = disk.content(last)
    with pytest.raises(Corrupt):
        Stepped(disk)
    assert disk.content(last) == before


@pytest.mark.parametrize("name", ["broker.json", "topics.json", "messages/chunks.json", "messages/0000000002.messages"])
def test_a_folder_with_a_missing_file_is_refused_and_not_initialised_again(name: str) -> None:
    broker, disk = filled()
    broker.close()
    disk.remove(DATA / name)
    with pytest.raises((FolderRefused, FileNotFoundError)) as error:
        Stepped(disk)
    assert Path(name).name in str(error.value)


def test_a_second_broker_on_the_same_folder_is_refused() -> None:
    _, disk = filled()
    with pytest.raises(FolderRefused, match="in use"):
        Stepped(disk)


@pytest.mark.parametrize(
    "change", [{"chunk_size_bytes": 1}, {"durability": "maybe"}, {"retry_delays_s": ()}, {"retained_age_s": 0}]
)
def test_settings_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        BrokerSettings(**change)  # type: ignore[arg-type]


def test_a_queue_chunk_may_begin_behind_messages_that_were_deleted() -> None:
    index = QueueChunks(SimulatedDisk(1), Path("/b"), uuid.UUID(int=1), 10)
    for first in (13, 15):
        index.write((7, 0), first, *(array(code, [first, first + 1]) for code in "QIII"))
    assert index.entries((7, 0), 13, 17)["position"].tolist() == [14, 15, 16, 17]
    assert index.covers((7, 0), 13, 17)
