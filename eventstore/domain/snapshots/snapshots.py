"""`Snapshots`: which aggregates get a snapshot, which snapshots are used, and whether they are what a full replay gives.

A snapshot is written of an aggregate that takes long to restore: when that has just been done, and when it leaves memory, also
because the process stops, if at least `events_min` events would be replayed otherwise. It is used if it is whole, of this store
and this code, and the store still has the event that it stands at. Any other is counted and removed, and all is replayed.

All the time one of those that were used or written is compared with a full replay, slowly. If they differ, the snapshots of its
class are switched off, for as long as the code of the class stays as it is.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing
from typing import Final, NamedTuple

import anyio

from eventstore.chunks.documents import Tree, read_tree, write_document
from eventstore.chunks.files import Files
from eventstore.domain.aggregate import Aggregate, applies_by_name, new
from eventstore.domain.alike import differing_field
from eventstore.domain.candidates import CandidateClasses
from eventstore.domain.domain import Domain
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.restore import ReadEvents, replay
from eventstore.domain.snapshots.code_fingerprint import aggregate_fingerprint
from eventstore.domain.snapshots.snapshot_file import DamagedError, OutdatedError, SnapshotFile, SnapshotHead, named_classes
from eventstore.domain.snapshots.snapshot_folder import SnapshotFolder
from eventstore.domain.snapshots.state_codec import Unwritable, check_state, write_state
from eventstore.domain.worker_thread import on_worker_thread
from eventstore.errors import EventStoreError
from eventstore.event_identity import event_identity
from eventstore.failures import described, log_failure
from eventstore.model import Event

SWITCHED_OFF: Final = "switched-off.json"
_FORMAT: Final = 1
_WAITING_MAX: Final = 256
"""Snapshots that wait to be written; beyond it the oldest is given up."""
_REST: Final = 50.0
"""Comparing rests for so many times as long as it has replayed, so that it takes a fiftieth of one processor."""
_REST_S: Final = 0.5
"""Its rest from one snapshot to the next."""
_log: Final = logging.getLogger(__name__)


class ForeignError(Exception):
    """The snapshot is of another store or aggregate."""


class FoundSnapshot(NamedTuple):
    """A snapshot that may be used. `event`: the identity of the event at the version of the aggregate."""

    aggregate: Aggregate
    event: str


class Difference(NamedTuple):
    """A snapshot that a full replay does not give: of which class and aggregate, and in which attribute."""

    kind: str
    aggregate_id: str
    field: str


class _ToWrite(NamedTuple):
    """A snapshot to be written. `raw`: its bytes; None: they are still to be made, of an aggregate that nothing changes any
    more.
    """

    aggregate: Aggregate
    raw: bytes | None
    read_events: ReadEvents


class Snapshots:
    """The snapshots of a domain's aggregates in one folder. `run` must run for anything to be written or compared.

    Attributes:
        written: snapshots written.
        used: aggregates restored from one.
        damaged: ignored, because they were not whole.
        outdated: ignored, because other code has made them.
        foreign: ignored, because they are of another store, or of an event that the store does not have.
        unwritable: aggregates of which none was written, because their state cannot be.
        failures: snapshots that the disk refused.
        compared: snapshots compared with a full replay.
        differing: the first difference of each class whose snapshots are switched off.
        on_switched_off: is called with a class whose snapshots have just been switched off.
    """

    def __init__(self, files: Files, folder: SnapshotFolder, domain: Domain, store: str, events_min: int) -> None:
        self.folder = folder
        self.events_min = events_min
        self.written = self.used = self.damaged = self.outdated = self.foreign = 0
        self.unwritable = self.failures = self.compared = 0
        self.differing: dict[type[Aggregate], Difference] = {}
        self.on_switched_off: list[Callable[[type[Aggregate]], None]] = []
        self._files = files
        self._store = store
        kinds = {kind for each in domain.handlers.values() for kind in each.aggregates}
        self._kinds = {class_path(kind): kind for kind in kinds}
        candidates = CandidateClasses(domain)
        self._determined = {kind for kind in kinds if all(candidates.only(name) is kind for name in applies_by_name(kind))}
        for name, kind in sorted(self._kinds.items()):
            if kind not in self._determined:
                _log.info("aggregates of %s get no snapshots: another class applies the same events", name)
        self._fingerprints: dict[type[Aggregate], str] = {}
        self._said: set[type[Aggregate]] = set()
        self._to_write: deque[_ToWrite] = deque(maxlen=_WAITING_MAX)
        self._samples: dict[type[Aggregate], tuple[str, ReadEvents]] = {}
        self._more = anyio.Event()
        self._idle: anyio.Event | None = None  # set once nothing is left to write
        self._more_samples = anyio.Event()

    # -- for restoring ------------------------------------------------------------------------------------------------

    def may_have(self, aggregate_id: str) -> bool:
        """Returns whether it is worth to call `find`. Does not block."""
        return self.folder.may_have(aggregate_id)

    async def find(self, aggregate_id: str) -> FoundSnapshot | None:
        """Returns the aggregate as its snapshot has it; None if there is none, or it is not to be used."""
        try:
            return await on_worker_thread(self._find, aggregate_id)
        except DamagedError:
            self.damaged += 1
        except OutdatedError:
            self.outdated += 1
        except ForeignError:
            self.foreign += 1
        except Exception as error:  # code of the author, as that of `__init__`
            self.damaged += 1
            log_failure(_log, logging.WARNING, "the snapshot of %s cannot be used", ascii(aggregate_id), error=error)
        await self._remove(aggregate_id)
        return None

    async def refuse(self, aggregate_id: str) -> None:
        """Removes the snapshot of an aggregate, which stands at an event that the store does not have."""
        self.foreign += 1
        await self._remove(aggregate_id)

    def was_used(self, aggregate: Aggregate, read_events: ReadEvents) -> None:
        """Notes that an aggregate was restored from its snapshot, which may now be compared."""
        self.used += 1
        self._offer(aggregate, read_events)

    def is_due(self, aggregate: Aggregate, snapshot_version: int) -> bool:
        """Returns whether an aggregate is to get a snapshot. `snapshot_version`: that of the one it has, 0 if it has none."""
        due = aggregate._aggregate_version - snapshot_version >= self.events_min
        return due and type(aggregate) not in self.differing

    async def keep(self, aggregate: Aggregate, last: Event, read_events: ReadEvents) -> bool:
        """Has the state of an aggregate written, as it is at its last event. Returns whether it can be."""
        raw = await on_worker_thread(self._try_encode, aggregate, event_identity(last))
        if raw is not None:
            self._push(_ToWrite(aggregate, raw, read_events))
        return raw is not None

    def evicted(self, aggregate: Aggregate, read_events: ReadEvents) -> None:
        """Has the state of an aggregate written that nothing changes any more, and whose events are all stored."""
        if type(aggregate) in self._determined:
            self._push(_ToWrite(aggregate, None, read_events))

    # -- in the background --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Writes and compares snapshots until cancelled."""
        try:
            await on_worker_thread(self._open)
        except Exception as error:
            _log.warning("no snapshots of aggregates are kept in %s: %s", self.folder.path, described(error))
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_all)
            tasks.start_soon(self._compare_all)

    async def flush(self) -> None:
        """Waits until what is to be written by now is written, if `run` runs."""
        while self._idle is not None and (self._to_write or not self._idle.is_set()):
            await self._idle.wait()

    async def _write_all(self) -> None:
        try:
            while True:
                self._idle = idle = anyio.Event()
                while self._to_write:
                    await self._write(self._to_write.popleft())
                self._more = anyio.Event()
                idle.set()
                await self._more.wait()
        finally:
            self._idle = None

    async def _write(self, wanted: _ToWrite) -> None:
        aggregate, raw, read_events = wanted
        if type(aggregate) in self.differing:
            return
        try:
            if raw is None:
                last = await _event_at(aggregate, read_events)
                if last is None:
                    return
                raw = await on_worker_thread(self._try_encode, aggregate, event_identity(last))
                if raw is None:
                    return
            if not await on_worker_thread(self.folder.write, aggregate.id, raw):
                self._cannot(aggregate, f"its state has {len(raw)} bytes, more than a share of the space")
                return
        except EventStoreError as error:
            _log.debug("no snapshot of %s: %s", ascii(aggregate.id), error)
            return
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.warning("a snapshot cannot be written to %s: %s", self.folder.path, error.strerror)
            return
        self.written += 1
        self._offer(aggregate, read_events)

    async def _compare_all(self) -> None:
        while True:
            while self._samples:
                kind = next(iter(self._samples))  # each class in its turn
                aggregate_id, read_events = self._samples.pop(kind)
                try:
                    await self._compare(kind, aggregate_id, read_events)
                except Exception as error:  # code of the author, as that of `__eq__`
                    what = "the snapshot of %s cannot be compared"
                    log_failure(_log, logging.WARNING, what, ascii(aggregate_id), error=error)
                await anyio.sleep(_REST_S)
            self._more_samples = anyio.Event()
            await self._more_samples.wait()

    async def _compare(self, kind: type[Aggregate], aggregate_id: str, read_events: ReadEvents) -> None:
        try:
            found = await on_worker_thread(self._find, aggregate_id)
        except (DamagedError, OutdatedError, ForeignError):  # counted when it is to be used
            return
        if found is None or kind in self.differing:
            return
        replayed, last = new(kind, aggregate_id), None
        version = found.aggregate._aggregate_version
        try:
            async with aclosing(read_events(aggregate_id, 1)) as pages:
                async for page in pages:
                    started = time.monotonic()
                    page = page[: version - replayed._aggregate_version]
                    replay(replayed, page)
                    last = page[-1]
                    if last.version == version:
                        break
                    await anyio.sleep(_REST * (time.monotonic() - started))
        except EventStoreError as error:
            if error.retriable:
                return
            await self._switch_off(Difference(class_path(kind), aggregate_id, "all"), kind, error.message)
            return
        if last is None or event_identity(last) != found.event:
            await self.refuse(aggregate_id)
            return
        self.compared += 1
        field = await on_worker_thread(differing_field, vars(replayed), vars(found.aggregate))
        if field is not None:
            now, then = (vars(each).get(field, "missing") for each in (replayed, found.aggregate))
            await self._switch_off(
                Difference(class_path(kind), aggregate_id, field), kind, f"{now!r:.200}, and the snapshot has {then!r:.200}"
            )

    async def _switch_off(self, difference: Difference, kind: type[Aggregate], values: str) -> None:
        self.differing[kind] = difference
        _log.error(
            "snapshots of %s are switched off: of aggregate %s a full replay gives another %s than its snapshot (%s); what "
            "@applies does must depend on the events alone, and only an event may change the state. They are used again once "
            "the code of the class has changed",
            difference.kind,
            ascii(difference.aggregate_id),
            difference.field,
            values,
        )
        for tell in self.on_switched_off:
            tell(kind)
        try:
            await on_worker_thread(self._save_switched_off)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self.folder.path / SWITCHED_OFF, error.strerror)

    def _push(self, wanted: _ToWrite) -> None:
        self._to_write.append(wanted)
        self._more.set()

    def _offer(self, aggregate: Aggregate, read_events: ReadEvents) -> None:
        self._samples[type(aggregate)] = aggregate.id, read_events
        self._more_samples.set()

    async def _remove(self, aggregate_id: str) -> None:
        with contextlib.suppress(OSError):
            await on_worker_thread(self.folder.remove, aggregate_id)

    # -- on threads ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.folder.open()
        try:
            saved = read_tree(self._files, self.folder.path / SWITCHED_OFF).get("classes")
        except (FileNotFoundError, EventStoreError):
            return
        for name, each in saved.items() if isinstance(saved, dict) else ():
            kind = self._kinds.get(name)
            match each:
                case {"code": str(code), "aggregate": str(aggregate_id), "field": str(field)} if kind is not None:
                    if code == self._fingerprint(kind):
                        self.differing[kind] = Difference(name, aggregate_id, field)

    def _save_switched_off(self) -> None:
        classes: Tree = {
            each.kind: {"code": self._fingerprint(kind), "aggregate": each.aggregate_id, "field": each.field}
            for kind, each in self.differing.items()
        }
        write_document(self._files, self.folder.path / SWITCHED_OFF, {"format": _FORMAT, "classes": classes})

    def _find(self, aggregate_id: str) -> FoundSnapshot | None:
        """Raises DamagedError, OutdatedError, ForeignError."""
        raw = self.folder.read(aggregate_id)
        if raw is None:
            return None
        found = SnapshotFile.decode(raw)
        head = found.head
        if (head.store, head.aggregate) != (self._store, aggregate_id):
            raise ForeignError(head.aggregate)
        kind = self._kinds.get(head.kind)
        if kind is None or head.code != self._fingerprint(kind):
            raise OutdatedError(head.kind)
        if kind in self.differing:
            return None
        aggregate = new(kind, aggregate_id)
        state = vars(aggregate)
        values = found.values()
        state.clear()
        state.update(values)
        aggregate._aggregate_version = head.version
        return FoundSnapshot(aggregate, head.event)

    def _try_encode(self, aggregate: Aggregate, event: str) -> bytes | None:
        """Returns the snapshot of an aggregate; None if its state cannot be written."""
        kind = type(aggregate)
        try:
            data, classes = write_state(vars(aggregate))
            check_state(vars(aggregate), data, classes)
            try:
                named = named_classes(classes)
            except ValueError as error:
                raise Unwritable("", str(error)) from None
            head = SnapshotHead(
                self._store, aggregate.id, class_path(kind), self._fingerprint(kind), aggregate.version, event, named
            )
            return SnapshotFile(head, data).encode()
        except Unwritable as error:
            self._cannot(aggregate, str(error))
        except Exception as error:  # code of the author, as that of `__eq__`
            self._cannot(aggregate, described(error))
        return None

    def _cannot(self, aggregate: Aggregate, why: str) -> None:
        self.unwritable += 1
        kind = type(aggregate)
        if kind not in self._said:
            self._said.add(kind)
            _log.warning(
                "no snapshot of %s of class %s: %s; it is restored from all its events",
                ascii(aggregate.id),
                class_path(kind),
                why,
            )

    def _fingerprint(self, kind: type[Aggregate]) -> str:
        found = self._fingerprints.get(kind)
        if found is None:
            found = self._fingerprints[kind] = aggregate_fingerprint(kind)
        return found


async def _event_at(aggregate: Aggregate, read_events: ReadEvents) -> Event | None:
    """Returns the stored event at the version of an aggregate."""
    async with aclosing(read_events(aggregate.id, aggregate.version)) as pages:
        async for page in pages:
            return page[0] if page[0].version == aggregate.version else None
    return None
