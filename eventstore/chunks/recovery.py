"""Finds the end of a chunk that was being written when the process ended, and tells a torn tail from rot.

A record is torn only if it belongs to the last batch, which was never known to be synced. Every record carries how far
its file was known to be durable when it was made. So a bad byte at offset X is rot if any good record, before or
behind X, says that the file was durable beyond X; only otherwise is it a torn tail, and only a torn tail is cut (after
a copy was kept). What cannot be told apart from inside the file: rot within the very last batch, with nothing written
after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from eventstore.chunks import record
from eventstore.chunks.files import File
from eventstore.chunks.header import FOOTER_BYTES, FOOTER_MAGIC, RECORDS_FROM
from eventstore.errors import Corrupt

_SLAB_BYTES = 8 * 1024 * 1024


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
    """Walks the records in [start, stop), slab by slab. Returns where it ended and why it stopped early, or None."""
    position, sequence, count, checksum, durable = start, first_sequence, 0, 0, RECORDS_FROM
    slab_bytes, fault = _SLAB_BYTES, None
    while position < stop:
        data = memoryview(file.read_at(position, min(slab_bytes, stop - position)))
        found = record.walk(data, position, sequence, header_bytes)
        if found.offsets:
            on_records(data, position, found)
            durable = max(durable, found.durable)
        count += len(found.offsets)
        checksum += found.checksum
        sequence = found.next_sequence
        at_end = position + len(data) >= stop or not len(data)
        position = found.end
        if found.fault is None:
            continue
        if at_end or not found.wants:
            fault = found.fault
            break
        slab_bytes = max(_SLAB_BYTES, found.wants)
    return Recovered(position, sequence, count, checksum, durable), fault


def recover(file: File, name: str, first_sequence: int, header_bytes: int, on_records: OnRecords) -> Recovered:
    """Reads a chunk from its first record to the last good one. Changes nothing.

    Raises:
        Corrupt: bytes that were durable are not what was written.
    """
    size = file.size()
    result, fault = read_records(file, name, RECORDS_FROM, size, first_sequence, header_bytes, on_records)
    if fault is None:
        return result
    rest = _rest(file, result.end, size)
    if not rest or _is_footer(rest):
        return result
    later = record.find_valid(memoryview(rest), 0, header_bytes)
    durable = max([result.durable, *(known for _, known in later)])
    if durable > result.end:
        raise Corrupt(name, result.end, f"{fault}, though the file was durable up to byte {durable}; nothing was cut")
    if later and later[0][0] == 0:  # whole, but not what belongs here: no interrupted write looks like that
        raise Corrupt(name, result.end, f"{fault}; nothing was cut")
    return Recovered(result.end, result.next_sequence, result.records, result.checksum, result.durable, rest)


def _is_footer(rest: bytes) -> bool:
    """Whether the process ended between writing the footer and marking the header as completed."""
    return rest.startswith(FOOTER_MAGIC) and len(rest) <= FOOTER_BYTES


def _rest(file: File, start: int, size: int) -> bytes:
    """Everything from `start` up to the last byte that is not zero (what was preallocated and never written is
    zero).
    """
    kept: list[bytes] = []
    zeros = 0
    for position in range(start, size, _SLAB_BYTES):
        data = file.read_at(position, min(_SLAB_BYTES, size - position))
        used = data.rstrip(b"\0")
        if used:
            kept.append(bytes(zeros))
            kept.append(used)
            zeros = len(data) - len(used)
        else:
            zeros += len(data)
    return b"".join(kept)
