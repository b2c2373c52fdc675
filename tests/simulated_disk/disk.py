"""The simulated disk: the operations of `Files`, crashes, faults, and access to the medium."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from errno import EEXIST, ENODEV, ENOTEMPTY
from pathlib import Path
from typing import Final, Literal, TypeAlias

from eventstore.errors import FolderRefused
from tests.simulated_disk.content import SECTOR_BYTES, FileContent
from tests.simulated_disk.faults import MUTATING_OPERATIONS, OPERATIONS, Failure, SimulatedCrash
from tests.simulated_disk.handles import PendingWrite, SimulatedFile, SimulatedLock
from tests.simulated_disk.names import NameChange, Names, absolute, folder_of, listing, os_error, split

CrashMode: TypeAlias = Literal["kept", "lost", "sectors"]
CRASH_MODES: Final[tuple[CrashMode, ...]] = ("kept", "lost", "sectors")


class SimulatedDisk:
    """See the package. Safe to use from several threads. A new disk holds only the folder "/".

    `operations`: the number of mutating operations so far; each folder that `make_folder` creates is one.
    `capacity_bytes`: growth beyond it in total raises ENOSPC; None: no limit; may be set at any time.
    `cold`: nothing is in the page cache.
    `trace`: a line for the seed, and one per mutating operation, fault and crash, also of the disks before a crash.
    """

    def __init__(self, seed: int, *, capacity_bytes: int | None = None) -> None:
        self.seed = seed
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.cold = False
        self.trace = [f"SimulatedDisk(seed={seed}, capacity_bytes={capacity_bytes})"]
        self._lock = threading.RLock()
        self._names = Names()
        self._handles: set[SimulatedFile] = set()
        self._failures: list[Failure] = []
        self._crash_operation: int | None = None
        self._crashed = False  # the planned crash has happened
        self._look: Callable[[SimulatedDisk], None] | None = None
        self._outcomes = 0  # the number of calls of `survivors`
        self._gone = False  # after `crash`

    def __repr__(self) -> str:
        return f"<SimulatedDisk seed={self.seed} operations={self.operations}>"

    # For the store under test: the protocol `Files`.

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> SimulatedFile:
        key = absolute(path)
        with self._lock:
            self._begin("create" if create else "open", [key])
            if create:
                if self._names.exists(key):
                    raise os_error(EEXIST, key)
                self._names.find(key)  # raises if the folder is missing
                self._names.change(NameChange(FileContent(), added=key))
            file = SimulatedFile(self, self._names.get(key), writable=create or write)
            self._handles.add(file)
            return file

    def names(self, folder: Path) -> list[str]:
        key = absolute(folder)
        with self._lock:
            self._begin("names", [key])
            self._names.folder(key)
            return listing(self._names.live, key)

    def exists(self, path: Path) -> bool:
        key = absolute(path)
        with self._lock:
            self._begin("exists", [key])
            return self._names.exists(key)

    def make_folder(self, path: Path) -> None:
        key = absolute(path)
        with self._lock:
            if self._names.exists(key):
                return
            for folder in self._names.missing_folders(key):
                self._begin("make_folder", [folder])
                self._names.make_folder(folder)

    def close_to_others(self, path: Path) -> None:
        """It has no accounts."""

    def rename(self, source: Path, target: Path) -> None:
        old, new = absolute(source), absolute(target)
        with self._lock:
            self._begin("rename", [old, new])
            if old in self._names.live:
                raise NotImplementedError(f"{old} is a folder: renaming folders is not simulated")
            node = self._names.get(old)
            if old.startswith(f"{new}/"):
                raise os_error(ENOTEMPTY, new)
            self._names.find(new)  # raises if the target is a folder, or its folder is missing
            if old != new:
                self._names.change(NameChange(node, removed=old, added=new))

    def link(self, source: Path, target: Path) -> None:
        old, new = absolute(source), absolute(target)
        with self._lock:
            self._begin("link", [old, new])
            if self._names.exists(new):
                raise os_error(EEXIST, new)
            self._names.find(new)  # raises if the folder is missing
            self._names.change(NameChange(self._names.get(old), added=new))

    def remove(self, path: Path) -> None:
        key = absolute(path)
        with self._lock:
            self._begin("remove", [key])
            self._names.change(NameChange(self._names.get(key), removed=key))

    def sync_folder(self, path: Path) -> None:
        key = absolute(path)
        with self._lock:
            self._begin("sync_folder", [key])
            self._names.sync_folder(key)

    def lock(self, path: Path) -> SimulatedLock:
        """Creates the lock file and writes the process id to it as to any file, but not as a separate operation."""
        key = absolute(path)
        with self._lock:
            self._begin("lock", [key])
            node = self._names.find(key)
            if node is None:
                node = FileContent()
                self._names.change(NameChange(node, added=key))
            if node.locked:
                holder = node.live.decode("ascii", "replace").strip()
                raise FolderRefused(
                    folder_of(key), f"in use by process {holder or 'unknown'}; stop it, or choose another folder"
                )
            node.locked = True
            node.resize(0)
            node.write(0, f"{os.getpid()}\n".encode())
            return SimulatedLock(self, node)

    # For the test: crashes and faults.

    def crash(self, mode: CrashMode) -> SimulatedDisk:
        """Returns a new disk with what survives; this one and its handles then raise OSError."""
        with self._lock:
            self._gone = True
            return self.survivors(mode)

    def survivors(self, mode: CrashMode) -> SimulatedDisk:
        """Returns a disk with what would survive a crash now; this one goes on."""
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
        """Makes the nth mutating operation from now (1 is the next one) and all later ones raise SimulatedCrash."""
        assert nth >= 1, nth
        with self._lock:
            self._crash_operation = self.operations + nth

    def at_each_operation(self, look: Callable[[SimulatedDisk], None]) -> None:
        """Calls `look` before each later mutating operation with a disk that crashed there, as `crash_at` would have left it;
        only its `crash` is of use. This disk continues, so one run replaces one run per crash.
        """
        with self._lock:
            self._look = look

    @property
    def crashed(self) -> bool:
        """Whether the crash planned by `crash_at` has happened."""
        return self._crashed

    def fail(self, operation: str, nth: int, errno: int, times: int = 1, path_contains: str = "") -> None:
        """Makes the nth matching operation from now (1 is the next one) and the `times - 1` after it raise OSError(errno).

        `operation` is the name of a method of `Files` or `File` (not `close`); an `open` with `create` is "create".
        `path_contains` must occur in the absolute path, for "rename" in one of the two.
        """
        assert operation in OPERATIONS, f"{operation!r} is not one of {sorted(OPERATIONS)}"
        assert nth >= 1, nth
        with self._lock:
            self._failures.append(Failure(operation, nth, errno, times, path_contains))

    # For the test: the medium, bypassing the operating system. Works on a crashed disk too.

    @property
    def allocated_bytes(self) -> int:
        """The bytes that count against `capacity_bytes`."""
        with self._lock:
            nodes = {node for files in self._names.live.values() for node in files.values()}
            nodes.update(file._node for file in self._handles)
            return sum(len(node.live) for node in nodes)

    def content(self, path: Path) -> bytes:
        """Returns the live content."""
        with self._lock:
            return bytes(self._names.get(absolute(path)).live)

    def durable_names(self, folder: Path) -> list[str]:
        """Returns what `names` would return after crash("lost")."""
        key = absolute(folder)
        with self._lock:
            self._names.folder(key)
            return listing(self._names.durable, key)

    def flip(self, path: Path, byte_offset: int, bit: int) -> None:
        """Flips a bit (0 to 7), live and durable. Maps taken before do not see it."""
        assert 0 <= bit <= 7, bit
        with self._lock:
            self._names.get(absolute(path)).flip(byte_offset, bit)

    def replace(self, path: Path, content: bytes) -> None:
        """Sets the content of a file, live and durable, under a durable name; creates it if it does not exist."""
        key = absolute(path)
        folder, name = split(key)
        with self._lock:
            node = self._names.find(key) or FileContent()
            node.path = key
            node.replace(content)
            self._names.live[folder][name] = self._names.durable[folder][name] = node

    # For the handles, which hold the lock.

    def strike(
        self, operation: str, paths: Sequence[str], detail: str = "", written: PendingWrite | None = None
    ) -> Exception | None:
        """Counts the operation and returns its planned error; raises if the disk has stopped."""
        if self._gone:
            raise OSError(ENODEV, "this disk has crashed; continue with the one that crash() returned", paths[0])
        if self._crashed:
            raise SimulatedCrash(f"{operation} {paths[0]}: after the crash")
        if operation in MUTATING_OPERATIONS:
            self.operations += 1
            line = _described(operation, paths, detail)
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
        self.trace.append(f"errno {struck[0].errno} from {_described(operation, paths, detail)}")
        return os_error(struck[0].errno, paths[0])

    def _stopped(self, line: str, written: PendingWrite | None) -> SimulatedDisk:
        """Returns this disk as `crash_at` would have left it before the operation that begins."""
        left = SimulatedDisk(self.seed, capacity_bytes=self.capacity_bytes)
        left.operations, left._crashed = self.operations, True
        left.trace = [*self.trace, f"SimulatedCrash in {line}"]
        left._names = self._names.kept()
        if written is not None and self._names.exists(written.node.path) and self._names.get(written.node.path) is written.node:
            limit = len(written.data) - max(0, self.shortage(written.node, written.offset + len(written.data)))
            part = written.data[: left.part_written(written.offset, limit)]
            left._names.get(written.node.path).write(written.offset, part)
        return left

    def _begin(self, operation: str, paths: Sequence[str]) -> None:
        error = self.strike(operation, paths)
        if error is not None:
            raise error

    def shortage(self, node: FileContent, size: int) -> int:
        """Returns how many bytes are missing for the file to grow to `size`; negative or 0: none."""
        growth = size - len(node.live)
        if self.capacity_bytes is None or growth <= 0:
            return 0
        return growth + self.allocated_bytes - self.capacity_bytes

    def part_written(self, offset: int, limit: int) -> int:
        """Returns how many of at most `limit` bytes from `offset` on are written before an operation stops."""
        if limit <= 0:
            return 0
        rng = self._rng("part")
        anywhere = rng.randint(0, limit)
        whole_sectors = max(0, anywhere - (offset + anywhere) % SECTOR_BYTES)
        return rng.choice((0, anywhere, whole_sectors, limit))

    def _rng(self, choice: str) -> random.Random:
        """Returns a separate generator for every choice, so that one more draw in one place does not change the others."""
        return random.Random(f"{self.seed} {self.operations} {choice}")


def _described(operation: str, paths: Sequence[str], detail: str) -> str:
    return f"{operation} {' '.join(paths)} {detail}".rstrip()
