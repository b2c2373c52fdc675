"""`eventstore serve` with a switch: `python -m benchmarks.switched LISTEN DATA DOMAIN`.

After SIGUSR1 plain appends go straight to the store, after SIGUSR2 through the mailboxes again, as they do at the start. So
`benchmarks.bank` compares both ways in one process, with one heap and one history.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final, cast

import trio

from eventstore.server.listening import run_to_end, stop_on_signals
from eventstore.server.mailroom import ServerMailboxes
from eventstore.server.serve import Server, serve
from eventstore.server.settings import ServerSettings, load_settings
from eventstore.store.committer import Committer

STRAIGHT: Final = signal.SIGUSR1
THROUGH_MAILBOXES: Final = signal.SIGUSR2


class _Straight:
    """What the intake asks of mailboxes, done by the store itself."""

    def __init__(self, committer: Committer) -> None:
        self.append = committer.submit
        self.kick = committer.kick


async def _switch(server: Server) -> None:
    straight = cast(ServerMailboxes, _Straight(server.store.committer))
    with trio.open_signal_receiver(STRAIGHT, THROUGH_MAILBOXES) as signals:
        async for number in signals:
            server.intake._mailboxes = straight if number == STRAIGHT else server.mailboxes


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
