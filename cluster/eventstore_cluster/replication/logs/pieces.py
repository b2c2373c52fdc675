"""What travels from a leader's log to a follower's: runs of whole records, each of one chunk, and documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from eventstore.chunks.header import ChunkHeader
from eventstore_cluster.replica.places import LogEnd


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


def is_small(cargo: Cargo) -> bool:
    """Whether the cargo is stored by a short write to each log."""
    *payloads, documents = cargo
    pieces = [piece for payload in payloads if payload is not None for piece in payload.pieces]
    return (
        documents is None
        and not any(piece.begun for piece in pieces)
        and sum(len(each.data) for each in pieces) <= _SMALL_BYTES
    )
