"""A program that scans event files whose pages arrive slowly.

`python -m tests.store.read.slow_pages KIND FOLDER` scans a sorted
file of them on a thread, and serves the pages on the main thread. See `test_cold_scans`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from eventstore.model import Event, NewEvent
from eventstore.records.event_filter import EventFilter
from tests.simulated_disk import SimulatedDisk, SimulatedFile
from tests.store.stepped import EVENTS, SMALL, Stepped, raw

_SYSTEM_CALL: Final = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
_USER_MODE_ONLY: Final = 1  # available without privileges
_API, _REGISTER, _COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
_API_VERSION, _MISSING, _MESSAGE_BYTES = 0xAA, 1, 32
_KINDS: Final = {  # event size, and what the scan lets through
    "small": (30, EventFilter()),
    "large": (20_000, EventFilter()),
    "filtered": (30, EventFilter(types=frozenset({"Odd"}))),
}


class FaultServer:
    """Returns empty memory and supplies each page when a thread waits for it."""

    def __init__(self) -> None:
        flags = os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY
        self.descriptor = -1 if _SYSTEM_CALL is None else ctypes.CDLL(None).syscall(_SYSTEM_CALL, flags)
        if self.descriptor < 0:
            raise OSError("no userfaultfd")
        fcntl.ioctl(self.descriptor, _API, bytearray(struct.pack("QQQ", _API_VERSION, 0, 0)))
        self._contents: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.served = 0

    def slow_memory(self, content: bytes) -> memoryview:
        size = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
        mapped = mmap.mmap(-1, size)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        fcntl.ioctl(self.descriptor, _REGISTER, bytearray(struct.pack("QQQQ", begin, size, _MISSING, 0)))
        self._contents[begin] = ctypes.create_string_buffer(content, size)
        return memoryview(mapped)[: len(content)]

    def serve_one(self) -> None:
        address = struct.unpack_from("Q", os.read(self.descriptor, _MESSAGE_BYTES), 16)[0] & -mmap.PAGESIZE
        begin = max(begin for begin in self._contents if begin <= address)
        source = ctypes.addressof(self._contents[begin]) + address - begin
        request = struct.pack("QQQQq", address, source, mmap.PAGESIZE, 0, 0)
        fcntl.ioctl(self.descriptor, _COPY, bytearray(request))
        self.served += 1


class SlowFile(SimulatedFile):
    faults: FaultServer

    def map(self) -> memoryview:
        return self.faults.slow_memory(bytes(super().map()))


class SlowDisk(SimulatedDisk):
    """Maps event files slowly that are opened while there are `faults`; indexes are mapped as usual."""

    faults: FaultServer | None = None

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> SimulatedFile:
        file = super().open(path, create=create, write=write)
        if self.faults is None or path.parent != EVENTS or path.suffix == ".index":
            return file
        slow = SlowFile(self, file._node, writable=False)
        slow.faults = self.faults
        return slow


def available() -> bool:
    try:
        os.close(FaultServer().descriptor)
    except OSError:
        return False
    return True


def main(kind: str, folder: str) -> None:
    size, wanted = _KINDS[kind]
    disk = SlowDisk(0)
    store = Stepped(disk, Path(folder) / "lmdb", replace(SMALL, file_size_bytes=256 * 1024))
    number = 0
    while len(store.engine.files.headers) < 2:  # until the first one is full
        number += 1
        event = NewEvent("Odd" if number % 2 else "Even", bytes([number % 256]) * size)
        store.append(raw(f"a-{number % 3}", f"c-{number}", event))
    store.sort()
    end = store.engine.files.headers[0].last_sequence
    due = [event for event in store.state() if event.sequence <= end and wanted.matches(event)]
    disk.faults = faults = FaultServer()
    store.engine.files._maps.clear()
    found: list[Event] = []
    done_read, done_write = os.pipe()

    def read() -> None:
        found.extend(event for event in store.read_all(wanted=wanted) if event.sequence <= end)
        os.close(done_write)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    while done_read not in (ready := select.select([faults.descriptor, done_read], [], [])[0]):
        if faults.descriptor in ready:
            faults.serve_one()
    assert faults.served > 1
    print("as it was appended" if found == due else "something else", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
