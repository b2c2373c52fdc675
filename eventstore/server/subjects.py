"""Hands out the keys of subjects, and erases subjects.

The record of an erasure is durable, on every replica that counts, before the key is destroyed: if the process dies between the
two, the next start finds the record, and destroys the key before it serves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio

from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import CommandIdReused, EventStoreError, InvalidArgument, ReadFailed
from eventstore.metrics import Metric, MetricSource, counter, gauge
from eventstore.model import Event, NewEvent
from eventstore.protocol.limits import KEY_LEASE_S
from eventstore.protocol.subject_requests import ErasedSubject, EraseSubject, LeasedKey, LeasedKeys, LeaseKeys
from eventstore.server.broker.handlers import answers, routes_of
from eventstore.server.feature import Feature
from eventstore.server.net.deferred_replies import DeferredReplies
from eventstore.server.net.gate import Gate
from eventstore.store.embedded import EmbeddedStore
from eventstore.subjects.key_buckets import ERASURE_TYPE, ERASURES, FoundKey, KeyBuckets, erased_by, erasure_id
from eventstore.subjects.master_keys import MasterKeys, read_master_keys

_COMMAND: Final = "erase"  # the id of the command of every erasure: of a subject there is one
_AGGREGATES_PER_PAGE: Final = 1_000


def master_keys(path: str | None) -> MasterKeys | None:
    """Returns the operator's master keys. Raises FolderRefused, InvalidArgument."""
    return None if path is None else read_master_keys(Path(path))


class Subjects:
    """The subjects of a store. `check_owner` raises Elsewhere for those of another shard."""

    def __init__(
        self,
        store: EmbeddedStore,
        folder: Path,
        master: MasterKeys | None,
        files: Files | None,
        check_owner: Callable[[str], object],
    ) -> None:
        self._store, self._master, self._check_owner = store, master, check_owner
        self.buckets = KeyBuckets(files or OsFiles(), folder, master)
        self._threads = trio.CapacityLimiter(1)
        self._under_way = 0

    @property
    def there_are(self) -> bool:
        """Whether there are keys, or will be in a moment. A shard with keys is not split: its clones do not have them."""
        return self.buckets.count > 0 or self._under_way > 0

    def feature(self, gate: Gate, nursery: trio.Nursery) -> Feature:
        """Returns what answers the requests."""
        return Feature(
            routes=routes_of(self, gate, DeferredReplies(gate, nursery)),
            metrics=[MetricSource(SUBJECT_METRICS, lambda: self.buckets)],
        )

    async def begin(self) -> None:
        """Destroys the keys of all who were erased: a folder that was restored, or a process that died, may have left some.

        Raises:
            Corrupt, OSError: a file cannot be read or written. Nothing may be served then.
        """
        await self._on_thread(self.buckets.begin)
        erased = await self._erased()
        if erased:
            await self._on_thread(partial(self.buckets.destroy, erased))
        await self._on_thread(self.buckets.check)
        await self._on_thread(self.buckets.wrap_again)

    async def _erased(self) -> dict[str, int]:
        """Returns all subjects that the log says are erased, and when."""
        found: dict[str, int] = {}
        after: str | None = None
        while True:
            page = await self._store.aggregates(ERASURES, after, _AGGREGATES_PER_PAGE)
            for each in page:
                if (event := await self._record(each.aggregate_id)) is not None:
                    found[erased_by(each.aggregate_id)] = event.timestamp
            if len(page) < _AGGREGATES_PER_PAGE:
                return found
            after = page[-1].aggregate_id

    async def _record(self, aggregate_id: str) -> Event | None:
        async for event in self._store.read(aggregate_id, limit=1):
            return event
        return None

    async def _on_thread(self, call: Callable[[], object]) -> object:
        return await trio.to_thread.run_sync(call, limiter=self._threads)

    @answers(LeaseKeys)
    async def lease(self, request: LeaseKeys) -> LeasedKeys:
        """Returns the keys; those that are made now are durable before."""
        if self._master is None:
            raise InvalidArgument(
                "this server keeps no keys of subjects: start it with --subject-key-file FILE, the master keys",
                field="subject_key_file",
            )
        for subject in request.subjects:
            self._check_owner(subject)
        found: Sequence[FoundKey] | None = self.buckets.cached(request.subjects)
        if found is None:
            self._under_way += 1
            try:
                found = await trio.to_thread.run_sync(
                    partial(self.buckets.find, request.subjects, create=request.create), limiter=self._threads
                )
            except OSError as error:
                raise _unwritten(self.buckets.folder, error) from None
            finally:
                self._under_way -= 1
        return LeasedKeys(KEY_LEASE_S, tuple(LeasedKey(each.subject, each.secret, each.erased) for each in found))

    @answers(EraseSubject)
    async def erase(self, request: EraseSubject) -> ErasedSubject:
        """Stores the record first, then destroys the key. A second time it does what the first one left undone."""
        self._check_owner(request.subject)
        name = erasure_id(request.subject)
        said = json.dumps({"because": request.because}, ensure_ascii=False).encode()
        with suppress(CommandIdReused):  # it was erased before, for another reason
            await self._store.append_reserved(name, NewEvent(ERASURE_TYPE, said), _COMMAND)
        record = await self._record(name)
        assert record is not None, "it was just stored"
        try:
            had_key = await self._on_thread(partial(self.buckets.destroy, {request.subject: record.timestamp}))
        except OSError as error:
            raise _unwritten(self.buckets.folder, error) from None
        until = time.time_ns() // 1_000 + KEY_LEASE_S * 1_000_000
        replicas = self._store.committer.durability()
        return ErasedSubject(record.sequence, bool(had_key), record.timestamp, until, replicas or 1)


def _unwritten(folder: Path, error: OSError) -> EventStoreError:
    return ReadFailed(f"{folder}: the keys of subjects cannot be read or written: {error}; try again", path=str(folder))


SUBJECT_METRICS: Final[tuple[Metric[KeyBuckets], ...]] = (
    gauge("subject_buckets", "files with keys of subjects, one for each slot that has some", lambda found: found.count),
    counter("subject_keys_made", "keys of subjects that were made since the start", lambda found: found.made),
    counter("subject_keys_destroyed", "keys of subjects that were destroyed since the start", lambda found: found.destroyed),
)
