"""Checks an event index against the records of its file: recomputes every column and compares.

A sorted file is in the order of its index, so row i is the i-th event of the file. Event types are compared by name, because
their ordinals follow the order of events before the file was sorted.
"""

from __future__ import annotations

import itertools

from eventstore.arrays import np, npt
from eventstore.checksum import crc32c
from eventstore.chunks.folder import ChunkFolder
from eventstore.errors import Corrupt
from eventstore.store.sorted.command_hash import hash_with
from eventstore.store.sorted.event_index import EventIndex, open_index
from eventstore.store.sorted.file_columns import within_group
from eventstore.store.sorted.file_names import INDEX
from eventstore.store.sorted.index_columns import sources_of
from eventstore.store.sorted.index_format import HEADER_BYTES, block_extents, blocks, crc_of, row_extents, row_groups
from eventstore.store.sorted.tag_columns import tag_columns
from eventstore.store.verification.file_contents import FileContents
from eventstore.store.verification.findings import Findings

Expected = dict[str, "npt.NDArray[np.generic]"]


def check_index(folder: ChunkFolder, contents: FileContents, has_index: bool, findings: Findings) -> EventIndex | None:
    """Returns the index of the file if it is sound, else reports its faults."""
    header = contents.header
    if header is None:
        return None
    path = folder.derived_path(contents.number, INDEX)
    if not has_index:
        if header.sorted:
            findings.note(f"{path}: is missing; the next start rebuilds it from the event file")
        return None
    if not header.sorted:
        findings.note(f"{path}: belongs to no sorted file; the next start removes it")
        return None
    try:
        index = open_index(folder.files, path)
    except (Corrupt, OSError) as error:
        findings.add_error(str(path), error)
        return None
    except (ValueError, IndexError, KeyError) as error:  # the header's checksum matches, but its contents are impossible
        findings.add(str(path), 0, f"the index cannot be decoded: {error}")
        return None
    if not index.header.belongs_to(header):
        findings.add(str(path), 0, f"the index does not belong to {folder.chunk_path(contents.number).name}")
        return None
    return index if _is_sound(folder, index, contents, findings) else None


def _is_sound(folder: ChunkFolder, index: EventIndex, contents: FileContents, findings: Findings) -> bool:
    before = findings.total
    data = folder.files.open(folder.derived_path(index.header.number, INDEX)).map()
    _check_checksums(index, data, findings)
    _check_padding(index, data, findings)
    if findings.total == before and not contents.damaged and contents.columns:
        expected = _expected_rows(contents) | _expected_tables(folder, contents)
        _compare(index, expected, findings)
        _check_types(index, contents, findings)
        _check_tags(index, contents, findings)
        _check_groups(index, data, findings)
    return findings.total == before


def _check_checksums(index: EventIndex, data: memoryview, findings: Findings) -> None:
    for name, place in index.header.columns.items():
        if crc32c(data[place.offset : place.offset + place.size]) != place.crc:
            findings.add(index.name, place.offset, f"the checksum of column {name} does not match")


def _check_padding(index: EventIndex, data: memoryview, findings: Findings) -> None:
    """Checks that the padding between columns is zero. No checksum covers it, and no reader uses it."""
    position = HEADER_BYTES
    for name, place in sorted(index.header.columns.items(), key=lambda item: item[1].offset):
        if any(data[position : place.offset]):
            findings.add(index.name, position, f"the padding before column {name} is not zero")
        position = place.offset + place.size
    if any(data[position:]):
        findings.add(index.name, position, "the padding after the last column is not zero")


def _expected_rows(contents: FileContents) -> Expected:
    counts = contents.ints("commit_count")
    within = within_group(counts)
    record, length = contents.ints("commit_offset"), contents.ints("commit_length")
    rows: Expected = {
        "ordinal": np.repeat(contents.ordinals, counts),
        "place": within,
        "left": np.repeat(counts, counts) - within - 1,
        "version": np.repeat(contents.ints("commit_version"), counts) + within,
        "sequence": np.repeat(contents.ints("commit_sequence"), counts) + within,
        "time": np.repeat(contents.columns["commit_time"], counts),
        "command": np.repeat(contents.columns["commit_command"], counts),
        "record": np.append(np.repeat(record, counts), record[-1] + length[-1]),
        "length": np.repeat(length, counts),
    }
    for name in ("data", "data_len", "meta", "meta_len", "format"):
        rows[name] = contents.columns[name]
    return rows


