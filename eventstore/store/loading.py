"""Reads an unsorted event file into the tail: the part of recovery that knows what a commit is."""

from __future__ import annotations

import numpy as np

from eventstore.chunks.record import Walk
from eventstore.errors import Corrupt
from eventstore.store.commit import HEADER_BYTES
from eventstore.store.tail import NO_COMMIT, Tail, TailFile, command_key

_HEADER = np.dtype(
    {
        "names": ["length", "count", "first_version", "id_len", "command_len"],
        "formats": ["<u4", "<u4", "<u8", "|u1", "|u1"],
        "offsets": [8, 28, 40, 48, 49],
        "itemsize": HEADER_BYTES,
    }
)


class TailLoader:
    """Adds every record it is called with to a tail file, and holds versions together, also with the files before it."""

    def __init__(self, tail: Tail, file: TailFile, name: str) -> None:
        self._earlier = tail.before(file)
        self._file = file
        self._name = name

    def __call__(self, data: memoryview, base: int, found: Walk) -> None:
        """Raises Corrupt where an aggregate's versions have a gap."""
        raw = data.tobytes()
        starts = [offset - base for offset in found.offsets]
        headers = np.frombuffer(b"".join([raw[start : start + HEADER_BYTES] for start in starts]), _HEADER)
        ids = np.array(starts) + HEADER_BYTES + 2
        id_ends = ids + headers["id_len"]
        commands = id_ends + 2
        command_ends = commands + headers["command_len"]
        names = [raw[start:stop].decode() for start, stop in zip(ids.tolist(), id_ends.tolist(), strict=True)]
        pairs = zip(names, commands.tolist(), command_ends.tolist(), strict=True)
        keys = [command_key(name, raw[start:stop].decode()) for name, start, stop in pairs]
        file, heads, versions = self._file, self._file.heads, self._file.versions
        lasts = headers["first_version"] + headers["count"] - np.uint64(1)
        for place, (name, key, first, last) in enumerate(
            zip(names, keys, headers["first_version"].tolist(), lasts.tolist(), strict=True)
        ):
            ordinal = heads.get(name, NO_COMMIT)
            version = self._version_before(name) if ordinal == NO_COMMIT else versions[ordinal]
            if version is not None and version != first - 1:
                raise Corrupt(self._name, found.offsets[place], f"{name!r} goes from version {version} to {first}")
            file.add_head(name, key, ordinal, last)
        file.add_places(found.offsets[0], headers["length"].tolist(), found.sequences, int(headers["count"][-1]))

    def _version_before(self, aggregate_id: str) -> int | None:
        """The aggregate's version in the unsorted files before this one; None where it has none there."""
        for file in self._earlier:
            version = file.version(aggregate_id)
            if version is not None:
                return version
        return None
