"""Reads files of events, packed or not, and groups their lines into commits. Knows nothing of the network.

Consecutive lines with the same aggregate and command id form one commit. A commit is imported whole or not at all: if one
of its lines is not an event, none of them is imported.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, cast

from eventstore.cli.transfer.event_lines import LineRefused, ParsedLine, guess_ids, parse_line
from eventstore.cli.transfer.refusals import Refusal
from eventstore.errors import EventStoreError
from eventstore.model import ANY, COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, Commit, NewEvent

# An event of 4 MB, each byte of which is spelled as an escape of six, and the rest of the line.
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
STANDARD_INPUT: Final = "-"
_DOUBTFUL_MAX: Final = 1_000
_BUFFER_BYTES: Final = 256 * 1024  # GzipFile's own readline is Python, a buffered reader's is C
_GZIP_MAGIC: Final = b"\x1f\x8b"


class SourceFailed(EventStoreError):
    """A file could not be read to the end."""


@dataclass(slots=True)
class Group:
    """Consecutive lines of one command. If they must not be imported, `why` is set, and `at` is the line to blame."""

    file: str
    line: int
    aggregate_id: str
    command_id: str
    time: int
    events: list[NewEvent] = field(default_factory=list)
    lines: int = 0
    size_bytes: int = 0
    last: int = 0
    why: str | None = None
    at: int = 0

    def refuse(self, line: int, why: str) -> None:
        """Counts a line that is not an event; the whole group is refused because of it."""
        self.lines, self.last = self.lines + 1, line
        if self.why is None:
            self.why, self.at = why, line
            self.events.clear()

    def add(self, line: int, time: int, event: NewEvent) -> None:
        self.size_bytes += len(event[2])
        if time != self.time:
            self.refuse(line, "the timestamp differs from the line before, of the same command; a commit has one time")
        elif self.lines >= COMMIT_EVENTS_MAX or self.size_bytes > COMMIT_BYTES_MAX:
            self.refuse(line, f"too much for one commit: over {COMMIT_EVENTS_MAX} events or {COMMIT_BYTES_MAX} bytes")
        else:
            self.lines, self.last = self.lines + 1, line
            if self.why is None:
                self.events.append(event)

    def refusal(self, line: int, why: str) -> Refusal:
        """Refuses all lines, because of one of them or because the store refused the commit."""
        return Refusal(self.file, line, self.lines, why, self.line, self.last)

    def commit(self) -> Commit:
        """Makes the commit. The expected version is "any": a file holds histories, and an import makes no new decisions."""
        return Commit(self.aggregate_id, self.events, ANY, self.command_id, self.time)


class Source:
    """Reads files one after the other. `done_bytes` of `total_bytes` on disk were read (None: unknown)."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._before = 0
        self._raw: BinaryIO | None = None
        self.total_bytes: int | None = None
        if STANDARD_INPUT not in paths:
            self.total_bytes = sum(Path(path).stat().st_size for path in paths)

    @property
    def done_bytes(self) -> int:
        return self._before + (self._raw.tell() if self._raw is not None and self.total_bytes is not None else 0)

    def groups(self) -> Iterator[Group | Refusal]:
        """Yields the commits of all files, and the lines that are not events.

        Raises:
            OSError, SourceFailed: a file cannot be read. Everything yielded before is whole; a commit that the file may
                end in is not yielded.
        """
        for path in self._paths:
            with self._opened(path) as lines:
                yield from _groups(path, lines)

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        if path == STANDARD_INPUT:
            yield sys.stdin.buffer
            return
        with open(path, "rb") as raw:
            self._raw = raw
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            try:
                yield cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES)) if packed else raw
            finally:
                self._before, self._raw = self.done_bytes, None


class _Grouper:
    """Groups lines into commits. Returns complete groups, in the order of the file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._group: Group | None = None
        # lines after the group whose ids cannot be read: the next line decides whether they belong to it
        self._doubtful: list[Refusal] = []

    def good(self, number: int, parsed: ParsedLine) -> list[Group | Refusal]:
        aggregate_id, command_id, time, event = parsed
        group = self._group
        if group is not None and aggregate_id == group.aggregate_id and command_id == group.command_id:
            for refusal in self._doubtful:
                group.refuse(refusal.line, refusal.why)
            self._doubtful.clear()
            group.add(number, time, event)
            return []
        ended = self.end()
        self._group = group = Group(self._path, number, aggregate_id, command_id, time)
        group.add(number, time, event)
        return ended

    def bad(self, number: int, refused: LineRefused) -> list[Group | Refusal]:
        group = self._group
        if group is not None and refused.ids == (group.aggregate_id, group.command_id):
            group.refuse(number, refused.what)
            return []
        self._doubtful.append(Refusal(self._path, number, 1, refused.what, number, number))
        return [] if refused.ids is None and len(self._doubtful) < _DOUBTFUL_MAX else self.end()

    def end(self) -> list[Group | Refusal]:
        ended: list[Group | Refusal] = [] if self._group is None else [self._group]
        ended += self._doubtful
        self._group, self._doubtful = None, []
        return ended


def _groups(path: str, lines: BinaryIO) -> Iterator[Group | Refusal]:
    grouper = _Grouper(path)
    for number, raw in _numbered(path, lines):
        try:
            parsed = parse_line(_text(raw))
        except LineRefused as refused:
            yield from grouper.bad(number, refused)
        else:
            yield from grouper.good(number, parsed)
    yield from grouper.end()


def _text(raw: bytes) -> str:
    if len(raw) >= LINE_BYTES_MAX:
        raise LineRefused(f"the line is longer than {LINE_BYTES_MAX} bytes", guess_ids(raw[:4096].decode(errors="replace")))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise LineRefused(f"not UTF-8: {error}", guess_ids(raw.decode(errors="replace"))) from None


def _numbered(path: str, lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not empty with their numbers; of a line that is too long, only the beginning."""
    number = 0
    try:
        while raw := lines.readline(LINE_BYTES_MAX):
            number += 1
            stripped = raw.strip(b" \t\r\n")
            if stripped:
                yield number, raw if len(raw) == LINE_BYTES_MAX else stripped
            while len(raw) == LINE_BYTES_MAX and not raw.endswith(b"\n"):
                raw = lines.readline(LINE_BYTES_MAX)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceFailed(f"{path} is damaged or cut off after line {number}: {error}") from None
