"""Encodes and decodes the header and footer of a chunk file.

Header, at byte 0; records begin at byte 4096:

     0        8         10     12      14         16             20      24              32            48
    +--------+---------+------+-------+----------+--------------+-------+---------------+-------------+----------------+
    | magic  | format  | kind | flags | reserved | records from | epoch | chunk number  | store uuid  | first sequence |
    +--------+---------+------+-------+----------+--------------+-------+---------------+-------------+----------------+
     56           64              72    80        88          96                                       124
    +------------+---------------+-----+---------+-----------+----------------------------------------+---------+
    | created µs | last sequence | end | records | checksum  | reserved (28)                          | CRC-32C |
    +------------+---------------+-----+---------+-----------+----------------------------------------+---------+

Flags: bit 0 completed, bit 1 sorted. Last sequence, end (the end of the records, at which the footer begins), records and
checksum are zero until completion. The checksum is the sum of the records' CRCs modulo 2^64. It does not depend on their
order, so a sorted file has the checksum of the file it was sorted from. The footer, at byte `end`, repeats these values:

     0        8               16              24        32          40          60
    +--------+---------------+---------------+---------+-----------+-----------+---------+
    | magic  | first sequence| last sequence | records | checksum  | reserved  | CRC-32C |
    +--------+---------------+---------------+---------+-----------+-----------+---------+

On completion the footer is written and synced first, then the header is overwritten in place. The header fits in one 512-byte
sector, so a power failure leaves the old or the new one. A killed process may leave the beginning of the new one and the rest
of the old one; `finish_completion` recognises and finishes that.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Final

from eventstore.checksum import crc32c
from eventstore.chunks.layout import FieldLayout
from eventstore.errors import Corrupt, FolderRefused

MAGIC: Final = b"EVTCHUNK"
FOOTER_MAGIC: Final = b"EVTCHEND"
FORMAT: Final = 2
"""The newest format of a chunk. Those of kinds other than events are written with `FIRST_FORMAT`."""
FIRST_FORMAT: Final = 1
EVENTS: Final = 1
MESSAGES: Final = 2
QUEUE: Final = 3
COMPLETED: Final = 1
SORTED: Final = 2

HEADER: Final = FieldLayout(
    ("magic", "8s"),
    ("format", "H"),
    ("kind", "H"),
    ("flags", "H"),
    ("reserved", "2x"),
    ("records_from", "I"),
    ("epoch", "I"),
    ("number", "Q"),
    ("store", "16s"),
    ("first_sequence", "Q"),
    ("created", "q"),
    ("last_sequence", "Q"),
    ("end", "Q"),
    ("records", "Q"),
    ("checksum", "Q"),
    ("reserved", "28x"),
    ("crc", "I"),
)
FOOTER: Final = FieldLayout(
    ("magic", "8s"),
    ("first_sequence", "Q"),
    ("last_sequence", "Q"),
    ("records", "Q"),
    ("checksum", "Q"),
    ("reserved", "20x"),
    ("crc", "I"),
)
HEADER_BYTES: Final = HEADER.size
FOOTER_BYTES: Final = FOOTER.size
RECORDS_FROM: Final = 4096

assert (HEADER_BYTES, FOOTER_BYTES) == (128, 64)


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The values in the first 128 bytes of a chunk file."""

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
    format: int = FIRST_FORMAT

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
        """Returns the header of this chunk as a completed one."""
        return replace(
            self,
            flags=self.flags | COMPLETED,
            last_sequence=next_sequence - 1,
            end=end,
            records=records,
            checksum=checksum & (2**64 - 1),
        )

    def reopened(self) -> ChunkHeader:
        """Returns the header that this chunk had while it was ongoing."""
        return replace(self, flags=0, last_sequence=0, end=0, records=0, checksum=0)

    def unsorted(self) -> ChunkHeader:
        """Returns the header that this chunk had before it was sorted."""
        return replace(self, flags=self.flags & ~SORTED)

    def encode(self) -> bytes:
        raw = HEADER.struct.pack(
            MAGIC,
            self.format,
            self.kind,
            self.flags,
            RECORDS_FROM,
            self.epoch,
            self.number,
            self.store.bytes,
            self.first_sequence,
            self.created,
            self.last_sequence,
            self.end,
            self.records,
            self.checksum,
            0,
        )
        return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")

    def footer(self) -> bytes:
        raw = FOOTER.struct.pack(FOOTER_MAGIC, self.first_sequence, self.last_sequence, self.records, self.checksum, 0)
        return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def decode_header(raw: bytes, file: str, kind: int) -> ChunkHeader:
    """Returns the header in `raw`.

    Raises:
        Corrupt: it is damaged.
        FolderRefused: it is intact, but of a newer format or another kind of file.
    """
    if len(raw) < HEADER_BYTES:
        raise Corrupt(file, 0, f"the file has {len(raw)} bytes, a header needs {HEADER_BYTES}")
    (magic, format_, own_kind, flags, records_from, epoch, number, store, first, created, last, end, records, checksum, crc) = (
        HEADER.struct.unpack_from(raw)
    )
    if magic != MAGIC:
        raise Corrupt(file, 0, "this is not a chunk file: its magic is missing")
    if not FIRST_FORMAT <= format_ <= FORMAT:
        raise FolderRefused(file, f"format version {format_}; this program reads versions 1 to {FORMAT}. Use a newer one")
    if crc32c(raw[: HEADER_BYTES - 4]) != crc:
        raise Corrupt(file, 0, "the checksum of the file header does not match")
    if own_kind != kind or records_from != RECORDS_FROM:
        raise FolderRefused(file, f"a chunk of kind {own_kind}, expected kind {kind}")
    identity = uuid.UUID(bytes=store)
    return ChunkHeader(own_kind, number, identity, epoch, first, created, flags, last, end, records, checksum, format_)


def finish_completion(raw: bytes, footer: bytes, end: int) -> ChunkHeader | None:
    """Returns the completed header if `raw` is the result of an interrupted completion: the new header up to some byte, then
    the old one. `footer` was read at byte `end` of the file. Returns None for any other damage.
    """
    if len(raw) < HEADER_BYTES or len(footer) != FOOTER_BYTES or raw[:8] != MAGIC:
        return None
    _, format_, kind, _, _, epoch, number, store, first, created, *_ = HEADER.struct.unpack_from(raw)
    _, _, last, records, checksum, _ = FOOTER.struct.unpack(footer)
    ongoing = ChunkHeader(kind, number, uuid.UUID(bytes=store), epoch, first, created, format=format_)
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
