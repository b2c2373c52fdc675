"""The one small interface through which everything touches the disk, and its real implementation.

Tests replace `OsFiles` by a simulated disk that knows what was synced. The rules both keep:
`write_at` does not sync; `close` does not sync; a created, renamed or removed name lasts only after `sync_folder` of
its folder; `map` is for completed files, which are replaced but never truncated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from eventstore.errors import FolderRefused

_ONLY_CACHED = getattr(os, "RWF_NOWAIT", 0x7FFFFFFF)  # elsewhere than on Linux an unknown flag: EINVAL, never cached
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_IOV_MAX = 1024  # Linux' UIO_MAXIOV; more buffers than this in one pwritev are EINVAL


class File(Protocol):
    """An open file. Offsets and sizes in bytes. Every method may raise OSError."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """The same bytes if all of them are in memory already; None if getting them might wait for the disk."""

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Writes all buffers one after the other, all or OSError (then an unknown part of them is there)."""

    def sync(self) -> None:
        """Data and size are durable on return. After an OSError nothing is known, and calling again proves nothing."""

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Reserves space up to `size` and extends the file to it, with zeros. Raises ENOSPC where there is none."""

    def size(self) -> int: ...

    def map(self) -> memoryview:
        """The whole file read-only in memory, valid as long as the view is referenced."""

    def close(self) -> None: ...


class Files(Protocol):
    """The operations on names. Paths are absolute or relative to the process, as for the operating system."""

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """`create`: the file must not exist yet (FileExistsError). Otherwise it must (FileNotFoundError)."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; FileNotFoundError where there is none."""

    def exists(self, path: Path) -> bool: ...

    def make_folder(self, path: Path) -> None:
        """Creates the folder and its parents where they are missing, durably."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replaces `target`."""

    def remove(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def lock(self, path: Path) -> Lock:
        """Takes the exclusive lock on `path` for this process.

        Raises:
            FolderRefused: another process (or another store of this process) holds it.
        """


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """What the operating system refuses by descriptor is said of `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class Lock(Protocol):
    def release(self) -> None: ...


class OsFile:
    """A file of the operating system, by descriptor: position-free calls, so that threads may share it."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # the kernel returns at most 2 GiB, or less on a signal
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_cached(self, offset: int, length: int) -> bytes | None:
        buffer = bytearray(length)
        try:
            got = os.preadv(self._fd, (buffer,), offset, _ONLY_CACHED)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL):
                return None
            raise
        return bytes(buffer) if got == length else None

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> None:
        if offset < 0:  # pwritev would take -1 for the descriptor's own position
            raise OSError(errno.EINVAL, "negative offset")
        for first in range(0, len(buffers), _IOV_MAX):
            group = buffers[first : first + _IOV_MAX]
            total = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            if written != total:  # a nearly full disk or a signal: the rest in one piece, so that the error shows itself
                rest = memoryview(b"".join(group))[written:]
                while rest:
                    step = os.pwrite(self._fd, rest, offset + total - len(rest))
                    rest = rest[step:]
            offset += total

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def preallocate(self, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            if self.size() < size:
                os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def map(self) -> memoryview:
        if self.size() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """A pool drops files that others may still be reading: whoever lets go last closes."""
        with contextlib.suppress(OSError):  # nobody is there to be told; the file was read, or synced before
            self.close()


class OsLock:
    """An advisory lock; the kernel releases it when the process dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFiles:
    """The file system of the machine."""

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(path, flags, 0o644))

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_folder(self, path: Path) -> None:
        missing = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            self.sync_folder(folder.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise FolderRefused(
                    str(path.parent), f"in use by process {holder or 'unknown'}; stop it, or choose another folder"
                ) from None
            raise
        with contextlib.suppress(OSError):  # a full disk: the number is for people, the lock is what counts
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return OsLock(descriptor)
