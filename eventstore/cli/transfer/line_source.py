"""Reads files of events, packed or not, and groups their lines into commits. Knows nothing of the network.

The lines of one file with the same aggregate and command id form one commit, which is imported whole or not at all. Lines of
other aggregates may stand between them. Lines of the same aggregate may not, since its order would be a guess; nor may the
lines of a commit be in several files. To know when a commit is complete, and to send no part of one that is not, the files
are read twice: `survey` finds the commands whose lines are apart, `groups` yields commits.

Lines that an export has marked as one commit of several aggregates are imported by one commit, or not at all. They have to be
neighbours, those of each aggregate as well, so that one that is missing is noticed by their number.

A line whose command cannot be read may belong to any commit of its aggregate, before or behind it, in any of the files; a line
whose aggregate cannot be read to any commit at all. Were such a commit stored without it, it could never be completed: its
command id would be taken. A narrower rule would have to guess where a commit may go on. So of these aggregates nothing is
imported (`may_lack_lines`) until the line is corrected, which costs little: another import, and nothing that waits elsewhere.
If the events have to fit a domain, nothing at all is imported unless every line does.
"""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import tempfile
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, cast

from eventstore.arrays import np
from eventstore.cli.transfer.event_lines import JointMark, LineIds, LineRefused, ParsedLine, guess_ids
from eventstore.cli.transfer.line_rules import LineRules
from eventstore.cli.transfer.refusals import Refusal
from eventstore.errors import EventStoreError
from eventstore.fields import counted
from eventstore.model import ANY, COMMIT_BYTES_MAX, COMMIT_EVENTS_MAX, Commit, ExpectedVersion, NewEvent, Write

