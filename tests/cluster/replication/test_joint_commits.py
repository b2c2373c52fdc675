"""Commits of several aggregates in a follower's log: no piece, no end and no recovery lies within one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eventstore.chunks.record import UNORDERED
from eventstore.chunks.slab import walk
from eventstore.errors import Corrupt
from eventstore.model import ANY, NewEvent
from eventstore.records.commit import FRAMING
from eventstore_cluster.replica.places import NOWHERE
from eventstore_cluster.replication.logs.pieces import Payload
from tests.cluster.replication.test_follower_log import Leader, chunks, opened, pull
from tests.simulated_disk import CrashMode, SimulatedCrash, SimulatedDisk
from tests.store.stepped import Stepped, raw, together


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    disk = SimulatedDisk(1)
    Stepped(disk, tmp_path / "created").close()  # by a program that begins format 2
    made = Leader(tmp_path, disk)
    for number in range(12):
        made.store.append(raw("alone", f"c-{number}", NewEvent("A", b"x" * 100)))
        made.ends.append((made.store.engine.front.chunk, made.store.engine.front.end))
        events = [NewEvent("B", b"y" * (50 + 30 * number))]
        made.store.append(together(f"j-{number}", *((f"a-{each}", ANY, events) for each in range(2 + number % 4))))
        made.ends.append((made.store.engine.front.chunk, made.store.engine.front.end))
    assert {header.format for header in made.store.engine.files.headers} == {2}
    return made


@pytest.mark.parametrize("bytes_max", [1, 150, 400, 900, 100_000])
@pytest.mark.parametrize("sort", [False, True])
def test_every_piece_ends_with_a_commit(leader: Leader, bytes_max: int, sort: bool) -> None:
    if sort:
        assert leader.store.sort() > 0
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    ends = {NOWHERE, *leader.ends}
    while piece := leader.reader.after(log.tail.end, log.last_crc, leader.ends[-1], bytes_max):
        log.store(Payload(leader.key, (piece,)))
        assert log.tail.end in ends
    assert log.tail.end == leader.ends[-1]
    if not sort:
        assert chunks(disk, log.tail.end) == chunks(leader.disk, log.tail.end)


def test_a_part_of_a_commit_is_refused(leader: Leader) -> None:
    disk = SimulatedDisk(2)
    log = opened(disk, leader)
    pull(log, leader, until=leader.ends[0])
    piece = leader.reader.after(log.tail.end, log.last_crc, leader.ends[1], 1)
    assert piece is not None
    found = walk(piece.data, piece.offset, UNORDERED, FRAMING)
    assert len(found.offsets) == 2
    part = piece.data[: found.offsets[1] - piece.offset]
    with pytest.raises(Corrupt, match="a part of a commit"):
        log.store(Payload(leader.key, (replace(piece, data=part),)))
    assert log.tail.end == leader.ends[0]


@pytest.mark.parametrize("mode", ["kept", "lost", "sectors"])
def test_after_a_crash_at_any_operation_the_log_ends_with_a_commit(leader: Leader, mode: CrashMode) -> None:
    ends, nth = {NOWHERE, *leader.ends}, 0
    while True:
        nth += 1
        disk = SimulatedDisk(nth)
        log = opened(disk, leader)
        disk.crash_at(nth)
        try:
            pull(log, leader)
        except SimulatedCrash:
            disk = disk.crash(mode)
        else:
            break
        again = opened(disk, leader)
        assert again.tail.end in ends
        pull(again, leader)
        assert chunks(disk, again.tail.end) == chunks(leader.disk, leader.ends[-1])
    assert nth > 20
