"""The two promises: (aggregate, version) and (aggregate, command id) are unique, for the aggregate's whole life.

Answers from memory where it can: the tail for what is not sorted yet, the cache of known aggregates for what is.
Whatever fell out of the cache is looked up in the directory; "not cached" never means "new". Hashes of command ids
only ever say "maybe": a repeated command is found by reading its record.

All of this runs where appends are checked, on an event loop, also where it has to wait for the disk: what is checked must
stay true until the record is framed, so the batch cannot wait on a thread while others go on. It waits once for each
aggregate that is not cached (a batch of many asks for them in one pass, in key order), and for a repetition that is not in
memory. The questions of a server's readers do not wait here: see `facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from eventstore.store import commit, known
from eventstore.store.commit import CommitView
from eventstore.store.directory import Directory, Place
from eventstore.store.event_files import EventFiles
from eventstore.store.facts import find_in_sorted
from eventstore.store.index import command_hash
from eventstore.store.known import ABSENT, KnownAggregates
from eventstore.store.lookup import look_up, look_up_many
from eventstore.store.tail import Tail, TailFile, command_key

_PREFETCH_MIN = 8


class Uniqueness:
    """Current versions and repeated commands. `read_record` reads a commit of the tail, written or still in memory."""

    def __init__(
        self, tail: Tail, known_aggregates: KnownAggregates, directory: Directory, files: EventFiles,
        read_record: Callable[[TailFile, int], bytes],
    ) -> None:  # fmt: skip
        self._tail = tail
        self._known = known_aggregates
        self._directory = directory
        self._files = files
        self._read_record = read_record

    def version(self, aggregate_id: str) -> int:
        """The aggregate's version, 0 where it does not exist; includes what is not durable yet."""
        version = self._tail.version(aggregate_id)
        if version is None:
            version = known.version_of(self.sorted_part(aggregate_id))
        return version

    def sorted_part(self, aggregate_id: str) -> bytes:
        """The cache value of the aggregate (see `known`), loaded where it is missing."""
        value = self._known.get(aggregate_id)
        if value is None:
            self._known.misses += 1
            value = self._load(aggregate_id)
            self._known.put(aggregate_id, value)
        return value

    def warm(self, aggregate_ids: Iterable[str]) -> None:
        """Loads many aggregates with one pass over the directory."""
        missing = {name.encode(): name for name in aggregate_ids if self._known.get(name) is None}
        if len(missing) < _PREFETCH_MIN:
            return
        found = look_up_many(self._directory, self._files, missing)
        for raw, name in missing.items():
            entry = found.get(raw)
            self._known.put(name, ABSENT if entry is None else self._value(entry.version, entry.places))

    def _load(self, aggregate_id: str) -> bytes:
        entry = look_up(self._directory, self._files, aggregate_id.encode())
        return ABSENT if entry is None else self._value(entry.version, entry.places)

    def _value(self, version: int, places: Iterable[Place]) -> bytes:
        hashes = [self._files.index(place.file).command_hashes(place.first, place.first + place.rows) for place in places]
        return known.pack(version, b"".join(hashes))

    def find_command(self, aggregate_id: str, command_id: str) -> CommitView | None:
        """The commit of this command, wherever it is; it may not be durable yet.

        Raises:
            Corrupt, ReadFailed: it may exist, but could not be read.
        """
        key = command_key(aggregate_id, command_id)

        def matches(file: TailFile, ordinal: int) -> bool:
            view = commit.decode(self._read_record(file, ordinal))
            return view.command_id == command_id and view.aggregate_id == aggregate_id

        hit = self._tail.find(key, matches)
        if hit is not None:
            return commit.decode(self._read_record(*hit))
        value = self.sorted_part(aggregate_id)
        if not value:
            return None
        if not known.may_hold(value, command_hash(command_id.encode())):
            return None
        return find_in_sorted(self._directory, self._files, aggregate_id, command_id)
