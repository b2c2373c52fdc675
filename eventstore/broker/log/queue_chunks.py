"""The queue index on disk: queue chunks of a fixed number of entries, found by division. Derived from the message log.

    queues/TTTTTTTTTT-QQQQQ/NNNNNNNNNN.queue      topic id, queue number, chunk number from 1
    index.json                                    the last message chunk whose entries are all in queue chunks, durably

The entries of a message chunk are written together once the chunk is completed; until then they are in memory, and recovery
finds them in the log. So a message is written once when it is sent. After any crash, queue chunks are valid up to
the chunk in the document, and all later entries are written again, with the same bytes.
"""

from __future__ import annotations

import threading
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from eventstore.arrays import np
from eventstore.chunks.documents import read_document, write_document
from eventstore.chunks.files import File, Files, read_failed, read_range
from eventstore.chunks.header import HEADER_BYTES, QUEUE, RECORDS_FROM, ChunkHeader, decode_header
from eventstore.errors import Corrupt, FolderRefused
from eventstore.records.queue_entry import ENTRY_BYTES, LAYOUT, Entries, blank_entries, first_bad, make_entries
from eventstore.records.state_record import QueueKey

ENDING: Final = "queue"
DOCUMENT: Final = "index.json"
QUEUES: Final = "queues"
PAGE_ENTRIES: Final = 1024
_PAGES_MAX: Final = 512


