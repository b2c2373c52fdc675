"""A blocking client without `with`: its first call opens it, as often and wherever that is, and the exit closes it."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import eventstore as es
from eventstore import NewEvent, blocking
from eventstore.client.blocking.store import BlockingStore
from tests.client.forks.child import Child
from tests.client.test_connecting import closed_port
from tests.cluster.led_shards import LedShards
from tests.server_process import ServerProcess
from tests.server_thread import ServerThread

EVENT = NewEvent("Happened", b"1")


@pytest.fixture(scope="module", params=[0, 2], ids=["one server", "shards"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("store")
    with LedShards(folder, request.param) if request.param else ServerProcess(folder / "data") as server:
        yield server.address


def test_making_a_client_and_a_topic_needs_no_server() -> None:
    store = blocking.connect(closed_port())
    assert store.topic("orders").name == "orders"
    assert not store.connected
    store.close()
    with pytest.raises(es.Closed, match="was closed"):
        store.version("a")


def test_the_first_call_opens_it_and_close_ends_it(address: str) -> None:
    store = blocking.connect(address)
    assert store.append("first", [EVENT], es.ANY).version == 1
    assert [each.version for each in store.read("first")] == [1]
    with store:
        assert store.version("first") == 1
    with pytest.raises(es.Closed, match="was closed"):
        store.version("first")


CALLS: list[Callable[[BlockingStore], Iterable[object]]] = [
    lambda store: store.read_all(limit=1),
    lambda store: store.subscribe(after=es.END),
    lambda store: store.broker.topics(),
    lambda store: store.stats(),
    lambda store: store.aggregates(),
    lambda store: store.shards,
    lambda store: store.append_many([es.Commit("a", [EVENT], es.ANY)]),
]


@pytest.mark.parametrize("call", CALLS)
def test_any_call_may_be_the_first(address: str, call: Callable[[BlockingStore], Iterable[object]]) -> None:
    store = blocking.connect(address)
    list(zip(range(1), call(store), strict=False))
    store.close()


def test_a_topic_that_is_made_before_the_first_call_sends(address: str) -> None:
    store = blocking.connect(address)
    topic = store.topic("early")
    with blocking.connect(address) as other:
        other.broker.create_topic("early", 1, if_missing=True)
    assert topic.send(b"1", key="k").queue_offset == 0
    store.close()


def test_threads_that_make_the_first_call_at_once_share_one_client(address: str) -> None:
    store, together, versions = blocking.connect(address), threading.Barrier(8), list[int]()

    def appends() -> None:
        together.wait()
        versions.append(store.append("shared", [EVENT], es.ANY).version)

    threads = [threading.Thread(target=appends) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(versions) == list(range(1, 9))
    store.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("used", [False, True], ids=["before the first call", "after it"])
def test_each_process_opens_it_anew_after_a_fork(address: str, used: bool) -> None:
    store = blocking.connect(address)
    name = f"forked-{used}"
    if used:
        store.version(name)
    children = [Child(lambda: [store.append(name, [EVENT], es.ANY).version for _ in range(10)]) for _ in range(3)]
    versions = [store.append(name, [EVENT], es.ANY).version for _ in range(10)]
    for each in children:
        versions += each.result()
    assert sorted(versions) == list(range(1, 41))
    store.close()


def test_the_first_call_waits_for_a_server_that_is_away_as_any_other_does(tmp_path: Path) -> None:
    with ServerThread(tmp_path) as server:
        server.stop()
        store, versions = blocking.connect(server.address), list[int]()
        thread = threading.Thread(target=lambda: versions.append(store.append("late", [EVENT], 0).version))
        thread.start()
        server.start()
        thread.join()
        assert versions == [1]
        store.close()


def test_the_first_call_has_its_timeout() -> None:
    store = blocking.connect(closed_port())
    with pytest.raises(es.TimedOut) as caught:
        store.append("a", [EVENT], 0, timeout=0.1)
    assert caught.value.outcome == "none"


@pytest.mark.parametrize(
    "call",
    [
        *CALLS[:-1],
        lambda store: store.read("a"),
        lambda store: store.consumer("billing", "orders").__enter__(),
        lambda store: store.reactions.progress(),
        lambda store: store.broker.pull([("orders", 0, 0, None)], 1),
    ],
)
def test_whatever_is_called_first_ends_within_the_timeout_of_the_client(
    call: Callable[[BlockingStore], Iterable[object]],
) -> None:
    """Not within the time for which a call waits for a lost connection."""
    store = blocking.connect(closed_port(), timeout=0.1, reconnect_timeout=math.inf)
    with pytest.raises(es.TimedOut):
        list(call(store))


def test_the_first_call_says_what_is_wrong() -> None:
    with pytest.raises(es.ConnectionLost, match="Connection refused; is the server running"):
        blocking.connect(closed_port(), reconnect_timeout=0).version("a")


def test_it_is_closed_at_the_exit_after_what_the_program_has_registered(address: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import atexit, sys\nimport eventstore as es\n"
        "def first():\n"
        "    open(sys.argv[2], 'w').write(str(store.connected))\n"
        "atexit.register(first)\n"
        "es.blocking\n"
        "def last():\n"
        "    store.append('exit', [es.NewEvent('Happened', b'1')], es.ANY)\n"
        "atexit.register(last)\n"
        "store = es.blocking.connect(sys.argv[1])\n"
        "store.version('exit')\n"
    )
    told = tmp_path / "told"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, str(program), address, str(told)]) == 0
    assert told.read_text() == "False"
