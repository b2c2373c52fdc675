"""How full the machine's memory is: what decides whether chunks are mapped, and how long they stay so."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")


def memory_used() -> float:
    """The share of the machine's memory that is neither free nor easily freed, from 0 to 1; 0 where nobody says."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        figures = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return 1.0 - figures["MemAvailable"] / figures["MemTotal"]
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError):
        return 0.0
