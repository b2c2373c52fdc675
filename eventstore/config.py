"""Settings of the store and the server: defaults, ranges, and where they come from.

A value comes from the command line, then the environment (`EVENTSTORE_…`), then a TOML file, then the default here.
`StoreSettings` is a plain frozen dataclass, because embedded users and child processes build it in microseconds; the
server's settings, read from files and environment, are validated by pydantic (see `eventstore.server.settings`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from eventstore.errors import InvalidArgument

KIB = 1024
MIB = 1024 * KIB

_RANGES: dict[str, tuple[float, float]] = {
    "file_size_bytes": (4 * KIB, 4096 * MIB - 1),
    "preallocate_bytes": (4 * KIB, 4096 * MIB - 1),
    "flush_interval_s": (0.001, 60.0),
    "waiting_bytes_max": (64 * KIB, 4096 * MIB),
    "cached_bytes_max": (MIB, 65536 * MIB),
    "preload_aggregates": (0, 10_000_000),
    "preload_interval_s": (0.1, 86_400.0),
    "open_files_max": (1, 100_000),
    "page_bytes": (4 * KIB, 16 * MIB),
}


def _figure(value: float) -> str:
    """Whole numbers whole, with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store works. Changing any of these is safe for existing data."""

    durability: Literal["sync", "async"] = "sync"
    file_size_bytes: int = 512 * MIB
    preallocate_bytes: int = 64 * MIB
    flush_interval_s: float = 0.1
    waiting_bytes_max: int = 64 * MIB
    cached_bytes_max: int = 256 * MIB
    preload_aggregates: int = 20_000
    preload_interval_s: float = 10.0
    open_files_max: int = 512
    page_bytes: int = 512 * KIB
    sort: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):
            limits = _RANGES.get(item.name)
            value = getattr(self, item.name)
            if limits and not limits[0] <= value <= limits[1]:
                raise InvalidArgument(
                    f"{item.name} is {_figure(value)}, allowed are {_figure(limits[0])} to {_figure(limits[1])}",
                    field=item.name,
                    value=str(value),
                )
        if self.durability not in ("sync", "async"):
            raise InvalidArgument(f"durability is {self.durability!r}, allowed are 'sync', 'async'", field="durability")
