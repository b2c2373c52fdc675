"""Settings of a broker: defaults and ranges."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal

from eventstore.errors import InvalidArgument

KIB: Final = 1024
MIB: Final = 1024 * KIB
DAY_S: Final = 86_400.0

_RANGES: dict[str, tuple[float, float]] = {
    "chunk_size_bytes": (4 * KIB, 2048 * MIB),
    "preallocate_bytes": (4 * KIB, 2048 * MIB),
    "flush_interval_s": (0.001, 60.0),
    "waiting_bytes_max": (64 * KIB, 4096 * MIB),
    "queue_chunk_entries": (16, 16_000_000),
    "recent_messages_max": (0, 10_000_000),
    "recent_bytes_max": (0, 65536 * MIB),
    "open_files_max": (1, 100_000),
    "idle_release_s": (0.0, DAY_S),
    "release_above": (0.0, 1.0),
    "map_below": (0.0, 1.0),
    "member_timeout_s": (0.1, DAY_S),
    "offsets_interval_s": (0.01, 3600.0),
    "retention_interval_s": (0.01, DAY_S),
    "retained_chunks_max": (1, 1_000_000),
    "retained_age_s": (1.0, 36_500 * DAY_S),
    "default_queues": (1, 256),
    "retained_bytes_max": (4 * KIB, 2.0**60),
}


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How a broker works. Changing any of these is safe for existing data.

    `release_above`, `map_below`: shares of the machine's memory. Above the first, chunks that were idle for
    `idle_release_s` are unmapped; from the second on, none is mapped.
    `retained_…`: what a chunk must exceed to be deleted; None switches a rule off. `retention`: whether one rule is
    enough ("any"), or all that are on must agree ("all"). `ignore_unconsumed`: also what a group has not consumed yet.
    `create_topics`: a topic that is sent to and does not exist is created, with `default_queues`.
    `retry_delays_s`: how long a failed message waits before its second, third … delivery; after the last it is dead.
    """

    durability: Literal["sync", "async"] = "sync"
    chunk_size_bytes: int = 256 * MIB
    preallocate_bytes: int = 64 * MIB
    flush_interval_s: float = 0.1
    waiting_bytes_max: int = 64 * MIB
    queue_chunk_entries: int = 1_000_000
    recent_messages_max: int = 10_000
    recent_bytes_max: int = 64 * MIB
    open_files_max: int = 256
    idle_release_s: float = 5.0
    release_above: float = 0.40
    map_below: float = 0.75
    member_timeout_s: float = 15.0
    offsets_interval_s: float = 1.0
    retention_interval_s: float = 10.0
    retained_chunks_max: int | None = 100
    retained_age_s: float | None = 7 * DAY_S
    retained_bytes_max: int | None = None
    retention: Literal["any", "all"] = "any"
    ignore_unconsumed: bool = False
    create_topics: bool = False
    default_queues: int = 4
    retry_delays_s: tuple[float, ...] = (1.0, 10.0, 60.0, 300.0)

    def __post_init__(self) -> None:
        for item in fields(self):
            limits, value = _RANGES.get(item.name), getattr(self, item.name)
            if limits and value is not None and not limits[0] <= value <= limits[1]:
                raise InvalidArgument(
                    f"{item.name} is {value}, allowed are {limits[0]:g} to {limits[1]:g}", field=item.name, value=str(value)
                )
        for name, allowed in (("durability", ("sync", "async")), ("retention", ("any", "all"))):
            if getattr(self, name) not in allowed:
                raise InvalidArgument(f"{name} is {getattr(self, name)!r}, allowed are {allowed}", field=name)
        if not 1 <= len(self.retry_delays_s) <= 100 or not all(0 <= delay <= DAY_S for delay in self.retry_delays_s):
            raise InvalidArgument("retry_delays_s takes 1 to 100 delays of 0 to 86,400 seconds", field="retry_delays_s")
