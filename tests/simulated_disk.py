"""A disk in memory that knows what was synced, loses the rest at a crash, and fails where a test tells it to.

`SimulatedDisk` keeps the protocol `Files` and touches no real file. It does whatever the rules in
`eventstore.chunks.files` allow, so that a program that is right on it is right on ext4 and XFS. Every choice follows
from the seed (and, with several threads, from their order): a failing seed can be run again, and `trace` says what
happened.

**Data.** A file has a live content, which all reads see, and a durable one, which the medium holds. `write_at`,
`truncate` and `preallocate` change the live content; only `File.sync` makes data and size durable. `close` syncs
nothing. The unit that the medium writes whole or not at all is the 512-byte sector.

**Names.** Creating, renaming and removing change the live namespace; `sync_folder` makes the changes of that folder
durable, and so those that they rest on. A rename is never half done, not even between two folders. A file whose name is
not durable is lost, whatever was synced of its data. `make_folder` is durable on return, as it promises.

**Crash.** `crash(mode)` returns a new disk with what is left, without locks, handles or planned faults:

- "kept": the process was killed. All live content and names are there, and what was unsynced still is: a second crash
  may take it away.
- "lost": the power failed and nothing unsynced had reached the medium.
- "sectors": the power failed while some of it had. Of each file an arbitrary subset of the unsynced sectors survives,
  each in its latest version or in the one before; the others hold what was durable, zeros where nothing was. The size
  is one the file had since its last sync: the old or the new one of a truncation or preallocation, anything on the way
  of a growth by writes. Of each folder's unsynced name changes the first few survive, in order.

The old disk and its handles raise OSError from then on; only `close` and `release` stay harmless, so that a test can
clean up. Calling `crash` again on the old disk returns another possible outcome.

**Faults.** `crash_at` stops the disk with `SimulatedCrash` before the nth mutating operation; a `write_at` may by then
have written a prefix of its data, ending at any byte, because a killed process does. `fail` lets an operation raise an
OSError. A `write_at` that fails has written a prefix, a `preallocate` that fails may have extended the file by a part
(ext4 does). After a failed `sync` the unsynced sectors count as clean, as they do on Linux: reads show them, but later
syncs do not make them durable, nor the size they brought, unless they are written again. That outlives the process, as
the page cache does: crash("kept") does not cure it. After a failed `sync_folder` the changes are as unsynced as before.

**Space.** A file takes as many bytes as it is long. A removed file takes them until its last handle is closed.

**Mapping.** `map` returns a snapshot that nothing changes. Truncating a file that this process has mapped would be a
SIGBUS on a real machine, and is an AssertionError here.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from errno import EBADF, EEXIST, EINVAL, EISDIR, ENODEV, ENOENT, ENOSPC, ENOTDIR, ENOTEMPTY
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from eventstore.errors import FolderRefused

CrashMode: TypeAlias = Literal["kept", "lost", "sectors"]
CRASH_MODES: Final[tuple[CrashMode, ...]] = ("kept", "lost", "sectors")

SECTOR_BYTES: Final = 512
_ZEROS: Final = bytes(SECTOR_BYTES)

MUTATING_OPERATIONS: Final = frozenset(
    {
        "write_at",
        "sync",
        "truncate",
        "preallocate",
        "create",
        "rename",
        "remove",
        "sync_folder",
        "make_folder",
    }
)
_OPERATIONS: Final = MUTATING_OPERATIONS | {"open", "read_at", "size", "map", "names", "exists", "lock"}


class SimulatedCrash(Exception):
    """The machine stopped in the middle of an operation; so does every later operation, until `SimulatedDisk.crash`.

    No OSError, so that the handling of I/O errors does not take it for one. An Exception, so that it passes through
    threads and nurseries as others do: code that swallows it meets it again at its next operation.
    """


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


# A crash loop asks a million times for the parts of a few dozen paths.
_normal = lru_cache(4096)(os.path.normpath)
_split = lru_cache(4096)(os.path.split)


def _absolute(path: Path | str) -> str:
    name = os.fspath(path)
    return _normal(name) if name.startswith("/") else os.path.abspath(name)


def _folder_of(path: str) -> str:
    return _split(path)[0]


class _Node:
    """The content of one file, live and durable, whatever its name.

    A sector that is not in `before` has the same content live and durable, zeros standing for what is beyond either
    end. So a sync costs as much as what it makes durable, not as much as the file.
    """

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.live = bytearray(content)
        self.before: dict[int, bytes] = {}  # sector → its durable content
        self.between: dict[int, bytes] = {}  # sector → the unsynced version that the latest one replaced
        self.stale: set[int] = set()  # the sectors of `before` that a failed sync has marked clean
        self.sizes = [(len(content), len(content))]  # the ranges of sizes since the last sync, the durable size first
        self.next_size = len(content)  # the durable size after the next sync
        self.path = ""
        self.mapped = False
        self.locked = False
        self._snapshot: bytes | None = None

    def write(self, offset: int, data: bytes) -> None:
        if not data:
            return
        end = offset + len(data)
        self._touch(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
        if offset > len(self.live):
            self.live.extend(bytes(offset - len(self.live)))
        self.live[offset:end] = data
        self.sizes[-1] = (self.sizes[-1][0], len(self.live))
        self.next_size = max(self.next_size, end)

    def resize(self, size: int) -> None:
        if size == len(self.live):
            return
        if size < len(self.live):
            self._touch(range(size // SECTOR_BYTES, -(-len(self.live) // SECTOR_BYTES)))
            del self.live[size:]
        else:
            self._snapshot = None
            self.live.extend(bytes(size - len(self.live)))
        self.sizes.append((size, size))
        self.next_size = size

    def sync(self) -> None:
        self.before = {sector: self.before[sector] for sector in self.stale}
        self.between = {sector: old for sector, old in self.between.items() if sector in self.stale}
        self.sizes = [(self.next_size, len(self.live))]

    def fail_sync(self) -> None:
        """Truncations stay pending: they are in the journal, not in the pages that could not be written."""
        self.stale.update(sector for sector in self.before if sector * SECTOR_BYTES < len(self.live))
        self.next_size = min(self.sizes[0][0], len(self.live))

    def snapshot(self) -> bytes:
        if self._snapshot is None:
            self._snapshot = bytes(self.live)
        return self._snapshot

    def copy(self) -> _Node:
        """The same file as another process sees it: with what is unsynced, without maps and locks."""
        other = _Node(self.live)
        other.before, other.between, other.stale = dict(self.before), dict(self.between), set(self.stale)
        other.sizes, other.next_size, other.path = list(self.sizes), self.next_size, self.path
        return other

    def durable(self) -> bytearray:
        return self._image(self.sizes[0][0], self.before)

    def torn(self, rng: random.Random) -> bytearray:
        """What a power failure may leave: some unsynced sectors, and one of the sizes since the last sync."""
        low, high = rng.choice((self.sizes[0], self.sizes[-1], rng.choice(self.sizes)))
        size = rng.choice((low, high, rng.randint(low, high)))
        chance = rng.choice((0.05, 0.5, 0.95, 1.0))  # so that a hole in a large batch, and a lone survivor, both occur
        older = {}
        for sector in sorted(self.before):
            if rng.random() < chance and sector * SECTOR_BYTES < len(self.live):
                continue
            versions = (self.before[sector], self.between.get(sector, self.before[sector]))
            older[sector] = rng.choice(versions)
        return self._image(size, older)

    def flip(self, byte_offset: int, bit: int) -> None:
        self.live[byte_offset] ^= 1 << bit
        self._snapshot = None
        sector, place = divmod(byte_offset, SECTOR_BYTES)
        for older in (self.before, self.between):
            if sector in older:
                content = bytearray(older[sector])
                content[place] ^= 1 << bit
                older[sector] = bytes(content)

    def replace(self, content: bytes) -> None:
        self.live[:] = content
        self.before, self.between, self.stale = {}, {}, set()
        self.sizes, self.next_size = [(len(content), len(content))], len(content)
        self._snapshot = None

    def _touch(self, sectors: range) -> None:
        """To be called before sectors change."""
        self._snapshot = None
        self.stale.difference_update(sectors)
        for sector in sectors:
            start = sector * SECTOR_BYTES
            old = bytes(self.live[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")
            if old == _ZEROS:
                old = _ZEROS  # one object for all, or else a preallocated file is held twice
            if sector in self.before:
                self.between[sector] = old
            else:
                self.before[sector] = old

    def _image(self, size: int, older: Mapping[int, bytes]) -> bytearray:
        image = self.live[:size]
        image.extend(bytes(size - len(image)))
        for sector, content in older.items():
            start = sector * SECTOR_BYTES
            if start < size:
                image[start : start + SECTOR_BYTES] = content[: size - start]
        return image


_Namespace: TypeAlias = dict[str, dict[str, _Node]]  # folder → name → file


@dataclass(frozen=True, slots=True)
class _Change:
    """One atomic change of names: a creation, a removal, or (both paths given) a rename."""

    node: _Node
    removed: str | None = None
    added: str | None = None

    def folders(self) -> set[str]:
        return {_folder_of(path) for path in (self.removed, self.added) if path is not None}

    def apply(self, names: _Namespace) -> None:
        if self.removed is not None:
            folder, name = _split(self.removed)
            names[folder].pop(name, None)
        if self.added is not None:
            folder, name = _split(self.added)
            names[folder][name] = self.node


class _Names:
    """The live and the durable namespace. Folders are in both: they are made durably and never removed."""

    def __init__(self) -> None:
        self.live: _Namespace = {"/": {}}
        self.durable: _Namespace = {"/": {}}
        self.pending: list[_Change] = []  # in `live`, not yet in `durable`

    def folder(self, path: str) -> dict[str, _Node]:
        try:
            return self.live[path]
        except KeyError:
            raise _os_error(ENOTDIR if self._leads_through_file(path) else ENOENT, path) from None

    def find(self, path: str) -> _Node | None:
        folder, name = _split(path)
        if path in self.live:
            raise _os_error(EISDIR, path)
        return self.folder(folder).get(name)

    def get(self, path: str) -> _Node:
        node = self.find(path)
        if node is None:
            raise _os_error(ENOENT, path)
        return node

    def exists(self, path: str) -> bool:
        folder, name = _split(path)
        return path in self.live or name in self.live.get(folder, {})

    def change(self, change: _Change) -> None:
        change.apply(self.live)
        self.pending.append(change)
        if change.added is not None:
            change.node.path = change.added

    def missing_folders(self, path: str) -> list[str]:
        missing: list[str] = []
        while path not in self.live:
            missing.append(path)
            path = _folder_of(path)
        return missing[::-1]

    def make_folder(self, path: str) -> None:
        self.folder(_folder_of(path))
        if self._leads_through_file(path):
            raise _os_error(ENOTDIR, path)
        self.live[path] = {}
        self.durable[path] = {}

    def sync_folder(self, path: str) -> None:
        """Makes the folder's changes durable, and the earlier ones in the other folders of its renames."""
        self.folder(path)
        concerned = {path}
        later = []
        due = []
        for change in reversed(self.pending):
            if concerned.isdisjoint(change.folders()):
                later.append(change)
            else:
                concerned |= change.folders()
                due.append(change)
        for change in reversed(due):
            change.apply(self.durable)
        self.pending = later[::-1]

    def kept(self) -> _Names:
        copies: dict[_Node, _Node] = {}

        def copy(node: _Node) -> _Node:
            if node not in copies:
                copies[node] = node.copy()
            return copies[node]

        other = _Names()
        other.live, other.durable = _with_nodes(self.live, copy), _with_nodes(self.durable, copy)
        other.pending = [_Change(copy(change.node), change.removed, change.added) for change in self.pending]
        return other

    def lost(self) -> _Names:
        return _all_durable(self.durable, _Node.durable)

    def torn(self, rng: random.Random) -> _Names:
        """Of each folder's pending changes the first few; a rename between folders only where both have come to it."""
        names = _with_nodes(self.durable, lambda node: node)
        changes = Counter(folder for change in self.pending for folder in change.folders())
        left = {folder: rng.randint(0, changes[folder]) for folder in sorted(names)}
        for change in self.pending:
            concerned = change.folders()
            survives = all(left[folder] > 0 for folder in concerned)
            for folder in concerned:
                left[folder] = left[folder] - 1 if survives else 0
            if survives:
                change.apply(names)
        return _all_durable(names, lambda node: node.torn(rng))

    def _leads_through_file(self, path: str) -> bool:
        """Whether the first part of the path that is not a folder is a file."""
        while path not in self.live:
            folder, name = _split(path)
            if folder in self.live:
                return name in self.live[folder]
            path = folder
        return False