def _expected_tables(folder: ChunkFolder, contents: FileContents) -> Expected:
    counts, ids = contents.ints("commit_count"), contents.ids
    sequences = np.repeat(contents.ints("commit_sequence"), counts) + within_group(counts)
    permutation = np.empty(len(sequences), np.int64)
    permutation[sequences - sequences.min()] = np.arange(len(sequences))
    events_before = np.concatenate([[0], np.cumsum(counts)])
    first_commits = np.searchsorted(contents.ordinals, np.arange(len(ids) + 1))
    splits = [ids[first] for first in blocks(len(ids))[:-1]]
    return {
        "permutation": permutation,
        "first_row": events_before[first_commits],
        "extent_crc": _extent_crcs(folder, contents, first_commits),
        "id_ends": _ends(ids),
        "ids": np.frombuffer(b"".join(ids), np.uint8),
        "split_ends": _ends(splits),
        "split_ids": np.frombuffer(b"".join(splits), np.uint8),
    }


def _extent_crcs(folder: ChunkFolder, contents: FileContents, first_commits: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Returns the checksum of all bytes of each aggregate, which lie side by side in a sorted file."""
    file = folder.files.open(folder.chunk_path(contents.number))
    try:
        data = file.map()
    finally:
        file.close()
    offsets, lengths = contents.ints("commit_offset"), contents.ints("commit_length")
    edges = np.append(offsets, offsets[-1] + lengths[-1])[first_commits].tolist()
    return np.array([crc32c(data[start:stop]) for start, stop in itertools.pairwise(edges)], np.uint32)


def _ends(names: list[bytes]) -> npt.NDArray[np.int64]:
    return np.cumsum([0, *map(len, names)])


def _compare(index: EventIndex, expected: Expected, findings: Findings) -> None:
    for name, wanted in expected.items():
        place = index.header.columns[sources_of(index.header, name)[0]]
        found = index.columns[name]
        if len(found) != len(wanted):
            what = f"column {name} has {len(found)} rows, {len(wanted)} follow from the event file"
            findings.add(index.name, place.offset, what)
            continue
        found = found[: len(wanted)]
        wrong = np.flatnonzero(found != wanted.astype(found.dtype))
        if len(wrong):
            row = int(wrong[0])
            what = f"column {name}, row {row}: {found[row]}, the event file gives {wanted[row]}"
            findings.add(index.name, place.extents(row, row + 1)[0][0] if place.size else place.offset, what)


def _check_types(index: EventIndex, contents: FileContents, findings: Findings) -> None:
    place = index.header.columns["type"]
    names = index.type_names()
    mine = {name: place for place, name in enumerate(names)}
    missing = [name for name in contents.types if name not in mine]
    if missing:
        findings.add(index.name, index.header.columns["types"].offset, f"event type {missing[0]!r} is missing from the index")
        return
    translated = np.array([mine[name] for name in contents.types], np.int64)[contents.ints("type")]
    wrong = np.flatnonzero(index.columns["type"][:] != translated)
    if len(wrong):
        row = int(wrong[0])
        what = f"column type, row {row}: {int(index.columns['type'][row])}, the event file gives {translated[row]}"
        findings.add(index.name, place.extents(row, row + 1)[0][0] if place.size else place.offset, what)


def _check_tags(index: EventIndex, contents: FileContents, findings: Findings) -> None:
    rows = np.arange(len(contents.columns["format"]))
    expected = tag_columns(contents.collected, rows, hash_with(index.header.command_key))
    if bool(expected) != ("tag_hash" in index.columns):
        what = "there are no tags in the event file, but in the index" if not expected else "the columns of tags are missing"
        findings.add(index.name, 0, what)
    elif expected:
        _compare(index, expected, findings)


def _check_groups(index: EventIndex, data: memoryview, findings: Findings) -> None:
    places, ends = index.header.columns, index.columns["id_ends"]
    edges = itertools.pairwise(blocks(index.header.aggregates))
    computed = [crc_of(data, block_extents(places, a, b, (int(ends[a]), int(ends[b])))) for a, b in edges]
    if index.columns["block_crc"][:].tolist() != computed:
        what = "the checksums of the aggregate table's blocks do not match the table"
        findings.add(index.name, places["block_crc"].offset, what)
    computed = [crc_of(data, row_extents(places, group)) for group in range(row_groups(places))]
    if index.columns["row_crc"][:].tolist() != computed:
        findings.add(index.name, places["row_crc"].offset, "the checksums of groups of rows do not match the rows")
    first, last = index.aggregate_id(0), index.aggregate_id(index.header.aggregates - 1)
    if (index.header.smallest, index.header.largest) != (first, last):
        findings.add(index.name, 0, "the smallest and largest aggregate id in the header are not those of the table")
