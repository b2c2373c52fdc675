"""Copies what can be read of a damaged data folder into a new store, and says what cannot.

Each commit is appended on the condition that its aggregate has the version before it. So an aggregate ends where its first
event is lost, and what follows is left out and listed: events beside damage are never guessed. The damaged folder is not
changed.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import eventstore as es
from eventstore.arrays import np
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS, HEADER_BYTES, decode_header
from eventstore.cli.transfer.new_folder import new_folder
from eventstore.errors import CommandIdReused, Corrupt, EventStoreError, FolderRefused, VersionConflict
from eventstore.fields import RESERVED
from eventstore.model import Committed
from eventstore.records.commit import NO_FINGERPRINT, CommitView, decode
from eventstore.records.raw_commit import RawCommit, with_fingerprint
from eventstore.store.data_folder import ENDING, EVENTS_FOLDER, event_folder
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.verification.file_contents import FileContents, read_contents, read_without_header
from eventstore.store.verification.findings import Finding, Findings
from eventstore.store.verification.folder_survey import held, survey

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_COMMITS: Final = 1000
_NO_KEY: Final = b""


@dataclass(slots=True)
class LostVersions:
    """Versions [first, last] of an aggregate that are not in the new store.

    Attributes:
        file: the event file that has, or had, the first of them.
        offset: where that one begins in it.
        why: "damaged", or what kept readable events out.
    """

    aggregate_id: str
    first: int
    last: int
    file: str
    offset: int
    why: str


@dataclass(slots=True)
class Salvaged:
    """What was copied, and what was not.

    Attributes:
        reserved: events that the server keeps for itself, which are not copied.
        damaged: versions in damaged bytes of sorted files, as far as their indexes tell.
        left_out: readable versions that are not copied, because one before them is lost.
        faults: what is wrong with the folder and its files, in all `faults_total`.
        unknown: damaged bytes in files without a sound index: which events they held is not known.
    """

    events: int = 0
    commits: int = 0
    aggregates: int = 0
    reserved: int = 0
    damaged: list[LostVersions] = field(default_factory=list)
    left_out: list[LostVersions] = field(default_factory=list)
    faults: list[Finding] = field(default_factory=list)
    faults_total: int = 0
    unknown: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, as far as that can be known."""
        return not (self.damaged or self.left_out or self.faults_total)


async def salvage(broken: Path, target: Path, on_progress: Callable[[Salvaged, int, int], None]) -> Salvaged:
    """Copies what can be read. `on_progress` gets what is done, and how many event files of how many.

    Raises:
        FolderRefused: the target is there, a server uses the broken folder, or that has no event files.
        EventStoreError, OSError: the new store cannot be written. Nothing is left of it.
    """
    done, findings = Salvaged(), Findings()
    with held(broken), new_folder(target, ".salvaging") as partial:
        folder, numbers, known_end = _surveyed(broken, findings)
        left_out: dict[str, LostVersions] = {}
        kept: set[str] = set()
        async with es.open_store(partial) as store:
            for place, number in enumerate(numbers):
                contents = _read(folder, number, known_end if number == numbers[-1] else None, findings)
                done.damaged += _damaged(folder, contents, done)
                for commits in _batches(_commits(folder, contents, done)):
                    results = await store._append_many([_raw(view) for view, _ in commits], list)
                    for (view, offset), result in zip(commits, results, strict=True):
                        if isinstance(result, Committed):
                            done.events += view.count * (not result.duplicate)
                            done.commits += not result.duplicate
                            kept.add(view.aggregate_id)
                        else:
                            _leave_out(view, offset, contents.name, result, left_out)
                on_progress(done, place + 1, len(numbers))
        done.aggregates = len(kept)
        done.left_out = list(left_out.values())
        done.faults, done.faults_total = findings.kept, findings.total
    return done


def _surveyed(broken: Path, findings: Findings) -> tuple[ChunkFolder, list[int], int | None]:
    """Returns the event files, their numbers, and up to where the last one is known to be durable. Missing documents are
    findings.
    """
    files = OsFiles()
    try:
        found = survey(files, broken, findings)
    except EventStoreError as error:
        numbers = sorted(int(path.stem) for path in (broken / EVENTS_FOLDER).glob(f"*.{ENDING}") if path.stem.isdecimal())
        headers = filter(None, (_header_of(broken, number) for number in numbers))
        store = next(headers, None)
        if store is None:
            raise FolderRefused(str(broken), "has no event file with a sound header; give a data folder") from None
        findings.add_error(str(broken), error)
        return event_folder(files, broken, store), numbers, None
    return found.folder, found.numbers, found.known_end


