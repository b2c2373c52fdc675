"""A read model as Parquet: generations, and a document that points to the one that counts.

    out/current.json             which generation, of which projection, complete up to which sequences
    out/generation-000001/       its rows

The document is replaced once a generation is whole; the generation before is removed after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import FolderRefused
from pyspark_eventstore.counts import Count, Counts, total
from pyspark_eventstore.target_folder import TargetFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_eventstore.options import Offsets

CURRENT: Final = "current.json"


def check_folder(target: TargetFolder, name: str, *, replace: bool) -> int:
    """The number of the generation that is there; 0 for none.

    Raises:
        FolderRefused: the folder holds something else, or a generation that is not to be replaced.
    """
    if not target.exists(CURRENT):
        if any(not entry.startswith("_") for entry in target.names()):
            raise FolderRefused(
                str(target), f"holds something, and no read model ({CURRENT} is missing); choose an empty folder"
            )
        return 0
    current = target.read(CURRENT)
    if current.get("projection") != name:
        raise FolderRefused(str(target), f"holds projection {current.get('projection')!r}, not {name!r}; choose another folder")
    if not replace:
        raise FolderRefused(str(target), "exists; --replace puts the new one in its place")
    return int(current["generation"])


def write_folder(frame: DataFrame, target: TargetFolder, name: str, before: int, upto: Offsets, counts: Counts) -> Count:
    """Writes the next generation, makes it count, and removes the one before; returns what `counts`, that of `frame`, says."""
    number = before + 1
    staging, final = f"_generation-{number:06d}", f"generation-{number:06d}"
    target.remove(staging)
    frame.write.parquet(target.at(staging))
    target.remove(final)  # whole, but never pointed to
    target.rename(staging, final)
    done = total(counts)
    document: dict[str, Any] = {"projection": name, "generation": number, "folder": final, "rows": done.rows, "upto": upto}
    target.write(CURRENT, document)
    if before:
        target.remove(f"generation-{before:06d}")
    return done
