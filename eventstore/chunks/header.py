"""Header and footer of a chunk file.

Header, at byte 0; records begin at byte 4096:

     0        8         10     12      14         16             20      24              32            48
    +--------+---------+------+-------+----------+--------------+-------+---------------+-------------+----------------+
    | magic  | format  | kind | flags | reserved | records from | epoch | chunk number  | store uuid  | first sequence |
    +--------+---------+------+-------+----------+--------------+-------+---------------+-------------+----------------+
     56           64              72    80        88          96                                       124
    +------------+---------------+-----+---------+-----------+----------------------------------------+---------+
    | created µs | last sequence | end | records | checksum  | reserved (28)                          | CRC-32C |
    +------------+---------------+-----+---------+-----------+----------------------------------------+---------+

flags: bit 0 completed, bit 1 sorted. last sequence, end (where records end and the footer begins), records and
checksum are zero until completion. The checksum is the sum of the records' CRCs modulo 2^64: it does not depend on
their order, so a sorted file has the checksum of the file it was sorted from. The footer, at byte `end`, repeats them:

     0        8               16              24        32          40          60
    +--------+---------------+---------------+---------+-----------+-----------+---------+
    | magic  | first sequence| last sequence | records | checksum  | reserved  | CRC-32C |
    +--------+---------------+---------------+---------+-----------+-----------+---------+

On completion the footer is written and synced first, then the header is overwritten in place. It lies in one 512-byte
sector, so a power failure leaves the old or the new one; a killed process may leave the beginning of the new one and the
rest of the old one, which `finish_completion` recognises and finishes.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from eventstore.errors import Corrupt, FolderRefused

MAGIC: Final = b"EVTCHUNK"
FOOTER_MAGIC: Final = b"EVTCHEND"
FORMAT: Final = 1
EVENTS: Final = 1
MESSAGES: Final = 2
QUEUE: Final = 3
COMPLETED: Final = 1
SORTED: Final = 2

HEADER: Final = struct.Struct("<8sHHHHIIQ16sQqQQQQ28sI")
FOOTER: Final = struct.Struct("<8sQQQQ20sI")
HEADER_BYTES: Final = HEADER.size
FOOTER_BYTES: Final = FOOTER.size
RECORDS_FROM: Final = 4096

assert (HEADER_BYTES, FOOTER_BYTES) == (128, 64)


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What the first 128 bytes of a chunk file say."""

    kind: int
    number: int
    store: uuid.UUID
    epoch: int
    first_sequence: int
    created: int
    flags: int = 0
    last_sequence: int = 0
    end: int = 0
    records: int = 0
    checksum: int = 0

    @property
    def completed(self) -> bool:
        return bool(self.flags & COMPLETED)

    @property
    def sorted(self) -> bool:
        return bool(self.flags & SORTED)

    @property
    def state(self) -> str:
        return "sorted" if self.sorted else "completed" if self.completed else "ongoing"

    def complete(self, end: int, next_sequence: int, records: int, checksum: int) -> ChunkHeader:
        """The header of this chunk once nothing more is appended to it."""
        return replace(
            self,
            flags=self.flags | COMPLETED,
            last_sequence=next_sequence - 1,
            end=end,
            records=records,
            checksum=checksum & (2**64 - 1),
        )

    def encode(self) -> bytes:
        raw = HEADER.pack(
            MAGIC, FORMAT, self.kind, self.flags, 0, RECORDS_FROM, self.epoch, self.number, self.store.bytes,
            self.first_sequence, self.created, self.last_sequence, self.end, self.records, self.checksum, bytes(28), 0,
        )  # fmt: skip
        return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")

    def footer(self) -> bytes:
        raw = FOOTER.pack(FOOTER_MAGIC, self.first_sequence, self.last_sequence, self.records, self.checksum, bytes(20), 0)
        return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def decode_header(raw: bytes, file: str, kind: int) -> ChunkHeader:
    """The header in `raw`.

    Raises:
        Corrupt: it is damaged.
        FolderRefused: it is whole, but of a newer format or another kind of file.
    """
    if len(raw) < HEADER_BYTES:
        raise Corrupt(file, 0, f"the file has {len(raw)} bytes, its header alone needs {HEADER_BYTES}")
    (magic, format_, own_kind, flags, _, records_from, epoch, number, store, first, created, last, end, records,
    checksum,
     _, crc) = HEADER.unpack_from(raw)  # fmt: skip
    if magic != MAGIC:
        raise Corrupt(file, 0, "this is not a chunk file: its magic is missing")
    if format_ != FORMAT:
        raise FolderRefused(file, f"format version {format_}; this program reads version {FORMAT}. Use a newer one")
    if crc32c(raw[: HEADER_BYTES - 4]) != crc:
        raise Corrupt(file, 0, "the checksum of the file header does not match")
    if own_kind != kind or records_from != RECORDS_FROM:
        raise FolderRefused(file, f"a chunk of kind {own_kind} where kind {kind} belongs")
    return ChunkHeader(own_kind, number, uuid.UUID(bytes=store), epoch, first, created, flags, last, end, records, checksum)


def finish_completion(raw: bytes, footer: bytes, end: int) -> ChunkHeader | None:
    """The completed header, if `raw` is what an interrupted completion leaves: the new header up to some byte, then the
    old one. `footer` lies at byte `end` of the file. Damage of any other kind gives None.
    """
    if len(raw) < HEADER_BYTES or len(footer) != FOOTER_BYTES or raw[:8] != MAGIC:
        return None
    _, _, kind, _, _, _, epoch, number, store, first, created, *_ = HEADER.unpack_from(raw)
    _, _, last, records, checksum, _, _ = FOOTER.unpack(footer)
    ongoing = ChunkHeader(kind, number, uuid.UUID(bytes=store), epoch, first, created)
    completed = ongoing.complete(end, last + 1, records, checksum)
    if completed.footer() != footer:
        return None
    old, new = ongoing.encode(), completed.encode()
    common = next((at for at in range(HEADER_BYTES) if raw[at] != new[at]), HEADER_BYTES)
    return completed if raw[common:HEADER_BYTES] == old[common:] else None


def check_footer(raw: bytes, header: ChunkHeader, file: str) -> None:
    """Raises Corrupt unless `raw` is the footer that belongs to `header`."""
    if raw != header.footer():
        raise Corrupt(file, header.end, "the footer is damaged or does not belong to the header")
