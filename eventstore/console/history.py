"""The figures of the last hour, in memory of a fixed size: what the charts are drawn from.

They are looked at whether or not anyone visits, so that a chart has its hour when somebody does.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio

INTERVAL_S: Final = 5.0
POINTS_MAX: Final = 720
"""An hour."""
_MICROSECONDS: Final = 1e6
_WORST: Final = "_lag_microseconds"

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """A series of a chart.

    Attributes:
        of: returns its value between two looks, the given seconds apart; None if there is none.
    """

    name: str
    title: str
    unit: str
    of: Callable[[Figures, Figures, float], float | None]


def _gauge(name: str, scale: float = 1.0) -> Callable[[Figures, Figures, float], float | None]:
    return lambda before, now, seconds: None if (value := _number(now, name)) is None else value / scale


def _rate(name: str) -> Callable[[Figures, Figures, float], float | None]:
    return lambda before, now, seconds: None if (grown := _grown(before, now, name)) is None else grown / seconds


def _each(total: str, count: str) -> Callable[[Figures, Figures, float], float | None]:
    def value(before: Figures, now: Figures, seconds: float) -> float | None:
        grown, times = _grown(before, now, total), _grown(before, now, count)
        return None if grown is None or not times else grown / times / 1000

    return value


SERIES: Final = (
    Series("events", "Events appended", "/s", _rate("events")),
    Series("requests", "Requests", "/s", _rate("requests")),
    Series("reads", "Reads of events", "/s", _rate("reads")),
    Series("batches", "Writes with their syncs", "/s", _rate("batches")),
    Series("latency", "Time of a write with its sync", "ms", _each("write_microseconds", "batches")),
    Series("sent", "Messages sent", "/s", _gauge("broker_messages_written_a_second")),
    Series("consumed", "Messages read", "/s", _gauge("broker_messages_read_a_second")),
    Series("memory", "Memory of the process", "bytes", _gauge("resident_bytes")),
    Series("disk", "Free on the disk", "bytes", _gauge("disk_free_bytes")),
    Series("unsorted", "Files to be sorted", "", _gauge("unsorted_files")),
    Series("lag", "Lag of reactions", "s", _gauge("reactions_lag_microseconds", _MICROSECONDS)),
)


class History:
    """The last figures, and each series of the last hour; the oldest point is first."""

    def __init__(self, figures: Callable[[], Figures], folder: str | None) -> None:
        """`figures` is called on a thread. `folder`: whose disk is looked at."""
        self._figures, self._folder = figures, folder
        self.latest: Figures = {}
        self.times = array("d")
        self.values = {each.name: array("d") for each in SERIES}
        self._looked_at: float | None = None
        self._looked = trio.Event()

    async def run(self) -> None:
        """Looks at the figures once in an interval, until cancelled."""
        while True:
            found = await trio.to_thread.run_sync(self._look, abandon_on_cancel=True)
            self.take(found, trio.current_time())
            await trio.sleep(INTERVAL_S)

    def _look(self) -> Figures:
        found = summed(self._figures())
        return {**disk_of(self._folder), **found}

    def take(self, found: Figures, now: float) -> None:
        """Adds a look at time `now`, in seconds."""
        before, then = self.latest, self._looked_at
        self.latest, self._looked_at = found, now
        if then is not None and now > then:
            self._add(self.times, now)
            for each in SERIES:
                value = each.of(before, found, now - then)
                self._add(self.values[each.name], float("nan") if value is None else value)
        self._looked.set()
        self._looked = trio.Event()

    def _add(self, points: array[float], value: float) -> None:
        points.append(value)
        if len(points) > POINTS_MAX:
            del points[0]

    async def next_look(self) -> None:
        """Waits for the next look."""
        await self._looked.wait()

    @property
    def seconds_until_full(self) -> float | None:
        """When the disk is full if it fills as in the last hour; None: it does not fill, or too little is known."""
        known = [(at, free) for at, free in zip(self.times, self.values["disk"], strict=True) if free == free]
        if len(known) < 2:
            return None
        (began, free_then), (ended, free_now) = known[0], known[-1]
        used = free_then - free_now
        return None if used <= 0 else free_now * (ended - began) / used


def disk_of(folder: str | None) -> dict[str, int]:
    """Returns what is free on a folder's disk; nothing if it cannot be said."""
    try:
        found = os.statvfs(folder or "")
    except OSError:
        return {}
    return {"disk_free_bytes": found.f_bavail * found.f_frsize, "disk_bytes": found.f_blocks * found.f_frsize}


def summed(found: Figures) -> Figures:
    """Returns the figures of a server as they are. Of a node, adds the sums of the figures of the shards that it serves; of a
    lag, the longest. The node's own figures come first.
    """
    shards = found.get("shards")
    if not isinstance(shards, list):
        return found
    sums: dict[str, Any] = {}
    for shard in shards:
        if shard.get("serving"):
            for name, value in shard.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    sums[name] = max(sums.get(name, 0), value) if name.endswith(_WORST) else sums.get(name, 0) + value
    return {**sums, **found}


def _number(found: Figures, name: str) -> float | None:
    value = found.get(name)
    return value if isinstance(value, int | float) else None


def _grown(before: Figures, now: Figures, name: str) -> float | None:
    """Returns by how much a counter has grown; None after a restart, or a change of the shards."""
    then, value = _number(before, name), _number(now, name)
    return None if then is None or value is None or value < then else value - then