# An event of 4 MB, each byte of which is spelled as an escape of six, and the rest of the line.
LINE_BYTES_MAX: Final = 32 * 1024 * 1024
STANDARD_INPUT: Final = "-"
OPEN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Payload bytes of commits whose lines are apart and not all read yet: they are kept in memory."""
UNSURE_AGGREGATES_MAX: Final = 100_000
"""Aggregates with a line whose command cannot be read: they are kept in memory. If there are more, nothing is imported."""
_BUFFER_BYTES: Final = 256 * 1024  # GzipFile's own readline is Python, a buffered reader's is C
_GZIP_MAGIC: Final = b"\x1f\x8b"
_REPEATED: Final = 0
_IN_SEVERAL_FILES: Final = -1
_OVERTAKEN: Final = -2
_READ_BEFORE: Final = -3  # what was `_REPEATED`
_OUTSIDE_JOINT: Final = -4
_TOO_MUCH: Final = f"too much for one commit: over {COMMIT_EVENTS_MAX} events or {COMMIT_BYTES_MAX} bytes"
_SEPARATELY: Final = "or remove joint_commit and joint_events from its lines, to import its aggregates one by one"
_WHY: Final = {
    _IN_SEVERAL_FILES: "its command has lines in several files; import them one after the other if they hold the same "
    "commits, or put them into one file if one continues the other",
    _OVERTAKEN: "a line of another command of the aggregate stands between lines of this one; put the lines of a command "
    "next to each other",
    _OUTSIDE_JOINT: "a commit of several aggregates has lines of this one that are not next to each other, or outside of it; "
    f"put them next to each other, {_SEPARATELY}",
}


class SourceFailed(EventStoreError):
    """A file could not be read to the end."""


@dataclass(slots=True)
class CommandLines:
    """The lines of one command. If they must not be imported, `why` is set, and `at` is the line to blame.

    `runs_left`: how many runs of neighbouring lines belong to it, without those that were read to their end. `is_repeated`:
    the same versions of this command were read before. `repetitions` counts commits with the same content that need not be
    sent after it, with `repeated_lines`. `is_joint`: it is a part of `JointLines`.
    """

    file: str
    line: int
    aggregate_id: str
    command_id: str
    events: list[NewEvent] = field(default_factory=list)
    time: int | None = None
    version: int = 0  # of its last event, as an export wrote it
    lines: int = 0
    size_bytes: int = 0
    last: int = 0
    why: str | None = None
    at: int = 0
    runs_left: int = 1
    is_repeated: bool = False
    repetitions: int = 0
    repeated_lines: int = 0
    stored_version: int = 0  # of its last event in the store, once it is there
    is_joint: bool = False

    def refuse(self, line: int, why: str) -> None:
        """Refuses the group because of the last line that was counted."""
        if self.why is None:
            self.why, self.at = why, line
            self.events.clear()

    def count(self, line: int) -> None:
        """Counts a line of the group, whatever it holds."""
        self.lines, self.last = self.lines + 1, line

    def add(self, line: int, parsed: ParsedLine) -> None:
        """Adds the event of a line. A line with a version that the group has already is the same event once more."""
        self.count(line)
        _, _, time, event, version, _, is_alone = parsed
        if self.why is not None:
            return
        if self.time is None:
            self.time = time
        if time != self.time:
            self.refuse(line, "the timestamp differs from the line before, of the same command; a commit has one time")
        elif version and version < self.version:
            self.refuse(line, f"version {version} stands after version {self.version} of the same command")
        elif version and version == self.version:
            if event != self.events[-1]:
                self.refuse(line, f"version {version} is there twice, with different content")
        elif is_alone and self.events:
            if event != self.events[-1]:
                self.refuse(line, "the event of this source and id is there twice, with different content")
        else:
            self.size_bytes += len(event[2])
            if self.lines > COMMIT_EVENTS_MAX or self.size_bytes > COMMIT_BYTES_MAX:
                self.refuse(line, _TOO_MUCH)
            else:
                self.version = version
                self.events.append(event)

    def repeat(self, other: CommandLines) -> bool:
        """Counts a repetition of this commit. Returns False if its content is another one."""
        if (other.time, other.events) != (self.time, self.events):
            return False
        self.repetitions += 1
        self.repeated_lines += other.lines
        return True

    def refusal(self, line: int, why: str) -> Refusal:
        """Refuses all lines, because of one of them or because the store refused the commit."""
        return Refusal(self.file, line, self.lines, why, self.line, self.last, self.aggregate_id)

    def commit(self, expected_version: ExpectedVersion) -> Commit:
        """Makes the commit."""
        return Commit(self.aggregate_id, self.events, expected_version, self.command_id, self.time)


@dataclass(slots=True)
class JointLines:
    """The lines of a commit of several aggregates: `parts` has those of each. `why` and `at` are as of `CommandLines`."""

    file: str
    line: int
    command_id: str
    mark: JointMark
    parts: list[CommandLines] = field(default_factory=list)
    lines: int = 0
    size_bytes: int = 0
    why: str | None = None
    at: int = 0

    @property
    def aggregate_ids(self) -> list[str]:
        return [part.aggregate_id for part in self.parts]

    def count(self, line: int, size_bytes: int) -> None:
        """Counts a line that a part has got."""
        self.lines, self.size_bytes = self.lines + 1, self.size_bytes + size_bytes
        if self.why is None and (self.lines > COMMIT_EVENTS_MAX or self.size_bytes > COMMIT_BYTES_MAX):
            self.why, self.at = _TOO_MUCH, line
        if self.why is not None:
            self.parts[-1].refuse(line, self.why)

    def check(self) -> None:
        """Refuses the commit if one of its parts is refused, or its parts have different times."""
        for part in self.parts:
            if part.why is None and part.time != self.parts[0].time:
                part.refuse(part.line, "the timestamp differs from that of another aggregate, of the same commit")
            if part.why is not None and self.why is None:
                self.why, self.at = part.why, part.at

    def check_whole(self) -> None:
        """Refuses the commit if lines of it are missing, or as `check` does."""
        if self.lines < self.mark.events and self.why is None:
            self.at = self.parts[-1].last
            self.why = (
                f"{counted(self.lines, 'line')} of the {self.mark.events} of commit {self.mark.commit}, which is of several "
                f"aggregates, follow each other here; give all of them next to each other, {_SEPARATELY}"
            )
        self.check()

    def refusal(self, line: int, why: str) -> Refusal:
        """Refuses all lines, because of one of them or because the store refused the commit."""
        return Refusal(self.file, line, self.lines, why, self.line, self.parts[-1].last, self.parts[0].aggregate_id)

    def writes(self) -> list[Write]:
        """Makes what the commit writes."""
        return [Write(part.aggregate_id, part.events, ANY) for part in self.parts]


Group: TypeAlias = CommandLines | JointLines | Refusal
"""A commit, or a line that is no event."""


class LineSource:
    """Reads files one after the other, twice. `done_bytes` of `total_bytes` on disk were read by the present pass.

    Standard input is kept in a temporary file, because it cannot be read twice.
    """

    def __init__(self, paths: Sequence[str], rules: LineRules | None = None) -> None:
        self._paths = paths
        self._rules = rules or LineRules()
        self._before = 0
        self._raw: BinaryIO | None = None
        self._spool: BinaryIO | None = None
        self._apart: dict[int, int] = {}
        self._unread: tuple[int, int] | None = None
        self._file = 0  # that `groups` reads
        self._unsure = _UnsureAggregates()
        self.total_bytes: int | None = None
        self.is_surveyed = False
        if STANDARD_INPUT not in paths:
            self.total_bytes = sum(Path(path).stat().st_size for path in paths)

    @property
    def done_bytes(self) -> int:
        raw = self._raw
        try:
            return self._before + (0 if raw is None else raw.tell())
        except ValueError:  # another thread has just closed the file
            return self._before

    def survey(self) -> None:
        """Finds the commands whose lines are not neighbours. Blocks while it reads all files.

        Takes some 50 bytes of memory per commit, and afterwards 100 bytes per command that is in the files several times.

        Raises:
            OSError, SourceFailed: a file cannot be read. Which commits of it are whole is not known.
        """
        runs = _Runs(self._unsure, self._rules)
        for path in self._paths:
            if path == STANDARD_INPUT:
                self._keep_standard_input()
            try:
                with self._opened(path) as lines:
                    runs.add_file(_numbered(path, lines))
            except SourceFailed as error:
                raise SourceFailed(f"{error.message}; nothing was imported") from None
        self._apart, self._unread = runs.apart(), runs.unread
        self._before, self.is_surveyed = 0, True

    def may_lack_lines(self, aggregate_id: str) -> bool:
        """Whether a line that cannot be read may belong to a commit of this aggregate. After `survey`."""
        return aggregate_id in self._unsure

    def unread_before(self, group: CommandLines) -> str | None:
        """Returns the place of the first line that cannot be read, if this group, which was yielded last, ends after it. After
        `survey`.
        """
        if self._unread is None or self._unread >= (self._file, group.last):
            return None
        return f"line {self._unread[1]} of {self._paths[self._unread[0]]}"

    def groups(self) -> Iterator[Group]:
        """Yields the commits of all files, and the lines that are not events. After `survey`.

        A commit is yielded with its last line.

        Raises:
            OSError, SourceFailed: a file cannot be read any more. Everything yielded before is whole.
        """
        for number, path in enumerate(self._paths):
            self._file = number
            with self._opened(path) as lines:
                yield from _groups(path, lines, self._apart, self._rules)

    def _keep_standard_input(self) -> None:
        if self._spool is None:
            self._spool = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 # read again by `groups`
            shutil.copyfileobj(sys.stdin.buffer, self._spool)
            if len(self._paths) == 1:
                self.total_bytes = self._spool.tell()

    @contextmanager
    def _opened(self, path: str) -> Iterator[BinaryIO]:
        raw = self._spool if path == STANDARD_INPUT and self._spool is not None else cast(BinaryIO, open(path, "rb"))  # noqa: SIM115
        try:
            self._raw = raw
            raw.seek(0)
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            yield cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES)) if packed else raw
        finally:
            self._before, self._raw = self.done_bytes, None
            if raw is not self._spool:
                raw.close()


def _key(aggregate_id: str, command_id: str) -> int:
    """Python's hash, which differs between processes: nothing outside this process sees it."""
    return hash((aggregate_id, command_id))