def _with_nodes(names: _Namespace, replaced: Callable[[_Node], _Node]) -> _Namespace:
    """In the order of the names, so that the choices of a crash do not depend on that of the operations."""
    return {folder: {name: replaced(node) for name, node in sorted(names[folder].items())} for folder in sorted(names)}


def _all_durable(names: _Namespace, content: Callable[[_Node], bytearray]) -> _Names:
    after = _Names()
    after.live = _with_nodes(names, lambda node: _Node(content(node)))
    for folder, files in after.live.items():
        after.durable[folder] = dict(files)
        for name, node in files.items():
            node.path = os.path.join(folder, name)
    return after


def _listing(names: _Namespace, folder: str) -> list[str]:
    folders = [os.path.basename(path) for path in names if path != "/" and _folder_of(path) == folder]
    return sorted([*names[folder], *folders])


@dataclass(slots=True)
class _Failure:
    """A planned OSError: matching operations are counted down, those from `nth` to `nth + times - 1` fail."""

    operation: str
    nth: int
    errno: int
    times: int
    path_contains: str

    def strikes(self, operation: str, paths: Sequence[str]) -> bool:
        if operation != self.operation or not any(self.path_contains in path for path in paths):
            return False
        self.nth -= 1
        return -self.times < self.nth <= 0


