"""The tail: an in-memory index of the event files that are not sorted yet. The last of them is being written.

Each file needs only arrays and two dicts of plain strings and ints, which Python's garbage collector does not traverse. With
one object for each aggregate, five million aggregates would cost it seconds.

Per commit: where its record begins, its first sequence, the version it led to, and the previous commit of the same aggregate (a
linked list through an array). `heads`: aggregate id → its last commit. `commands`: hash of (aggregate id, command id) → commit.
Each hit is verified against the record, so a hash collision costs a read and never an event. `tags`: tag → the commits with an
event that has it, ascending.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

from eventstore.chunks.files import File
from eventstore.chunks.header import RECORDS_FROM
from eventstore.query import Query

NO_COMMIT: Final = 0xFFFFFFFF
_KEPT_CHAINS_MAX: Final = 256  # together they hold each commit once at most: 4 bytes
_IDENTITIES_MAX: Final = 4096
_KEPT_COMMITS_MIN: Final = 64  # walking a shorter chain is as fast as finding it


def command_key(aggregate_id: str, command_id: str) -> int:
    """Returns a hash for use in memory only: it differs between processes, so clients cannot construct collisions."""
    return hash((aggregate_id, command_id))


class TailFile:
    """The commits of one event file, in commit order; a commit's position is its ordinal.

    Attributes:
        identities: of some events, by sequence, the first 8 digits: of those that readers were told, or were checked before.
    """

    __slots__ = (
        "_chains",
        "_chains_lock",
        "_undone",
        "collided",
        "commands",
        "end",
        "file",
        "first_sequence",
        "heads",
        "identities",
        "next_sequence",
        "number",
        "offsets",
        "previous",
        "sequences",
        "tags",
        "versions",
    )

    def __init__(self, number: int, first_sequence: int) -> None:
        self.number = number
        self.file: File | None = None  # the unsorted file, even after the sorted file took over its name
        self.first_sequence = self.next_sequence = first_sequence
        self.end = RECORDS_FROM
        self.offsets = array("I")
        self.sequences = array("Q")
        self.versions = array("Q")
        self.previous = array("I")
        self.heads: dict[str, int] = {}
        self.commands: dict[int, int] = {}
        self.collided: dict[int, list[int]] = {}
        self.tags: dict[str, array[int]] = {}
        self.identities: dict[int, str] = {}
        self._undone = 0
        self._chains: OrderedDict[str, array[int]] = OrderedDict()
        self._chains_lock = threading.Lock()

    def add_heads(self, aggregate_ids: Sequence[str], keys: Sequence[int], versions: Iterable[int]) -> list[int]:
        """Appends commits that lead their aggregates to these versions: the half that the next check needs. `keys` come from
        `command_key`. Returns, for each, the aggregate's previous commit in this file.

        `add_places` adds the other half; until then the commits can be neither read nor found.
        """
        heads = self.heads
        previous: list[int] = []
        before, found = heads.get, previous.append
        ordinals = list(range(len(self.versions), len(self.versions) + len(keys)))
        for aggregate_id, ordinal in zip(aggregate_ids, ordinals, strict=True):
            found(before(aggregate_id, NO_COMMIT))
            heads[aggregate_id] = ordinal
        owners = list(map(self.commands.setdefault, keys, ordinals))
        if owners != ordinals:
            for key, owner, ordinal in zip(keys, owners, ordinals, strict=True):
                if owner != ordinal:
                    self.collided.setdefault(key, []).append(ordinal)
        self.versions.extend(versions)
        self.previous.extend(previous)
        return previous

    def add_places(self, offset: int, lengths: Sequence[int], sequences: Sequence[int], last_count: int) -> None:
        """Adds the other half: the records begin at `offset`, without gaps; the last holds `last_count` events."""
        offsets = list(accumulate(lengths, initial=offset))
        end = offsets.pop()
        self.sequences.extend(sequences)
        self.offsets.extend(offsets)
        self.end = end
        self.next_sequence = sequences[-1] + last_count

    def add_tags(self, ordinal: int, tags: Iterable[str]) -> None:
        """Notes that the commit, which is later than those noted before, has events with these tags."""
        for tag in tags:
            found = self.tags.get(tag)
            if found is None:
                self.tags[tag] = array("I", (ordinal,))
            else:
                found.append(ordinal)

    def tagged(self, query: Query, first: int, stop: int) -> array[int]:
        """Returns the commits from `first` up to `stop` that have all tags of one of the query's items, each of which has some,
        ascending. Their events need not pass: the tags may be those of several events, and types are not looked at.
        """
        parts = [part for item in query.items if (part := self._with_all(item.tags, first, stop))]
        if len(parts) < 2:
            return parts[0] if parts else array("I")
        return array("I", sorted(set().union(*parts)))

    def tagged_max(self, query: Query, first: int) -> int:
        """Returns how many commits `tagged` looks at from `first` on."""
        return sum(
            len(found[0]) - bisect_left(found[0], first) for item in query.items if (found := self._of(item.tags, first))
        )

    def _with_all(self, tags: Sequence[str], first: int, stop: int) -> array[int] | None:
        found = self._of(tags, first)
        if found is None:
            return None
        rarest, *others = found
        commits = rarest[bisect_left(rarest, first) : bisect_left(rarest, stop)]
        for other in others:  # not as sets: the rarest tag may have a few commits, and another one all
            commits = array("I", [each for each in commits if _holds(other, each)])
        return commits

    def _of(self, tags: Sequence[str], first: int) -> list[array[int]] | None:
        """Returns the commits of each tag, the shortest first; None if one has none from `first` on."""
        found = []
        for tag in tags:
            known = self.tags.get(tag)
            if known is None or known[-1] < first:  # that is all there is to most conditions
                return None
            found.append(known)
        return sorted(found, key=len)

    def note_identity(self, sequence: int, identity: str) -> None:
        """Keeps the first 8 digits of the identity of one of its events."""
        if len(self.identities) >= _IDENTITIES_MAX:
            self.identities.clear()
        self.identities[sequence] = identity

    def undo_last(self, aggregate_id: str, key: int, tags: Iterable[str] = ()) -> None:
        """Removes the last commit, which is of this aggregate and key, and has events with these tags."""
        ordinal = len(self.offsets) - 1
        self.identities.clear()
        for tag in tags:
            self.tags[tag].pop()
            if not self.tags[tag]:
                del self.tags[tag]
        before = self.previous[ordinal]
        if before == NO_COMMIT:
            del self.heads[aggregate_id]
        else:
            self.heads[aggregate_id] = before
        if self.commands[key] == ordinal:
            del self.commands[key]
        else:
            self.collided[key].remove(ordinal)
            if not self.collided[key]:
                del self.collided[key]
        with self._chains_lock:
            self._undone += 1
            self._chains.pop(aggregate_id, None)
        self.end = self.offsets.pop()
        self.next_sequence = self.sequences.pop()
        self.versions.pop()
        self.previous.pop()

    @property
    def undone(self) -> int:
        """How many commits were undone so far. A reader that copied from here and finds another number copies again."""
        return self._undone

    def version(self, aggregate_id: str) -> int | None:
        """Returns the aggregate's version after its last commit in this file; None if it has none here."""
        ordinal = self.heads.get(aggregate_id)
        return None if ordinal is None else self.versions[ordinal]

    def candidates(self, key: int) -> list[int]:
        """Returns the ordinals of all commits that may have this key."""
        ordinal = self.commands.get(key)
        return [] if ordinal is None else [ordinal, *self.collided.get(key, ())]

    def extent(self, first: int, last: int | None = None) -> tuple[int, int]:
        """Returns where the commit's record begins and ends, or where those of all commits from `first` to `last` do."""
        end = self.end  # first: another thread may append in the meantime
        offsets, following = self.offsets, (first if last is None else last) + 1
        return offsets[first], offsets[following] if following < len(offsets) else end

    def up_to(self, bytes_max: int, chain: array[int], begin: int, end: int, backwards: bool) -> array[int]:
        """Returns the commits of `chain[begin:end]` from the side where reading starts, until they reach `bytes_max`."""
        stop, size = self.end, 0  # first, as above
        offsets = self.offsets
        commits = len(offsets)
        for place in reversed(range(begin, end)) if backwards else range(begin, end):
            ordinal = chain[place]
            following = ordinal + 1
            size += (offsets[following] if following < commits else stop) - offsets[ordinal]
            if size >= bytes_max:
                return chain[place:end] if backwards else chain[begin : place + 1]
        return chain[begin:end]

    def count(self, ordinal: int) -> int:
        """Returns how many events the commit has."""
        end = self.next_sequence  # first, as above
        sequences, following = self.sequences, ordinal + 1
        return (sequences[following] if following < len(sequences) else end) - sequences[ordinal]

    def first_version(self, ordinal: int) -> int:
        """Returns the version of the commit's first event."""
        return self.versions[ordinal] - self.count(ordinal) + 1

    def commits_of(self, aggregate_id: str, visible: int, steps_max: int | None = None) -> tuple[array[int], int] | None:
        """Returns the ordinals of the aggregate's commits, ascending, and how many of them are below `visible`. Returns None if
        finding them takes a walk over more than `steps_max` commits.

        The array is shared and may grow. Long chains are kept and extended by later commits, so that neither the next page nor
        another reader walks them again.
        """
        undone, kept = self._undone, self._chains.get(aggregate_id)
        stop = kept[-1] if kept else -1
        newer, steps = array("I"), 0
        ordinal, previous = self.heads.get(aggregate_id, NO_COMMIT), self.previous
        while ordinal != NO_COMMIT and ordinal > stop:
            newer.append(ordinal)
            ordinal = previous[ordinal]
            steps += 1
            if steps_max is not None and steps > steps_max:
                return None
        newer.reverse()
        count = bisect_left(newer, visible)
        del newer[count:]  # a commit that is not visible may be rolled back
        if kept is None and count < _KEPT_COMMITS_MIN:
            return newer, count
        chain = self._kept(aggregate_id, kept, newer, undone)
        return chain, bisect_left(chain, visible)

    def _kept(self, aggregate_id: str, kept: array[int] | None, newer: array[int], undone: int) -> array[int]:
        """Extends the kept chain of the aggregate by the commits that a walk found, and returns it.

        The walk ended at the last commit of `kept`. Another reader may have extended `kept` meanwhile, so what it found may
        overlap; and a chain begun after `kept` was evicted may end before it, so what it found is joined by way of `kept`.
        """
        with self._chains_lock:
            if undone != self._undone:  # a rollback may have misled the walk: do not keep the result; its reader retries
                return _joined(array("I") if kept is None else kept[:], newer)
            chain = self._chains.setdefault(aggregate_id, array("I") if kept is None else kept)
            self._chains.move_to_end(aggregate_id)
            if kept is not None and kept is not chain:  # evicted during the walk, and begun again by a reader that saw less
                _joined(chain, kept)
            _joined(chain, newer)
            if len(self._chains) > _KEPT_CHAINS_MAX:
                self._chains.popitem(last=False)
            return chain

    def ordinal_at(self, sequence: int) -> int:
        """Returns the commit that holds `sequence`."""
        return bisect_right(self.sequences, sequence) - 1

    def written_commits(self, visible_sequence: int) -> int:
        """Returns the number of commits up to `visible_sequence`, which is the end of a commit."""
        return bisect_right(self.sequences, visible_sequence)


