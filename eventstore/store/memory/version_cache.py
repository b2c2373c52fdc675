"""The version cache: for each aggregate, its version in the sorted files, its rows there, and the hashes of its command ids.

Bounded by bytes, with two generations instead of a linked list. A used entry moves to the young generation; when that is full
it becomes the old one, and the previous old one is dropped. Dropped entries are loaded from the directory again. A sort extends
the entries of its file (`cache_extension`), so what is known stays known. Values are plain bytes, which the garbage collector
never traverses:

    version (8) | row ranges (4) | per range as in the directory (12) | per command its hash (8) | per command its block (4)

A block is `BLOCK_FILES` ranges in a row. An aggregate in one block needs none; in more, a repeated command is found without
opening the index of each file.

The empty value stands for an aggregate that is in no sorted file. Only the thread of the store's owner changes the cache; any
thread may `peek` and `offer`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import Final

from eventstore.arrays import np, npt
from eventstore.store.sorted.command_hash import CommandHash
from eventstore.store.sorted.directory_entry import DirectoryEntry, RowRange, pack_ranges, unpack_ranges

ABSENT: Final = b""
_ENTRY_BYTES: Final = 230  # measured: the string, the bytes header and the slots of two dicts
_LINEAR_COMMANDS_MAX: Final = 512
_OFFERS_MAX: Final = 256
_RANGES_AT: Final = 12
_RANGE_BYTES: Final = len(pack_ranges([RowRange(0, 0, 0)]))
BLOCK_FILES: Final = 4
"""Files whose indexes are opened on the event loop to find a repeated command, 200 us each."""


def pack(version: int, row_ranges: Iterable[RowRange], hashes: Sequence[bytes]) -> bytes:
    """Returns a cache value. `hashes`: of each range. Large sets of hashes are sorted, so that a lookup is a bisect instead of
    a scan.
    """
    blocks = (_blocks(place, each) for place, each in enumerate(hashes)) if len(hashes) > BLOCK_FILES else ()
    return _packed(version, pack_ranges(row_ranges), b"".join(hashes), b"".join(blocks))


def _blocks(place: int, hashes: bytes) -> bytes:
    return (place // BLOCK_FILES).to_bytes(4, "little") * (len(hashes) // 8)


def _packed(version: int, ranges: bytes, hashes: bytes, blocks: bytes) -> bytes:
    if len(hashes) > 8 * _LINEAR_COMMANDS_MAX:  # "stable" merges what is sorted already
        column = np.frombuffer(hashes, "<u8")
        if blocks:
            order = np.argsort(column, kind="stable")
            hashes, blocks = column[order].tobytes(), np.frombuffer(blocks, "<u4")[order].tobytes()
        else:
            hashes = np.sort(column, kind="stable").tobytes()
    count = (len(ranges) // _RANGE_BYTES).to_bytes(4, "little")
    return b"".join((version.to_bytes(8, "little"), count, ranges, hashes, blocks))


def version_of(value: bytes) -> int:
    return int.from_bytes(value[:8], "little")


def entry_of(value: bytes) -> DirectoryEntry | None:
    """Returns what the directory holds of the aggregate; None if it is in no sorted file."""
    return DirectoryEntry(version_of(value), unpack_ranges(value[_RANGES_AT : _hashes_at(value)])) if value else None


def files_of(value: bytes) -> int:
    """Returns in how many sorted files the aggregate is."""
    return int.from_bytes(value[8:_RANGES_AT], "little")


def _hashes_at(value: bytes) -> int:
    return _RANGES_AT + _RANGE_BYTES * files_of(value)


def _hashes_end(value: bytes, start: int) -> int:
    size = len(value) - start
    return start + (size if files_of(value) <= BLOCK_FILES else size // 12 * 8)


def extended(value: bytes, version: int, added: RowRange, first_version: int, hashes: bytes) -> bytes | None:
    """Returns the value after one more sorted file, in which the aggregate goes from `first_version` to `version`.

    A value that covers the file already is returned as it is. None: the file does not continue it.
    """
    start = _hashes_at(value) if value else _RANGES_AT
    if value and unpack_ranges(value[start - _RANGE_BYTES : start])[0].file >= added.file:
        return value  # loaded after the directory had the file
    if version_of(value) != first_version - 1:
        return None
    files, end = (files_of(value), _hashes_end(value, start)) if value else (0, start)
    before = value[start:end]
    blocks = b"" if files < BLOCK_FILES else (value[end:] or _blocks(0, before)) + _blocks(files, hashes)
    return _packed(version, value[_RANGES_AT:start] + pack_ranges([added]), before + hashes, blocks)


def may_hold(value: bytes, command_id: str, hashes: Sequence[CommandHash]) -> bool:
    """Returns whether this command may be among the aggregate's commands. False is certain. `hashes`: of all indexes of the
    store.
    """
    raw = command_id.encode()
    return bool(value) and any(may_contain(value, hash_of(raw)) for hash_of in hashes)


def may_contain(value: bytes, command_hash: bytes) -> bool:
    """Returns whether a command with this hash may be among the aggregate's commands. False is certain."""
    if len(value) <= _RANGES_AT + 8 * _LINEAR_COMMANDS_MAX:
        return value.find(command_hash, _RANGES_AT) >= 0  # a hit among the ranges or blocks is only a "maybe"
    return bool(len(_places_of(value, command_hash)))


