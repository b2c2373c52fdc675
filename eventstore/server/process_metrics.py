"""Metrics of the process of a server or worker, and of its disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from eventstore.metrics import Metric, MetricSource, gauge
from eventstore.server.feature import Feature

_STATM: Final = "/proc/self/statm"
_STATM_BYTES_MAX: Final = 256
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_started = int(time.time())


def _note_start() -> None:
    global _started
    _started = int(time.time())


os.register_at_fork(after_in_child=_note_start)  # the process of a shard is a copy of one that has loaded this module before


def _resident_bytes(_: object) -> int | None:
    """Returns the memory that the process has in use; None where the system does not tell."""
    try:
        file = os.open(_STATM, os.O_RDONLY)
    except OSError:
        return None
    try:
        return int(os.read(file, _STATM_BYTES_MAX).split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(file)


PROCESS_METRICS: Final[tuple[Metric[None], ...]] = (
    gauge("process_id", "number of the process", lambda _: os.getpid()),
    gauge(
        "process_start_time_seconds",
        "when it started, in seconds since 1970",
        lambda _: _started,
        "it changes again and again: the log says why the process ended",
    ),
    gauge(
        "resident_bytes",
        "memory of the process, mapped files included",
        _resident_bytes,
        "it grows without a bound",
    ),
)


def _disk(folder: Path) -> os.statvfs_result | None:
    try:
        return os.statvfs(folder)
    except OSError:
        return None


def _size(folder: Path) -> int | None:
    found = _disk(folder)
    return None if found is None else found.f_blocks * found.f_frsize


def _free(folder: Path) -> int | None:
    found = _disk(folder)
    return None if found is None else found.f_bavail * found.f_frsize


DISK_METRICS: Final[tuple[Metric[Path], ...]] = (
    gauge("disk_bytes", "size of the file system that holds the data folder", _size),
    gauge("disk_free_bytes", "of these, what this process may still write", _free, "it falls below a tenth of `disk_bytes`"),
)


def process_feature(data: Path | None) -> Feature:
    """Returns the figures of this process, and of the disk under its data folder, if it has one."""
    disk = () if data is None else (MetricSource(DISK_METRICS, lambda: data),)
    return Feature(metrics=[MetricSource(PROCESS_METRICS, lambda: None), *disk])
