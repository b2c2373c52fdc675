"""A disk in memory that knows what was synced, loses the rest at a crash, and fails on request of a test.

`SimulatedDisk` implements the protocol `Files` and touches no real file. It does everything the rules in
`eventstore.chunks.files` allow, so a program that is correct on it is correct on ext4 and XFS. Every choice follows from the
seed (and, with several threads, from their order): a failing seed can be run again, and `trace` lists what happened.

**Data.** A file has a live content, which all reads see, and a durable one on the medium. `write_at`, `truncate` and
`preallocate` change the live content; only `File.sync` makes data and size durable. `close` syncs nothing. The medium writes
512-byte sectors, each whole or not at all.

**Names.** Creating, renaming and removing change the live namespace; `sync_folder` makes the changes of that folder durable,
and the changes they depend on. A rename is never half done, not even between two folders. A file whose name is not durable
is lost, even if its data was synced. `make_folder` is durable on return, as it promises.

**Crash.** `crash(mode)` returns a new disk with what survives, without locks, handles or planned faults:

- "kept": the process was killed. All live content and names survive, and unsynced data is still unsynced: a second crash may
  lose it.
- "lost": the power failed before anything unsynced had reached the medium.
- "sectors": the power failed when some of it had. Of each file an arbitrary subset of the unsynced sectors survives, each in
  its latest version or the one before; the others hold their durable content, zeros if they had none. The size is one that
  the file had since its last sync: the old or the new one of a truncation or preallocation, any intermediate one of a growth
  by writes. Of each folder's unsynced name changes the first few survive, in order.

The old disk and its handles then raise OSError; only `close` and `release` stay harmless, so that a test can clean up.
Another call of `crash` on the old disk returns another possible outcome.

**Faults.** `crash_at` stops the disk with `SimulatedCrash` before the nth mutating operation; a `write_at` may have written
a prefix of its data by then, ending at any byte, as in a killed process. `fail` makes an operation raise an OSError. A
failed `write_at` has written a prefix; a failed `preallocate` may have extended the file by a part (ext4 does). After a
failed `sync` the unsynced sectors count as clean, as on Linux: reads show them, but later syncs make neither them nor the
size they added durable, unless they are written again. That outlives the process, like the page cache: crash("kept") does
not cure it. After a failed `sync_folder` the changes are as unsynced as before.

**Space.** A file uses as many bytes as its length. A removed file uses them until its last handle is closed.

**Mapping.** `map` returns a snapshot that never changes. Truncating a file that this process has mapped would be a SIGBUS on
a real machine, and is an AssertionError here.
"""

from __future__ import annotations

from tests.simulated_disk.content import SECTOR_BYTES
from tests.simulated_disk.disk import CRASH_MODES, CrashMode, SimulatedDisk
from tests.simulated_disk.faults import MUTATING_OPERATIONS, SimulatedCrash
from tests.simulated_disk.handles import SimulatedFile, SimulatedLock

__all__ = [
    "CRASH_MODES",
    "MUTATING_OPERATIONS",
    "SECTOR_BYTES",
    "CrashMode",
    "SimulatedCrash",
    "SimulatedDisk",
    "SimulatedFile",
    "SimulatedLock",
]
