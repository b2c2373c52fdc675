"""The timers of a worker: those of its store, or of each shard of a cluster, with a file of what is pending for each."""

from __future__ import annotations

from pathlib import Path

import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.domain.reactions.reaction import SendCommand
from eventstore.following.parts import Part, Parts
from eventstore.server.bootstrap import checkpoint_of_shard
from eventstore.server.timers.timer_runner import RunningTimers, timer_runner


class WorkerTimers(RunningTimers):
    """`checkpoint`: of the worker's reactions, beside which the files are."""

    def __init__(self, store: NetworkStore, checkpoint: Path, send: SendCommand) -> None:
        super().__init__()
        self._parts = Parts(store)
        self._path = checkpoint.with_name(f"{checkpoint.stem}-timers.index")
        self._send = send

    async def run(self) -> None:
        """Sends commands that are due until cancelled."""
        await self._parts.run(self._run)

    async def _run(self, parts: list[Part[NetworkStore]]) -> None:
        self.runners = [timer_runner(part.store, self._send, checkpoint_of_shard(self._path, part.number)) for part in parts]
        async with trio.open_nursery() as nursery:
            for each in self.runners:
                nursery.start_soon(each.run)
