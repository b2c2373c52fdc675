"""Open files and locks of a simulated disk."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from errno import EBADF, EINVAL, ENOSPC
from typing import Protocol

from tests.simulated_disk.content import FileContent
from tests.simulated_disk.faults import SimulatedCrash
from tests.simulated_disk.names import os_error


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """The bytes that a `write_at` is about to write."""

    node: FileContent
    offset: int
    data: bytes


class Disk(Protocol):
    """The parts of a disk that its handles use, all but `cold` with `_lock` held."""

    cold: bool
    _lock: threading.RLock
    _handles: set[SimulatedFile]

    def strike(
        self, operation: str, paths: Sequence[str], detail: str = "", written: PendingWrite | None = None
    ) -> Exception | None: ...

    def shortage(self, node: FileContent, size: int) -> int: ...

    def part_written(self, offset: int, limit: int) -> int: ...


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: Disk, node: FileContent, *, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._writable = writable
        self._closed = False

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk._lock:
            self._begin("read_at", f"offset={offset} length={length}")
            if offset < 0 or length < 0:
                raise os_error(EINVAL, self._node.path)
            return bytes(self._node.live[offset : offset + length])

    def written_parts(self, offset: int) -> list[tuple[int, int]]:
        with self._disk._lock:
            self._begin("written_parts", f"offset={offset}")
            live = self._node.live
            begin = len(live) - len(live[offset:].lstrip(b"\0"))
            return [(begin, len(live.rstrip(b"\0")))] if begin < len(live) else []

    def read_cached(self, offset: int, length: int) -> bytes | None:
        data = self.read_at(offset, length)
        return data if len(data) == length and not self._disk.cold else None

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        with self._disk._lock:
            self._check_writable()
            if offset < 0:
                raise os_error(EINVAL, self._node.path)
            written = PendingWrite(self._node, offset, data)
            error = self._strike("write_at", f"offset={offset} length={len(data)}", written)
            limit = len(data) if isinstance(error, SimulatedCrash) else len(data) - 1
            shortage = self._disk.shortage(self._node, offset + len(data))
            if shortage > 0:
                error = error or os_error(ENOSPC, self._node.path)
                limit = min(limit, len(data) - shortage)
            if error is None:
                self._node.write(offset, data)
                return
            self._node.write(offset, data[: self._disk.part_written(offset, limit)])
            raise error

    def sync(self) -> None:
        with self._disk._lock:
            self._check_open()
            error = self._strike("sync")
            if error is None:
                self._node.sync()
                return
            if isinstance(error, OSError):
                self._node.fail_sync()
            raise error

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._check_writable()
            assert not self._node.mapped, f"{self._node.path} was mapped: it may be replaced, never truncated"
            self._begin("truncate", f"size={size}")
            if size < 0:
                raise os_error(EINVAL, self._node.path)
            if self._disk.shortage(self._node, size) > 0:
                raise os_error(ENOSPC, self._node.path)
            self._node.resize(size)

    def preallocate(self, size: int) -> None:
        with self._disk._lock:
            self._check_writable()
            error = self._strike("preallocate", f"size={size}")
            old_size = len(self._node.live)
            if isinstance(error, SimulatedCrash):
                raise error
            shortage = self._disk.shortage(self._node, size)
            if error is None and shortage <= 0:
                self._node.resize(max(size, old_size))
                return
            growth = size - old_size - max(shortage, 1)
            self._node.resize(old_size + self._disk.part_written(old_size, growth))
            raise error or os_error(ENOSPC, self._node.path)

    def size(self) -> int:
        with self._disk._lock:
            self._begin("size")
            return len(self._node.live)

    def map(self) -> memoryview:
        with self._disk._lock:
            self._begin("map")
            self._node.mapped = True
            return memoryview(self._node.snapshot())

    def clone(self, source: object) -> bool:
        return False

    def close(self) -> None:
        with self._disk._lock:
            self._closed = True
            self._disk._handles.discard(self)

    def _begin(self, operation: str, detail: str = "") -> None:
        self._check_open()
        error = self._strike(operation, detail)
        if error is not None:
            raise error

    def _strike(self, operation: str, detail: str = "", written: PendingWrite | None = None) -> Exception | None:
        return self._disk.strike(operation, [self._node.path], detail, written)

    def _check_open(self) -> None:
        if self._closed:
            raise os_error(EBADF, self._node.path)

    def _check_writable(self) -> None:
        if self._closed or not self._writable:
            raise os_error(EBADF, self._node.path)


class SimulatedLock:
    """A lock of a `SimulatedDisk`."""

    def __init__(self, disk: Disk, node: FileContent) -> None:
        self._disk = disk
        self._node = node
        self._held = True

    def release(self) -> None:
        with self._disk._lock:
            if self._held:
                self._held = False
                self._node.locked = False
