"""The columns of an index by which events are found by their tags."""

from __future__ import annotations

from itertools import chain
from typing import Any

from eventstore.arrays import np, npt
from eventstore.store.sorted.command_hash import CommandHash, tag_hash


def tag_columns(tags: dict[str, list[int]], row_of: npt.NDArray[np.int64], hash_of: CommandHash) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns, none if there are no tags. `tags`: the events that have each, by place in a file; `row_of`: the row
    of each event of the file in its index.
    """
    if not tags:
        return {}
    hashes = np.repeat([tag_hash(hash_of, tag) for tag in tags], [len(each) for each in tags.values()])
    rows = row_of[np.fromiter(chain.from_iterable(tags.values()), np.int64, len(hashes))]
    order = np.lexsort((rows, hashes))
    hashes, rows = hashes[order], rows[order]
    once = np.append(True, (np.diff(hashes) != 0) | (np.diff(rows) != 0))  # an event may have two tags of one hash
    hashes, rows = hashes[once], rows[once]
    begins = np.flatnonzero(np.diff(hashes, prepend=-1))
    return {"tag_hash": hashes[begins], "tag_ends": np.append(begins, len(hashes)), "tag_rows": rows}
