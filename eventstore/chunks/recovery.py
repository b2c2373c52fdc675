"""Finds the end of a chunk that was being written when the process ended, and distinguishes a torn tail from rot.

A record is torn only if it belongs to the last batch, which was never known to be synced. Every record carries the offset up to
which its file had been synced before it was written. With durability `sync` that is the start of its batch, because a batch is
written only after the previous one was synced. A store that is closed cleanly notes its end (see `folder`). So a bad byte at
offset X is rot if a record that proves it (see `witness`), or that note, says that the file was durable beyond X. Otherwise it
is a torn tail, and only a torn tail is cut, after a copy of it was kept. One case cannot be distinguished from inside the file:
rot within the very last batch before a crash, with nothing written after it.

Records that belong together, as the commits of several aggregates by one command, are written by one batch. If only the first
of them are there, they are part of the torn tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from eventstore.chunks import record, slab
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC, RECORDS_FROM
from eventstore.chunks.record import Framing
from eventstore.chunks.witness import Judge
from eventstore.errors import Corrupt, ReadFailed

_SLAB_BYTES = 1024 * 1024  # fits in the processor's cache: a fifth faster than 8 MiB


class OnRecords(Protocol):
    """Receives every run of good records: their bytes, and the offset of each record in the file."""

    def __call__(self, data: memoryview, base: int, found: record.Walk, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """The end of the good records, and the torn tail after it."""

    end: int
    next_sequence: int
    records: int
    checksum: int
    durable: int
    torn: bytes = b""


def read_records(
    file: File, name: str, start: int, stop: int, first_sequence: int, framing: Framing, on_records: OnRecords
) -> tuple[Recovered, str | None]:
    """Walks the records in [start, stop), slab by slab. Returns its result, and the reason it stopped early or None.

    Raises:
        ReadFailed
    """
    position, sequence, count, checksum, durable = start, first_sequence, 0, 0, RECORDS_FROM
    slab_bytes, fault = _SLAB_BYTES, None
    while position < stop:
        wanted = min(slab_bytes, stop - position)
        data = _read(file, name, position, wanted)
        found = slab.walk(data, position, sequence, framing)
        if found.offsets:
            on_records(memoryview(data), position, found)
            durable = max(durable, found.durable)
        count += len(found.offsets)
        checksum += found.checksum
        sequence = found.next_sequence
        at_end = position + wanted >= stop or len(data) < wanted
        position = found.end
        if found.fault is None:
            if len(data) < wanted:
                fault = "the file ends here"
                break
            continue
        if at_end or not found.wants:
            fault = found.fault
            break
        slab_bytes = max(_SLAB_BYTES, found.wants)
    return Recovered(position, sequence, count, checksum, durable), fault


class WholeCommits:
    """Passes runs of records on, up to the last one that misses none of those that belong to it.

    Attributes:
        held: the bytes of the records that were not passed on.
        walk: of these records; None: there are none.
    """

    def __init__(self, framing: Framing, on_records: OnRecords) -> None:
        self.held: bytes | memoryview = b""
        self.walk: record.Walk | None = None
        self._framing = framing
        self._on_records = on_records

    def __call__(self, data: memoryview, base: int, found: record.Walk, /) -> None:
        if self.walk is not None:
            base -= len(self.held)
            data, found = memoryview(b"".join((self.held, data))), _joined(self.walk, found)
        count, whole = len(found.offsets), self._framing.whole(data, base, found)
        if whole == count:
            self._on_records(data, base, found)
            self.walk, self.held = None, b""
            return
        if whole:
            self._on_records(data[: found.offsets[whole] - base], base, _part(found, data, base, 0, whole))
        self.walk = _part(found, data, base, whole, count)
        self.held = bytes(data[found.offsets[whole] - base : found.end - base])


def _joined(first: record.Walk, second: record.Walk) -> record.Walk:
    return replace(
        second,
        offsets=first.offsets + second.offsets,
        sequences=first.sequences + second.sequences,
        checksum=first.checksum + second.checksum,
    )


def _part(found: record.Walk, data: memoryview, base: int, begin: int, end: int) -> record.Walk:
    """Returns the walk of the records [begin, end) of those in `data`."""
    ends = end == len(found.offsets)
    return replace(
        found,
        offsets=found.offsets[begin:end],
        sequences=found.sequences[begin:end],
        end=found.end if ends else found.offsets[end],
        next_sequence=found.next_sequence if ends else found.sequences[end],
        checksum=sum(record.crc_at(data, offset - base) for offset in found.offsets[begin:end]),
    )


def recover(file: File, name: str, first_sequence: int, known_end: int, judge: Judge, on_records: OnRecords) -> Recovered:
    """Reads a chunk from its first record to the last good one. Changes nothing. `known_end`: it was durable up to this byte.

    Raises:
        Corrupt: bytes that were durable are not the bytes that were written.
        ReadFailed
    """
    size, whole = file.size(), WholeCommits(judge.framing, on_records)
    result, fault = read_records(file, name, RECORDS_FROM, size, first_sequence, judge.framing, whole)
    rest = b"" if fault is None else _rest(file, name, result.end, size)
    durable = max(known_end, judge.evidence(rest, result.end, result.next_sequence).durable)
    if durable > result.end:
        what = fault or "the file ends here"
        raise Corrupt(name, result.end, f"{what}, though the file was durable up to byte {durable}; nothing was cut")
    if judge.intact(rest):  # intact, but not the expected one: an interrupted write never leaves that
        raise Corrupt(name, result.end, f"{fault}; nothing was cut")
    footer = _is_footer(rest)
    if whole.walk is not None:
        return _without_part(name, result, whole.held, whole.walk, rest, durable=max(durable, size if footer and rest else 0))
    torn = b"" if footer else rest
    return Recovered(result.end, result.next_sequence, result.records, result.checksum, result.durable, torn)


def _without_part(
    name: str, result: Recovered, held: bytes | memoryview, part: record.Walk, rest: bytes, *, durable: int
) -> Recovered:
    """Returns the end of the records before a part of some that belong together. Raises Corrupt: it was durable."""
    begin = part.offsets[0]
    if durable > begin:
        what = f"the last {len(part.offsets)} records miss others that were written with them"
        raise Corrupt(name, begin, f"{what}, though the file was durable up to byte {durable}; nothing was cut")
    return Recovered(
        begin,
        part.sequences[0],
        result.records - len(part.offsets),
        result.checksum - part.checksum,
        result.durable,
        b"".join((held, rest)),
    )


def _is_footer(rest: bytes) -> bool:
    """Whether the process ended after it began to write the footer and before it marked the header as completed."""
    return len(rest) <= FOOTER_BYTES and rest[: len(FOOTER_MAGIC)] == FOOTER_MAGIC[: len(rest)]


def _read(file: File, name: str, start: int, length: int) -> bytes:
    try:
        return file.read_at(start, length)
    except OSError as error:
        raise ReadFailed(f"{name}: reading {length} bytes at {start} failed: {error.strerror}", file=name) from error


def _written_parts(file: File, name: str, start: int) -> list[tuple[int, int]]:
    try:
        return file.written_parts(start)
    except OSError as error:
        raise ReadFailed(f"{name}: looking for data from byte {start} on failed: {error.strerror}", file=name) from error


def _rest(file: File, name: str, start: int, size: int) -> bytes:
    """Returns the bytes from `start` to the last non-zero one: preallocated space that was never written is zero.

    The first ones are read whatever the file system says of holes: some versions of ZFS reported them where bytes had just been
    written, and what is not seen here is cut without a copy.
    """
    kept: list[bytes] = []
    zeros, zero, position = 0, bytes(_SLAB_BYTES), start
    first = min(start + _SLAB_BYTES, size)
    # asked before anything is read: what the kernel reads ahead into reserved space counts as written from then on
    for begin, end in [(start, first), *_written_parts(file, name, first)]:
        zeros, position = zeros + begin - position, begin
        while position < end and (data := _read(file, name, position, min(_SLAB_BYTES, end - position))):
            used = b"" if data == zero else data.rstrip(b"\0")  # to compare takes a thirtieth of the time of the search
            if used:
                kept.append(bytes(zeros))
                kept.append(used)
                zeros = len(data) - len(used)
            else:
                zeros += len(data)
            position += len(data)
    return b"".join(kept)
