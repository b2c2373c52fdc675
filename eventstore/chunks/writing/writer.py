"""The single writer of a folder of chunks: one write and one sync per batch; rolls to the next chunk when one is full.

Runs on any thread its owner chooses, one call at a time. A roll is safe at every point because of the order of its steps:
footer, sync, header of the completed chunk, sync; then the next chunk under a temporary name, sync, rename, sync of the folder,
document.

After a failed sync, or a write that failed for another reason than lack of space, the state of the file is unknown: the writer
is poisoned and refuses all later calls. A full disk is different: the part of the batch that was written is cut off again and
the cut is synced, so that no part of it can reappear, and the next batch may try again.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

from eventstore.chunks.files import NO_SPACE, File
from eventstore.chunks.folder import ChunkFolder
from eventstore.chunks.front import Segment
from eventstore.chunks.header import RECORDS_FROM, ChunkHeader
from eventstore.chunks.witness import NO_KEY
from eventstore.chunks.writing.zeroing import AHEAD_BYTES, ZeroAhead
from eventstore.errors import Overloaded, Poisoned, StorageFull

_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class ChunkWriter:
    """Persists segments in order.

    Attributes:
        end: the byte offset up to which the current chunk was written.
        key: of its witnesses.
        poisoned: why no later segment is accepted; None if they are.
        completed: the chunks that `take_completed` has not returned yet.
    """

    def __init__(
        self,
        folder: ChunkFolder,
        *,
        epoch: int,
        size_bytes: int,
        preallocate_bytes: int,
        sync: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._epoch = epoch
        self._size_bytes = size_bytes
        self._step_bytes = preallocate_bytes
        self._sync = sync
        self._clock = clock
        self._file: File | None = None
        self._header: ChunkHeader | None = None
        self._allocated = 0
        self._next_sequence = 1
        self._records = 0
        self._checksum = 0
        self._unsynced = False
        self.key = NO_KEY
        self.end = RECORDS_FROM
        self.poisoned: str | None = None
        self.completed: deque[ChunkHeader] = deque()
        self.zero_ahead = ZeroAhead(folder.files)

    def resume(self, header: ChunkHeader, end: int, next_sequence: int, records: int, checksum: int) -> None:
        """Continues a chunk that recovery has read: cuts everything after `end` and syncs."""
        path = self._folder.chunk_path(header.number)
        self._file = file = self._folder.files.open(path, write=True)
        self._header, self.end, self._next_sequence = header, end, next_sequence
        self._records, self._checksum = records, checksum
        file.truncate(end)
        file.sync()
        self._allocated = end
        self.zero_ahead.attach(path, end)

    def resume_after(self, header: ChunkHeader) -> None:
        """Continues after a completed chunk. Its header is synced: the process that wrote it may have died before its sync."""
        if not header.sorted:
            file = self._folder.files.open(self._folder.chunk_path(header.number), write=True)
            try:
                file.write_at(0, [header.encode()])
                file.sync()
            finally:
                file.close()
        self._header = header

    @property
    def file(self) -> File | None:
        """The current chunk's file. Readers may use it after completion: it is closed when the last reference goes."""
        return self._file

    def rewrite(self, start: int, data: bytes) -> None:
        """Writes bytes that are already in the file again, and syncs them.

        After a crash the last batch may exist only in the page cache, marked clean by a sync that failed.
        """
        if data:
            self._current().write_at(start, [data])
            self._current().sync()

    @property
    def as_completed(self) -> ChunkHeader | None:
        """The header of the current chunk as it will be when the next one begins; None if there is no chunk yet."""
        if self._header is None or self._header.completed:
            return self._header
        return self._header.complete(self.end, self._next_sequence, self._records, self._checksum)

    def take_completed(self, before: int | None = None) -> list[ChunkHeader]:
        """Returns the chunks that were completed since the last call, and have a number below `before`."""
        taken = []
        while self.completed and (before is None or self.completed[0].number < before):
            taken.append(self.completed.popleft())
        return taken

    def write(self, segment: Segment, begun: ChunkHeader | None = None) -> None:
        """Writes the segment; durable on return with `sync`, otherwise at the next `sync_now`. `begun`: the header of the chunk
        that the segment begins, if another process decides it.

        Raises:
            StorageFull, Overloaded: nothing of the segment was stored; later segments may succeed.
            Poisoned: the state on disk is unknown; no later segment is accepted.
        """
        if self.poisoned is not None:
            self._refuse()
        try:
            if segment.begins_chunk and (self._header is None or self._header.number != segment.chunk):
                self._roll(segment, begun)
            self._reserve(segment.end)
            self.zero_ahead.claim(segment.offset, segment.end)
            self._current().write_at(segment.offset, segment.buffers)
        except OSError as error:
            if error.errno in (*NO_SPACE, *_NO_DESCRIPTORS):
                self._cut_back(error)
            raise self._poison("write", error) from error
        except Exception as error:
            if self.poisoned is None:
                self._poison("write", error)
            raise
        segment.file, self._unsynced = self._file, True
        if self._sync:
            self.sync_now()
        self.end, self._next_sequence = segment.end, segment.next_sequence
        self._records += segment.records or len(segment.buffers)
        self._checksum += segment.checksum

    def sync_now(self) -> tuple[int, int]:
        """Syncs everything written so far. Returns the chunk, and the byte offset up to which it is durable."""
        if self.poisoned is not None:
            self._refuse()
        chunk, end = self._header.number if self._header is not None else 0, self.end
        if not self._unsynced or self._file is None:
            return chunk, end
        self._unsynced = False
        try:
            self._file.sync()
            if self.zero_ahead.failure is not None:
                raise self.zero_ahead.failure
        except OSError as error:
            raise self._poison("sync", error) from error
        return chunk, end

    def close(self) -> None:
        """Syncs and closes the file; the chunk stays the ongoing one, and the folder's document records its end."""
        try:
            if self.poisoned is None:
                chunk, end = self.sync_now()
                if self._file is not None:
                    with contextlib.suppress(OSError):  # needed only to judge later damage
                        self._folder.write_document(chunk, end, self.key)
        finally:
            self.zero_ahead.detach()
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None

    def _current(self) -> File:
        assert self._file is not None, "the first segment must begin a chunk"
        return self._file

    def _reserve(self, end: int) -> None:
        """Reserves space up to `end`, which must succeed, and some ahead of it, which need not."""
        ahead = min(AHEAD_BYTES, self._step_bytes)
        if end + ahead <= self._allocated or (end <= self._allocated and self._allocated >= self._size_bytes):
            return
        target = max(end, min(self._allocated + self._step_bytes, self._size_bytes))
        try:
            self._current().preallocate(target)
        except OSError as error:
            if end > self._allocated or error.errno not in NO_SPACE:
                raise
        else:
            self._allocated = target
            self.zero_ahead.reserved(target)

    def _roll(self, segment: Segment, begun: ChunkHeader | None) -> None:
        if self._header is not None and not self._header.completed:
            self._complete()
        self._begin(begun or self._new_header(segment))

    def _new_header(self, segment: Segment) -> ChunkHeader:
        created = int(self._clock() * 1_000_000)
        return self._folder.new_header(segment.chunk, self._epoch, segment.first_sequence, created)

    def _complete(self) -> None:
        file, completed = self._current(), self.as_completed
        assert completed is not None
        self.zero_ahead.detach()
        footer = completed.footer()
        file.write_at(self.end, [footer])
        file.truncate(self.end + len(footer))
        self._sync_or_poison(file)
        try:
            file.write_at(0, [completed.encode()])
        except OSError as error:  # also for lack of space: the header may be half old and half new
            raise self._poison("completing a chunk", error) from error
        self._sync_or_poison(file)
        self._file, self._header, self._unsynced = None, completed, False
        self.completed.append(completed)

    def _sync_or_poison(self, file: File) -> None:
        try:
            file.sync()
        except OSError as error:
            raise self._poison("sync", error) from error

    def _begin(self, header: ChunkHeader) -> None:
        folder, files = self._folder, self._folder.files
        path = folder.chunk_path(header.number)
        temporary = path.with_name(path.name + ".new")
        if files.exists(temporary):
            files.remove(temporary)
        file = files.open(temporary, create=True)
        try:
            file.write_at(0, [header.encode(), bytes(RECORDS_FROM - 128)])
            file.sync()
            files.rename(temporary, path)
            files.sync_folder(folder.path)
            folder.write_document(header.number, key=self.key)
        except OSError:
            file.close()
            raise
        self._file, self._header = file, header
        self._allocated, self.end = RECORDS_FROM, RECORDS_FROM
        self.zero_ahead.attach(path, RECORDS_FROM)
        self._next_sequence, self._records, self._checksum = header.first_sequence, 0, 0

    def _cut_back(self, cause: OSError) -> None:
        """Cuts off a batch that did not fit, durably, and raises the error for its callers."""
        try:
            if self._file is not None and self._header is not None:
                self.zero_ahead.detach()
                self._file.truncate(self.end)
                self._file.sync()
                self._unsynced = False
                self._allocated = self.end
                self.zero_ahead.attach(self._folder.chunk_path(self._header.number), self.end)
        except OSError as error:
            raise self._poison("cut back after a full disk", error) from error
        if cause.errno in _NO_DESCRIPTORS:
            raise Overloaded(f"{cause.strerror}; nothing of this append was stored. Try again later") from cause
        raise StorageFull(
            f"no space left in {self._folder.path} ({cause.strerror}); nothing of this append was stored. "
            "Free some space and try again",
            path=str(self._folder.path),
        ) from cause

    def _refuse(self) -> NoReturn:
        assert self.poisoned is not None
        raise Poisoned(self.poisoned, path=str(self._folder.path))

    def _poison(self, what: str, error: Exception) -> Poisoned:
        why = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
        self.poisoned = (
            f"{self._folder.path}: {what} failed ({why}); the state on disk is unknown. "
            "This process accepts no more appends: check the disk, then restart"
        )
        return Poisoned(self.poisoned, path=str(self._folder.path))
