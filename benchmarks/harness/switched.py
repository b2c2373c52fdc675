"""`eventstore serve` with switches: `python -m benchmarks.harness.switched LISTEN DATA DOMAIN`.

After SIGUSR1 plain appends go straight to the store, after SIGUSR2 through the mailboxes again, as they do at the start. After
SIGRTMIN every sync of a file takes 50 ms longer, after SIGRTMAX as long as it takes. So `benchmarks.bank` compares in one
process, with one heap and one history.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import trio

from eventstore.chunks.files import OsFile
from eventstore.chunks.writing.group_commit import DeliverOutcomes
from eventstore.server.bootstrap import run_to_end, stop_on_signals
from eventstore.server.mailbox_wiring import ServerMailboxes
from eventstore.server.serve import Server, serve
from eventstore.settings.server import ServerSettings
from eventstore.settings.sources import load_settings
from eventstore.store.append import AppendOutcome, NewCommit
from eventstore.store.committer import EventCommitter

STRAIGHT: Final = signal.SIGUSR1
THROUGH_MAILBOXES: Final = signal.SIGUSR2
SLOW_SYNCS: Final = signal.SIGRTMIN
OWN_SYNCS: Final = signal.SIGRTMAX
SLOWER_BY_S: Final = 0.05


class _Straight:
    """What the append batcher uses of mailboxes, done by the store itself."""

    def __init__(self, committer: EventCommitter) -> None:
        self._submit = committer.submit
        self.kick = committer.kick

    def append(
        self, commits: Sequence[NewCommit], deliver: DeliverOutcomes[AppendOutcome], source: object, _: object
    ) -> Sequence[int]:
        self._submit(commits, deliver, source)
        return ()


_own_sync: Final = OsFile.sync


def _slow_sync(file: OsFile) -> None:
    _own_sync(file)
    time.sleep(SLOWER_BY_S)  # in a thread of the writer, without the interpreter's lock: as a slow disk


async def _switch(server: Server) -> None:
    straight = cast(ServerMailboxes, _Straight(server.store.committer))
    with trio.open_signal_receiver(STRAIGHT, THROUGH_MAILBOXES, SLOW_SYNCS, OWN_SYNCS) as signals:
        async for number in signals:
            if number in (STRAIGHT, THROUGH_MAILBOXES):
                server.appends._mailboxes = straight if number == STRAIGHT else server.mailboxes
            else:
                OsFile.sync = _slow_sync if number == SLOW_SYNCS else _own_sync  # type: ignore[assignment, method-assign]


async def run(settings: ServerSettings) -> None:
    """Until a signal says to stop."""
    async with trio.open_nursery() as nursery:
        asked = trio.Event()
        await nursery.start(stop_on_signals, asked)
        server: Server = await nursery.start(serve, settings)
        nursery.start_soon(_switch, server)
        await asked.wait()
        server.stop()
        nursery.cancel_scope.deadline = trio.current_time() + settings.stop_timeout_s


if __name__ == "__main__":
    address, data, domain = sys.argv[1:]
    run_to_end(lambda: run(load_settings(None, listen=address, data=Path(data), domain=domain)))
