"""Decodes an event file into the columns of its index: in one pass, without a Python loop over the bytes of a record.

A slab of records is one flat msgpack sequence, so one C call decodes it; numpy gathers the headers. The position of a payload
follows from lengths alone, because events are stored in the canonical encoding (see `event_checks.EventsCheck`).
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any, TypeAlias, cast

from eventstore import flat
from eventstore.arrays import np, npt
from eventstore.chunks.record import Walk
from eventstore.chunks.slab import gather
from eventstore.records.commit import HEADER, IDS_FROM
from eventstore.store.sorted.command_hash import CommandHash, hash_all
from eventstore.tags import TAGGED, tags_in

_FIELDS = ("own_mark", "length", "sequence", "count", "time", "first_version", "id_length", "command_length")
_Ints: TypeAlias = "npt.NDArray[np.int64]"


class FileColumns:
    """Collects the commits and events of one file, in the order of its bytes. Call it with every slab, then `finish`.

    `hashes` are computed for the command ids, under the names of their columns; none saves a sixth of the work.
    """

    def __init__(self, **hashes: CommandHash) -> None:
        self._hashes = hashes
        self.ordinals: dict[bytes, int] = {}
        self.types: dict[str, int] = {}
        self.tags: dict[str, int] = {}
        self.tagged: list[tuple[_Ints, _Ints]] = []
        """Tags of events: their ordinals in `tags`, and the places of the events in the file."""
        self._count = 0
        self._parts: list[dict[str, npt.NDArray[np.generic]]] = []

    def __call__(self, data: memoryview, base: int, found: Walk) -> None:
        offsets = np.array(found.offsets, np.int64) - base
        headers = gather(data, offsets, HEADER.dtype(*_FIELDS))
        counts = headers["count"].astype(np.int64)
        events = int(counts.sum())
        values = flat.decode_trusted(bytes(data[: found.end - base]), 4 * len(counts) + 4 * events)
        starts = np.cumsum(4 * counts + 4) - (4 * counts + 4)
        ids = _encoded(_pick(values, starts + 1))
        ordinals = self.ordinals
        commit = {
            "commit_ordinal": np.array([ordinals.setdefault(name, len(ordinals)) for name in ids], np.int64),
            "commit_offset": offsets + base,
            "commit_length": headers["length"].astype(np.int64),
            "commit_count": counts,
            "commit_sequence": headers["sequence"].astype(np.int64),
            "commit_version": headers["first_version"].astype(np.int64),
            "commit_time": headers["time"],
        }
        if self._hashes:
            command_ids = _encoded(_pick(values, starts + 2))
            for name, hash_of in self._hashes.items():
                commit[name] = hash_all(hash_of, command_ids)
        payload_at = offsets + headers["own_mark"] + (IDS_FROM + 4) + headers["id_length"] + headers["command_length"] + base
        self._parts.append({**commit, **self._events(values, starts, counts, payload_at)})

    def _events(
        self, values: tuple[flat.Scalar, ...], starts: _Ints, counts: _Ints, payload_at: _Ints
    ) -> dict[str, npt.NDArray[np.generic]]:
        within = within_group(counts)
        at = np.repeat(starts + 3, counts) + 4 * within
        types, names = self.types, _pick(values, at + 1)
        by_name = {name: types.setdefault(str(name), len(types)) for name in dict.fromkeys(names)}
        type_ordinals = np.array([by_name[name] for name in names], np.int64)
        type_bytes = np.array([len(name.encode()) for name in types], np.int64)[type_ordinals]
        data_bytes = _lengths(_pick(values, at + 2))
        metadata = _pick(values, at + 3)
        has_meta = np.array([value is not None for value in metadata], bool)
        meta_bytes = np.zeros(len(at), np.int64)
        meta_bytes[has_meta] = _lengths(tuple(value for value in metadata if value is not None))
        before_data = 1 + _text_head(type_bytes) + type_bytes + bytes_head(data_bytes)
        meta_head = np.where(has_meta, bytes_head(meta_bytes), 1)
        sizes = before_data + data_bytes + meta_head + meta_bytes
        formats = np.array(_pick(values, at), np.uint8)
        tagged = [(place, tags_in(cast(bytes, metadata[place]))) for place in np.flatnonzero(formats & TAGGED).tolist()]
        ends = np.cumsum(sizes)
        first_of_commit = np.cumsum(counts) - counts
        start_of_commit = np.repeat((ends - sizes)[first_of_commit], counts)
        position = np.repeat(payload_at, counts) + (ends - sizes - start_of_commit)
        if tagged:  # last: of records that are malformed nothing is collected
            self._note_tags(tagged)
        self._count += len(at)
        return {
            "type": type_ordinals,
            "data": position + before_data,
            "data_len": data_bytes,
            "meta": np.where(has_meta, position + before_data + data_bytes + meta_head, 0),
            "meta_len": meta_bytes,
            "format": formats,
        }

    def _note_tags(self, tagged: list[tuple[int, tuple[str, ...]]]) -> None:
        known = self.tags
        ordinals = np.array([known.setdefault(tag, len(known)) for _, tags in tagged for tag in tags], np.int64)
        places = np.repeat([place for place, _ in tagged], [len(tags) for _, tags in tagged])
        self.tagged.append((ordinals, places + self._count))

    def finish(self) -> dict[str, npt.NDArray[np.generic]]:
        """Returns all commit columns (`commit_…`) and event columns, in file order, once: only tags are kept."""
        parts, self._parts = self._parts, []
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def within_group(counts: _Ints) -> _Ints:
    """Counts from 0 within each group: [2, 3] → [0, 1, 0, 1, 2]."""
    starts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _pick(values: tuple[flat.Scalar, ...], places: _Ints) -> tuple[flat.Scalar, ...]:
    first, last = int(places[0]), int(places[-1])
    step = (last - first) // max(1, len(places) - 1) or 1
    if np.array_equal(places, np.arange(first, last + 1, step)):  # commits of one event each: a slice is six times as fast
        return values[first : last + 1 : step]
    picked: tuple[flat.Scalar, ...] = itemgetter(*places.tolist())(values)
    return picked


def _encoded(values: tuple[flat.Scalar, ...]) -> list[bytes]:
    return list(map(str.encode, values))  # type: ignore[arg-type] # the column is all text


def _lengths(values: tuple[flat.Scalar, ...]) -> _Ints:
    return np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type] # the column is all bytes


def _text_head(lengths: _Ints) -> _Ints:
    return np.where(lengths < 32, 1, np.where(lengths < 256, 2, 3))


def bytes_head(lengths: npt.NDArray[np.integer[Any]]) -> _Ints:
    """Returns the length of the head of a msgpack bin for each of these lengths."""
    return np.where(lengths < 256, 2, np.where(lengths < 65536, 3, 5))
