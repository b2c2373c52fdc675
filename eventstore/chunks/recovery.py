"""Finds the end of a chunk that was being written when the process ended, and tells a torn tail from rot.

A record is torn only if it belongs to the last batch, which was never known to be synced. Every record carries how far
its file had been synced before it was written: with durability `sync` that is where its batch begins, because a batch is
written only after the one before it was synced. A store that is closed in good order notes how far it came (see
`folder`). So a bad byte at offset X is rot if any good record, or that note, says that the file was durable beyond X;
only otherwise is it a torn tail, and only a torn tail is cut (after a copy was kept). What cannot be told apart from
inside the file: rot within the very last batch before a crash, with nothing written after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from eventstore.chunks import record, slab
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC, RECORDS_FROM
from eventstore.errors import Corrupt, ReadFailed

_SLAB_BYTES = 1024 * 1024  # small enough to stay in the processor's cache: a fifth quicker than 8 MiB


class OnRecords(Protocol):
    """Told of every run of good records: the bytes, and where in the file each record begins."""

    def __call__(self, data: memoryview, base: int, found: record.Walk, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where the good records end, and what lies behind them."""

    end: int
    next_sequence: int
    records: int
    checksum: int
    durable: int
    torn: bytes = b""


def read_records(
    file: File, name: str, start: int, stop: int, first_sequence: int, header_bytes: int, on_records: OnRecords
) -> tuple[Recovered, str | None]:
    """Walks the records in [start, stop), slab by slab. Returns where it ended and why it stopped early, or None.

    Raises:
        ReadFailed
    """
    position, sequence, count, checksum, durable = start, first_sequence, 0, 0, RECORDS_FROM
    slab_bytes, fault = _SLAB_BYTES, None
    while position < stop:
        wanted = min(slab_bytes, stop - position)
        data = _read(file, name, position, wanted)
        found = slab.walk(data, position, sequence, header_bytes)
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


def recover(file: File, name: str, first_sequence: int, header_bytes: int, known_end: int, on_records: OnRecords) -> Recovered:
    """Reads a chunk from its first record to the last good one. Changes nothing. `known_end`: it was durable up to there.

    Raises:
        Corrupt: bytes that were durable are not what was written.
        ReadFailed
    """
    size = file.size()
    result, fault = read_records(file, name, RECORDS_FROM, size, first_sequence, header_bytes, on_records)
    rest = b"" if fault is None else _rest(file, name, result.end, size)
    later = record.find_valid(rest, 0, header_bytes)
    # a record never says more than where it lies itself: what does is part of an event's data, and no witness
    durable = max([known_end, *(known for position, known in later if known <= result.end + position)])
    if durable > result.end:
        what = fault or "the file ends here"
        raise Corrupt(name, result.end, f"{what}, though the file was durable up to byte {durable}; nothing was cut")
    if later and later[0][0] == 0:  # whole, but not what belongs here: no interrupted write looks like that
        raise Corrupt(name, result.end, f"{fault}; nothing was cut")
    torn = b"" if _is_footer(rest) else rest
    return Recovered(result.end, result.next_sequence, result.records, result.checksum, result.durable, torn)


def _is_footer(rest: bytes) -> bool:
    """Whether the process ended between writing the footer and marking the header as completed."""
    return len(rest) <= FOOTER_BYTES and rest[: len(FOOTER_MAGIC)] == FOOTER_MAGIC[: len(rest)]


def _read(file: File, name: str, start: int, length: int) -> bytes:
    try:
        return file.read_at(start, length)
    except OSError as error:
        raise ReadFailed(f"{name}: reading {length} bytes at {start} failed: {error.strerror}", file=name) from error


def _rest(file: File, name: str, start: int, size: int) -> bytes:
    """Everything from `start` up to the last byte that is not zero (what was preallocated and never written is
    zero).
    """
    kept: list[bytes] = []
    zeros = 0
    for position in range(start, size, _SLAB_BYTES):
        data = _read(file, name, position, min(_SLAB_BYTES, size - position))
        used = data.rstrip(b"\0")
        if used:
            kept.append(bytes(zeros))
            kept.append(used)
            zeros = len(data) - len(used)
        else:
            zeros += len(data)
    return b"".join(kept)
