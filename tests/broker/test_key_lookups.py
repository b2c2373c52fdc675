"""Looking messages up by key: page by page, a bounded number of messages for each, whatever keys somebody made."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventstore.broker import message_lookups
from eventstore.broker.broker import Broker, open_broker
from eventstore.broker.log.queue import QueueLog
from eventstore.broker.log.queue_reader import QueueReader
from eventstore.broker.message_lookups import EXAMINED_MAX, POSITION_MAX
from eventstore.records.message import decode_messages
from eventstore.settings.broker import BrokerSettings
from tests.broker.stepped import raw
from tests.collisions import colliding

SMALL = BrokerSettings(chunk_size_bytes=65_536, preallocate_bytes=4096, queue_chunk_entries=64, recent_messages_max=100)
SAME_HASH = colliding(700)


class Reads:
    """Counts the messages that look-ups read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = QueueReader.message

        def counted(reader: QueueReader, log: QueueLog, offset: int, visible: int) -> bytes | None:
            self.count += 1
            return read(reader, log, offset, visible)

        monkeypatch.setattr(QueueReader, "message", counted)


async def pages_of(broker: Broker, key: str, limit: int = 1_000) -> list[list[bytes]]:
    """Returns the bodies of the messages with this key, by pages."""
    pages, before = [], POSITION_MAX
    while before:
        page = await broker.lookups.find_key("orders", key, limit, before=before)
        assert page.next < before
        pages.append([decode_messages(record, 1)[0].body for record in page.records])
        before = page.next
    return pages


@pytest.mark.parametrize("indexed", [False, True])
async def test_messages_whose_keys_share_a_hash_are_read_page_by_page(
    tmp_path: Path, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch)
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 3)
        wanted = SAME_HASH[0]
        for place, key in enumerate(SAME_HASH):
            await broker.send_many("orders", [raw(b"%d" % place, key)])
        if indexed:
            await broker.housekeeping._index_once()
        pages = await pages_of(broker, wanted)
        assert [body for page in pages for body in page] == [b"0"], "the oldest, behind all others"
        assert len(pages) == 3
        assert reads.count == len(SAME_HASH)
        reads.count = 0
        first = await broker.lookups.find_key("orders", wanted)
        assert (first.records, reads.count) == ([], EXAMINED_MAX)


@pytest.mark.parametrize("indexed", [False, True])
async def test_pages_join_without_gap_or_repetition_over_all_queues(
    tmp_path: Path, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_lookups, "_PAGES_MAX", 2)
    async with open_broker(tmp_path, SMALL) as broker:
        await broker.administration.create_topic("orders", 3)
        for number in range(500):
            key = "wanted" if number % 7 == 3 else f"other-{number}"
            await broker.send_many("orders", [raw(b"%d" % number, key, queue=number % 3)])
            if indexed and number == 300:
                await broker.housekeeping._index_once()
        due = [b"%d" % number for number in reversed(range(500)) if number % 7 == 3]
        for limit in (1, 5, 1_000):
            pages = await pages_of(broker, "wanted", limit)
            assert [body for page in pages for body in page] == due
            assert max(map(len, pages)) <= limit
        assert not any(await pages_of(broker, "missing"))
