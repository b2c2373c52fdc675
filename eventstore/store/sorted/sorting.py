"""Sorts a completed event file by (aggregate id, version) and writes its index: a pure function of one file.

Runs in a child process at low priority (`eventstore.store.sorting_process`), so that it disturbs neither the writer nor
the event loop. It writes and syncs two temporary files; only `switch` puts them in effect. It renames the index first, then the
sorted file over the unsorted one. Until the second rename the index belongs to no file and is ignored, so a crash at any point
leaves one complete generation.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c
from eventstore.chunks.files import File, Files
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.header import FOOTER_BYTES, RECORDS_FROM, SORTED, ChunkHeader, check_footer
from eventstore.chunks.record import UNORDERED
from eventstore.chunks.recovery import read_records
from eventstore.errors import Corrupt
from eventstore.records.commit import FRAMING
from eventstore.store.sorted import command_hash, index_format
from eventstore.store.sorted.command_hash import CommandHash, hash_with
from eventstore.store.sorted.file_columns import FileColumns, within_group
from eventstore.store.sorted.file_names import INDEX, temporary
from eventstore.store.sorted.tag_columns import tag_columns

_SLAB_BYTES = 8 * 1024 * 1024
_Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True)
class CommitOrder:
    """Commits in sorted order.

    Attributes:
        places: their positions in the unsorted file.
        ordinals: the ordinals of their aggregates.
    """

    ids: list[bytes]
    places: _Ints
    ordinals: _Ints
    offsets: _Ints
    lengths: _Ints
    counts: _Ints


def sort_file(folder: ChunkFolder, number: int, token: str = "") -> None:
    """Writes the sorted file and its index under temporary names. For a file that is sorted already, only writes the index.

    Raises:
        Corrupt: the file is damaged; the partly written files were removed.
    """
    files, path = folder.files, folder.chunk_path(number)
    written = temporary(path, token), temporary(folder.derived_path(number, INDEX), token)
    _remove(files, written)
    try:
        _sort_into(folder, number, *written)
    except (OSError, Corrupt):  # do not keep the space, which may be the cause
        with contextlib.suppress(OSError):
            _remove(files, written)
        raise


def _remove(files: Files, paths: Iterable[Path]) -> None:
    for path in paths:
        if files.exists(path):
            files.remove(path)


def _sort_into(folder: ChunkFolder, number: int, sorted_path: Path, index_path: Path) -> None:
    files, path = folder.files, folder.chunk_path(number)
    header = folder.read_header(number)
    file = files.open(path)
    try:
        key = command_key(folder, number) or command_hash.new_key()
        collected = read_columns(file, str(path), header, hash_with(key))
        columns = collected.finish()
        order = _order(collected, columns)
        target = None if header.sorted else files.open(sorted_path, create=True)
        try:
            sorted_header = replace(header, flags=header.flags | SORTED)
            extents = _write_sorted(file, target, sorted_header, order)
        finally:
            if target is not None:
                target.close()
        index = _index_columns(collected, columns, order, extents, hash_with(key))
        index_format.write_index(files, index_path, sorted_header, index, key)
    finally:
        file.close()


def switch(folder: ChunkFolder, number: int, token: str = "") -> None:
    """Moves the files that `sort_file` wrote into place; durable on return."""
    files = folder.files
    for path in (folder.derived_path(number, INDEX), folder.chunk_path(number)):
        if files.exists(temporary(path, token)):
            files.rename(temporary(path, token), path)
    files.sync_folder(folder.path)


def command_key(folder: ChunkFolder, number: int) -> bytes:
    """Returns the key of the command ids' hashes in the newest index except this file's; `NO_KEY` if none has a key.

    A new index takes this key. A store whose indexes have two keys works as well, and takes one hash more for each look-up.
    """
    own = folder.derived_path(number, INDEX).name
    names = sorted((name for name in folder.derived_names(INDEX) if name != own), reverse=True)
    keys = (key_of_index(folder.files, folder.path / name) for name in names)
    return next(filter(None, keys), command_hash.NO_KEY)


def key_of_index(files: Files, path: Path) -> bytes:
    """Returns the key of the hashes in this index; `NO_KEY` if it has none, is damaged or missing."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return command_hash.NO_KEY
    try:
        return index_format.read_header(file, str(path)).command_key
    except Corrupt:
        return command_hash.NO_KEY
    finally:
        file.close()


def read_columns(file: File, name: str, header: ChunkHeader, hash_of: CommandHash) -> FileColumns:
    """Reads and checks a completed file from its first record to its footer."""
    check_footer(file.read_at(header.end, FOOTER_BYTES), header, name)
    collected = FileColumns(commit_command=hash_of)
    first = UNORDERED if header.sorted else header.first_sequence
    found, fault = read_records(file, name, RECORDS_FROM, header.end, first, FRAMING, collected)
    if fault is not None:
        raise Corrupt(name, found.end, fault)
    if found.checksum & (2**64 - 1) != header.checksum or found.records != header.records:
        raise Corrupt(name, found.end, f"{found.records} records, the header says {header.records}; or the checksum differs")
    return collected