def _holds(ordinals: array[int], ordinal: int) -> bool:
    place = bisect_left(ordinals, ordinal)
    return place < len(ordinals) and ordinals[place] == ordinal


def _joined(chain: array[int], later: array[int]) -> array[int]:
    """Extends a chain by the later commits that it does not hold yet, and returns it."""
    chain.extend(later[bisect_right(later, chain[-1]) :] if chain else later)
    return chain


class UnsortedTail:
    """All unsorted files, oldest first. After the first append there is always a current one."""

    __slots__ = ("files",)

    def __init__(self) -> None:
        self.files: list[TailFile] = []

    @property
    def current(self) -> TailFile:
        return self.files[-1]

    def begin(self, number: int, first_sequence: int) -> TailFile:
        file = TailFile(number, first_sequence)
        self.files = [*self.files, file]  # a new list: readers on other threads may hold the old one
        return file

    def before(self, file: TailFile) -> list[TailFile]:
        """Returns the files before this one, newest first."""
        return [other for other in reversed(self.files) if other.number < file.number]

    def drop(self, file: TailFile) -> None:
        self.files = [other for other in self.files if other is not file]

    def version(self, aggregate_id: str) -> int | None:
        for file in reversed(self.files):
            ordinal = file.heads.get(aggregate_id)
            if ordinal is not None:
                return file.versions[ordinal]
        return None

    def find(self, key: int, matches: Callable[[TailFile, int], bool]) -> tuple[TailFile, int] | None:
        """Returns the commit with this key for which `matches` returns true, or None."""
        for file in self.files:
            if key in file.commands:
                for ordinal in file.candidates(key):
                    if matches(file, ordinal):
                        return file, ordinal
        return None
