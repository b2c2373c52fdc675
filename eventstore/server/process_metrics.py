"""Metrics of the process of a server or worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from eventstore.metrics import Metric, gauge

_STATM: Final = Path("/proc/self/statm")


def _resident_bytes(_: object) -> int | None:
    """Returns the memory that the process has in use; None where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


PROCESS_METRICS: Final[tuple[Metric[None], ...]] = (
    gauge("process_id", "number of the process", lambda _: os.getpid()),
    gauge(
        "resident_bytes", "memory of the process, mapped files included", _resident_bytes,
        "it grows without a bound",
    ),
)  # fmt: skip
