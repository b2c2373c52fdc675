"""Checks the LMDB directory against the indexes it was built from.

Run as `python -m eventstore.store.verification.check_directory DATA NUMBER...`.

Runs in a child process, because a damaged environment can abort the process that reads it or raise SIGBUS; that is then the
finding. Neither takes LMDB's lock nor writes. NUMBERs are the sorted files whose index is sound; entries about other files
cannot be checked and are skipped. Prints each finding as a JSON string.
"""

from __future__ import annotations

import heapq
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

import lmdb

from eventstore.chunks.files import OsFiles
from eventstore.chunks.folder import ChunkFolder
from eventstore.errors import Corrupt
from eventstore.store.data_folder import DIRECTORY, read_event_folder
from eventstore.store.sorted.directory import AGGREGATES, FILES, Directory
from eventstore.store.sorted.directory_entry import DirectoryEntry, RowRange, decode_entry
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.verification.check_aggregates import IndexTable
from eventstore.store.verification.findings import Findings
from eventstore.store.verification.folder_survey import allow_many_files

DATA_FILE: Final = "data.mdb"
_GROUP: Final = 20_000
_FINDINGS_MAX: Final = 100
_HINT: Final = "`eventstore rebuild` rebuilds it"


def check_directory(path: Path, numbers: Sequence[int], findings: Findings) -> None:
    """Checks the directory of the data folder `path` in a child process, and reports its findings, or how it died."""
    data_file = path / DIRECTORY / DATA_FILE
    if not data_file.exists():
        findings.note(f"{path / DIRECTORY}: is missing; the next start builds it from the indexes")
        return
    command = [sys.executable, "-m", __name__, str(path), *map(str, numbers)]
    result = subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL)
    for line in result.stdout.splitlines():
        findings.add(str(data_file), None, json.loads(line))
    if result.returncode < 0:
        died = signal.Signals(-result.returncode).name
        findings.add(str(data_file), None, f"is damaged: a process that reads it is killed ({died}); {_HINT}")
    elif result.returncode:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        findings.add(str(data_file), None, f"cannot be checked ({last}); {_HINT}")


class ReadOnlyDirectory(Directory):
    """The directory, opened without changing it or its folder."""

    def _open(self) -> None:
        self._env = lmdb.open(str(self.path), readonly=True, lock=False, max_dbs=2, readahead=False)
        self._check_size()
        self._check_layout()
        self._aggregates = self._env.open_db(AGGREGATES, create=False)
        self._files = self._env.open_db(FILES, create=False)

    def first(self, count: int) -> list[tuple[bytes, DirectoryEntry]]:
        """Returns the entries of the smallest ids."""
        return self._read(
            lambda txn: [
                (bytes(key), decode_entry(key, raw, str(self.path)))
                for key, raw in itertools.islice(txn.cursor(self._aggregates), count)
            ]
        )


def main(arguments: list[str]) -> int:
    allow_many_files()
    path, numbers = Path(arguments[0]), list(map(int, arguments[1:]))
    files = OsFiles()
    folder = read_event_folder(files, path)
    indexes = {number: open_index(files, folder.derived_path(number, INDEX)) for number in numbers}
    try:
        directory = ReadOnlyDirectory(path / DIRECTORY)
        directory.probe()
    except (Corrupt, lmdb.Error) as error:
        print(json.dumps(f"cannot be read ({error}); {_HINT}"))
        return 0
    for what in itertools.islice(_faults(folder, directory, indexes), _FINDINGS_MAX):
        print(json.dumps(what))
    return 0


def _faults(folder: ChunkFolder, directory: Directory, indexes: dict[int, EventIndex]) -> Iterator[str]:
    try:
        covered = directory.covered()
        for number, identity in covered.items():
            index = indexes.get(number)
            if index is not None and identity != (index.header.checksum, index.header.end):
                yield f"covers a {folder.chunk_path(number).name} other than the existing one; {_HINT}"
                return
        judged = {number: indexes[number] for number in sorted(covered) if number in indexes}
        aggregates = yield from _compare(directory, judged)
        if len(judged) == len(covered) and directory.count() != aggregates:
            yield f"holds {directory.count()} aggregates, the indexes it was built from hold {aggregates}; {_HINT}"
    except (Corrupt, lmdb.Error) as error:
        what = str(error.fields["what"]).partition(";")[0] if isinstance(error, Corrupt) else str(error)
        yield f"is damaged: {what}; {_HINT}"


def _compare(directory: Directory, indexes: dict[int, EventIndex]) -> Generator[str, None, int]:
    """Compares each entry with the indexes; returns the number of aggregates in the indexes."""
    opened, aggregates = list(indexes.values()), 0
    merged = _merged(opened)
    while group := list(itertools.islice(merged, _GROUP)):
        aggregates += len(group)
        found = directory.get_many([aggregate_id for aggregate_id, _ in group])
        for aggregate_id, parts in group:
            expected = _entry(opened, parts)
            entry = found.get(aggregate_id)
            if entry is None:
                yield f"has no entry of aggregate {aggregate_id.decode()!r}; {_HINT}"
            elif not _agrees(entry, expected, indexes):
                yield f"holds {entry} for aggregate {aggregate_id.decode()!r}, the indexes hold {expected}; {_HINT}"
    return aggregates


def _merged(indexes: list[EventIndex]) -> Iterator[tuple[bytes, list[tuple[int, int, int]]]]:
    """Yields (aggregate id, [(position of the index, ordinal, last version)]) over all indexes, in the order of ids."""
    merged = heapq.merge(*(IndexTable(index).parts(place) for place, index in enumerate(indexes)))
    for aggregate_id, parts in itertools.groupby(merged, key=itemgetter(0)):
        yield aggregate_id, [(place, ordinal, high) for _, place, _, high, ordinal, _ in parts]


def _entry(indexes: list[EventIndex], parts: list[tuple[int, int, int]]) -> DirectoryEntry:
    row_ranges = []
    for place, ordinal, _ in parts:
        first, last = indexes[place].rows_of(ordinal)
        row_ranges.append(RowRange(indexes[place].header.number, first, last - first))
    return DirectoryEntry(parts[-1][2], tuple(row_ranges))


def _agrees(entry: DirectoryEntry, expected: DirectoryEntry, indexes: dict[int, EventIndex]) -> bool:
    judged = tuple(part for part in entry.row_ranges if part.file in indexes)
    newest_is_judged = bool(entry.row_ranges) and entry.row_ranges[-1].file in indexes
    return judged == expected.row_ranges and (entry.version == expected.version or not newest_is_judged)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
