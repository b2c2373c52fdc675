"""A program that gevent has patched: greenlets share a blocking client of a server or of shards. None holds up the others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.cluster.node_process import NodeProcess
from tests.server_process import ServerProcess

PROGRAM = """
from gevent import monkey

monkey.patch_all()
import sys

import gevent

import eventstore as es

EVENT = es.NewEvent("Happened", b"1")
with es.blocking.connect(sys.argv[1]) as store:
    store.broker.create_topic("orders", 1)

    def follows():
        found = []
        for item in store.subscribe():
            if isinstance(item, es.Event):
                found.append(item)
            if len(found) == 200:
                return found

    def consumes():
        with store.consumer("workers", "orders") as consumer:
            return next(consumer).body

    def appends(name):
        for number in range(10):
            store.append(name, [EVENT], number)
        return [event.version for event in store.read(name)]

    waiting = [gevent.spawn(follows), gevent.spawn(consumes)]
    gevent.sleep(0)
    appending = [gevent.spawn(appends, f"a-{number}") for number in range(20)]
    assert [each.get() for each in appending] == [list(range(1, 11))] * 20
    assert not waiting[1].ready()
    store.topic("orders").send(b"1", key="k")
    followed, consumed = (each.get() for each in waiting)
    assert len(followed) == len(list(store.read_all())) == 200
    assert consumed == b"1"
"""


@pytest.mark.parametrize("shards", [None, 2])
def test_greenlets_share_a_client(shards: int | None, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with ServerProcess(tmp_path / "data") if shards is None else NodeProcess(tmp_path / "data", shards) as server:
        assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(program), server.address]) == 0
