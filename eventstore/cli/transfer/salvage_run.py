"""Copies what can be read of a damaged data folder into a new store, and says what cannot.

Each commit is appended on the condition that its aggregate has the version before it. So an aggregate ends where its first
event is lost, and what follows is left out and listed: events beside damage are never guessed. A commit of several aggregates
is appended as one, if all of it can be; else to those of them that can have it, each by itself, since more is kept so. The
damaged folder is not changed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import eventstore as es
from eventstore.arrays import np
from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import EVENTS, HEADER_BYTES, RECORDS_FROM, ChunkHeader, decode_header
from eventstore.chunks.slab import Ints
from eventstore.cli.transfer.commit_copies import bytes_of, copy_of, is_whole, together
from eventstore.cli.transfer.new_folder import new_folder
from eventstore.errors import CommandIdReused, Corrupt, EventStoreError, FolderRefused, VersionConflict
from eventstore.fields import RESERVED
from eventstore.records.commit import CommitView, decode
from eventstore.store.data_folder import ENDING, EVENTS_FOLDER, event_folder
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_columns import within_group
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.verification.file_contents import FileContents, read_contents, read_without_header
from eventstore.store.verification.findings import Finding, Findings
from eventstore.store.verification.folder_survey import held, survey

_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_COMMITS: Final = 1000
_NO_KEY: Final = b""
_ABOUT_THE_COMMIT: Final = (VersionConflict, CommandIdReused)
_Commit: TypeAlias = list[tuple[CommitView, int]]
"""The records of a commit, each with its offset."""


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
        damaged: versions that cannot be read, as far as sound indexes list them.
        left_out: readable versions that are not copied, because one before them is lost.
        faults: what is wrong with the folder and its files, in all `faults_total`.
        unknown: damaged places in files without a sound index: which events they held is not known.
        parted: commits of several aggregates of which a part is not copied.
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
    parted: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, as far as that can be known."""
        return not (self.damaged or self.left_out or self.faults_total)


async def salvage(broken: Path, target: Path, on_progress: Callable[[Salvaged, int, int], None]) -> Salvaged:
    """Copies what can be read. `on_progress` gets what is done, and how many event files of how many.

    Raises:
        FolderRefused: the target is there or inside the broken folder, a server uses that, or it has no event files.
        EventStoreError, OSError: the new store cannot be written. Nothing is left of it.
    """
    _refuse_inside(broken, target)
    done, findings = Salvaged(), Findings()
    with held(broken), new_folder(target, ".salvaging") as partial:
        folder, numbers, known_end = _surveyed(broken, findings)
        left_out: dict[str, LostVersions] = {}
        kept: set[str] = set()
        async with es.open_store(partial) as store:
            ordered = _in_order(folder, numbers, findings)
            for number in sorted(_with_index(broken) - {identity for _, identity in ordered}):
                if (index := _sound_index(folder, number, None)) is not None:
                    done.damaged += _lost(index, FileContents(number, str(folder.chunk_path(number))))
            for place, (number, identity) in enumerate(ordered):
                contents = _read(folder, number, known_end if number == numbers[-1] else None, findings)
                index = _sound_index(folder, identity, contents.header)
                if index is not None:
                    _leave_unlisted(contents, index, findings)
                    done.damaged += _lost(index, contents)
                elif contents.damaged:
                    done.unknown += max(len(contents.faults), 1)
                for commits in _batches(_commits(folder, contents, done)):
                    await _append(store, commits, contents.name, done, kept, left_out)
                on_progress(done, place + 1, len(ordered))
        done.aggregates = len(kept)
        done.left_out = list(left_out.values())
        done.faults, done.faults_total = findings.kept, findings.total
    return done


def _refuse_inside(broken: Path, target: Path) -> None:
    if target.resolve().is_relative_to(broken.resolve()):
        raise FolderRefused(str(target), "lies in the damaged folder, which is not changed; name one outside of it")


