"""The interface through which everything accesses the disk, and its implementation on the operating system.

Tests replace `OsFiles` with a simulated disk that knows which bytes were synced. Both keep these rules: `write_at` and `close`
do not sync; a created, renamed or removed name is durable only after `sync_folder` of its folder; `map` is for completed files,
which are replaced but never truncated.

Files and folders are their owner's alone, whatever the umask, in a server as in a program that embeds a store. In a folder that
only owner and group may enter and that is setgid (`chmod 2750`) the group may read them, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from eventstore.errors import FolderRefused, ReadFailed
from eventstore.forks import tell_of_forks

_ONLY_CACHED = getattr(os, "RWF_NOWAIT", 0x7FFFFFFF)  # outside Linux an unknown flag: EINVAL, so never cached
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FICLONE = 0x40049409  # linux/fs.h
_NO_CLONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS)
_OTHERS = stat.S_IRWXO
_GROUP_READS = stat.S_IRGRP | stat.S_IXGRP
_log = logging.getLogger(__name__)
_IOV_MAX = 1024  # UIO_MAXIOV on Linux: pwritev with more buffers fails with EINVAL


class File(Protocol):
    """An open file. Offsets and sizes are in bytes. Every method may raise OSError."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Reads up to `length` bytes; fewer only at the end of the file."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """Reads the same bytes if all of them are in the page cache; returns None if reading might wait for the disk."""

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> None:
        """Writes all buffers one after the other. After an OSError an unknown part of them was written."""

    def sync(self) -> None:
        """Makes data and size durable. After an OSError the state on disk is unknown, and a second call proves nothing."""

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Reserves space up to `size` and extends the file to it with zeros. Raises ENOSPC if the disk is full."""

    def size(self) -> int: ...

    def written_parts(self, offset: int) -> list[tuple[int, int]]:
        """Returns the parts at or after `offset`, from byte to byte, that may have been written: all between them is zero."""

    def map(self) -> memoryview:
        """Maps the whole file read-only; the mapping is valid as long as the view is referenced."""

    def clone(self, source: File) -> bool:
        """Makes this empty file share the blocks of another one. Returns whether the file system can. Not synced."""

    def close(self) -> None: ...


class OpensFiles(Protocol):
    """What files are read through."""

    def open(self, path: Path, /) -> File:
        """Opens a file to be read. Raises FileNotFoundError."""


class NotCached(Exception):
    """The read might wait for the disk or take long, and the caller passed `cached_only`."""


def read_range(file: File, name: str, offset: int, length: int, cached_only: bool) -> bytes:
    """Reads up to `length` bytes; fewer only at the end of the file. `name`: of the file, for errors.

    Raises:
        ReadFailed
        NotCached: with `cached_only`, if this might wait for the disk.
    """
    try:
        data = file.read_cached(offset, length) if cached_only else file.read_at(offset, length)
    except OSError as error:
        raise read_failed(name, offset, length, error) from error
    if data is None:
        raise NotCached
    return data


def read_failed(name: str, offset: int, length: int, error: OSError) -> ReadFailed:
    """Returns the error for a range that could not be read."""
    return ReadFailed(f"{name}: reading {length} bytes at {offset} failed: {error.strerror}", file=name)


class Files(Protocol):
    """Operations on names. Paths are absolute, or relative to the working directory."""

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        """Opens a file. With `create` it must not exist yet (FileExistsError), otherwise it must (FileNotFoundError)."""

    def names(self, folder: Path) -> list[str]:
        """Returns the names in a folder, sorted. Raises FileNotFoundError if it does not exist."""

    def exists(self, path: Path) -> bool: ...

    def make_folder(self, path: Path) -> None:
        """Creates the folder and its missing parents, durably. They are their owner's alone."""

    def close_to_others(self, path: Path) -> None:
        """Lets no other account of the machine into a folder that exists, and its group at most read."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replaces `target`."""

    def link(self, source: Path, target: Path) -> None:
        """Gives a file another name, which must not exist: both are the same bytes from then on. Raises FileExistsError."""

    def remove(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def lock(self, path: Path) -> Lock:
        """Takes the exclusive lock on `path` for this process.

        Raises:
            FolderRefused: another process (or another store of this process) holds it.
        """


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds `path` to an OSError of a call by descriptor, which names no file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class Lock(Protocol):
    def release(self) -> None: ...


class OsFile:
    """A file of the operating system. Every call gives its own offset, so threads may share it."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # the kernel returns at most 2 GiB, or less after a signal
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
        if offset < 0:  # pwritev reads -1 as the descriptor's own position
            raise OSError(errno.EINVAL, "negative offset")
        for first in range(0, len(buffers), _IOV_MAX):
            group = buffers[first : first + _IOV_MAX]
            total = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            if written != total:  # a nearly full disk or a signal: write the rest in one piece, which raises the error
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

    def written_parts(self, offset: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        end = self.size()
        try:
            while offset < end:
                begin = os.lseek(self._fd, offset, os.SEEK_DATA)
                offset = os.lseek(self._fd, begin, os.SEEK_HOLE)
                found.append((begin, offset))
        except OSError as error:
            if error.errno == errno.EINVAL:  # the file system does not know
                return [*found, (offset, end)]
            if error.errno != errno.ENXIO:  # nothing was written from there on
                raise
        return found

    def map(self) -> memoryview:
        if self.size() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, 0, prot=mmap.PROT_READ))

    def clone(self, source: File) -> bool:
        if not isinstance(source, OsFile):
            return False
        try:
            fcntl.ioctl(self._fd, _FICLONE, source._fd)
        except OSError as error:
            if error.errno not in _NO_CLONE:
                raise
            return False
        return True

    def close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """Closes the file when the last reference goes: a pool drops files that others may still be reading."""
        with contextlib.suppress(OSError):  # no caller to report it to; the file was only read, or synced before
            self.close()


class OsLock:
    """An advisory lock. The kernel releases it when the process ends, by a crash too."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        tell_of_forks(self)

    def forked(self) -> None:
        """In a child: closes the copy of the descriptor, which would keep the parent's lock beyond the end of the parent."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a child that has not begun its program yet has a copy of the descriptor
            os.close(self._fd)
            self._fd = -1


def mode_in(folder: Path, *, group: bool = True) -> int:
    """Returns the mode of a folder that is made in `folder`; without its `x`, the mode of a file. `group`: whether the group
    may read it if the folder says so.
    """
    mode = folder.stat().st_mode
    shared = group and mode & stat.S_ISGID and not mode & _OTHERS
    return stat.S_IRWXU | (mode & _GROUP_READS if shared else 0)


def open_private(path: str, flags: int) -> int:
    """Opens a file for the built-in `open`, as its `opener`: a new file gets the mode that `OsFiles` would give it there."""
    return os.open(path, flags, mode_in(Path(path).parent) & ~0o111)


class OsFiles:
    """The file system of the machine."""

    def __init__(self, *, group: bool = True) -> None:
        """With `group` False, no group may read new files, whatever the folder says: they hold secrets."""
        self._group = group

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(path, flags, mode_in(path.parent, group=self._group) & ~0o111 if create else 0))

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
                folder.mkdir(mode_in(folder.parent))
            self.sync_folder(folder.parent)

    def close_to_others(self, path: Path) -> None:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = mode & ~(_OTHERS | stat.S_IRWXG if mode & _OTHERS else stat.S_IWGRP)
        if wanted == mode:
            return
        try:
            path.chmod(wanted)
        except OSError as error:
            _log.warning(
                "other accounts of this machine may enter %s (mode %o), and it cannot be closed to them (%s); chmod it to 700",
                path,
                mode,
                error.strerror,
            )
        else:
            _log.warning("%s had mode %o and has %o now: it is not for other accounts of this machine", path, mode, wanted)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def remove(self, path: Path) -> None:
        path.unlink()

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode_in(path.parent) & ~0o111)
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
        with contextlib.suppress(OSError):  # a full disk: the process id is for people only
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return OsLock(descriptor)
