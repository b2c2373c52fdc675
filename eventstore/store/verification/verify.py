"""Checks a data folder from end to end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from eventstore.arrays import np, npt
from eventstore.chunks.files import Files, OsFiles
from eventstore.errors import FolderRefused
from eventstore.store.sorted.event_index import EventIndex
from eventstore.store.sorted.sorting import command_key
from eventstore.store.verification.check_aggregates import AggregateTable, IndexTable, MemoryTable, check_aggregates
from eventstore.store.verification.check_commits import check_commits
from eventstore.store.verification.check_directory import check_directory
from eventstore.store.verification.check_index import check_index
from eventstore.store.verification.check_inherited import check_inherited
from eventstore.store.verification.file_contents import FileContents, read_contents
from eventstore.store.verification.findings import Finding, Findings, OnProgress, VerificationProgress
from eventstore.store.verification.folder_survey import FolderSurvey, allow_many_files, held, survey


@dataclass(slots=True)
class VerifyReport:
    """Totals of a verification and its findings. `findings_total` may exceed the length of `findings`."""

    event_files: int = 0
    sorted_files: int = 0
    commits: int = 0
    events: int = 0
    aggregates: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    findings_total: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.findings_total == 0


def verify(path: str | Path, on_progress: OnProgress = lambda _: None) -> VerifyReport:
    """Checks everything in the data folder `path` without changing a byte of it.

    Checks every file's header, footer and records; that sequences and versions have no gap over all files; that command ids
    are used once per aggregate; indexes and directory against the records. Keeps servers out meanwhile. Needs memory for the
    columns of one file, and for the aggregates and commits of unsorted files.

    Raises:
        FolderRefused, Corrupt: there is no store, a server uses it, or it has a newer format.
    """
    path = Path(path)
    if not path.is_dir():
        raise FolderRefused(str(path), "is a file, not a folder" if path.exists() else "there is no such folder")
    allow_many_files()
    with held(path):
        return _Verification(path, OsFiles(), on_progress).run()


class _Verification:
    """One run over a folder."""

    def __init__(self, path: Path, files: Files, on_progress: OnProgress) -> None:
        self._path = path
        self._findings = Findings()
        self._survey: FolderSurvey = survey(files, path, self._findings)
        self._shared_key = command_key(self._survey.folder, 0)
        self._on_progress = on_progress
        self._result = VerifyReport(bytes=self._survey.total_bytes)
        self._tables: list[AggregateTable] = []
        self._sound_indexes: list[int] = []
        self._damaged: list[int] = []
        self._done_bytes = 0

    def run(self) -> VerifyReport:
        numbers, folder, findings = self._survey.numbers, self._survey.folder, self._findings
        before: FileContents | None = None
        for number in numbers:
            contents = self._check_file(number)
            self._check_follows(before, contents)
            before = contents
        missing = set(range(1, max(numbers, default=0))) - set(numbers)
        self._progress("versions and commands of every aggregate")
        damaged = sorted({*self._damaged, *missing})
        self._result.aggregates = check_aggregates(folder, self._tables, damaged, findings)
        self._progress("directory")
        check_directory(self._path, self._sound_indexes, findings)
        self._progress("done")
        self._result.findings, self._result.findings_total = findings.kept, findings.total
        self._result.notes = findings.notes
        return self._result

    def _check_file(self, number: int) -> FileContents:
        folder, findings = self._survey.folder, self._findings
        path = folder.chunk_path(number)
        known_end = self._survey.known_end if number == self._survey.numbers[-1] else None
        contents = read_contents(
            folder, number, known_end, findings, lambda at: self._progress(path.name, at), self._shared_key
        )
        check_commits(folder, contents, findings)
        if number == folder.inherited:
            check_inherited(folder.files, self._path, contents, findings)
        index = check_index(folder, contents, number in self._survey.indexes, findings)
        self._count(contents)
        if index is not None:
            self._tables.append(IndexTable(index, self._shared_hashes(index, contents)))
            self._sound_indexes.append(number)
        elif contents.columns:
            self._tables.append(MemoryTable(contents))
        if contents.damaged:
            self._damaged.append(number)
        self._done_bytes += path.stat().st_size
        return FileContents(number, contents.name, contents.header)  # without the columns

    def _shared_hashes(self, index: EventIndex, contents: FileContents) -> npt.NDArray[np.generic] | None:
        """Returns for each row the hash of its command, with the key by which files are compared; None if the index has these
        hashes.
        """
        if index.header.command_key == self._shared_key or contents.damaged or not contents.columns:
            return None
        hashes: npt.NDArray[np.generic] = np.repeat(contents.columns["commit_shared"], contents.ints("commit_count"))
        return hashes

    def _count(self, contents: FileContents) -> None:
        result = self._result
        result.event_files += 1
        result.sorted_files += contents.header is not None and contents.header.sorted
        if contents.columns:
            result.commits += len(contents.columns["commit_count"])
            result.events += int(contents.ints("commit_count").sum())

    def _check_follows(self, before: FileContents | None, contents: FileContents) -> None:
        """Checks that the sequences of this file begin where the previous file's sequences end."""
        header = contents.header
        if header is None or (before is not None and before.header is None):
            return
        if before is None or before.header is None or before.number != contents.number - 1:
            expected = 1 if contents.number == 1 else header.first_sequence
        else:
            expected = before.header.last_sequence + 1 if before.header.completed else header.first_sequence
        if header.first_sequence != expected:
            what = f"begins at sequence {header.first_sequence}, expected {expected}"
            self._findings.add(contents.name, 0, what)

    def _progress(self, step: str, done_bytes: int = 0) -> None:
        done = min(self._done_bytes + done_bytes, self._survey.total_bytes)
        self._on_progress(VerificationProgress(done, self._survey.total_bytes, step))
