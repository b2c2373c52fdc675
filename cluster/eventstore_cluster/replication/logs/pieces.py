"""What travels from a leader's log to a follower's: runs of whole records, each of one chunk, and documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.record import PREFIX, TRAILER
from eventstore_cluster.replica.places import LogEnd, LogEnds


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records that lie from byte `offset` of `chunk` on.

    Attributes:
        begun: the chunk's header as an ongoing one, if these are its first records.
        completed: the final header of the chunk before, if `begun` is set and there is such a chunk: nothing follows in it
            (R6).
    """

    chunk: int
    offset: int
    data: bytes
    begun: ChunkHeader | None = None
    completed: ChunkHeader | None = None

    @property
    def end(self) -> LogEnd:
        return self.chunk, self.offset + len(self.data)

    @property
    def last_crc(self) -> int:
        """The CRC of its last record, as far as its length is right: what came is checked when it is stored."""
        data = self.data
        length = _TRAILER.unpack_from(data, len(data) - TRAILER.size)[1] if len(data) >= TRAILER.size else 0
        return int(_CRC.unpack_from(data, len(data) - length)[0]) if _CRC.size <= length <= len(data) else 0


@dataclass(frozen=True, slots=True)
class Payload:
    """Consecutive pieces of the log of one kind.

    Attributes:
        key: of the witnesses in their records.
    """

    key: bytes
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents as they are at version `end`, by path in the folder of the shard (R14)."""

    end: LogEnd
    documents: tuple[tuple[str, bytes], ...]


Cargo: TypeAlias = tuple[Payload | None, Payload | None, Documents | None]
"""What follows a place in each kind: events, messages, documents; None: nothing."""


_SMALL_BYTES: Final = 64 * 1024
_CRC: Final = PREFIX.part("crc", stop=PREFIX["crc"].end)
_TRAILER: Final = TRAILER.struct


def is_small(cargo: Cargo) -> bool:
    """Whether the cargo is stored by a short write to each log."""
    *payloads, documents = cargo
    if documents is not None:
        return False
    size = 0
    for payload in payloads:
        for piece in () if payload is None else payload.pieces:
            if piece.begun is not None:
                return False
            size += len(piece.data)
    return size <= _SMALL_BYTES


def end_of(cargo: Cargo, start: LogEnds, last_crcs: tuple[int, ...]) -> tuple[LogEnds, tuple[int, ...]]:
    """Returns where the logs end once the cargo is stored, and the CRCs of their last records, given those before."""
    *payloads, documents = cargo
    last = [None if each is None else each.pieces[-1] for each in payloads]
    ends = [before if piece is None else piece.end for piece, before in zip(last, start, strict=False)]
    crcs = [before if piece is None else piece.last_crc for piece, before in zip(last, last_crcs, strict=False)]
    return (*ends, start[-1] if documents is None else documents.end), (*crcs, 0)
