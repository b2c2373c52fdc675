"""The keys of subjects in files: a bucket for each eight slots, `subjects/NNN.json`.

A bucket is replaced as a whole and leaves no copy behind: a key that was destroyed is in no file of the folder. That is why
they are not in LMDB, nor documents with a previous copy. A key is durable, here and on the replicas that count, before anyone
gets it: no event is ever encrypted by a key that could be lost.

An erased subject stays in its bucket as such, and never gets a key again. The record of its erasure in the log outranks every
key: a start destroys those that came back, from a copy of the folder, before any is handed out.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from eventstore.chunks.documents import DocumentValue, Tree, WatchesDocuments, encoded_document, read_tree, replace_without_copy
from eventstore.chunks.files import Files
from eventstore.errors import Corrupt, Overloaded
from eventstore.records.slots import slot_of
from eventstore.sealing import fresh_secret
from eventstore.subjects.master_keys import MasterKeys

SUBJECTS: Final = "subjects"
ERASURE_TYPE: Final = "$SubjectErased"
_NAME: Final = re.compile(r"([0-9]{3})\.json", re.ASCII)
_FORMAT: Final = 1
SLOTS_PER_BUCKET: Final = 8  # 512 files: few enough for one message between replicas to have all of them
_KEY_BYTES: Final = 512  # of one key in its file, at most
REPLICATED_BYTES_MAX: Final = 48 * 1024 * 1024  # of all buckets: a replica that joins gets them in one frame of 64 MiB


def bucket_of(subject: str) -> int:
    """Returns the number of the bucket of a subject, 0 to 511."""
    return slot_of(subject) // SLOTS_PER_BUCKET


def erasure_id(subject: str) -> str:
    """Returns the id of the aggregate with the record of the subject's erasure; it is in the subject's number."""
    return f"$erased{{{subject}}}"


def erased_by(aggregate_id: str) -> str:
    """Returns the subject of the aggregate with the record of an erasure."""
    return aggregate_id[len("$erased{") : -1]


ERASURES: Final = "$erased{"
"""What the ids of all records of erasures begin with."""


@dataclass(slots=True)
class Bucket:
    """What a file holds: for each subject its wrapped key and when it was made; and when each erased one was."""

    keys: dict[str, tuple[str, int]] = field(default_factory=dict)
    erased: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundKey:
    """What there is of a subject. `secret` None: no key."""

    subject: str
    secret: bytes | None
    erased: bool


class KeyBuckets:
    """The keys of the subjects of a store. Its methods block, and are for any thread."""

    def __init__(self, files: Files, folder: Path, master: MasterKeys | None) -> None:
        """`folder`: the data folder. `master` None: keys can be destroyed, and not be read or made."""
        self._files, self.folder, self._master = files, folder / SUBJECTS, master
        self._kept: dict[int, Bucket] = {}
        self._sizes: dict[int, int] = {}  # of the files, in bytes
        self._lock = threading.Lock()
        self._unsure: set[int] = set()  # buckets of which it is not known whether what lies there is durable
        self.made = self.destroyed = 0

    def begin(self) -> None:
        """Makes durable what lies there: a process that was killed may have renamed a file, and not synced the folder."""
        if self._files.exists(self.folder):
            self._files.sync_folder(self.folder)
            for number in self._numbers():
                file = self._files.open(self.path(number))
                try:
                    self._sizes[number] = file.size()
                finally:
                    file.close()

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._sizes)

    def cached(self, subjects: Sequence[str]) -> list[FoundKey] | None:
        """Returns what there is of the subjects, each with a key or erased; None: that takes a disk. It does not wait."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            found = []
            for subject in subjects:
                number = bucket_of(subject)
                bucket = self._kept.get(number)
                if bucket is None or not (subject in bucket.keys or subject in bucket.erased):
                    return None
                found.append(self._found(number, bucket, subject))
            return found
        finally:
            self._lock.release()

    def find(self, subjects: Sequence[str], *, create: bool) -> list[FoundKey]:
        """Returns what there is of the subjects. `create`: those that have no key get one, durably, unless they were erased.

        Raises:
            Corrupt: a file is damaged, or its master key is missing.
            Overloaded: a shard with replicas has too many keys.
            OSError: a file cannot be read or written; nobody gets a key that is not durable.
        """
        by_bucket: dict[int, list[str]] = {}
        for subject in dict.fromkeys(subjects):
            by_bucket.setdefault(bucket_of(subject), []).append(subject)
        found: dict[str, FoundKey] = {}
        with self._lock:
            for number, names in by_bucket.items():
                bucket = self._bucket(number)
                new = [each for each in names if create and each not in bucket.keys and each not in bucket.erased]
                if new:
                    now_us = time.time_ns() // 1_000
                    self._check_room(len(new))
                    assert self._master is not None, "a key is made under a master key"
                    made = {name: (self._master.wrapped(name, fresh_secret()), now_us) for name in new}
                    bucket = self._replace(number, Bucket({**bucket.keys, **made}, bucket.erased))
                    self.made += len(new)
                found |= {name: self._found(number, bucket, name) for name in names}
        return [found[subject] for subject in subjects]

    def destroy(self, erased: Mapping[str, int]) -> int:
        """Destroys the keys of erased subjects, and notes when each was erased, µs since 1970. Returns how many had a key.
        Durable on return; after an error it has to be asked again. Raises as `find`.
        """
        by_bucket: dict[int, dict[str, int]] = {}
        for subject, when in erased.items():
            by_bucket.setdefault(bucket_of(subject), {})[subject] = when
        destroyed = 0
        with self._lock:
            for number, gone in by_bucket.items():
                bucket = self._bucket(number)
                keys = {name: key for name, key in bucket.keys.items() if name not in gone}
                lost = len(bucket.keys) - len(keys)
                if lost or not bucket.erased.keys() >= gone.keys():
                    self._replace(number, Bucket(keys, {**gone, **bucket.erased}))
                destroyed += lost
        self.destroyed += destroyed
        return destroyed

    def wrap_again(self) -> int:
        """Encrypts keys under the first master key that are under an old one. Returns how many. Raises as `find`."""
        changed, master = 0, self._master
        with self._lock:
            for number in self._numbers() if master is not None and master.several else ():
                bucket, path = self._bucket(number), self.path(number)
                assert master is not None, "there are several"
                new = {
                    name: (master.wrapped(name, master.unwrapped(path, name, wrapped)), when)
                    for name, (wrapped, when) in bucket.keys.items()
                    if master.is_old(wrapped)
                }
                if new:
                    self._replace(number, Bucket({**bucket.keys, **new}, bucket.erased))
                    changed += len(new)
        return changed

    def check(self) -> None:
        """Raises Corrupt if the first bucket with a key cannot be read: the master keys may be those of another store."""
        with self._lock:
            for number in self._numbers() if self._master is not None else ():
                bucket = self._bucket(number)
                if bucket.keys:
                    self._found(number, bucket, next(iter(bucket.keys)))
                    return

    def _check_room(self, new: int) -> None:
        if isinstance(self._files, WatchesDocuments) and sum(self._sizes.values()) + new * _KEY_BYTES > REPLICATED_BYTES_MAX:
            what = f"the keys of subjects of this shard take {sum(self._sizes.values())} bytes, the limit with replicas is"
            raise Overloaded(f"{what} {REPLICATED_BYTES_MAX}", limit=REPLICATED_BYTES_MAX)

    def path(self, number: int) -> Path:
        return self.folder / f"{number:03}.json"

    def _numbers(self) -> list[int]:
        return buckets_in(self._files, self.folder)

    def _found(self, number: int, bucket: Bucket, subject: str) -> FoundKey:
        erased, key = subject in bucket.erased, bucket.keys.get(subject)
        if erased or key is None:
            return FoundKey(subject, None, erased)
        assert self._master is not None, "keys are read under a master key"
        return FoundKey(subject, self._master.unwrapped(self.path(number), subject, key[0]), False)

    def _bucket(self, number: int) -> Bucket:
        bucket = self._kept.get(number)
        if bucket is None:
            bucket = read_bucket(self._files, self.path(number))
            if number in self._unsure:
                return self._replace(number, bucket)
            self._kept[number] = bucket
        return bucket

    def _replace(self, number: int, bucket: Bucket) -> Bucket:
        """Writes a bucket, and takes it for the one that there is once it is durable. If that fails, the file is read, and
        written, before its keys are handed out again.
        """
        self._kept.pop(number, None)
        self._unsure.add(number)
        path, raw = self.path(number), encoded_document(_document(bucket))
        if not self._files.exists(self.folder):
            self._files.make_folder(self.folder)
            self._files.sync_folder(self.folder.parent)
        replace_without_copy(self._files, path, raw)
        self._sizes[number] = len(raw)
        if isinstance(self._files, WatchesDocuments):
            self._files.document_replaced(path, raw)
        self._unsure.discard(number)
        self._kept[number] = bucket
        return bucket


