"""A read model as Parquet: generations, and a document that points to the current one.

    out/current.json             the current generation, its projection, the sequences up to which it is complete, with the
                                 identities of the events there
    out/generation-000001/       its rows

The document is replaced once a generation is complete; then the previous generation is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eventstore.errors import FolderRefused
from pyspark_eventstore.folds.counts import Counts, PartitionCounts, total
from pyspark_eventstore.jobs.target_folder import TargetFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

CURRENT: Final = "current.json"


def check_folder(target: TargetFolder, name: str, *, replace: bool) -> int:
    """Returns the number of the current generation; 0 for none.

    Raises:
        FolderRefused: the folder holds something else, or a generation that may not be replaced.
    """
    if not target.exists(CURRENT):
        if any(not entry.startswith("_") for entry in target.names()):
            raise FolderRefused(
                str(target), f"is not empty, and holds no read model ({CURRENT} is missing); choose an empty folder"
            )
        return 0
    current = target.read(CURRENT)
    if current.get("projection") != name:
        raise FolderRefused(str(target), f"holds projection {current.get('projection')!r}, not {name!r}; choose another folder")
    if not replace:
        raise FolderRefused(str(target), "exists; use --replace to replace it")
    return int(current["generation"])


def write_folder(
    frame: DataFrame, target: TargetFolder, name: str, before: int, complete: Mapping[str, Any], counts: Counts
) -> PartitionCounts:
    """Writes the next generation, makes it current, and removes the previous one; returns the `counts` of `frame`.

    `complete`: version of the projection, sequences up to which the rows are complete, identities of the events there.
    """
    number = before + 1
    staging, final = f"_generation-{number:06d}", f"generation-{number:06d}"
    target.remove(staging)
    frame.write.parquet(target.at(staging))
    target.remove(final)  # complete, but never made current
    target.rename(staging, final)
    done = total(counts)
    document: dict[str, Any] = {"projection": name, "generation": number, "folder": final, "rows": done.rows, **complete}
    target.write(CURRENT, document)
    if before:
        target.remove(f"generation-{before:06d}")
    return done
