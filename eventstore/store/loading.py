"""Reads an unsorted event file into the tail: the part of recovery that knows what a commit is."""

from __future__ import annotations

import numpy as np

from eventstore.chunks.record import Walk
from eventstore.errors import Corrupt
from eventstore.store.commit import HEADER_BYTES
from eventstore.store.tail import Tail, TailFile, command_key

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
        starts = np.array(found.offsets, np.int64) - base
        headers = np.frombuffer(raw, np.uint8)[starts[:, None] + np.arange(HEADER_BYTES)].view(_HEADER)[:, 0]
        ids = starts + HEADER_BYTES + 2
        commands = ids + headers["id_len"] + 2
        add, heads, versions = self._file.add, self._file.heads, self._file.versions
        for offset, sequence, length, count, first, id_at, id_len, command_at, command_len in zip(
            found.offsets, found.sequences, headers["length"].tolist(), headers["count"].tolist(),
            headers["first_version"].tolist(), ids.tolist(), headers["id_len"].tolist(),
            commands.tolist(), headers["command_len"].tolist(), strict=True,
        ):  # fmt: skip
            aggregate_id = raw[id_at : id_at + id_len].decode()
            command_id = raw[command_at : command_at + command_len].decode()
            before = heads.get(aggregate_id)
            version = self._version_before(aggregate_id) if before is None else versions[before]
            if version is not None and version != first - 1:
                raise Corrupt(self._name, offset, f"{aggregate_id!r} goes from version {version} to {first}")
            add(aggregate_id, command_key(aggregate_id, command_id), offset, length, sequence, first + count - 1, count)

    def _version_before(self, aggregate_id: str) -> int | None:
        """The aggregate's version in the unsorted files before this one; None where it has none there."""
        for file in self._earlier:
            version = file.version(aggregate_id)
            if version is not None:
                return version
        return None
