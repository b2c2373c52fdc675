"""The settings of a store. Changing any of them is safe for existing data."""

# No `from __future__ import annotations`: see `eventstore.settings.setting_declaration`.
from dataclasses import dataclass
from typing import Annotated, Literal

from eventstore.settings.setting_declaration import DAY_S, GIB, KIB, MIB, Setting, check_fields


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store works. Changing any of these is safe for existing data.

    Raises:
        InvalidArgument: a value is out of range; names the setting, the value and the range.
    """

    durability: Annotated[
        Literal["sync", "async"],
        Setting(
            "When an append is acknowledged: `sync`: once it is synced; `async`: once it is written, with a sync every "
            "`flush_interval_s`. With `async` a killed process loses nothing, a power failure the last interval.",
            "Store",
        ),
    ] = "sync"
    flush_interval_s: Annotated[
        float, Setting("How often events and messages are synced with durability `async`.", "Store", 0.001, 60.0)
    ] = 0.1
    file_size_bytes: Annotated[
        int,
        Setting(
            "Size of an event file. A full one is completed, sorted and indexed; sorting takes memory of about this size for "
            "some seconds.",
            "Store",
            4 * KIB,
            4 * GIB - 1,
        ),
    ] = 512 * MIB
    preallocate_bytes: Annotated[
        int,
        Setting(
            "Step in which space is reserved on the disk, so that a full disk is noticed early.", "Store", 4 * KIB, 4 * GIB - 1
        ),
    ] = 64 * MIB
    waiting_bytes_max: Annotated[
        int,
        Setting(
            "Appends that are not written yet; at the limit the server stops reading from clients.", "Store", 64 * KIB, 4 * GIB
        ),
    ] = 64 * MIB
    tag_memory_bytes: Annotated[
        int,
        Setting(
            "Memory of the tags of an event file that is not sorted yet, about 160 bytes for each different one. A file that "
            "has more is completed and sorted before it has `file_size_bytes`.",
            "Store",
            MIB,
            64 * GIB,
        ),
    ] = 64 * MIB
    page_bytes: Annotated[
        int, Setting("Approximate size of one page of a read from disk.", "Store", 4 * KIB, 16 * MIB, unit="bytes")
    ] = 512 * KIB
    open_files_max: Annotated[
        int, Setting("Event files kept open, and as many mapped indexes.", "Store", 1, 100_000, unit="files")
    ] = 512
    upgrade_format: Annotated[
        bool,
        Setting(
            "Write event files in the newest format from this start on, also in a folder that an older program began. This "
            "cannot be taken back: older programs refuse the folder then. New folders have the newest format.",
            "Store",
        ),
    ] = False
    sort: Annotated[
        bool,
        Setting(
            "Sort and index completed files. Without it all their aggregates stay in memory; for special cases only.", "Sorting"
        ),
    ] = True
    cached_bytes_max: Annotated[
        int,
        Setting(
            "Memory of the version cache. Versions that do not fit are looked up in the directory.",
            "Version cache",
            MIB,
            64 * GIB,
        ),
    ] = 256 * MIB
    preload_aggregates: Annotated[
        int,
        Setting(
            "How many of the aggregates that changed last a restart loads into the version cache; 0: none.",
            "Version cache",
            0,
            10_000_000,
            unit="aggregates",
        ),
    ] = 20_000
    preload_interval_s: Annotated[
        float, Setting("How often the ids of these aggregates are saved.", "Version cache", 0.1, DAY_S)
    ] = 10.0

    def __post_init__(self) -> None:
        check_fields(self)
