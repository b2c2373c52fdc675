"""Documents of a shard that every replica has to have: topics, groups' offsets, and where reactions and the outbox are (R14).

Their version is a place, as in a log: the epoch, and a number that counts changes in it. A leader gives all documents a new
version when it begins, so that a follower that joins gets them all; what a follower had is replaced, never merged.

`replicated.json` says which version the documents have at least, and whether the leader of its epoch wrote it, before any other
replica had anything of that epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from eventstore.chunks.documents import (
    Document,
    read_document,
    read_file,
    replace_document,
    replace_without_copy,
    write_document,
)
from eventstore.chunks.files import Files
from eventstore.errors import Corrupt
from eventstore.subjects.key_buckets import SUBJECTS
from eventstore_cluster.replica.epochs import Beginning, LogTail
from eventstore_cluster.replica.places import NOWHERE, LogEnd
from eventstore_cluster.replication.logs.pieces import Documents

VERSION: Final = "replicated.json"
DELETIONS: Final = "broker/messages/deleted.json"
"""Which message chunks the leader has deleted: followers delete theirs, and keep a document of their own about it."""
_NAMES: Final = ("broker/topics.json", "broker/offsets.json", "reactions.json", "published.json", "inherited.json", DELETIONS)
_PATTERNS: Final = ("published-*.json",)
_KEYS: Final = f"{SUBJECTS}/[0-9][0-9][0-9].json"
"""The keys of subjects. What replaces one of these leaves no copy of it."""


def is_replicated(folder: Path, path: Path) -> bool:
    """Whether this is a document that every replica of the shard in `folder` has."""
    return path.is_relative_to(folder) and (
        str(relative := path.relative_to(folder)) in _NAMES or any(relative.match(each) for each in (*_PATTERNS, _KEYS))
    )


def tail_of(version: LogEnd) -> LogTail:
    """Returns the version as the end of a log, whose epochs before the last one are not kept."""
    return LogTail() if version == NOWHERE else LogTail(version, (Beginning(version[0], NOWHERE),))


def read_documents(files: Files, folder: Path) -> list[tuple[str, bytes]]:
    """Returns all documents there are."""
    paths = [folder / name for name in _NAMES]
    paths += [folder / name for name in files.names(folder) if any(Path(name).match(each) for each in _PATTERNS)]
    buckets = folder / SUBJECTS
    paths += [
        buckets / name for name in (files.names(buckets) if files.exists(buckets) else ()) if (buckets / name).match(_KEYS)
    ]
    return [(str(path.relative_to(folder)), read_file(files, path)) for path in paths if files.exists(path)]


class FollowerDocuments:
    """The documents of a follower.

    Attributes:
        tail: their version, as the end of a log.
        led: the version was written by a leader that ran on this folder.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        """Raises Corrupt."""
        self._files, self._folder = files, folder
        version, self.led = _read_version(files, folder)
        self.tail = tail_of(version)

    def store(self, given: Documents) -> None:
        """Replaces documents; durable on return. Raises Corrupt: one is not of a shard."""
        for name, raw in given.documents:
            if name == DELETIONS:
                continue
            path = self._folder / name
            if ".." in Path(name).parts or not is_replicated(self._folder, path):
                raise Corrupt(str(path), 0, "the leader sends a document that is not of a shard")
            if path.match(_KEYS):
                if not self._files.exists(path.parent):
                    self._files.make_folder(path.parent)
                    self._files.sync_folder(self._folder)
                replace_without_copy(self._files, path, raw)
            else:
                replace_document(self._files, path, raw)
        write_version(self._files, self._folder, given.end)
        self.tail, self.led = tail_of(given.end), False

    def cut(self, end: LogEnd) -> None:
        """Forgets the version, if it is not `end`: the leader's documents replace these, which are kept until then."""
        if end != self.tail.end:
            self.tail = LogTail()


def read_version(files: Files, folder: Path) -> LogEnd:
    return _read_version(files, folder)[0]


def _read_version(files: Files, folder: Path) -> tuple[LogEnd, bool]:
    """Returns the version, and whether the leader of its epoch wrote it."""
    path = folder / VERSION
    if not files.exists(path):
        return NOWHERE, False
    match read_document(files, path):
        case {"epoch": int(epoch), "number": int(number), **rest}:
            return (epoch, number), rest.get("led") is True
    raise Corrupt(str(path), 0, "no version of documents; remove this replica's folder: it is copied again")


def write_version(files: Files, folder: Path, version: LogEnd, *, led: bool = False) -> None:
    """Writes the version of the documents, durably. `led`: the leader of this epoch writes it."""
    own: Document = {"led": True} if led else {}
    write_document(files, folder / VERSION, {"epoch": version[0], "number": version[1], **own})
