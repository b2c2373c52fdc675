"""The `eventsourcing` library on our store: its application recorder, a server process, one connection."""

from __future__ import annotations

import sys
from importlib.metadata import version

import eventstore as es
from benchmarks.harness.recorder import Recorded
from benchmarks.peers import Scratch, Server, free_port
from eventstore.adapters.eventsourcing.factory import EventStoreFactory


class RecorderOnEventStore(Recorded):
    name = "eventsourcing + eventstore"
    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.version = f"{version('eventsourcing')} + {es.__version__}"
        self._scratch: Scratch | None = None
        self._server: Server | None = None
        self._factory: EventStoreFactory | None = None

    def start(self) -> None:
        self._scratch = Scratch("recorder")
        listen = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "eventstore", "serve", "--data", str(self._scratch.path / "data"), "--listen", listen]
        self._server = Server(command, self._scratch.path)
        address = f"tcp://{listen}"

        def probe() -> None:
            with es.blocking.connect(address) as store:
                store.version("nothing")

        self._server.wait_until_ready(probe, (es.ConnectionLost,))
        self._factory = EventStoreFactory({"EVENTSTORE_STORE": address, "ORIGINATOR_ID_TYPE": "text"})
        self.opened = self._factory.application_recorder()

    def stop(self) -> None:
        if self._factory is not None:
            self._factory.close()
        if self._server is not None:
            self._server.stop()
        if self._scratch is not None:
            self._scratch.remove()