def _header_of(broken: Path, number: int) -> uuid.UUID | None:
    path = broken / EVENTS_FOLDER / f"{number:010d}.{ENDING}"
    with contextlib.suppress(EventStoreError, OSError):
        return decode_header(path.read_bytes()[:HEADER_BYTES], str(path), EVENTS).store
    return None


def _read(folder: ChunkFolder, number: int, known_end: int | None, findings: Findings) -> FileContents:
    contents = read_contents(folder, number, known_end, findings, lambda _: None, _NO_KEY)
    if contents.header is None:
        with contextlib.suppress(OSError, EventStoreError):  # that it cannot be read is a finding already
            return read_without_header(folder, number, findings)
    return contents


def _commits(folder: ChunkFolder, contents: FileContents, done: Salvaged) -> Iterator[tuple[CommitView, int]]:
    """Yields the readable commits of a file in the order of their sequences, each with its offset; without the server's own."""
    if not contents.columns:
        return
    order = np.argsort(contents.ints("commit_sequence"), kind="stable")
    places = zip(contents.ints("commit_offset")[order].tolist(), contents.ints("commit_length")[order].tolist(), strict=True)
    file = folder.files.open(folder.chunk_path(contents.number))
    try:
        for offset, length in places:
            view = decode(file.read_at(offset, length))
            if view.aggregate_id.startswith(RESERVED):
                done.reserved += view.count
            else:
                yield view, offset
    finally:
        file.close()


def _batches(commits: Iterable[tuple[CommitView, int]]) -> Iterator[list[tuple[CommitView, int]]]:
    batch: list[tuple[CommitView, int]] = []
    size = 0
    for view, offset in commits:
        batch.append((view, offset))
        size += view.length
        if len(batch) >= _BATCH_COMMITS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _raw(view: CommitView) -> RawCommit:
    events = view.events if view.fingerprint == NO_FINGERPRINT else with_fingerprint(view.events, view.fingerprint)
    return view.aggregate_id, view.first_version - 1, view.command_id, view.time, events


def _leave_out(view: CommitView, offset: int, file: str, error: EventStoreError, left_out: dict[str, LostVersions]) -> None:
    """Lists a commit that the new store does not take. Raises the error if it is none of the commit."""
    if isinstance(error, VersionConflict):
        why = f"version {int(str(error.fields['actual'])) + 1} is lost"
    elif isinstance(error, CommandIdReused):
        why = error.message
    else:
        raise error
    first, last, name = view.first_version, view.last_version, view.aggregate_id
    entry = left_out.setdefault(name, LostVersions(name, first, last, file, offset, why))
    entry.last = max(entry.last, last)


def _damaged(folder: ChunkFolder, contents: FileContents, done: Salvaged) -> list[LostVersions]:
    """Returns which versions the damaged bytes of a file held, if its index tells."""
    if not contents.faults:
        return []
    index = _sound_index(folder, contents)
    if index is None:
        done.unknown += len(contents.faults)
        return []
    rows = range(index.header.rows)
    record, found = index.columns["record"].item, list[LostVersions]()
    for fault in contents.faults:
        first = max(bisect_right(rows, fault.start, key=record) - 1, 0)
        first = index.commit_begin(first)
        last = len(rows) if fault.until is None else bisect_left(rows, fault.until, key=record)
        versions = [(index.columns["ordinal"].item(row), index.version_at(row), record(row)) for row in range(first, last)]
        for ordinal, group in itertools.groupby(versions, key=lambda each: each[0]):
            of_aggregate = list(group)
            (_, low, offset), (_, high, _) = of_aggregate[0], of_aggregate[-1]
            name = index.aggregate_id(ordinal).decode()
            found.append(LostVersions(name, low, high, contents.name, offset, "damaged"))
    return found


def _sound_index(folder: ChunkFolder, contents: FileContents) -> EventIndex | None:
    """Returns the index of the file, if all of it is sound and belongs to a file with this end."""
    if contents.header is None or not contents.header.sorted:
        return None
    with contextlib.suppress(Corrupt, OSError, ValueError, KeyError, IndexError):
        index = open_index(folder.files, folder.derived_path(contents.number, INDEX))
        if index.header.belongs_to(contents.header):
            index.verify()
            return index
    return None
