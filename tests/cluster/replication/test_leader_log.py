"""The log of a leader beside its store: what followers lack, and what is found while nothing may be written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore.chunks.files import OsFiles
from eventstore.errors import CommandIdReused, EventStoreError, NotEnoughReplicas
from eventstore.records.commit import FRAMING
from eventstore.settings.store import StoreSettings
from eventstore.store.data_folder import event_folder, read_identity
from eventstore.store.embedded import EmbeddedStore
from eventstore.store.open_store import open_store
from eventstore_cluster.replica.places import NOWHERE, LogEnd
from eventstore_cluster.replication.logs.leader_log import LeaderLog
from eventstore_cluster.replication.logs.log_reader import LogReader

SETTINGS = StoreSettings(file_size_bytes=8192, preallocate_bytes=4096)
REFUSAL = NotEnoughReplicas("too few", needed=2, have=1)


class Led:
    """A store and its log. While `held`, nothing that is written is committed; `refusal`: why nothing may be written."""

    def __init__(self, folder: Path, end: LogEnd, last_crc: int) -> None:
        self.held = False
        self.refusal: EventStoreError | None = None
        self.ends: list[LogEnd] = [end]
        self.reader = LogReader(event_folder(OsFiles(), folder, read_identity(OsFiles(), folder)), FRAMING)
        self.log = LeaderLog(
            self.reader, lambda: self.store.engine.writer.key, end, last_crc,
            grown=lambda: self.ends.append(self.log.end), durable=self.commit, failed=self._fail,
            refusal=lambda: self.refusal, shortage=lambda: None, durability=lambda: 1,
        )  # fmt: skip
        self.store: EmbeddedStore

    def commit(self) -> None:
        if not self.held:
            self.store.committer.commit(*self.log.synced)

    def _fail(self, error: EventStoreError) -> None:
        raise error

    async def append(self, number: int, size: int = 500, command: str | None = None) -> es.Committed:
        event = es.NewEvent("Counted", b"x" * size)
        return await self.store.append(f"a-{number:02}", [event], es.ANY, command or f"c-{number:02}")


@asynccontextmanager
async def led(folder: Path, end: LogEnd = NOWHERE, last_crc: int = 0) -> AsyncIterator[Led]:
    if end == NOWHERE:
        async with open_store(folder, SETTINGS):
            pass
    leader = Led(folder, end, last_crc)
    async with open_store(folder, SETTINGS, epoch=1, replication=leader.log) as store:
        leader.store = store
        yield leader


async def test_what_a_follower_lacks_is_counted_over_all_files_also_of_earlier_leaders(tmp_path: Path) -> None:
    async with led(tmp_path) as leader:
        for number in range(30):
            await leader.append(number)
        ends, last = leader.ends, leader.log.end
    assert last[0] >= 3
    async with led(tmp_path, last) as leader:
        for number in range(30, 60):
            await leader.append(number)
        completed, end = leader.store.engine.files.headers, leader.log.end
        record = leader.log.bytes_after(leader.ends[-2], completed)
        assert record > 500
        every = [*dict.fromkeys((*ends, *leader.ends))]
        assert [leader.log.bytes_after(place, completed) for place in every] == [
            (len(every) - 1 - at) * record for at in range(len(every))
        ]
        assert (leader.log.bytes_after(end, completed), every[0], end[0] >= 6) == (0, NOWHERE, True)


async def test_while_nothing_may_be_written_what_was_written_is_found_and_what_is_not_committed_is_waited_for(
    tmp_path: Path,
) -> None:
    async with led(tmp_path) as leader:
        first = await leader.append(1)
        leader.held = True
        answers: list[es.Committed] = []

        async def append(number: int) -> None:
            answers.append(await leader.append(number))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, 2)
            with trio.fail_after(30):
                while leader.log.synced != leader.log.end or leader.log.end == leader.ends[1]:
                    await trio.lowlevel.checkpoint()
            leader.refusal = REFUSAL
            assert await leader.append(1) == first._replace(duplicate=True)
            with pytest.raises(NotEnoughReplicas):
                await leader.append(3)
            with pytest.raises(NotEnoughReplicas):
                await leader.append(1, command="c-3")
            with pytest.raises(CommandIdReused):
                await leader.append(1, 7)
            nursery.start_soon(append, 2)
            await trio.testing.wait_all_tasks_blocked()
            assert answers == [], "nobody knows yet whether it stays"
            leader.held = False
            leader.commit()
        assert sorted(answer.duplicate for answer in answers) == [False, True]
        assert leader.store.engine.visible_sequence == 2
        leader.refusal = None
        assert (await leader.append(3)).version == 1
