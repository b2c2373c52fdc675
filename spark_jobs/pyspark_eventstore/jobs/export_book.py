"""The book of an export: what its runs and compactions cover, beside the folder with the events.

    out/run=000001/date=2026-01-31/part-….parquet      the events of the first run
    out.eventstore/000001.json                         its bounds, written before it began
    out.eventstore/000001.done                         it is complete
    out.eventstore/joining-000001.plan                 which files the first compaction replaces, written before it began
    out.eventstore/joining-000001.written              their events are in joining-000001, durable and counted
    out.eventstore/joining-000001.done                 it is complete

No document is written over: a crash between two steps loses none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from eventstore.errors import FolderRefused
from eventstore.fields import counted

if TYPE_CHECKING:
    from pyspark_eventstore.jobs.target_folder import TargetFolder
    from pyspark_eventstore.source.source_options import Offsets

BOOK: Final = ".eventstore"
"""What the name of the folder beside the target ends with."""
DONE: Final = ".done"
PLAN: Final = ".plan"
WRITTEN: Final = ".written"
FILES_MAX: Final = 100
"""How many files a run writes before it says so if they are small."""
FILE_BYTES_MIN: Final = 1024 * 1024
WHOLE: Final = "whole"
"""The target itself, while a compaction replaces files in it."""
By = Literal["date", "month", "bucket", "nothing"]
COLUMNS: Final = (
    "aggregate_id",
    "version",
    "sequence",
    "timestamp",
    "type",
    "data",
    "data_json",
    "metadata",
    "command_id",
    "shard",
    "tags",
)


@dataclass(frozen=True, slots=True)
class ExportRun:
    """One run: the sequences of each store after `after`, up to and including `upto`.

    Attributes:
        identities: of the events at `upto`; runs of earlier versions have none.
        tags: whether its files have the column. An export that an earlier version began goes on without it.
        events: how many it wrote, once it is complete.
        files: how large its files are, in bytes, once it is complete.
    """

    number: int
    after: Offsets
    upto: Offsets
    by: By
    buckets: int
    identities: Mapping[str, str] = field(default_factory=dict)
    tags: bool = True
    events: int = 0
    files: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.number:06d}"

    @property
    def folder(self) -> str:
        """The folder of its events, within the target."""
        return f"run={self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Of its files, without the one that the folder is partitioned by."""
        return COLUMNS if self.tags else tuple(name for name in COLUMNS if name != "tags")

    def told(self, folder: str, seconds: float) -> str:
        """Returns what the command prints: a line, and another one if the files are many and small."""
        said = f"run {self.number}: {counted(self.events, 'event')} to {folder}/{self.folder} in {seconds:,.1f} s"
        count, total = len(self.files), sum(self.files)
        if count <= FILES_MAX or total >= count * FILE_BYTES_MIN:
            return said
        what, becomes = f"{counted(count, 'file')} of {total / count / 1024:,.0f} KiB on average", self._coarser()
        return f"{said}\n{what}: `eventstore-spark compact parquet:{folder} --by {becomes}` makes fewer of them"

    def _coarser(self) -> By:
        return "month" if self.by == "date" else "nothing"


@dataclass(frozen=True, slots=True)
class Compaction:
    """Files of complete runs that fewer files replace.

    Attributes:
        run: the last complete run; its folder gets the new files.
        by, buckets: how the folder is partitioned from then on.
        files: the paths that are replaced, within the target.
        written: how many files replace them, once they are written.
    """

    number: int
    run: int
    by: By
    buckets: int
    files: tuple[str, ...]
    written: int = 0

    @property
    def name(self) -> str:
        """The folder of its new files within the book, until they are in their place."""
        return f"joining-{self.number:06d}"

    def told(self, folder: str, seconds: float) -> str:
        """Returns the line that the command prints."""
        what = f"{counted(len(self.files), 'file')} of {folder} joined to {self.written:,}"
        return f"{what} in {seconds:,.1f} s"


def runs(target: TargetFolder, book: TargetFolder) -> list[ExportRun]:
    """Lists all runs, in order.

    Raises:
        FolderRefused: the folder holds something else.
    """
    names = [name for name in book.names() if name.endswith(".json")]
    if not names and target.names():
        raise FolderRefused(str(target), f"is not empty, and holds no export ({book} has none); choose an empty folder")
    return [_run(book.read(name)) for name in names]


def is_complete(run: ExportRun, book: TargetFolder) -> bool:
    """Whether all its events are in the target."""
    return book.exists(f"{run.name}{DONE}")


def division(book: TargetFolder, run: ExportRun) -> tuple[By, int]:
    """Returns how the folder is partitioned after its last run, and by how many buckets."""
    for compaction in reversed(compactions(book)):
        if compaction.run == run.number:
            return compaction.by, compaction.buckets
    return run.by, run.buckets


def compactions(book: TargetFolder) -> list[Compaction]:
    """Lists all compactions, in order; only the last may not be complete."""
    return [_compaction(book.read(name)) for name in book.names() if name.endswith(PLAN)]


def finish_compaction(target: TargetFolder, book: TargetFolder) -> Compaction | None:
    """Completes a compaction that was interrupted, and returns it. One whose files were not complete yet is dropped: it has
    changed nothing.
    """
    for compaction in compactions(book)[-1:]:
        if book.exists(f"{compaction.name}{DONE}"):
            return None
        if not book.exists(f"{compaction.name}{WRITTEN}"):
            book.remove(compaction.name)
            book.remove(f"{compaction.name}{PLAN}")
            return None
        compaction = replace(compaction, written=book.read(f"{compaction.name}{WRITTEN}")["files"])
        for _ in replacing(compaction, target, book):
            pass
        return compaction
    return None


def replacing(compaction: Compaction, target: TargetFolder, book: TargetFolder) -> Iterator[None]:
    """Puts the new files in the place of the others, step by step; yields before each. It may end at any step, and is then
    begun again.

    The target does not exist meanwhile, so that nobody lists it with events twice, or without some.
    """
    if book.exists(compaction.name) and not book.exists(WHOLE):
        yield
        book.take(target, WHOLE)
    if book.exists(WHOLE):
        for file in compaction.files:
            yield
            book.remove(f"{WHOLE}/{file}")
        for file in book.files(compaction.name):
            yield
            book.enter(f"{compaction.name}/{file}", f"{WHOLE}/run={compaction.run:06d}/{file}")
        kept = {part for file in book.files(WHOLE) for part in _folders(file)}
        for folder in sorted({part for file in compaction.files for part in _folders(file)} - kept):
            yield
            book.remove(f"{WHOLE}/{folder}")
        yield
        book.remove(compaction.name)
        yield
        book.give(WHOLE, target)
    yield
    book.write(f"{compaction.name}{DONE}", {"files": compaction.written})


def _folders(file: str) -> Iterator[str]:
    """Returns the folders of a file: that of its run, and that of its partition."""
    parts = file.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _run(document: dict[str, Any]) -> ExportRun:
    return ExportRun(
        document["run"],
        document["after"],
        document["upto"],
        document["by"],
        document["buckets"],
        document.get("identities", {}),
        document.get("tags", False),
    )


def planned(compaction: Compaction) -> dict[str, Any]:
    """Returns the document of a compaction."""
    return {
        "number": compaction.number,
        "run": compaction.run,
        "by": compaction.by,
        "buckets": compaction.buckets,
        "files": list(compaction.files),
    }


def _compaction(document: dict[str, Any]) -> Compaction:
    by = cast(By, document["by"])
    return Compaction(document["number"], document["run"], by, document["buckets"], tuple(document["files"]))
