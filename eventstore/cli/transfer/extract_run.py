"""Copies a shard of a cluster out, as a store of its own.

Its leader is read over the network, so nothing has to stop: what is committed when the reading begins is there, in the order of
the shard, and of a shard that was split only the events of its own slots. The folder gets its name when it is complete.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import eventstore as es
from eventstore.cli.transfer.commit_copies import begin_of_commit, bytes_of, copy_of, is_whole
from eventstore.cli.transfer.new_folder import new_folder
from eventstore.client.aio.streams import read_log
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.fields import RESERVED
from eventstore.model import ANY, STORED_FORMAT, Event, NewEvent
from eventstore.records.commit import NO_FINGERPRINT, CommitView, JointPlace, fingerprints_of, joint_places_of
from eventstore.records.cursors import LogCursor, LogPage
from eventstore.records.raw_commit import encode_commit

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_COMMITS: Final = 1000
_ENDING: Final = ".extracting"


@dataclass(slots=True)
class Extracted:
    """`sequence`: of the shard, up to which its events were read; `position`: the same, for readers of that shard alone.
    `left_out`: of those up to it, the server's own, and those of slots that another shard has since a split. `parted`: commits
    of several aggregates that have lost those; the commit is what is left of it.
    """

    shard: int
    events: int = 0
    commits: int = 0
    sequence: int = 0
    left_out: int = 0
    parted: int = 0
    position: str = ""


async def extract(address: str, shard: int, folder: Path, on_progress: Callable[[Extracted, int], None]) -> Extracted:
    """Copies a shard of the cluster at `address` into a new folder. `on_progress` gets what is done, and the last sequence.

    Raises:
        FolderRefused: the folder is there, or another process fills it.
        InvalidArgument: there is no such shard.
        Elsewhere: the shard was split meanwhile; ask again.
        EventStoreError: the cluster cannot be read, or the folder not be written. Nothing is left.
    """
    with new_folder(folder, _ENDING) as partial:
        async with es.connect(address, name="eventstore cluster extract") as store:
            source = _shard_of(store._of_shards(), shard)
            last, done = int((await source.stats()).get("events") or 0), Extracted(shard)
            cursor = _Pages(0, None)
            stream = read_log(source._connection, cursor, source._layout)
            async with es.open_store(partial) as target:
                async for commits in _batches(_commits(stream, cursor)):
                    for result in await target._append_copies([copy_of(views) for views in commits]):
                        if isinstance(result, EventStoreError):
                            raise result
                    done.events += sum(view.count for views in commits for view in views)
                    done.commits += len(commits)
                    done.parted += sum(not is_whole(views) for views in commits)
                    done.sequence = commits[-1][-1].last_sequence
                    on_progress(done, last)
            done.position = str(stream.position)
            done.sequence = max(done.sequence, last)  # what is left out has no event to be handed out
            done.left_out = done.sequence - done.events
    return done


def _shard_of(shards: Mapping[int, es.NetworkStore], shard: int) -> es.NetworkStore:
    if not shards:
        raise InvalidArgument(
            "this is a single store, whose folder can be copied while it is stopped; give the address of a cluster",
            field="store",
        )
    if shard not in shards:
        raise InvalidArgument(
            f"there is no shard {shard}; the shards are: {', '.join(map(str, sorted(shards)))}", field="shard", value=shard
        )
    return shards[shard]


class _Pages(LogCursor):
    """Knows of the page whose events are handed out what readers of events do not get: the `fingerprints` of its commits, and
    the places of their records in joint commits.
    """

    __slots__ = ("fingerprints", "joint_places")

    def take(self, page: LogPage) -> list[Event]:
        self.fingerprints = fingerprints_of(page.records)
        self.joint_places = joint_places_of(page.records)
        return super().take(page)


async def _commits(events: AsyncIterable[Event], pages: _Pages) -> AsyncIterator[list[CommitView]]:
    """Yields the records of each commit that the events are of; without those that the server keeps for itself."""
    records: list[CommitView] = []
    async for view in _records(events, pages):
        if records and begin_of_commit(view) != begin_of_commit(records[0]):
            yield records
            records = []
        records.append(view)
    if records:
        yield records


async def _records(events: AsyncIterable[Event], pages: _Pages) -> AsyncIterator[CommitView]:
    fingerprint, place = NO_FINGERPRINT, None
    held: list[Event] = []
    async for event in events:
        if event.aggregate_id.startswith(RESERVED):
            continue
        if held and (event.aggregate_id, event.command_id) != (held[0].aggregate_id, held[0].command_id):
            yield _record(held, fingerprint, place)
            held = []
        if not held:
            fingerprint = pages.fingerprints.get(event.sequence, NO_FINGERPRINT)
            place = pages.joint_places.get(event.sequence)
        held.append(event)
    if held:
        yield _record(held, fingerprint, place)


def _record(events: list[Event], fingerprint: bytes, place: JointPlace | None) -> CommitView:
    first = events[0]
    new = [
        tuple.__new__(NewEvent, (each[8] & STORED_FORMAT, each.type, each[3], each[4])) for each in events
    ]  # the bytes as they are
    name, _, command_id, time, raw = encode_commit(first.aggregate_id, new, ANY, first.command_id, first.timestamp)
    count, version = len(events), first.version
    return CommitView(first.sequence, 0, count, time or 0, version, name, command_id, raw, len(raw), fingerprint, place)


async def _batches(commits: AsyncIterator[list[CommitView]]) -> AsyncIterator[list[list[CommitView]]]:
    batch: list[list[CommitView]] = []
    size = 0
    async for views in commits:
        batch.append(views)
        size += bytes_of(views)
        if len(batch) >= _BATCH_COMMITS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