class _UnsureAggregates:
    """Aggregates with a line whose command cannot be read; all, if there is a line whose aggregate cannot be read."""

    def __init__(self) -> None:
        self._ids: set[str] | None = set()

    def add(self, aggregate_id: str | None) -> None:
        if self._ids is not None:
            if aggregate_id is None or len(self._ids) >= UNSURE_AGGREGATES_MAX:
                self._ids = None
            else:
                self._ids.add(aggregate_id)

    def __contains__(self, aggregate_id: str) -> bool:
        return self._ids is None or aggregate_id in self._ids


class _Runs:
    """The runs of neighbouring lines of one command, of all files: the hash of their ids, and of the versions they span.

    Attributes:
        unread: the number of the file, and of the line in it, that is the first that cannot be read.
    """

    def __init__(self, unsure: _UnsureAggregates, rules: LineRules) -> None:
        self._unsure = unsure
        self._rules = rules
        self._keys = array("q")
        self._spans = array("q")
        self._files: list[int] = []  # each file's first run
        self._ids = LineIds(None, None)
        self._first = self._last = self._lines = 0
        self.unread: tuple[int, int] | None = None

    def add_file(self, lines: Iterable[tuple[int, bytes]]) -> None:
        self._files.append(len(self._keys))
        for number, raw in lines:
            try:
                parsed = self._rules.parse(_text(raw))
            except LineRefused as refused:
                self.unread = self.unread or (len(self._files) - 1, number)
                if self._rules.checks:  # nothing is stored unless all events fit the domain
                    self._unsure.add(None)
                if None in refused.ids:
                    self._unsure.add(refused.ids.aggregate_id)
                else:
                    self._add(refused.ids, 0)
            else:
                self._add(LineIds(parsed.aggregate_id, parsed.command_id), parsed.version)
        self._end_run()

    def _add(self, ids: LineIds, version: int) -> None:
        if ids != self._ids or begins_again(version, self._last):
            self._end_run()
            self._ids, self._first, self._lines = ids, version, 0
        self._last = version
        self._lines += 1

    def _end_run(self) -> None:
        aggregate_id, command_id = self._ids
        if aggregate_id is not None and command_id is not None:
            self._keys.append(_key(aggregate_id, command_id))
            self._spans.append(hash((self._first, self._last, self._lines)) if self._first and self._last else 0)
        self._ids = LineIds(None, None)

    def apart(self) -> dict[int, int]:
        """Returns by key how many runs of lines it has, of those that have several in one file, or what is wrong with it.

        Runs of the same versions are the same commit several times, as in exports that overlap.
        """
        if not self._keys:
            return {}
        keys, spans = np.frombuffer(self._keys, np.int64), np.frombuffer(self._spans, np.int64)
        order = np.argsort(keys, kind="stable")
        keys, spans = keys[order], spans[order]
        is_same = keys[1:] == keys[:-1]
        is_apart = is_same & ((spans[1:] != spans[:-1]) | (spans[1:] == 0))
        found = dict.fromkeys(np.unique(keys[1:][is_same]).tolist(), _REPEATED)
        apart = np.unique(keys[1:][is_apart])
        begins, ends = np.searchsorted(keys, apart), np.searchsorted(keys, apart, "right")
        files = np.searchsorted(self._files, order, "right")
        counts = np.where(files[begins] == files[ends - 1], ends - begins, _IN_SEVERAL_FILES)
        found.update(zip(apart.tolist(), counts.tolist(), strict=True))
        return found


