"""Measures how full memory is, which decides whether chunks are mapped and for how long.

It takes the memory of the machine, or of the control group (container, service) that the process is in, whichever is fuller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

_FREED_EASILY_V2: Final = ("inactive_file", "active_file", "slab_reclaimable")
_FREED_EASILY_V1: Final = ("total_inactive_file", "total_active_file")


def memory_used(root: Path = Path("/")) -> float:
    """Returns the share of the memory, 0 to 1, that is neither free nor easily freed; 0 if it is unknown.

    A group of version 1 or 2 counts if it has a limit, and so do the groups that it is in. `root` is for tests.
    """
    return max((_known(share) for share in (lambda: _of_machine(root), *_of_groups(root))), default=0.0)


def _known(share: Callable[[], float]) -> float:
    try:
        return min(1.0, max(0.0, share()))
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError):
        return 0.0


def _of_machine(root: Path) -> float:
    sizes = _figures((root / "proc/meminfo").read_text(encoding="ascii").replace(":", " "))
    return 1.0 - sizes["MemAvailable"] / sizes["MemTotal"]


def _figures(text: str) -> dict[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def _of_groups(root: Path) -> Iterator[Callable[[], float]]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for _, _, rest in (line.partition(":") for line in lines):
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _of_group(root / "sys/fs/cgroup", path, "memory.max", "memory.current", _FREED_EASILY_V2)
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory"
            yield from _of_group(folder, path, "memory.limit_in_bytes", "memory.usage_in_bytes", _FREED_EASILY_V1)


def _of_group(mount: Path, path: str, limit: str, used: str, freed_easily: Iterable[str]) -> Iterator[Callable[[], float]]:
    """Yields the shares of a group and of its ancestors. Inside a container the path may be the machine's: then only the mount
    itself is there, which is the container's group.
    """

    def share(folder: Path) -> float:
        most = int((folder / limit).read_text(encoding="ascii"))  # "max": a ValueError, so it does not count
        held = _figures((folder / "memory.stat").read_text(encoding="ascii"))
        needed = int((folder / used).read_text(encoding="ascii")) - sum(held.get(name, 0) for name in freed_easily)
        return needed / most

    relative = PurePosixPath(path.lstrip("/"))
    for part in (relative, *relative.parents):
        if ".." not in part.parts:
            yield lambda folder=mount / part: share(folder)  # type: ignore[misc] # bound now, not when it is called
