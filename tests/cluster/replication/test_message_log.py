"""The log of messages at a follower: state records, epochs that begin with a chunk, and chunks that the leader has deleted."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.opening import BrokerIdentity, message_folder, open_broker_folder
from eventstore.chunks.files import OsFiles
from eventstore.records.message import FRAMING
from eventstore.settings.broker import BrokerSettings
from eventstore_cluster.replica.places import LogEnd
from eventstore_cluster.replication.logs.follower_log import FollowerLog
from eventstore_cluster.replication.logs.log_reader import LogReader
from eventstore_cluster.replication.logs.pieces import Payload

BROKER = BrokerIdentity(uuid.UUID(int=7), 1)
SETTINGS = BrokerSettings(chunk_size_bytes=4096 + 2000, preallocate_bytes=4096)


@asynccontextmanager
async def leader(path: Path, epoch: int = 1) -> AsyncIterator[Broker]:
    async with open_broker(path, SETTINGS, identity=BROKER, epoch=epoch) as broker:
        yield broker


async def send(broker: Broker, count: int) -> None:
    for number in range(count):
        await broker.send_many("orders", [(b"x" * 200, None, None, None, None), (b"%d" % number, None, None, None, None)])


def end_of(broker: Broker) -> LogEnd:
    return broker.engine.front.chunk, broker.engine.front.end


def follower(path: Path) -> FollowerLog:
    if not path.exists():
        open_broker_folder(path, SETTINGS, identity=BROKER).close()
    folder = message_folder(OsFiles(), path, BROKER.store)
    return FollowerLog(folder, FRAMING, size_bytes=SETTINGS.chunk_size_bytes, preallocate_bytes=4096)


def pull(log: FollowerLog, broker: Broker, pieces: int = 10_000) -> None:
    reader = LogReader(broker.engine.files.folder, FRAMING)
    for _ in range(pieces):
        piece = reader.after(log.tail.end, log.last_crc, end_of(broker), 700)
        if piece is None:
            return
        log.store(Payload(broker.engine.writer.key, (piece,)))


async def test_an_epoch_begins_with_a_chunk_and_its_state_alone(tmp_path: Path) -> None:
    log = follower(tmp_path / "follower")
    for epoch in (1, 2, 3):
        async with leader(tmp_path / "leader", epoch) as broker:
            before = end_of(broker)
            broker.committer.begin_chunk()
            await broker.committer.drain()
            assert end_of(broker)[0] == before[0] + 1
            if epoch == 2:
                await broker.administration.create_topic("orders", 1)
                await send(broker, 2)
            pull(log, broker)
            assert log.tail.end == end_of(broker)
    assert [each.epoch for each in log.tail.beginnings] == [1, 2, 3]
    log.close()
    again = follower(tmp_path / "follower")
    assert again.tail == log.tail
    again.close()


async def test_a_follower_that_is_behind_what_the_leader_deleted_goes_on_after_it(tmp_path: Path) -> None:
    behind, new = follower(tmp_path / "behind"), follower(tmp_path / "new")
    async with leader(tmp_path / "leader") as broker:
        await broker.administration.create_topic("orders", 1)
        await send(broker, 30)
        pull(behind, broker, pieces=3)
        last = end_of(broker)[0]
        assert behind.tail.end[0] < 3 < last - 2
        broker.engine.delete_chunks(3)
        for log in (behind, new):
            pull(log, broker)
            assert log.tail.end == end_of(broker)
            assert not log.folder.chunk_path(3).exists()
            assert [header.number for header in log.folder.headers()] == list(range(4, last + 1))
        behind.delete_through(5)
        behind.delete_through(100)  # never the last one
        assert [header.number for header in behind.folder.headers()] == [last]
        behind.cut((0, 0))
        pull(behind, broker)
        assert behind.tail.end == end_of(broker)
        for log in (behind, new):
            log.close()
            assert FollowerLog(log.folder, FRAMING, size_bytes=6096, preallocate_bytes=4096).tail == log.tail
