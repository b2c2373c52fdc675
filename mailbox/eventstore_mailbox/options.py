"""The bounds of a set of mailboxes. Each has a default that suits one process on one disk."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from eventstore_mailbox.routing import SLOTS

_MANY: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Counts are at least 1, seconds at least 0.

    mailboxes            how many; an aggregate's is slot mod mailboxes. At most 4,096
    capacity             commands one mailbox holds, from acceptance until they are answered
    passing_max          plain appends on their way past the mailboxes; what one call brings may exceed it once
    aggregates_max       aggregates in memory. Those with events in flight are never evicted and may exceed it
    restores_max         restores at the same time
    publications_max     publications at the same time of aggregates whose publication has failed before
    reruns_max           how often a command is run again because of a conflict; then CONFLICT is its answer
    rerun_pause_first_s  seconds an aggregate pauses when its command has conflicted for the second time; doubled each time, and
                         each time half of it to one and a half of it, lest two who conflict with each other stay in step
    rerun_pause_max_s    … up to this
    batch_changes_max    changes in one batch for the store
    batch_bytes_max      bytes in one batch, as `Ports.size` counts them; a larger change is a batch of its own
    settle_at_once_max   outcomes that are settled as they are delivered; those of a larger batch in the next turn of the event
                         loop, so that the store can begin with the next batch first
    turn_s               seconds of work before the event loop has its turn. One handler may exceed it
    slow_handler_s       seconds a handler may block before `Ports.on_slow` is told
    backoff_first_s      seconds before the first repetition of what failed; doubled each time
    backoff_max_s        … up to this
    """

    mailboxes: int = 4
    capacity: int = 16_384
    passing_max: int = 65_536
    aggregates_max: int = 100_000
    restores_max: int = 32
    publications_max: int = 16
    reruns_max: int = 100
    rerun_pause_first_s: float = 0.001
    rerun_pause_max_s: float = 0.1
    batch_changes_max: int = 4_096
    batch_bytes_max: int = 8 * 1024 * 1024
    settle_at_once_max: int = 32
    turn_s: float = 0.001
    slow_handler_s: float = 0.050
    backoff_first_s: float = 0.05
    backoff_max_s: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, seconds = getattr(self, field.name), field.name.endswith("_s")
            least, most = (0, _MANY) if seconds else (1, SLOTS if field.name == "mailboxes" else _MANY)
            kind = (int, float) if seconds else int
            if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{field.name} must be a number from {least} to {most}, not {value!r}")
