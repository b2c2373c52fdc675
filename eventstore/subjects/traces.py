"""Looks for what is left of a subject in files of any kind: its key, and given texts.

It trusts no structure when it searches: event files, indexes, LMDB, copies of torn tails, snapshots, message chunks, documents,
backups and whatever readers have written are all read as bytes. What is compressed or encrypted otherwise it cannot look into,
and says so of the kinds that it knows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from eventstore.errors import InvalidArgument

_STEP_BYTES: Final = 4 * 1024 * 1024
_TEXT_BYTES_MIN: Final = 4
_FINDINGS_MAX: Final = 10_000
_PACKED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
}
"""How files begin that hold what a search cannot see."""


class Trace(NamedTuple):
    """Something that is left."""

    file: str
    offset: int
    what: str


@dataclass(slots=True)
class Traces:
    """What was found. `named`: how often the name of the subject stands in the files, where it stays."""

    files: int = 0
    bytes: int = 0
    named: int = 0
    findings: list[Trace] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.findings or self.unread)


def find_traces(subject: str, folders: Sequence[Path], texts: Iterable[str] = ()) -> Traces:
    """Looks into all files of the folders, or into the files themselves.

    Raises:
        InvalidArgument: a folder does not exist, or a text is too short to mean anything.
    """
    for folder in folders:
        if not folder.exists():
            raise InvalidArgument(f"{folder} does not exist", field="verify", value=str(folder))
    wanted: dict[bytes, str] = {}
    for text in texts:
        for raw, form in _forms(text):
            if len(raw) < _TEXT_BYTES_MIN:
                what = f"the text {text!r} has {len(raw)} bytes, the least are {_TEXT_BYTES_MIN}"
                raise InvalidArgument(what, field="search", limit=_TEXT_BYTES_MIN, value=len(raw))
            wanted.setdefault(raw, f"the text {text!r}{form}")
    found = Traces()
    key = f'{json.dumps(subject)}: {{"key": '.encode()
    for path in _files(folders, found):
        try:
            _look(path, wanted, key, subject.encode(), found)
        except OSError as error:
            found.unread.append(f"{path}: {error.strerror}")
    return found


def _forms(text: str) -> Iterator[tuple[bytes, str]]:
    """Returns how the text may be written: in UTF-8, in JSON with escapes, and as UTF-16."""
    yield text.encode(), ""
    escaped = json.dumps(text)[1:-1].encode()
    if escaped != text.encode():
        yield escaped, ", escaped"
    spelled = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    if spelled != text.encode():
        yield spelled, ", escaped"
    yield text.encode("utf-16-le"), " in UTF-16"


def _files(folders: Sequence[Path], found: Traces) -> Iterator[Path]:
    for folder in folders:
        if not folder.is_dir():
            yield folder
            continue

        def unreadable(error: OSError) -> None:
            found.unread.append(f"{error.filename}: {error.strerror}")

        for parent, _, names in os.walk(folder, onerror=unreadable):
            for name in sorted(names):
                path = Path(parent, name)
                if path.is_file():
                    yield path
                elif not path.is_socket():
                    found.unread.append(f"{path}: not a file")


def _look(path: Path, wanted: dict[bytes, str], key: bytes, name: bytes, found: Traces) -> None:
    """Searches a file step by step; each step begins with what the longest text may have begun in the one before."""
    overlap = max(map(len, (*wanted, key, name))) - 1
    found.files += 1
    with open(path, "rb") as file:
        at, before = 0, b""
        while step := file.read(_STEP_BYTES):
            if not at and (packed := _packed(step)):
                found.unread.append(f"{path}: {packed}, which hides what it holds")
            begin = at - len(before)
            data = before + step
            for raw, what in wanted.items():
                _note(path, data, raw, begin, at, what, found)
            _note(path, data, key, begin, at, "the key of the subject", found)
            found.named += sum(1 for _ in _places(data, name, begin, at))
            at += len(step)
            found.bytes += len(step)
            before = data[-overlap:] if overlap else b""


def _note(path: Path, data: bytes, raw: bytes, begin: int, new_from: int, what: str, found: Traces) -> None:
    for offset in _places(data, raw, begin, new_from):
        if len(found.findings) == _FINDINGS_MAX:
            return
        found.findings.append(Trace(str(path), offset, what))


def _places(data: bytes, raw: bytes, begin: int, new_from: int) -> Iterator[int]:
    """Returns the offsets in the file of what ends at `new_from` or later: the rest was found in the step before."""
    place = data.find(raw)
    while place >= 0:
        if begin + place + len(raw) > new_from:
            yield begin + place
        place = data.find(raw, place + 1)


def _packed(step: bytes) -> str:
    return next((name for begins, name in _PACKED.items() if step.startswith(begins)), "")
