"""A process recorder of `eventsourcing` while its server is killed: each notification is processed once, without an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Semaphore

import pytest
from eventsourcing.persistence import StoredEvent, Tracking

from eventstore.adapters.eventsourcing import EventStoreFactory
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS

KILLS, INSERTS_BETWEEN = 5, 40
pytestmark = pytest.mark.heavy


def test_events_and_tracking_of_a_killed_server_are_there_once(tmp_path: Path) -> None:
    with ExitStack() as opened:
        running = opened.enter_context(ServerProcess(tmp_path / "data"))
        listen = running.address.removeprefix("tcp://")
        factory = EventStoreFactory({"EVENTSTORE_STORE": running.address})
        opened.callback(factory.close)
        recorder, inserted, count = factory.process_recorder(), Semaphore(0), KILLS * INSERTS_BETWEEN + 20

        def insert_all() -> None:
            for number in range(1, count + 1):
                order, version = f"order-{number % 7}", (number + 6) // 7
                made = [
                    StoredEvent(each, own, "Made", b"%d" % number) for each, own in ((order, version), (f"log-{number}", 1))
                ]
                recorder.insert_events(made, tracking=Tracking("upstream", number))
                inserted.release()

        with ThreadPoolExecutor() as threads:
            done = threads.submit(insert_all)
            for _ in range(KILLS):
                for _ in range(INSERTS_BETWEEN):
                    assert inserted.acquire(timeout=DEADLINE_SECONDS)
                running.kill()
                running = opened.enter_context(ServerProcess(tmp_path / "data", listen=listen))
            done.result()
        stored = recorder.select_notifications(None, 10 * count)
        assert [int(each.state) for each in stored] == [number for number in range(1, count + 1) for _ in range(2)]
        assert recorder.max_tracking_id("upstream") == count
