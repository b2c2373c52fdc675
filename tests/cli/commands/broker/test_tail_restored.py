"""`message tail` runs on while its broker is restored from an older copy: it says so and ends, or shows every message."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import eventstore as es
from tests.cli.processes import DEADLINE_SECONDS, fork, wait_for
from tests.forked_process import ForkedProcess
from tests.server_thread import ServerThread


class Restored:
    """A server with the messages `kept`, each of them in queue 0 of `orders`, and a copy of its folder."""

    def __init__(self, folder: Path, kept: list[str]) -> None:
        self._data, self._older, self._out, self._err = (folder / each for each in ("data", "older", "out", "err"))
        with ServerThread(self._data) as first, es.blocking.connect(first.address) as store:
            store.broker.create_topic("orders", 1)
            _send(store, kept)
        shutil.copytree(self._data, self._older)
        self.server = ServerThread(self._data)

    def send(self, *messages: str) -> None:
        with es.blocking.connect(self.server.address) as store:
            _send(store, list(messages))

    def restore(self, *messages: str) -> None:
        """Starts again with the older copy, to which these were sent."""
        self.server.stop()
        shutil.rmtree(self._data)
        with ServerThread(self._older) as other, es.blocking.connect(other.address) as store:
            _send(store, list(messages))
        shutil.copytree(self._older, self._data)
        self.server.start()

    @contextmanager
    def tail(self, *options: object) -> Iterator[ForkedProcess]:
        """Runs the command until it has shown the past."""
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            store = ("--store", self.server.address)
            process = fork("message", "tail", "orders", *options, *store, stdout=out, stderr=err)
        try:
            wait_for(lambda: "caught up" in self.said or process.poll() is not None, "the past is shown")
            yield process
        finally:
            process.kill()
            process.wait(DEADLINE_SECONDS)

    @property
    def shown(self) -> list[str]:
        return [line.split("  ")[-1] for line in self._out.read_text().splitlines()]

    @property
    def said(self) -> str:
        return self._err.read_text()


def _send(store: es.blocking.BlockingStore, messages: list[str]) -> None:
    """Sends messages, of which those that begin with a small letter have the tag `small`."""
    for each in messages:
        store.topic("orders").send(each.encode(), tag="small" if each.islower() else "large")


@pytest.mark.parametrize("new", [[], ["n1", "n2", "n3", "n4"]], ids=["which ends before", "which has overtaken it"])
def test_tail_ends_if_the_broker_does_not_have_what_was_shown(tmp_path: Path, new: list[str]) -> None:
    restored = Restored(tmp_path, ["k1"])
    with restored.server, restored.tail() as tail:
        restored.send("lost1", "lost2")
        wait_for(lambda: "lost2" in restored.shown, "the messages are shown")
        restored.restore(*new)
        assert tail.wait(30) == 1
    assert restored.shown == ["k1", "lost1", "lost2"]
    assert "message 2 of queue 0 of orders, which was shown, is not there any more" in restored.said
    assert "`eventstore message tail orders --from-start` shows what there is" in restored.said


def test_tail_shows_what_took_the_place_of_messages_that_its_filter_left_out(tmp_path: Path) -> None:
    restored = Restored(tmp_path, ["k1"])
    with restored.server:
        restored.send("LOST1", "LOST2")
        with restored.tail("--tags", "small") as tail:
            restored.restore("n1", "N2", "n3", "n4")
            wait_for(lambda: "n4" in restored.shown, "the new messages are shown")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(30) == 130
    assert restored.shown == ["k1", "n1", "n3", "n4"]


def test_tail_ends_if_the_queue_ends_before_the_offset_at_which_it_began(tmp_path: Path) -> None:
    restored = Restored(tmp_path, ["K1"])
    with restored.server:
        restored.send(*(f"LOST{number}" for number in range(20)))
        with restored.tail("--tags", "small") as tail:
            restored.restore("n1")
            assert tail.wait(30) == 1
    assert restored.shown == []
    assert "queue 0 of orders ends at offset 2, before offset 11" in restored.said


def test_tail_continues_after_a_restart(tmp_path: Path) -> None:
    restored = Restored(tmp_path, ["k1"])
    with restored.server, restored.tail() as tail:
        restored.send("k2")
        wait_for(lambda: "k2" in restored.shown, "the message is shown")
        restored.server.stop()
        restored.server.start()
        restored.send("k3")
        wait_for(lambda: "k3" in restored.shown, "the new message is shown")
        assert tail.poll() is None
    assert restored.shown == ["k1", "k2", "k3"]
