"""Silences in their file: they outlive a process, and no longer than they were given for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio

import eventstore as es
from eventstore.alarms.alarms import Alarms
from eventstore.alarms.silences import SILENCES, KeptSilences
from eventstore.alarms.watch import Silence
from eventstore.settings.alarms import AlarmSettings
from tests.alarms.test_server_alarms import server_with
from tests.cli.processes import Server
from tests.waiting import DEADLINE_SECONDS, wait_until

HOUR_US = 3_600_000_000


def kept(path: Path, *, until_us: int, seconds: float) -> KeptSilences:
    """Writes a silence that was given at the monotonic time 100."""
    silences = KeptSilences(path)
    silences.note({"late": Silence(100 + seconds, until_us, "ada", "known")}, 100)
    silences.write()
    return silences


def test_a_silence_outlives_a_restart_of_its_server_and_its_end_does_too(tmp_path: Path) -> None:
    def silenced(server: es.blocking.BlockingStore) -> list[tuple[str, str | None, str | None]]:
        return [(each.name, each.silenced_by, each.silenced_because) for each in server.alarms.list() if each.silenced_until]

    with server_with(tmp_path / "data", "full: disk_free_bytes / disk_bytes < 2") as server:
        with es.blocking.connect(server.address) as store:
            store.alarms.silence("full", 3600, who="ada", why="a new disk comes")
        server.stop()
        server.start()
        with es.blocking.connect(server.address) as store:
            assert silenced(store) == [("full", "ada", "a new disk comes")]
            wait_until(lambda: store.stats()["alarms_raised"], "it is raised")
            assert store.stats()["attention"] is None
            store.alarms.silence("full", 0, who="ada", why="it is there")
        server.stop()
        server.start()
        with es.blocking.connect(server.address) as store:
            assert silenced(store) == []


@pytest.mark.heavy
def test_a_kill_ends_no_silence_and_what_is_raised_is_raised_again(tmp_path: Path) -> None:
    def server() -> Server:
        return Server(tmp_path / "data", "--set", "alarm_rules=full: disk_free_bytes / disk_bytes < 2; there: connections > 0")

    path = tmp_path / "data" / SILENCES
    with closing(server()) as first, es.blocking.connect(first.store) as store:
        for number in range(20):
            store.alarms.silence("full", 3600, who="ada", why=f"the {number}th disk comes")
        wait_until(lambda: path.exists() and "19th" in path.read_text(), "it is on the disk")
        first.stop(signal.SIGKILL)
    with closing(server()) as second, es.blocking.connect(second.store) as store:
        wait_until(lambda: store.stats()["alarms_raised"] == 2, "both are raised again")
        assert [each.name for each in store.alarms.list() if each.silenced_because == "the 19th disk comes"] == ["full"]
        assert str(store.stats()["attention"]).startswith("alarm there")


def test_what_ended_meanwhile_is_not_silenced_and_a_clock_set_back_makes_none_longer(tmp_path: Path) -> None:
    path = tmp_path / SILENCES
    silences = kept(path, until_us=10 * HOUR_US, seconds=3600)
    assert silences.read(7, 10 * HOUR_US) == {}
    assert silences.read(7, 9 * HOUR_US + 1_800_000_000)["late"].until == 7 + 1800
    (back,) = silences.read(7, 0).values()
    assert (back.until, back.until_us, back.who, back.why) == (7 + 3600, HOUR_US, "ada", "known")


@pytest.mark.parametrize(
    "raw", [b"{", b"[]", b'{"late": 3}', b'{"late": {"until": "x"}}', b'{"late": {"until": 1e999}}', b"\xff"]
)
def test_a_file_that_cannot_be_read_silences_nothing(tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / SILENCES).write_bytes(raw)
    assert KeptSilences(tmp_path / SILENCES).read(0, 0) == {}
    assert "cannot be read, so no alarm is silenced" in caplog.text


def test_a_silence_of_a_rule_that_there_is_no_more_is_left_out(tmp_path: Path) -> None:
    kept(tmp_path / SILENCES, until_us=2**60, seconds=3600)
    alarms = Alarms(AlarmSettings())
    alarms.keep_silences(tmp_path / SILENCES)
    assert alarms.watch.silences == {}


async def running(alarms: Alarms, until: Callable[[], object]) -> None:
    """Evaluates on nothing until this holds."""
    with trio.fail_after(DEADLINE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarms.run, lambda wanted: ())
            while not until():
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def test_what_cannot_be_written_is_said_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "missing" / SILENCES
    alarms = Alarms(AlarmSettings(interval_s=0.05))
    alarms.keep_silences(path)
    alarms.silence("slow_syncs", 3600, "ada", "a new disk")
    await running(alarms, lambda: "a restart ends the silence of alarms" in str(alarms.attention))
    path.parent.mkdir()
    await running(alarms, lambda: alarms.attention is None)
    assert path.exists()


async def test_no_evaluation_waits_for_a_disk_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / SILENCES
    alarms = Alarms(AlarmSettings(interval_s=0.05))
    alarms.keep_silences(path)
    os.mkfifo(path)  # read as the former document: that waits until somebody opens it to write
    alarms.silence("slow_syncs", 3600, "ada", "a new disk")
    hangs = list[bool]()

    def is_written() -> bool:
        if alarms.evaluations == 5 and not hangs:
            writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # refused unless somebody waits
            hangs.append(True)
            path.unlink()
            os.close(writer)
        return path.is_file()

    await running(alarms, is_written)
    assert hangs
    assert KeptSilences(path).read(0, 0).keys() == {"slow_syncs"}