def _surveyed(broken: Path, findings: Findings) -> tuple[ChunkFolder, list[int], int]:
    """Returns the event files, their numbers, and up to where the last one is known to be durable. Missing documents are
    findings.
    """
    files = OsFiles()
    try:
        found = survey(files, broken, findings)
    except EventStoreError as error:
        numbers = sorted(int(path.stem) for path in (broken / EVENTS_FOLDER).glob(f"*.{ENDING}") if path.stem.isdecimal())
        paths = (broken / EVENTS_FOLDER / f"{number:010d}.{ENDING}" for number in numbers)
        stores = {header.store for path in paths if (header := _header_of(path)) is not None}
        if not stores:
            raise FolderRefused(str(broken), "has no event file with a sound header; give a data folder") from None
        if len(stores) > 1:
            names = ", ".join(sorted(map(str, stores)))
            why = f"has event files of the stores {names}, and no store.json that tells which belong here; restore it"
            raise FolderRefused(str(broken), why) from None
        findings.add_error(str(broken), error)
        return event_folder(files, broken, stores.pop()), numbers, RECORDS_FROM
    return found.folder, found.numbers, found.known_end


def _in_order(folder: ChunkFolder, numbers: list[int], findings: Findings) -> list[tuple[int, int]]:
    """Returns the files to be read, in the order of their events: the number in the name of each, and the one in its header,
    which is another if files were mixed up. Files of other stores are not among them.
    """
    found, first = list[tuple[int, int, int]](), 0
    for number in numbers:
        header = _header_of(folder.chunk_path(number))
        if header is None:
            found.append((first, number, number))
        elif header.store != folder.store_of(header.number):
            what = f"belongs to store {header.store}, not to {folder.store_of(header.number)}; it is not copied"
            findings.add(str(folder.chunk_path(number)), None, what)
        else:
            first = header.first_sequence if header.number == number else first
            found.append((header.first_sequence, number, header.number))
    return [(number, identity) for _, number, identity in sorted(found)]


def _with_index(broken: Path) -> set[int]:
    return {int(path.stem) for path in (broken / EVENTS_FOLDER).glob(f"*.{INDEX}") if path.stem.isdecimal()}


def _header_of(path: Path) -> ChunkHeader | None:
    """Returns the header of an event file, if it is sound."""
    with contextlib.suppress(EventStoreError, OSError), path.open("rb") as file:
        return decode_header(file.read(HEADER_BYTES), str(path), EVENTS)
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


def _batches(commits: Iterable[tuple[CommitView, int]]) -> Iterator[list[_Commit]]:
    batch: list[_Commit] = []
    offsets: dict[int, int] = {}
    size = 0

    def views() -> Iterator[CommitView]:
        for view, offset in commits:
            offsets[view.sequence] = offset
            yield view

    for records in together(views()):
        batch.append([(view, offsets.pop(view.sequence)) for view in records])
        size += bytes_of(records)
        if len(batch) >= _BATCH_COMMITS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


async def _append(
    store: es.EmbeddedStore,
    commits: list[_Commit],
    file: str,
    done: Salvaged,
    kept: set[str],
    left_out: dict[str, LostVersions],
) -> None:
    """Appends commits, and lists what the new store does not take."""
    done.parted += sum(not is_whole(_views(each)) for each in commits)
    while commits:
        results = await store._append_copies([copy_of(_views(each)) for each in commits])
        again: list[_Commit] = []
        for commit, result in zip(commits, results, strict=True):
            if not isinstance(result, EventStoreError):
                new = not result[0].duplicate
                done.events += sum(view.count for view in _views(commit)) * new
                done.commits += new
                kept.update(view.aggregate_id for view in _views(commit))
            elif not isinstance(result, _ABOUT_THE_COMMIT):
                raise result
            elif again:  # it may follow on what was not appended yet
                again.append(commit)
            elif len(commit) > 1:
                done.parted += is_whole(_views(commit))
                again += [[record] for record in commit]
            else:
                ((view, offset),) = commit
                _leave_out(view, offset, file, result, left_out)
        commits = again