def buckets_in(files: Files, folder: Path) -> list[int]:
    """Returns the slots that have a bucket in `subjects/`."""
    if not files.exists(folder):
        return []
    return sorted(int(match[1]) for name in files.names(folder) if (match := _NAME.fullmatch(name)))


def read_bucket(files: Files, path: Path) -> Bucket:
    """Returns the bucket in a file; an empty one if there is none. Raises Corrupt."""
    try:
        tree = read_tree(files, path)
    except FileNotFoundError:
        return Bucket()
    match tree:
        case {"format": 1, "keys": dict(keys), "erased": dict(erased)}:
            found = Bucket()
            for name, value in keys.items():
                match value:
                    case {"key": str(wrapped), "made": int(made)}:
                        found.keys[name] = wrapped, made
                    case _:
                        raise Corrupt(str(path), 0, f"the key of subject {name!r} is not what a store writes")
            found.erased = {name: when for name, when in erased.items() if isinstance(when, int)}
            if len(found.erased) == len(erased):
                return found
    raise Corrupt(str(path), 0, "no keys of subjects; of replicas another one has them, else take the file from a copy")


def _document(bucket: Bucket) -> Tree:
    keys: dict[str, DocumentValue] = {name: {"key": key, "made": made} for name, (key, made) in bucket.keys.items()}
    return {"format": _FORMAT, "keys": keys, "erased": dict[str, DocumentValue](bucket.erased)}
