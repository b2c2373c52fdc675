"""Loads the records of an unsorted event file into the tail when a store is opened."""

from __future__ import annotations

from array import array

from eventstore.arrays import np, npt
from eventstore.chunks.record import TRAILER, Walk
from eventstore.chunks.slab import Ints, gather
from eventstore.errors import Corrupt, FolderRefused
from eventstore.records.commit import HEADER, IDS_FROM, LONG_MARK, UnknownFlags, joint_place_of, tags_of_events
from eventstore.store.memory.unsorted_tail import NO_COMMIT, TailFile, UnsortedTail
from eventstore.tags import TAGGED

_FIELDS = ("own_mark", "length", "count", "first_version", "id_length", "command_length")


class TailRecovery:
    """Adds the records it is called with to a tail file. Checks that versions have no gap, also after the earlier files."""

    def __init__(self, tail: UnsortedTail, file: TailFile, name: str, *, tags: bool = True) -> None:
        """`tags`: some of its events may have tags."""
        self._earlier = tail.before(file)
        self._file = file
        self._name = name
        self._tags = tags

    def __call__(self, data: memoryview, base: int, found: Walk) -> None:
        """Raises Corrupt if an aggregate's versions have a gap, FolderRefused if a record has flags that are not known."""
        file, raw = self._file, data.tobytes()
        starts = np.array(found.offsets) - base
        headers = gather(raw, starts, HEADER.dtype(*_FIELDS))
        for place in np.flatnonzero(headers["own_mark"] == LONG_MARK).tolist():
            try:
                joint_place_of(raw, int(starts[place]))
            except UnknownFlags as error:
                raise FolderRefused(self._name, f"at byte offset {found.offsets[place]} {error}") from None
        ids = starts + headers["own_mark"] + (IDS_FROM + 2)
        id_ends = ids + headers["id_length"]
        commands = id_ends + 2
        command_ends = commands + headers["command_length"]
        names = [raw[start:stop].decode() for start, stop in zip(ids.tolist(), id_ends.tolist(), strict=True)]
        command_ids = [raw[start:stop].decode() for start, stop in zip(commands.tolist(), command_ends.tolist(), strict=True)]
        before = headers["first_version"] - np.uint64(1)
        keys = list(map(hash, zip(names, command_ids, strict=True)))  # as tail.command_key
        previous = file.add_heads(names, keys, array("Q", (before + headers["count"]).tobytes()))
        self._check_versions(names, previous, before, found.offsets)
        if self._tags:
            self._note_tags(raw, headers["count"], command_ends, starts + headers["length"] - TRAILER.size)
        file.add_places(found.offsets[0], headers["length"].tolist(), found.sequences, int(headers["count"][-1]))

    def _note_tags(self, raw: bytes, counts: Ints, begins: Ints, ends: Ints) -> None:
        """Notes the tags of the commits whose events lie between `begins` and `ends`."""
        formats = np.frombuffer(raw, np.uint8)[begins]  # of the first event; a commit of several is decoded
        first = len(self._file.offsets)
        for place in np.flatnonzero((formats & TAGGED != 0) | (counts > 1)).tolist():
            tags = tags_of_events(raw[int(begins[place]) : int(ends[place])], int(counts[place]))
            self._file.add_tags(first + place, tags)

    def _check_versions(
        self, names: list[str], previous: list[int], before: npt.NDArray[np.uint64], offsets: list[int]
    ) -> None:
        """Raises Corrupt unless each commit follows its predecessor.

        `previous` and `before`: the predecessor in this file, and the version that it must have led to.
        """
        versions, predecessors = before.copy(), np.array(previous)
        here = predecessors != NO_COMMIT
        versions[here] = np.frombuffer(self._file.versions, np.uint64)[predecessors[here]]
        if self._earlier:
            for place in np.flatnonzero(~here).tolist():
                version = self._version_before(names[place])
                if version is not None:
                    versions[place] = version
        wrong = versions != before
        if wrong.any():
            place = int(np.argmax(wrong))
            what = f"{names[place]!r} goes from version {versions[place]} to {(int(before[place]) + 1) % 2**64}"
            raise Corrupt(self._name, offsets[place], what)

    def _version_before(self, aggregate_id: str) -> int | None:
        """Returns the aggregate's version in the unsorted files before this one; None if it has no commit there."""
        for file in self._earlier:
            version = file.version(aggregate_id)
            if version is not None:
                return version
        return None