def _order(collected: FileColumns, columns: dict[str, npt.NDArray[np.generic]]) -> CommitOrder:
    ids = sorted(collected.ordinals)
    rank = np.empty(len(ids), np.int64)
    rank[[collected.ordinals[name] for name in ids]] = np.arange(len(ids))
    ordinals = rank[columns["commit_ordinal"]]
    places = np.argsort(ordinals, kind="stable")  # an aggregate's commits are in order of version already
    offsets, lengths, counts = (
        columns[name][places].astype(np.int64) for name in ("commit_offset", "commit_length", "commit_count")
    )
    return CommitOrder(ids, places, ordinals[places], offsets, lengths, counts)


def _write_sorted(source: File, target: File | None, header: ChunkHeader, order: CommitOrder) -> list[int]:
    """Copies the records in sorted order. Returns the CRC of each aggregate's bytes."""
    data = source.map()
    if target is not None:
        target.preallocate(header.end + FOOTER_BYTES)
        target.write_at(0, [header.encode(), bytes(RECORDS_FROM - 128)])
    starts, stops = order.offsets.tolist(), (order.offsets + order.lengths).tolist()
    bounds = np.searchsorted(np.cumsum(order.lengths), np.arange(_SLAB_BYTES, int(order.lengths.sum()), _SLAB_BYTES))
    crcs = [0] * len(order.ids)
    position = RECORDS_FROM
    edges = sorted({0, *bounds.tolist(), len(starts)})
    for first, last in itertools.pairwise(edges):
        joined = b"".join([data[start:stop] for start, stop in zip(starts[first:last], stops[first:last], strict=True)])
        ordinals, size = order.ordinals[first:last], order.lengths[first:last]
        heads = np.flatnonzero(np.diff(ordinals, prepend=-1))
        ends = np.append((np.cumsum(size) - size)[heads[1:]], len(joined)).tolist()
        start = 0
        for ordinal, end in zip(ordinals[heads].tolist(), ends, strict=True):
            crcs[ordinal] = crc32c(joined[start:end], crcs[ordinal])
            start = end
        if target is not None:
            target.write_at(position, [joined])
        position += len(joined)
    if target is not None:
        target.write_at(header.end, [header.footer()])
        target.sync()
    return crcs


def _index_columns(
    collected: FileColumns,
    columns: dict[str, npt.NDArray[np.generic]],
    order: CommitOrder,
    extents: list[int],
    hash_of: CommandHash,
) -> index_format.Columns:
    """Returns the rows in sorted order, and the tables."""
    counts, places = order.counts, order.places
    new_offsets = RECORDS_FROM + np.cumsum(order.lengths) - order.lengths
    first_event = np.cumsum(columns["commit_count"]) - columns["commit_count"]
    within = within_group(counts)
    events = np.repeat(first_event[places], counts) + within

    def spread(name: str) -> npt.NDArray[np.generic]:
        return np.repeat(columns[name][places], counts)

    sequence = spread("commit_sequence") + within  # type: ignore[operator] # integers
    ordinal = np.repeat(order.ordinals, counts)
    meta = columns["meta"][events]
    result: index_format.Columns = {
        "ordinal": ordinal,
        "version": spread("commit_version") + within,  # type: ignore[operator] # integers
        "sequence": sequence,
        "time": spread("commit_time"),
        "type": columns["type"][events],
        "command": spread("commit_command"),
        "record": np.append(np.repeat(new_offsets, counts), new_offsets[-1] + order.lengths[-1]),
        "place": within,
        "left": np.repeat(counts, counts) - within - 1,
        "data_at": columns["data"][events] - np.repeat(order.offsets, counts),
        "data_len": columns["data_len"][events],
        "meta_size": np.where(meta > 0, columns["meta_len"][events] + 1, 0),  # type: ignore[operator] # integers
        "format": columns["format"][events],
        "first_row": np.searchsorted(ordinal, np.arange(len(order.ids) + 1)),
        "extent_crc": np.array(extents, np.uint32),
    }
    _add_names(result, "id_ends", "ids", order.ids)
    _add_names(result, "type_ends", "types", [name.encode() for name in collected.types])
    starts = index_format.blocks(len(order.ids))
    _add_names(result, "split_ends", "split_ids", [order.ids[first] for first in starts[:-1]])
    row_of = np.empty(len(events), np.int64)
    row_of[events] = np.arange(len(events))
    return result | tag_columns(collected, row_of, hash_of)


def _add_names(result: index_format.Columns, ends: str, names: str, values: list[bytes]) -> None:
    result[ends] = np.concatenate([[0], np.cumsum([len(value) for value in values])])
    result[names] = np.frombuffer(b"".join(values), np.uint8)
