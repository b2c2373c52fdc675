"""Measures how full the machine's memory is, which decides whether chunks are mapped and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")


def memory_used() -> float:
    """Returns the share of the machine's memory, 0 to 1, that is neither free nor easily freed; 0 if it is unknown."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1.0 - sizes["MemAvailable"] / sizes["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError):
        return 0.0