def begins_again(version: int, before: int) -> bool:
    """Whether a line repeats a commit, as where two exports were joined: its version does not rise from the line before."""
    return 0 < version <= before


class _Grouper:
    """Groups the lines of one file into commits. Returns complete groups, each with the end of its last run of lines."""

    def __init__(self, path: str, apart: dict[int, int]) -> None:
        self._path = path
        self._apart = apart
        self._run: CommandLines | None = None  # the group of the line before
        self._version = 0  # of the line before
        self._open: dict[str, CommandLines] = {}  # by aggregate: groups whose lines are apart and not all read
        self._open_bytes = 0
        self._joint: JointLines | None = None  # what the line before is a part of

    def good(self, number: int, parsed: ParsedLine) -> list[Group]:
        if self._joint is not None or parsed.joint is not None:
            return self._good_joint(number, parsed)
        return self._add(number, parsed)

    def _good_joint(self, number: int, parsed: ParsedLine) -> list[Group]:
        """Adds a line of a joint commit, or one behind it."""
        ended: list[Group] = []
        joint, mark = self._joint, parsed.joint
        if joint is not None and (mark, parsed.command_id) != (joint.mark, joint.command_id):
            ended = self._end_joint()
        if mark is None:
            return [*ended, *self._add(number, parsed)]
        if self._joint is None:
            ended += self._end_run()
            self._joint = JointLines(self._path, number, parsed.command_id, mark)
        joint = self._joint
        ended += [each for each in self._add(number, parsed) if not (isinstance(each, CommandLines) and each.is_joint)]
        joint.count(number, len(parsed.event[2]))
        return [*ended, *self._end_joint()] if joint.lines == mark.events else ended

    def _end_joint(self) -> list[Group]:
        joint, self._joint = self._joint, None
        if joint is None:
            return []
        self._end_run()
        joint.check_whole()
        return [joint]

    def _add(self, number: int, parsed: ParsedLine) -> list[Group]:
        ended, group = self._turn_to(number, parsed.aggregate_id, parsed.command_id, parsed.version)
        before = group.size_bytes
        group.add(number, parsed)
        if group.aggregate_id in self._open:
            self._open_bytes += group.size_bytes - before
            if self._open_bytes > OPEN_BYTES_MAX:
                group.refuse(
                    number,
                    f"commits whose lines are apart take more than {OPEN_BYTES_MAX // 1024**2} MB; put the lines of a command "
                    "next to each other",
                )
                self._open_bytes -= group.size_bytes
                group.size_bytes = 0
        return ended

    def bad(self, number: int, refused: LineRefused) -> list[Group]:
        aggregate_id, command_id = refused.ids
        joint = self._end_joint()
        if aggregate_id is None or command_id is None:
            return [*joint, Refusal(self._path, number, 1, refused.what, number, number, aggregate_id)]
        ended, group = self._turn_to(number, aggregate_id, command_id, 0)
        group.count(number)
        group.refuse(number, refused.what)
        return [*joint, *ended]

    def end_file(self) -> list[Group]:
        # the open groups are whole: this happens if the file has changed since it was surveyed
        return [*self._end_joint(), *self._end_run(), *self._open.values()]

    def _turn_to(self, number: int, aggregate_id: str, command_id: str, version: int) -> tuple[list[Group], CommandLines]:
        """Returns the groups that end before this line, and the group that it belongs to."""
        run, before, self._version = self._run, self._version, version
        if (
            run is not None
            and run.aggregate_id == aggregate_id
            and run.command_id == command_id
            and not begins_again(version, before)
        ):
            return [], run
        ended = self._end_run()
        group = self._open.get(aggregate_id) if self._open else None
        if group is not None and (group.command_id != command_id or self._joint is not None):
            group.refuse(number, _WHY[_OVERTAKEN])
            self._apart[_key(aggregate_id, group.command_id)] = _OVERTAKEN
            self._close(group)
            ended.append(group)
            group = None
        if group is None:
            group = self._begin(number, aggregate_id, command_id)
        self._run = group
        return ended, group

    def _begin(self, number: int, aggregate_id: str, command_id: str) -> CommandLines:
        group = CommandLines(self._path, number, aggregate_id, command_id)
        key = _key(aggregate_id, command_id)
        runs = self._apart.get(key, 1)
        if self._joint is not None:
            group.is_joint = True
            self._joint.parts.append(group)
            if runs > 1:
                runs = self._apart[key] = _OUTSIDE_JOINT
        if runs in _WHY:
            group.refuse(number, _WHY[runs])
        elif runs == _REPEATED:
            self._apart[key] = _READ_BEFORE
        elif runs == _READ_BEFORE:
            group.is_repeated = True
        elif runs > 1:
            group.runs_left = runs
            self._open[aggregate_id] = group
        return group

    def _end_run(self) -> list[Group]:
        group, self._run = self._run, None
        if group is None:
            return []
        group.runs_left -= 1
        if group.runs_left > 0:
            return []
        self._close(group)
        return [group]

    def _close(self, group: CommandLines) -> None:
        if self._open.get(group.aggregate_id) is group:
            del self._open[group.aggregate_id]
            self._open_bytes -= group.size_bytes


def _groups(path: str, lines: BinaryIO, apart: dict[int, int], rules: LineRules) -> Iterator[Group]:
    grouper = _Grouper(path, apart)
    for number, raw in _numbered(path, lines):
        try:
            parsed = rules.parse(_text(raw))
        except LineRefused as refused:
            yield from grouper.bad(number, refused)
        else:
            yield from grouper.good(number, parsed)
    yield from grouper.end_file()


def _text(raw: bytes) -> str:
    if len(raw) >= LINE_BYTES_MAX:
        # A line of another aggregate may follow in what is not read.
        raise LineRefused(f"the line is longer than {LINE_BYTES_MAX} bytes")
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
