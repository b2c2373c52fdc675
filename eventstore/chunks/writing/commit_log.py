"""What a group commit writes to, and what tells it where followers have to have the records too."""

from __future__ import annotations

from typing import Protocol, TypeVar

from eventstore.chunks.front import FrontBuffer, Segment
from eventstore.chunks.header import ChunkHeader
from eventstore.chunks.writing.writer import ChunkWriter
from eventstore.errors import EventStoreError

Written = TypeVar("Written", covariant=True)


class CommitLog(Protocol[Written]):
    """An engine to commit to. It has neither threads nor tasks."""

    front: FrontBuffer
    writer: ChunkWriter

    @property
    def failed(self) -> EventStoreError | None: ...
    def take(self) -> Segment | None: ...
    def write(self, segment: Segment) -> None: ...
    def mark_written(self, segment: Segment, *, durable: bool) -> Written: ...
    def roll_back(self, error: EventStoreError) -> list[ChunkHeader]: ...
    def sync_now(self) -> tuple[int, int]: ...
    def mark_synced(self, chunk: int, end: int) -> None: ...


class Replication(Protocol):
    """The followers of a log. Its methods are called on the owner's thread; the answer is a call of `GroupCommit.commit`."""

    def refusal(self) -> EventStoreError | None:
        """Returns why nothing more may be written now: then nothing is, and what was written before is still found."""

    def shortage(self) -> EventStoreError | None:
        """Returns why not all replicas would get what is written now; None: all are in sync."""

    def durability(self) -> int:
        """Returns on how many replicas everything that is committed is durable."""

    def taken(self, segment: Segment) -> None:
        """The segment is about to be written. It may be sent to followers at the same time: it is never taken back."""

    def written(self, segment: Segment) -> None:
        """The segment is durable here."""

    def failed(self, error: EventStoreError) -> None:
        """Writing failed: this process has to end, without an answer to those who wait."""
