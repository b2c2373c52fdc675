"""The columns of an index by which events are found by their tags."""

from __future__ import annotations

from typing import Any

from eventstore.arrays import np, npt
from eventstore.store.sorted.command_hash import CommandHash, tag_hash
from eventstore.store.sorted.file_columns import FileColumns


def tag_columns(collected: FileColumns, row_of: npt.NDArray[np.int64], hash_of: CommandHash) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns for what was collected of a file; none if no event has tags. `row_of`: the row of each event of the
    file in its index.
    """
    if not collected.tagged:
        return {}
    ordinals, places = (np.concatenate(parts) for parts in zip(*collected.tagged, strict=True))
    hashes = np.array([tag_hash(hash_of, tag) for tag in collected.tags], np.int64)[ordinals]
    rows = row_of[places]
    order = np.lexsort((rows, hashes))
    hashes, rows = hashes[order], rows[order]
    once = np.append(True, (np.diff(hashes) != 0) | (np.diff(rows) != 0))  # an event may have two tags of one hash
    hashes, rows = hashes[once], rows[once]
    begins = np.flatnonzero(np.diff(hashes, prepend=-1))
    return {"tag_hash": hashes[begins], "tag_ends": np.append(begins, len(hashes)), "tag_rows": rows}
