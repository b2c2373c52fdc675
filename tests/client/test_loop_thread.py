"""Calls of a blocking client to several shards: what signal handlers do within them, and what threads that share it get."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from tests.cluster.led_shards import LedShards
from tests.cluster.test_moved_leader import PATIENT
from tests.server.test_interrupted import Interrupted, interrupted
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

EVENT = NewEvent("Happened", b"1")


@pytest.fixture(scope="module")
def led(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedShards]:
    with LedShards(tmp_path_factory.mktemp("shards"), 2) as shards:
        yield shards


def append(store: blocking.BlockingStore) -> object:
    return store.append("interrupted", [EVENT], es.ANY)


def append_many(store: blocking.BlockingStore) -> object:
    return store.append_many([es.Commit(f"interrupted-{number}", [EVENT], es.ANY) for number in range(4)])


def read(store: blocking.BlockingStore) -> object:
    return list(store.read("interrupted"))


def read_all(store: blocking.BlockingStore) -> object:
    return list(store.read_all(limit=10))


def follow(store: blocking.BlockingStore) -> object:
    with store.subscribe() as items:
        next(items)
    return None


def topics(store: blocking.BlockingStore) -> object:
    return store.broker.topics()


@pytest.mark.heavy
@pytest.mark.parametrize("call", [append, append_many, read, read_all, follow, topics])
def test_a_call_interrupted_anywhere_leaves_a_usable_client(call: Any, led: LedShards) -> None:
    with blocking.connect(led.address) as store:
        append(store)
        for at in itertools.count(1):
            if not interrupted(lambda: call(store), at):
                break
            before = store.version("interrupted")
            assert store.append("interrupted", [EVENT], es.ANY).version > before
        assert at > 10


def test_a_handler_that_raises_ends_a_call_that_waits_and_one_that_returns_has_calls_of_its_own(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2) as led, blocking.connect(led.address, **PATIENT) as store:
        waits, answered = led.id_of(1), list[int]()
        leader = led.leaders[1]
        assert leader is not None
        leader.freeze()

        def interrupt() -> None:
            assert leader.held.wait(DEADLINE_SECONDS)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: answered, "the handler's call is answered")
            os.kill(os.getpid(), signal.SIGUSR2)

        def raises(*_: object) -> None:
            raise Interrupted

        usual = [
            signal.signal(signal.SIGUSR1, lambda *_: answered.append(store.append(led.id_of(0), [EVENT], es.ANY).version)),
            signal.signal(signal.SIGUSR2, raises),
        ]
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(Interrupted):
                store.append(waits, [EVENT], es.ANY)
        finally:
            for number, handler in zip((signal.SIGUSR1, signal.SIGUSR2), usual, strict=True):
                signal.signal(number, handler)
            thread.join()
        assert answered == [1]
        led.elect(1, led.lead(1))
        assert store.append(waits, [EVENT], es.ANY).version in (1, 2)


def test_the_limit_of_a_call_goes_along_to_the_event_loop(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2) as led, blocking.connect(led.address, **PATIENT) as store:
        leader = led.leaders[1]
        assert leader is not None
        store.append(led.id_of(1), [EVENT], 0)
        leader.freeze()
        with pytest.raises(es.TimedOut) as caught:
            store.append(led.id_of(1), [EVENT], es.ANY, timeout=0.1)
        assert caught.value.outcome == "unknown"
        with pytest.raises(es.TimedOut) as caught:
            list(store.read(led.id_of(1), timeout=0.1))
        assert caught.value.outcome == "none"


def test_appends_of_threads_that_share_a_store_travel_together(tmp_path: Path) -> None:
    with LedShards(tmp_path, 2) as led, blocking.connect(led.address) as store:
        together = threading.Barrier(16)

        def appends(number: int) -> None:
            together.wait()
            for _ in range(20):
                store.append(f"a-{number}", [EVENT], es.ANY)

        threads = [threading.Thread(target=appends, args=(number,)) for number in range(16)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [store.version(f"a-{number}") for number in range(16)] == [20] * 16
        assert sum(int(str(shard.stats()["batches"])) for shard in store.shards.values()) < 16 * 20


def test_an_iterator_of_types_is_taken_once_where_it_comes_from(led: LedShards) -> None:
    """In the event loop its own call would wait for itself."""
    with blocking.connect(led.address) as store:
        store.append_many([es.Commit(led.id_of(shard, 7), [NewEvent("Wanted", b"1")], es.ANY) for shard in range(2)])

        def types() -> Iterator[str]:
            assert store.version(led.id_of(0, 7)) > 0
            yield "Wanted"

        assert len(list(store.read_all(types=types()))) == 2


@pytest.mark.parametrize("shards", [0, 2], ids=["one server", "shards"])
def test_a_subscription_that_waits_in_another_thread_ends_with_its_client(shards: int, tmp_path: Path) -> None:
    caught_up, ends = threading.Event(), list[str]()

    def follows(store: blocking.BlockingStore) -> None:
        try:
            for _ in store.subscribe():
                caught_up.set()
        except es.Closed:
            ends.append("Closed")

    with LedShards(tmp_path, shards) if shards else ServerProcess(tmp_path / "data") as server:
        with blocking.connect(server.address) as store:
            thread = threading.Thread(target=follows, args=(store,))
            thread.start()
            assert caught_up.wait(DEADLINE_SECONDS)
        thread.join(DEADLINE_SECONDS)
        assert ends == ["Closed"]


def end_of(program: str, folder: Path, address: str) -> int:
    """Runs a program, and returns its exit code."""
    path = folder / "program.py"
    path.write_text("import atexit, os, sys, threading\nimport eventstore as es\n" + program)
    return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(path), address])


def test_a_client_that_is_closed_or_used_when_python_has_stopped_its_threads_waits_for_nothing(
    led: LedShards, tmp_path: Path
) -> None:
    program = (
        "class Held:\n"
        "    closed = es.Closed\n"
        "    def __init__(self):\n"
        "        self.store = es.blocking.connect(sys.argv[1]).__enter__()\n"
        "    def __del__(self):\n"
        "        try:\n            self.store.version('a')\n"
        "        except self.closed:\n            self.store.close()\n            os._exit(7)\n"
        "es.held = Held()\n"
    )
    assert end_of(program, tmp_path, led.address) == 7


def test_a_client_is_used_and_opened_after_the_main_thread_has_ended(tmp_path: Path) -> None:
    """By a thread that goes on, and by what is called at the exit."""
    program = (
        "store, found = es.blocking.connect(sys.argv[1]).__enter__(), []\n"
        "def goes_on():\n"
        "    threading.main_thread().join()\n"
        "    found.extend(store.aggregates())\n"
        "def at_exit():\n"
        "    with es.blocking.connect(sys.argv[1]) as own:\n        found.extend(own.aggregates())\n"
        "    os._exit(len(found))\n"
        "atexit.register(at_exit)\n"
        "threading.Thread(target=goes_on).start()\n"
    )
    with LedShards(tmp_path, 2) as led:
        with blocking.connect(led.address) as store:
            store.append_many([es.Commit(led.id_of(shard), [EVENT], 0) for shard in range(2)])
        assert end_of(program, tmp_path, led.address) == 4


def test_a_client_of_one_server_is_opened_first_at_the_exit(tmp_path: Path) -> None:
    program = (
        "def at_exit():\n"
        "    with es.blocking.connect(sys.argv[1]) as store:\n        assert store.version('a') == 0\n"
        "    os._exit(7)\n"
        "atexit.register(at_exit)\n"
    )
    with ServerProcess(tmp_path / "data") as server:
        assert end_of(program, tmp_path, server.address) == 7


def test_a_client_of_one_server_imports_no_event_loop(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nimport eventstore as es\n"
        "with es.blocking.connect(sys.argv[1]) as store:\n"
        "    store.append('a', [es.NewEvent('Happened', b'1')], 0)\n"
        "    assert next(store.subscribe()) == next(store.read('a'))\n"
        "    assert not {'asyncio', 'anyio', 'trio'} & sys.modules.keys()\n"
    )
    with ServerProcess(tmp_path / "data") as server:
        assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(program), server.address]) == 0