def _views(commit: _Commit) -> list[CommitView]:
    return [view for view, _ in commit]


def _leave_out(
    view: CommitView, offset: int, file: str, error: VersionConflict | CommandIdReused, left_out: dict[str, LostVersions]
) -> None:
    """Lists a commit that the new store does not take."""
    is_lost = isinstance(error, VersionConflict)
    why = f"version {int(str(error.fields['actual'])) + 1} is lost" if is_lost else error.message
    first, last, name = view.first_version, view.last_version, view.aggregate_id
    entry = left_out.setdefault(name, LostVersions(name, first, last, file, offset, why))
    entry.last = max(entry.last, last)


def _rows(index: EventIndex, contents: FileContents) -> Ints:
    """Returns the row of the first event of each readable commit in the index; -1 where it does not list the commit."""
    if not contents.columns:
        return np.empty(0, np.int64)
    sequences = contents.ints("commit_sequence") - index.header.first_sequence
    within = (sequences >= 0) & (sequences + contents.ints("commit_count") <= index.header.rows)
    rows = index.columns["permutation"][np.where(within, sequences, 0)].astype(np.int64)
    ordinals = np.array([-1 if (found := index.find(name)) is None else found for name in contents.ids])[contents.ordinals]
    same = within & (index.columns["ordinal"][rows] == ordinals)
    same &= index.columns["version"][rows] == contents.ints("commit_version")
    if contents.header is not None and contents.header.sorted:
        same &= index.columns["record"][rows] == contents.ints("commit_offset")
    return np.where(same, rows, -1)


def _leave_unlisted(contents: FileContents, index: EventIndex, findings: Findings) -> None:
    """Takes out the commits that the index does not list: of another file, or records in the data of a damaged one."""
    if not contents.columns:
        return
    listed = _rows(index, contents) >= 0
    for offset in contents.ints("commit_offset")[~listed].tolist():
        findings.add(contents.name, offset, "a record that the index does not list; it is not copied")
    contents.ordinals = contents.ordinals[listed]
    for name in [name for name in contents.columns if name.startswith("commit_")]:
        contents.columns[name] = contents.columns[name][listed]


def _lost(index: EventIndex, contents: FileContents) -> list[LostVersions]:
    """Returns which versions the index lists and the file does not have."""
    lost = np.ones(index.header.rows, bool)
    if contents.columns:
        counts = contents.ints("commit_count")
        lost[np.repeat(_rows(index, contents), counts) + within_group(counts)] = False
    rows = np.flatnonzero(lost).tolist()
    ordinal, version, record = (index.columns[name].item for name in ("ordinal", "version", "record"))
    found = list[LostVersions]()
    for _, group in itertools.groupby(enumerate(rows), key=lambda each: (ordinal(each[1]), each[1] - each[0])):
        of_aggregate = [row for _, row in group]
        first, last = of_aggregate[0], of_aggregate[-1]
        name = index.aggregate_id(ordinal(first)).decode()
        if not name.startswith(RESERVED):
            found.append(LostVersions(name, version(first), version(last), contents.name, record(first), "damaged"))
    return found


def _sound_index(folder: ChunkFolder, number: int, header: ChunkHeader | None) -> EventIndex | None:
    """Returns the index of this file, if all of it is sound and belongs to the header; one of the store without a header."""
    with contextlib.suppress(Corrupt, OSError, ValueError, KeyError, IndexError):
        index = open_index(folder.files, folder.derived_path(number, INDEX))
        of_file = (index.header.number, index.header.store) == (number, folder.store_of(number))
        if of_file if header is None else index.header.belongs_to(header):
            index.verify()
            return index
    return None
