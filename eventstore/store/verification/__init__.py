"""Verification of a data folder that nobody has open: everything that can be checked, checked; nothing changed.

findings       what is wrong: file, byte offset, what; bounded
folder         which files there are, and whether they belong together
event_file     one event file: header, footer, every record, its sequences, versions and command ids
index_rows     an event index against the records of its file
history        every aggregate across all files: versions without a gap, command ids used once
directory      the LMDB directory against the indexes, in a process of its own
verify         puts it together
"""

from eventstore.store.verification.findings import Finding, Progress
from eventstore.store.verification.verify import Verified, verify

__all__ = ["Finding", "Progress", "Verified", "verify"]