def ranges_with(value: bytes, command_id: str, hashes: Sequence[CommandHash]) -> tuple[RowRange, ...]:
    """Returns the ranges that may hold this command: for most commands, all ranges of one block. `hashes`: see `may_hold`."""
    if files_of(value) <= BLOCK_FILES:
        return unpack_ranges(value[_RANGES_AT : _hashes_at(value)])
    raw, start = command_id.encode(), _hashes_at(value)
    blocks = np.frombuffer(value, "<u4", offset=_hashes_end(value, start))
    found = {int(block) for hash_of in hashes for block in blocks[_places_of(value, hash_of(raw))]}
    size = BLOCK_FILES * _RANGE_BYTES
    starts = [_RANGES_AT + size * block for block in sorted(found)]
    return tuple(part for first in starts for part in unpack_ranges(value[first : min(first + size, start)]))


def _places_of(value: bytes, command_hash: bytes) -> npt.NDArray[np.intp]:
    """Returns the places of a hash among the hashes of the value."""
    start = _hashes_at(value)
    hashes = np.frombuffer(value, "<u8", (_hashes_end(value, start) - start) // 8, start)
    wanted = np.uint64(int.from_bytes(command_hash, "little"))
    if len(hashes) <= _LINEAR_COMMANDS_MAX:
        return np.flatnonzero(hashes == wanted)
    return np.arange(np.searchsorted(hashes, wanted), np.searchsorted(hashes, wanted, "right"))


class VersionCache:
    """Aggregate id → cache value. Code that cannot afford the call of `get` may read `young` directly.

    Attributes:
        asked: commits and look-ups that needed to know an aggregate.
        misses: how many of them had to ask the directory.
        sorts: how many files have been added.
    """

    def __init__(self, bytes_max: int) -> None:
        self._generation_bytes_max = bytes_max // 2
        self.young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._young_bytes = 0
        self._offers: deque[tuple[int, str, bytes]] = deque(maxlen=_OFFERS_MAX)
        self.asked = 0
        self.misses = 0
        self.sorts = 0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def size_bytes(self) -> int:
        """Counts the memory of ids, values and dict slots; takes as long as there are entries."""
        generations = self.young, self._old
        entries = (getsizeof(name) + getsizeof(value) for each in generations for name, value in each.items())
        return sum(map(getsizeof, generations)) + sum(entries)

    def get(self, aggregate_id: str) -> bytes | None:
        value = self.young.get(aggregate_id)
        if value is None:
            old = self._old
            value = old.get(aggregate_id)
            if value is None:
                return None
            self.put(aggregate_id, value)  # before it goes from the old generation: see `peek`
            old.pop(aggregate_id)
        return value

    def peek(self, aggregate_id: str) -> bytes | None:
        """Returns the same as `get` on any thread, and moves nothing. Never misses an entry: a sort would leave it as it was
        before.
        """
        while True:
            young = self.young
            for generation in (young, self._old, young):  # it may move from the old one meanwhile
                value = generation.get(aggregate_id)
                if value is not None:
                    return value
            if self.young is young:
                return None

    def put(self, aggregate_id: str, value: bytes) -> None:
        self.young[aggregate_id] = value
        self._count(_ENTRY_BYTES + len(value))

    def _count(self, added_bytes: int) -> None:
        self._young_bytes += added_bytes
        if self._young_bytes > self._generation_bytes_max:
            self._old, self.young, self._young_bytes = self.young, {}, 0

    def offer(self, sorts: int, aggregate_id: str, value: bytes) -> None:
        """Leaves a value for the owner, from any thread. `sorts`: its number before the directory was read."""
        self._offers.append((sorts, aggregate_id, value))

    def take_offers(self) -> None:
        """Adds the values that were offered since the last sort; an older one may lack its file."""
        while self._offers:
            sorts, aggregate_id, value = self._offers.popleft()
            if sorts == self.sorts and self.peek(aggregate_id) is None:
                self.put(aggregate_id, value)

    def begin_extension(self) -> None:
        """Counts a sort. Call it before the first `extend` of a file, which the directory covers already."""
        self.sorts += 1

    def extend(self, aggregate_id: str, version: int, added: RowRange, first_version: int, hashes: bytes) -> None:
        """Adds a sorted file to the aggregate's entry, in its place. Drops an entry that the file does not continue."""
        for generation in (self.young, self._old):
            value = generation.get(aggregate_id)
            if value is not None:
                longer = extended(value, version, added, first_version, hashes)
                if longer is None:
                    self.forget(aggregate_id)
                else:
                    generation[aggregate_id] = longer
                    self._count(len(longer) - len(value))  # of the old generation too: together they keep the bound
                return

    def forget(self, aggregate_id: str) -> None:
        self.young.pop(aggregate_id, None)
        self._old.pop(aggregate_id, None)

    def clear(self) -> None:
        self.young, self._old, self._young_bytes = {}, {}, 0
