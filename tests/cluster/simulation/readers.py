"""Readers keep a position, and continue there at whoever leads: with all that follows, or they are refused (R13)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.errors import Diverged
from eventstore.event_identity import LogPosition, check_start
from eventstore.records.event_page import decode_page
from eventstore.store.read.reader_place import check_place
from eventstore.store.read.scan import ScanPage
from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.disk import Record
from tests.cluster.simulation.event_bytes import framed

if TYPE_CHECKING:
    from tests.cluster.simulation.process import Process
    from tests.cluster.simulation.world import World

_READERS: Final = 3
_OFTEN: Final = 0.1


class Readers:
    """`refused`: how often one was."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read: list[list[Record]] = [[] for _ in range(_READERS)]
        self.refused = 0

    def read(self, process: Process) -> None:
        """Now and then a reader continues at this leader, which may answer: others may have taken the place of its events."""
        if self._world.random.random() > _OFTEN:
            return
        number = self._world.random.randrange(_READERS)
        before, visible = self._read[number], process.visible
        same = visible[: len(before)] == before
        try:
            check_start(len(before), len(visible))
            check_place(lambda after, *_, **__: _page(visible, after), _place(before))
        except Diverged as error:
            if same:
                raise Broken(f"{process.run} refuses a reader that has read what is there: {error}") from error
            self.refused += 1
            self._read[number] = []
            return
        if not same:
            raise Broken(f"{process.run} lets a reader continue after {len(before)} events of another history")
        self._read[number] = visible[: self._world.random.randint(len(before), len(visible))]


def _place(read: list[Record]) -> LogPosition:
    """Returns where a reader stands that has read this."""
    return LogPosition.at(decode_page(framed(read[-1], len(read)))[0]) if read else LogPosition(0)


def _page(visible: list[Record], after: int) -> ScanPage:
    """Returns the event after this sequence, if there is one."""
    return ScanPage(framed(visible[after], after + 1) if after < len(visible) else b"", after + 1, after >= len(visible))
