"""The LMDB directory against the indexes it was made from: `python -m eventstore.store.verification.directory DATA NUMBER...`

Runs as a child process, because a damaged environment can abort the process that reads it or raise SIGBUS: then that is
the finding. Reads without taking LMDB's lock and without writing. NUMBERs are the sorted files whose index is sound; what
the directory says of others cannot be judged and is passed over. Prints one JSON string a finding.
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
from eventstore.store.directory import AGGREGATES, FILES, Directory, Entry, Place
from eventstore.store.index import EventIndex, open_index
from eventstore.store.opening import DIRECTORY, event_folder, read_identity
from eventstore.store.sorting import INDEX
from eventstore.store.verification.findings import Findings
from eventstore.store.verification.folder import allow_many_files
from eventstore.store.verification.history import IndexTable

DATA_FILE: Final = "data.mdb"
_GROUP: Final = 20_000
_FINDINGS_MAX: Final = 100
_HINT: Final = "`eventstore rebuild` makes it anew"


def check_directory(path: Path, numbers: Sequence[int], findings: Findings) -> None:
    """Checks the directory of the data folder `path` in a child process, and reports what it found, or how it died."""
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
        findings.add(str(data_file), None, f"is damaged: whoever reads it is killed ({died}); {_HINT}")
    elif result.returncode:
        last = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        findings.add(str(data_file), None, f"cannot be checked ({last}); {_HINT}")


class ReadOnlyDirectory(Directory):
    """The directory, opened so that neither it nor its folder changes."""

    def _open(self) -> None:
        self._env = lmdb.open(str(self.path), readonly=True, lock=False, max_dbs=2, readahead=False)
        self._check_size()
        self._check_layout()
        self._aggregates = self._env.open_db(AGGREGATES, create=False)
        self._files = self._env.open_db(FILES, create=False)

    def first(self, count: int) -> list[tuple[bytes, Entry]]:
        """The entries of the smallest ids."""
        with self._begin() as txn:
            return [(bytes(key), self._decode(key, raw)) for key, raw in itertools.islice(txn.cursor(self._aggregates), count)]


def main(arguments: list[str]) -> int:
    allow_many_files()
    path, numbers = Path(arguments[0]), list(map(int, arguments[1:]))
    files = OsFiles()
    folder = event_folder(files, path, read_identity(files, path))
    indexes = {number: open_index(files, folder.beside(number, INDEX)) for number in numbers}
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
                yield f"covers another {folder.chunk_path(number).name} than the one that is there; {_HINT}"
                return
        judged = {number: indexes[number] for number in sorted(covered) if number in indexes}
        aggregates = yield from _compare(directory, judged)
        if len(judged) == len(covered) and directory.count() != aggregates:
            yield f"knows {directory.count()} aggregates, the indexes it was made from hold {aggregates}; {_HINT}"
    except (Corrupt, lmdb.Error) as error:
        what = str(error.fields["what"]).partition(";")[0] if isinstance(error, Corrupt) else str(error)
        yield f"is damaged: {what}; {_HINT}"


def _compare(directory: Directory, indexes: dict[int, EventIndex]) -> Generator[str, None, int]:
    """What the directory says of each aggregate against the indexes; returns how many aggregates they hold."""
    opened, aggregates = list(indexes.values()), 0
    merged = _merged(opened)
    while group := list(itertools.islice(merged, _GROUP)):
        aggregates += len(group)
        found = directory.get_many([aggregate_id for aggregate_id, _ in group])
        for aggregate_id, parts in group:
            expected = _entry(opened, parts)
            entry = found.get(aggregate_id)
            if entry is None:
                yield f"does not know aggregate {aggregate_id.decode()!r}; {_HINT}"
            elif not _agrees(entry, expected, indexes):
                yield f"says {entry} of aggregate {aggregate_id.decode()!r}, the indexes say {expected}; {_HINT}"
    return aggregates


def _merged(indexes: list[EventIndex]) -> Iterator[tuple[bytes, list[tuple[int, int, int]]]]:
    """(aggregate id, [(place of the index, ordinal, last version)]) over all indexes, in the order of ids."""
    merged = heapq.merge(*(IndexTable(index).parts(place) for place, index in enumerate(indexes)))
    for aggregate_id, parts in itertools.groupby(merged, key=itemgetter(0)):
        yield aggregate_id, [(place, ordinal, high) for _, place, _, high, ordinal, _ in parts]


def _entry(indexes: list[EventIndex], parts: list[tuple[int, int, int]]) -> Entry:
    places = []
    for place, ordinal, _ in parts:
        first, last = indexes[place].rows_of(ordinal)
        places.append(Place(indexes[place].header.number, first, last - first))
    return Entry(parts[-1][2], tuple(places))


def _agrees(entry: Entry, expected: Entry, indexes: dict[int, EventIndex]) -> bool:
    judged = tuple(place for place in entry.places if place.file in indexes)
    newest_is_judged = bool(entry.places) and entry.places[-1].file in indexes
    return judged == expected.places and (entry.version == expected.version or not newest_is_judged)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
