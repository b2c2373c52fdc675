"""A small store at several moments of its life, as the bytes of its data folder."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from eventstore.backup.source import DataSource, ShardCut
from eventstore.model import ANY, Event, NewEvent
from eventstore.store.append import NewCommit
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import DATA, Stepped, raw, together


@dataclass(frozen=True)
class Stage:
    """`content`: by path, of a folder that a server has open. `events`: those that are readable."""

    content: dict[Path, bytes]
    events: tuple[Event, ...]

    @property
    def end(self) -> int:
        return len(self.events)

    def put(self, disk: SimulatedDisk) -> None:
        """Makes this the data folder on the disk, durably; no operation of the program under test."""
        for folder in {path.parent for path in self.content}:
            disk.make_folder(folder)
            for name in disk.names(folder):
                if folder / name not in self.content and not is_folder(disk, folder / name):
                    disk.remove(folder / name)
            disk.sync_folder(folder)
        for path, content in self.content.items():
            disk.replace(path, content)

    def source(self, disk: SimulatedDisk) -> DataSource:
        source = DataSource(disk, DATA, broker=False)
        source.read_early()
        source.read_late(ShardCut(self.end, 0))
        return source


def is_folder(disk: SimulatedDisk, path: Path) -> bool:
    try:
        disk.names(path)
    except OSError:
        return False
    return True


def _commits(rng: random.Random, many: int, begin: int) -> Iterator[NewCommit]:
    for number in range(begin, begin + many):
        events = [NewEvent(rng.choice(("Placed", "Paid")), bytes([place]) * rng.choice((0, 30, 400))) for place in range(2)]
        if number % 4 == 3:
            names = rng.sample(range(1, 7), 3)
            yield together(f"c-{number}", *((f"order-{name}", ANY, events) for name in names), when=1_000_000 * number)
            continue
        yield raw(f"order-{rng.randint(1, 6)}", f"c-{number}", *events[: rng.randint(1, 2)], when=1_000_000 * number)


@cache
def stages() -> tuple[Stage, ...]:
    """Returns five moments: an ongoing file, one more record, files that are completed and not sorted, sorted ones, more."""
    rng, disk = random.Random("stages"), SimulatedDisk(1)
    found: list[Stage] = []
    with TemporaryDirectory() as folder:
        store, begin = Stepped(disk, Path(folder) / "lmdb"), 1
        for many, sort in ((5, 0), (1, 0), (60, 0), (0, 9), (40, 1)):
            for commit in _commits(rng, many, begin):
                store.append(commit)
            begin += many
            if sort:
                store.sort(sort)
            folders = [DATA, DATA / "events"]
            paths = [each / name for each in folders for name in disk.names(each) if not is_folder(disk, each / name)]
            found.append(Stage({path: disk.content(path) for path in paths}, tuple(store.state())))
        store.close()
    return tuple(found)