@dataclass(frozen=True, slots=True)
class _Written:
    """What a `write_at` is about to write."""

    node: _Node
    offset: int
    data: bytes


def _line(operation: str, paths: Sequence[str], detail: str) -> str:
    return f"{operation} {' '.join(paths)} {detail}".rstrip()


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, node: _Node, *, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._writable = writable
        self._closed = False

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk._lock:
            self._begin("read_at", f"offset={offset} length={length}")
            if offset < 0 or length < 0:
                raise _os_error(EINVAL, self._node.path)
            return bytes(self._node.live[offset : offset + length])

    def read_cached(self, offset: int, length: int) -> bytes | None:
        data = self.read_at(offset, length)
        return data if len(data) == length and not self._disk.cold else None

    def write_at(self, offset: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        with self._disk._lock:
            self._check_writable()
            if offset < 0:
                raise _os_error(EINVAL, self._node.path)
            written = _Written(self._node, offset, data)
            error = self._strike("write_at", f"offset={offset} length={len(data)}", written)
            limit = len(data) if isinstance(error, SimulatedCrash) else len(data) - 1
            shortage = self._disk._shortage(self._node, offset + len(data))
            if shortage > 0:
                error = error or _os_error(ENOSPC, self._node.path)
                limit = min(limit, len(data) - shortage)
            if error is None:
                self._node.write(offset, data)
                return
            self._node.write(offset, data[: self._disk._part(offset, limit)])
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
                raise _os_error(EINVAL, self._node.path)
            if self._disk._shortage(self._node, size) > 0:
                raise _os_error(ENOSPC, self._node.path)
            self._node.resize(size)

    def preallocate(self, size: int) -> None:
        with self._disk._lock:
            self._check_writable()
            error = self._strike("preallocate", f"size={size}")
            old_size = len(self._node.live)
            if isinstance(error, SimulatedCrash):
                raise error
            shortage = self._disk._shortage(self._node, size)
            if error is None and shortage <= 0:
                self._node.resize(max(size, old_size))
                return
            growth = size - old_size - max(shortage, 1)
            self._node.resize(old_size + self._disk._part(old_size, growth))
            raise error or _os_error(ENOSPC, self._node.path)

    def size(self) -> int:
        with self._disk._lock:
            self._begin("size")
            return len(self._node.live)

    def map(self) -> memoryview:
        with self._disk._lock:
            self._begin("map")
            self._node.mapped = True
            return memoryview(self._node.snapshot())

    def close(self) -> None:
        with self._disk._lock:
            self._closed = True
            self._disk._handles.discard(self)

    def _begin(self, operation: str, detail: str = "") -> None:
        self._check_open()
        error = self._strike(operation, detail)
        if error is not None:
            raise error

    def _strike(self, operation: str, detail: str = "", written: _Written | None = None) -> Exception | None:
        return self._disk._strike(operation, [self._node.path], detail, written)

    def _check_open(self) -> None:
        if self._closed:
            raise _os_error(EBADF, self._node.path)

    def _check_writable(self) -> None:
        if self._closed or not self._writable:
            raise _os_error(EBADF, self._node.path)


class SimulatedLock:
    """A lock of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, node: _Node) -> None:
        self._disk = disk
        self._node = node
        self._held = True

    def release(self) -> None:
        with self._disk._lock:
            if self._held:
                self._held = False
                self._node.locked = False


class SimulatedDisk:
    """See the module. Safe to use from several threads. At first there is the folder "/" and nothing else.

    `operations`: the number of mutating operations so far; each folder that `make_folder` really makes is one.
    `capacity_bytes`: growing any file beyond it in total raises ENOSPC; None is without bound; may be set at any time.
    `trace`: a line for the seed, and one per mutating operation, fault and crash, also of the disks this one came from.
    """

    def __init__(self, seed: int, *, capacity_bytes: int | None = None) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.cold = False
        """Nothing is in the memory of the operating system."""
        self.trace = [f"SimulatedDisk(seed={seed}, capacity_bytes={capacity_bytes})"]
        self._lock = threading.RLock()
        self._names = _Names()
        self._handles: set[SimulatedFile] = set()
        self._failures: list[_Failure] = []
        self._crash_operation: int | None = None
        self._crashed = False  # a planned crash has come
        self._look: Callable[[SimulatedDisk], None] | None = None
        self._outcomes = 0  # how often `crash` was called: from the first time on, this disk is gone

    def __repr__(self) -> str:
        return f"<SimulatedDisk seed={self.seed} operations={self.operations}>"

    # What the store under test calls: the protocol `Files`.

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> SimulatedFile:
        key = _absolute(path)
        with self._lock:
            self._begin("create" if create else "open", [key])
            if create:
                if self._names.exists(key):
                    raise _os_error(EEXIST, key)
                self._names.find(key)  # raises where the folder is missing
                self._names.change(_Change(_Node(), added=key))
            file = SimulatedFile(self, self._names.get(key), writable=create or write)
            self._handles.add(file)
            return file

    def names(self, folder: Path) -> list[str]:
        key = _absolute(folder)
        with self._lock:
            self._begin("names", [key])
            self._names.folder(key)
            return _listing(self._names.live, key)

    def exists(self, path: Path) -> bool:
        key = _absolute(path)
        with self._lock:
            self._begin("exists", [key])
            return self._names.exists(key)

    def make_folder(self, path: Path) -> None:
        key = _absolute(path)
        with self._lock:
            if self._names.exists(key):
                return
            for folder in self._names.missing_folders(key):
                self._begin("make_folder", [folder])
                self._names.make_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        old, new = _absolute(source), _absolute(target)
        with self._lock:
            self._begin("rename", [old, new])
            if old in self._names.live:
                raise NotImplementedError(f"{old} is a folder: renaming folders is not simulated")
            node = self._names.get(old)
            if old.startswith(f"{new}/"):
                raise _os_error(ENOTEMPTY, new)
            self._names.find(new)  # raises where the target is a folder, or its folder is missing
            if old != new:
                self._names.change(_Change(node, removed=old, added=new))

    def remove(self, path: Path) -> None:
        key = _absolute(path)
        with self._lock:
            self._begin("remove", [key])
            self._names.change(_Change(self._names.get(key), removed=key))

    def sync_folder(self, path: Path) -> None:
        key = _absolute(path)
        with self._lock:
            self._begin("sync_folder", [key])
            self._names.sync_folder(key)

    def lock(self, path: Path) -> SimulatedLock:
        """Creates the lock file and writes the process id to it like any file, but not as an operation of its own."""
        key = _absolute(path)
        with self._lock:
            self._begin("lock", [key])
            node = self._names.find(key)
            if node is None:
                node = _Node()
                self._names.change(_Change(node, added=key))
            if node.locked:
                holder = node.live.decode("ascii", "replace").strip()
                raise FolderRefused(
                    _folder_of(key), f"in use by process {holder or 'unknown'}; stop it, or choose another folder"
                )
            node.locked = True
            node.resize(0)
            node.write(0, f"{os.getpid()}\n".encode())
            return SimulatedLock(self, node)

    # What the test calls: crashes and faults.

    def crash(self, mode: CrashMode) -> SimulatedDisk:
        """A new disk with what survives; this one and its handles raise OSError from now on."""
        with self._lock:
            self._outcomes += 1
            rng = self._rng(f"crash {self._outcomes}")
            after = SimulatedDisk(rng.getrandbits(64), capacity_bytes=self.capacity_bytes)
            after.trace = [*self.trace, f"crash({mode!r}), outcome {self._outcomes}"]
            if mode == "kept":
                after._names = self._names.kept()
            elif mode == "lost":
                after._names = self._names.lost()
            else:
                after._names = self._names.torn(rng)
            return after

    def crash_at(self, nth: int) -> None:
        """The nth mutating operation from now (1 is the next one) and all that follow raise SimulatedCrash."""
        assert nth >= 1, nth
        with self._lock:
            self._crash_operation = self.operations + nth

    def at_each_operation(self, look: Callable[[SimulatedDisk], None]) -> None:
        """Before each mutating operation from now on, `look` is given a disk that has crashed there, which `crash_at` would
        have made of this one, and on which only `crash` is of use. This one goes on: one run in place of one for each crash.
        """
        with self._lock:
            self._look = look

    @property
    def crashed(self) -> bool:
        """Whether the crash planned by `crash_at` has come."""
        return self._crashed

    def fail(self, operation: str, nth: int, errno: int, times: int = 1, path_contains: str = "") -> None:
        """Lets the nth matching operation from now (1 is the next one) raise OSError(errno), and `times - 1` after it.

        `operation` is the name of a method of `Files` or `File` (not `close`); an `open` with `create` is "create".
        `path_contains` is looked for in the absolute path, for "rename" in both paths.
        """
        assert operation in _OPERATIONS, f"{operation!r} is none of {sorted(_OPERATIONS)}"
        assert nth >= 1, nth
        with self._lock:
            self._failures.append(_Failure(operation, nth, errno, times, path_contains))

    # What the test calls: the medium, past the operating system. Works on a crashed disk too.

    @property
    def allocated_bytes(self) -> int:
        """What counts against `capacity_bytes`."""
        with self._lock:
            nodes = {node for files in self._names.live.values() for node in files.values()}
            nodes.update(file._node for file in self._handles)
            return sum(len(node.live) for node in nodes)

    def content(self, path: Path) -> bytes:
        """The live content."""
        with self._lock:
            return bytes(self._names.get(_absolute(path)).live)

    def durable_names(self, folder: Path) -> list[str]:
        """What `names` would say after crash("lost")."""
        key = _absolute(folder)
        with self._lock:
            self._names.folder(key)
            return _listing(self._names.durable, key)

    def flip(self, path: Path, byte_offset: int, bit: int) -> None:
        """Flips a bit (0 to 7), live and durable. Maps taken before do not see it."""
        assert 0 <= bit <= 7, bit
        with self._lock:
            self._names.get(_absolute(path)).flip(byte_offset, bit)

    def replace(self, path: Path, content: bytes) -> None:
        """Sets the content of a file, live and durable, under a durable name; creates it where there is none."""
        key = _absolute(path)
        folder, name = _split(key)
        with self._lock:
            node = self._names.find(key) or _Node()
            node.path = key
            node.replace(content)
            self._names.live[folder][name] = self._names.durable[folder][name] = node

    # What the handles call, with the lock held.

    def _strike(
        self, operation: str, paths: Sequence[str], detail: str = "", written: _Written | None = None
    ) -> Exception | None:
        """Counts the operation and returns the error that is planned for it; raises where the disk has stopped."""
        if self._outcomes:
            raise OSError(ENODEV, "this disk has crashed; go on with the one that crash() returned", paths[0])
        if self._crashed:
            raise SimulatedCrash(f"{operation} {paths[0]}: after the crash")
        if operation in MUTATING_OPERATIONS:
            self.operations += 1
            line = _line(operation, paths, detail)
            self.trace.append(f"{self.operations} {line}")
            if self._look is not None:
                self._look(self._stopped(line, written))
            if self.operations == self._crash_operation:
                self._crashed = True
                self.trace.append(f"SimulatedCrash in {line}")
                return SimulatedCrash(line)
        if not self._failures:
            return None
        struck = [failure for failure in self._failures if failure.strikes(operation, paths)]
        if not struck:
            return None
        self.trace.append(f"errno {struck[0].errno} from {_line(operation, paths, detail)}")
        return _os_error(struck[0].errno, paths[0])

    def _stopped(self, line: str, written: _Written | None) -> SimulatedDisk:
        """This disk as `crash_at` would have left it before the operation that begins."""
        left = SimulatedDisk(self.seed, capacity_bytes=self.capacity_bytes)
        left.operations, left._crashed = self.operations, True
        left.trace = [*self.trace, f"SimulatedCrash in {line}"]
        left._names = self._names.kept()
        if written is not None and self._names.exists(written.node.path) and self._names.get(written.node.path) is written.node:
            limit = len(written.data) - max(0, self._shortage(written.node, written.offset + len(written.data)))
            part = written.data[: left._part(written.offset, limit)]
            left._names.get(written.node.path).write(written.offset, part)
        return left

    def _begin(self, operation: str, paths: Sequence[str]) -> None:
        error = self._strike(operation, paths)
        if error is not None:
            raise error

    def _shortage(self, node: _Node, size: int) -> int:
        """How many bytes the disk is too small for the file to grow to `size`."""
        growth = size - len(node.live)
        if self.capacity_bytes is None or growth <= 0:
            return 0
        return growth + self.allocated_bytes - self.capacity_bytes

    def _part(self, offset: int, limit: int) -> int:
        """How many of at most `limit` bytes from `offset` on are written before an operation stops."""
        if limit <= 0:
            return 0
        rng = self._rng("part")
        anywhere = rng.randint(0, limit)
        whole_sectors = max(0, anywhere - (offset + anywhere) % SECTOR_BYTES)
        return rng.choice((0, anywhere, whole_sectors, limit))

    def _rng(self, choice: str) -> random.Random:
        """A generator of its own for every choice, so that one more draw in one place does not change all others."""
        return random.Random(f"{self.seed} {self.operations} {choice}")