class QueueChunks:
    """The queue chunks of all queues. Reading is safe on any thread; call `write` and `remove…` one at a time."""

    def __init__(self, files: Files, path: Path, store: uuid.UUID, entries_per_chunk: int) -> None:
        self.per_chunk = entries_per_chunk
        self._files = files
        self._path = path
        self._store = store
        self._pages: OrderedDict[tuple[QueueKey, int], Entries] = OrderedDict()
        self._named: dict[QueueKey, int] = {}  # the last chunk whose name this process has made durable
        self._lock = threading.Lock()

    # -- the document -------------------------------------------------------------------------------------------------

    def indexed(self) -> int:
        """Returns the last message chunk whose entries are durable; 0 if the index must be rebuilt."""
        try:
            document = read_document(self._files, self._path / DOCUMENT)
        except (FileNotFoundError, Corrupt):
            return 0
        mine = document.get("store") == str(self._store) and document.get("queue_chunk_entries") == self.per_chunk
        through = document.get("indexed_chunk")
        return through if mine and isinstance(through, int) else 0

    def set_indexed(self, chunk: int) -> None:
        write_document(
            self._files,
            self._path / DOCUMENT,
            {"indexed_chunk": chunk, "queue_chunk_entries": self.per_chunk, "store": str(self._store)},
        )

    def forget_after(self, chunk: int) -> None:
        """Marks the entries of later message chunks to be written again, because these chunks are cut back, or cut off."""
        if self.indexed() > chunk:
            self.set_indexed(chunk)

    def begin_anew(self, keys: Iterable[QueueKey], before: int) -> None:
        """Removes all entries, to be written again from the message chunk after `before` on: files of another layout, or with
        zeros where power failed, look like good ones.
        """
        self.set_indexed(before)
        for key in keys:
            self.remove(key)

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(
        self, key: QueueKey, first_offset: int, positions: array[int], lengths: array[int], tags: array[int], keys: array[int]
    ) -> None:
        """Writes the entries of consecutive messages of one queue; durable on return. Raises OSError."""
        entries = make_entries(key, first_offset, positions, lengths, tags, keys)
        if key not in self._named:
            self._files.make_folder(self._folder(key))
        done = 0
        while done < len(entries):
            number, place = divmod(first_offset + done, self.per_chunk)
            part = entries[done : done + self.per_chunk - place]
            self._write_part(key, number + 1, place, part.tobytes())
            done += len(part)
        with self._lock:
            self._pages = OrderedDict((at, page) for at, page in self._pages.items() if at[0] != key)

    def _write_part(self, key: QueueKey, number: int, place: int, raw: bytes) -> None:
        folder = self._folder(key)
        path = folder / f"{number:010d}.{ENDING}"
        header = self._header(number)
        file = self._files.open(path, create=not self._files.exists(path), write=True)
        try:
            file.write_at(0, [header.encode()])
            there = max(0, file.size() - RECORDS_FROM) // ENTRY_BYTES
            if there < place:  # their messages were deleted before this file was made; a page is checked as a whole
                blank = blank_entries(key, header.first_sequence + there, place - there).tobytes()
                file.write_at(RECORDS_FROM + there * ENTRY_BYTES, [blank])
            file.write_at(RECORDS_FROM + place * ENTRY_BYTES, [raw])
            file.sync()
            if place + len(raw) // ENTRY_BYTES == self.per_chunk:
                self._complete(file, header)
        finally:
            file.close()
        if self._named.get(key) != number:  # the process that made the file may have died before this
            self._files.sync_folder(folder)
            self._named[key] = number

    def _header(self, number: int) -> ChunkHeader:
        return ChunkHeader(QUEUE, number, self._store, 0, (number - 1) * self.per_chunk, 0)

    def _complete(self, file: File, header: ChunkHeader) -> None:
        end = RECORDS_FROM + self.per_chunk * ENTRY_BYTES
        raw = np.frombuffer(file.read_at(RECORDS_FROM, end - RECORDS_FROM), LAYOUT.dtype())
        checksum = int(raw["crc"].sum(dtype=np.uint64))
        completed = header.complete(end, header.first_sequence + self.per_chunk, self.per_chunk, checksum)
        file.write_at(end, [completed.footer()])
        file.truncate(end + 64)
        file.sync()
        file.write_at(0, [completed.encode()])
        file.sync()

    # -- reading ------------------------------------------------------------------------------------------------------

    def page_start(self, offset: int) -> int:
        """Returns the first offset of the page that holds this one. A page lies within one queue chunk."""
        number, place = divmod(offset, self.per_chunk)
        return number * self.per_chunk + place // PAGE_ENTRIES * PAGE_ENTRIES

    def entries(self, key: QueueKey, start: int, stop: int, *, cached_only: bool = False) -> Entries:
        """Returns the entries of the queue offsets [start, stop), checked; at most the entries of one page.

        Raises:
            Corrupt, ReadFailed
            NotCached
        """
        first = self.page_start(start)
        chunk_end = (start // self.per_chunk + 1) * self.per_chunk
        stop = min(stop, first + PAGE_ENTRIES, chunk_end)
        page = self._page(key, first, stop - first, cached_only)
        return page[start - first : stop - first]

    def _page(self, key: QueueKey, first: int, wanted: int, cached_only: bool) -> Entries:
        """Returns at least the first `wanted` entries of a page."""
        at = (key, first)
        with self._lock:
            page = self._pages.get(at)
            if page is not None and len(page) >= wanted:
                self._pages.move_to_end(at)
                return page
        page = self._read(key, first, wanted, cached_only)
        with self._lock:
            self._pages[at] = page
            if len(self._pages) > _PAGES_MAX:
                self._pages.popitem(last=False)
        return page

    def _read(self, key: QueueKey, first: int, count: int, cached_only: bool) -> Entries:
        number, place = divmod(first, self.per_chunk)
        path = self._folder(key) / f"{number + 1:010d}.{ENDING}"
        entries = np.frombuffer(
            self._read_raw(path, RECORDS_FROM + place * ENTRY_BYTES, count * ENTRY_BYTES, cached_only), LAYOUT.dtype()
        )
        bad = first_bad(key, first, entries)
        if bad is not None:
            raise Corrupt(
                str(path),
                RECORDS_FROM + (place + bad) * ENTRY_BYTES,
                f"a damaged entry; stop the broker and delete {DOCUMENT}, the index is then built from the messages",
            )
        return entries

    def _read_raw(self, path: Path, offset: int, length: int, cached_only: bool) -> bytes:
        try:
            file = self._files.open(path)
            try:
                raw = read_range(file, str(path), offset, length, cached_only)
            finally:
                file.close()
        except OSError as error:
            raise read_failed(str(path), offset, length, error) from error
        if len(raw) != length:
            raise Corrupt(str(path), offset + len(raw), "the file ends here, before entries that were written")
        return raw

    def covers(self, key: QueueKey, low: int, high: int) -> bool:
        """Returns whether the chunks for the offsets [low, high) exist, judging by header and size only."""
        if low >= high:
            return True
        for number in range(low // self.per_chunk + 1, -(-high // self.per_chunk) + 1):
            path = self._folder(key) / f"{number:010d}.{ENDING}"
            end = min(high - (number - 1) * self.per_chunk, self.per_chunk)
            try:
                file = self._files.open(path)
            except FileNotFoundError:
                return False
            try:
                header = decode_header(file.read_at(0, HEADER_BYTES), str(path), QUEUE)
                size = file.size()
            except (Corrupt, FolderRefused):
                return False
            finally:
                file.close()
            if header.number != number or header.store != self._store or size < RECORDS_FROM + end * ENTRY_BYTES:
                return False
        return True

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove_below(self, key: QueueKey, offset: int) -> None:
        """Removes the chunks that hold only entries before this offset."""
        self._remove(key, range(offset // self.per_chunk + 1))

    def remove(self, key: QueueKey) -> None:
        """Removes all chunks of a queue; its folder stays, empty."""
        self._remove(key, None)

    def _remove(self, key: QueueKey, numbers: range | None) -> None:
        folder = self._folder(key)
        self._named.pop(key, None)
        for name in self._names(folder):
            stem, _, ending = name.partition(".")
            if ending == ENDING and stem.isdecimal() and (numbers is None or int(stem) in numbers):
                self._files.remove(folder / name)
        with self._lock:
            self._pages = OrderedDict((at, page) for at, page in self._pages.items() if at[0] != key)

    def _names(self, folder: Path) -> Iterable[str]:
        return self._files.names(folder) if self._files.exists(folder) else ()

    def _folder(self, key: QueueKey) -> Path:
        return self._path / QUEUES / f"{key[0]:010d}-{key[1]:05d}"
