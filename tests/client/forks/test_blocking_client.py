"""A blocking client on both sides of a fork: each gets its own answers or is refused by name, and none waits without end."""

from __future__ import annotations

import gc
import itertools
import os
import re
import select
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import eventstore as es
from eventstore import blocking, forks
from tests.client.forks.child import Child, error_of, in_child
from tests.security.conftest import Certificates
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
NAMES = ("a-1", "a-2", "a-3")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        with blocking.connect(server.address) as store:
            for count, name in enumerate(NAMES, 1):
                store.append(name, [es.NewEvent("Happened", {"n": count})] * count, 0)
        yield server


@pytest.fixture
def store(server: ServerProcess) -> Iterator[blocking.BlockingStore]:
    with blocking.connect(server.address) as store:
        yield store


def test_each_process_gets_the_answers_to_its_own_requests(store: blocking.BlockingStore) -> None:
    begin, begun = os.pipe()

    def versions() -> list[int]:
        os.read(begin, 1)
        return [store.version(name) for name in NAMES * 20]

    def with_a_child() -> list[list[int]]:
        store.version("a-1")
        child = Child(versions)
        return [versions(), child.result()]

    children = [Child(with_a_child) for _ in range(3)]
    os.write(begun, b"1234567")
    assert versions() == [1, 2, 3] * 20
    assert [each.result() for each in children] == [[[1, 2, 3] * 20] * 2] * 3
    os.close(begin)
    os.close(begun)


def test_appends_and_messages_of_both_sides_are_stored_once(store: blocking.BlockingStore) -> None:
    store.broker.create_topic("both")
    topic = store.topic("both")
    topic.send(b"before")

    def appends() -> list[Any]:
        topic.send(b"child")
        return [store.append("both", [es.NewEvent("Happened", b"1")], es.ANY).duplicate for _ in range(20)]

    child = Child(appends)
    topic.send(b"parent")
    assert not any(store.append("both", [es.NewEvent("Happened", b"1")], es.ANY).duplicate for _ in range(20))
    assert child.result() == [False] * 20
    assert store.version("both") == 40
    with store.consumer("readers", "both") as consumer:
        assert sorted(next(consumer).body for _ in range(3)) == [b"before", b"child", b"parent"]


def test_a_child_that_leaves_the_context_closes_only_its_own_side(store: blocking.BlockingStore) -> None:
    def leaves() -> str:
        store.__exit__(None, None, None)
        return error_of(lambda: store.version("a-1"))

    assert in_child(leaves).startswith("Closed: the client of ")
    connections = store.broker.connections
    assert store.version("a-3") == 3
    assert store.broker.connections == connections


def test_a_child_that_ends_in_order_hangs_up_on_nobody(server: ServerProcess, tmp_path: Path) -> None:
    """With everything that Python does at its end: finalizers, and what is called at the exit."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nimport eventstore as es\n"
        "with es.blocking.connect(sys.argv[1]) as store:\n"
        "    store.version('a-1')\n"
        "    items = store.subscribe()\n"
        "    next(items)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n        sys.exit(store.version('a-2') - 2)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "    assert store.version('a-3') == 3\n"
        "    assert store.broker.connections == 1\n"
        "    assert next(items).version == 1\n"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-W", "error", str(program), server.address]) == 0


def test_a_client_that_was_not_open_is_opened_on_either_side(server: ServerProcess) -> None:
    store = blocking.connect(server.address)

    def opens() -> int:
        with store:
            return store.version("a-2")

    assert in_child(lambda: store.version("a-1")) == 1
    assert in_child(opens) == 2
    with store:
        assert store.version("a-3") == 3


def test_what_a_thread_waits_for_is_answered_in_the_parent_and_its_lock_is_not_missed(
    server: ServerProcess, store: blocking.BlockingStore
) -> None:
    answers = list[int]()
    thread = threading.Thread(target=lambda: answers.append(store.version("a-3")))
    os.kill(server.pid, signal.SIGSTOP)
    try:
        thread.start()
        turn = store._connection.turn
        wait_until(lambda: _is_taken(turn.lock), "the thread waits for its answer")
        child = Child(lambda: store.version("a-2"))
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert child.result() == 2
    thread.join(DEADLINE_SECONDS)
    assert answers == [3]
    assert store.version("a-1") == 1


def _is_taken(lock: Any) -> bool:
    if lock.acquire(blocking=False):
        lock.release()
        return False
    return True


def forked_within(
    server: ServerProcess, is_within: Callable[[], bool], call: Callable[[], Any], then: Callable[[], Any]
) -> tuple[str, list[str]]:
    """Forks in the handler of a signal, within a call that waits for the server; both processes return from there into it.
    Returns what becomes of it in the parent; and in the child, with that of the call that follows there.
    """
    forked = list[int]()
    result, told = os.pipe()
    previous = signal.signal(signal.SIGUSR1, lambda *_: forked.append(os.fork()))
    os.kill(server.pid, signal.SIGSTOP)

    def interrupt() -> None:
        try:
            wait_until(is_within, "the call waits for its answer")
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: forked, "it forks")
        finally:
            os.kill(server.pid, signal.SIGCONT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        answer = error_of(call)
        if forked == [0]:  # the child: it must not run the rest of the tests
            os.write(told, "\n".join([answer, error_of(then)]).encode())
            os._exit(0)
    finally:
        if forked == [0]:
            os._exit(1)
        signal.signal(signal.SIGUSR1, previous)
    thread.join(DEADLINE_SECONDS)
    os.close(told)
    ends = select.select([result], [], [], DEADLINE_SECONDS)[0]
    if not ends:
        os.kill(forked[0], signal.SIGKILL)
    os.waitpid(forked[0], 0)
    answers = os.read(result, 65536).decode().split("\n")
    os.close(result)
    assert ends, "the child waits without end"
    return answer, answers


def test_a_call_that_a_signal_handler_forks_within_is_answered_in_the_parent_and_refused_in_the_child(
    server: ServerProcess, store: blocking.BlockingStore
) -> None:
    turn = store._connection.turn
    answer, (refused, following) = forked_within(
        server, lambda: _is_taken(turn.lock), lambda: store.version("a-3"), lambda: store.version("a-2")
    )
    assert answer == "returned 3"
    assert refused.startswith(f"ConnectionLost: this process was forked from process {os.getpid()} while the answer was due")
    assert following == "returned 2"


def test_a_consumer_that_joins_while_a_signal_handler_forks_joins_in_the_parent_and_is_refused_in_the_child(
    server: ServerProcess, store: blocking.BlockingStore
) -> None:
    store.broker.create_topic("joined", 1)
    consumer = store.consumer("joining", "joined")

    def joins() -> bool:
        hosted = consumer._member._hosted
        return hosted is not None and hosted._scope is not None

    joined, (refused, following) = forked_within(server, joins, consumer.__enter__, lambda: next(consumer))
    try:
        assert joined.startswith("returned ")
        assert (
            refused
            == following
            == (f"Closed: the consumer belongs to process {os.getpid()}, which this one was forked from; make another one here")
        )
        store.topic("joined").send(b"1")
        assert next(consumer).body == b"1"
    finally:
        consumer.__exit__(None, None, None)


def test_a_consumer_that_leaves_while_a_signal_handler_forks_leaves_in_the_parent_and_the_child_waits_for_nothing(
    server: ServerProcess, store: blocking.BlockingStore
) -> None:
    store.broker.create_topic("left", 1)
    consumer = store.consumer("leaving", "left")
    consumer.__enter__()
    hosted = consumer._member._hosted
    assert hosted is not None
    left, (in_the_child, following) = forked_within(
        server, hosted._ended.is_set, lambda: consumer.__exit__(None, None, None), lambda: next(consumer)
    )
    assert left == in_the_child == "returned None"
    assert following.startswith(f"Closed: the consumer belongs to process {os.getpid()}")
    assert store.broker.members("leaving") == []


def at_line(number: int, act: Callable[[], None], call: Callable[[], Any]) -> str:
    """Returns what becomes of a call before whose Nth line `act` is called, as a signal's handler may be: of any module."""
    lines = itertools.count()

    def trace(frame: types.FrameType, event: str, argument: object) -> Any:
        if event == "line" and next(lines) == number:
            sys.settrace(None)
            act()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        return error_of(call)
    finally:
        sys.settrace(previous)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)], ids=["each seventh", "each"])
def test_a_fork_at_any_line_of_a_consumer_leaves_no_member_in_the_child_and_the_child_waits_for_nothing(
    store: blocking.BlockingStore,
    step: int,
) -> None:
    """A child that began the thread itself would stay in the group by its parent's name."""
    store.broker.create_topic(f"lines-{step}", 1)
    store.topic(f"lines-{step}").send(b"1")

    def uses(consumer: blocking.BlockingConsumer) -> bytes:
        with consumer:
            return next(consumer).body

    for number in itertools.count(0, step):
        consumer = store.consumer(f"line-{step}-{number}", f"lines-{step}")
        children = list[int]()
        result, told = os.pipe()
        answer = at_line(number, lambda: children.append(os.fork()), lambda: uses(consumer))  # noqa: B023 # in this round
        if children == [0]:  # the child: it must not run the rest of the tests
            os.write(told, answer.encode())
            os._exit(0)
        os.close(told)
        assert answer == "returned b'1'"
        if not children:
            break
        ends = select.select([result], [], [], DEADLINE_SECONDS)[0]
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
        said = os.read(result, 65536).decode()
        os.close(result)
        assert ends, f"forked at line {number} it waits without end"
        assert re.fullmatch(r"(returned b'1'|Closed: the consumer belongs to process \d+, which .*)", said), said
        assert store.broker.members(f"line-{step}-{number}") == []
    assert number > 20


def test_an_iteration_goes_on_in_the_parent_and_is_refused_in_the_child(store: blocking.BlockingStore) -> None:
    payload = bytes(100_000)
    for _ in range(4):
        store.append("long", [es.NewEvent("Happened", payload)] * 10, es.ANY)  # more than a page
    events = store.read("long")
    assert next(events).version == 1
    answer = in_child(lambda: error_of(lambda: [each.version for each in events]))
    assert answer.startswith(f"ConnectionLost: this process was forked from process {os.getpid()}")
    assert [each.version for each in events] == list(range(2, 41))
    assert in_child(lambda: len(list(store.read("long")))) == 40


def test_a_subscription_goes_on_in_the_parent_and_is_refused_in_the_child(store: blocking.BlockingStore) -> None:
    items = store.subscribe(after=es.END)
    assert isinstance(next(items), es.CaughtUp)
    child = Child(lambda: error_of(lambda: next(items)))
    assert child.result().startswith("ConnectionLost: this process was forked")
    store.append("followed", [es.NewEvent("Happened", b"1")], es.ANY)
    event = next(items)
    assert isinstance(event, es.Event)
    assert event.aggregate_id == "followed"

    def follows() -> object:
        return next(store.subscribe(after=es.END)).sequence

    assert in_child(follows) == event.sequence


def test_a_consumer_goes_on_in_the_parent_and_is_refused_in_the_child(store: blocking.BlockingStore) -> None:
    store.broker.create_topic("consumed", 1)
    topic = store.topic("consumed")
    topic.send(b"1")
    with store.consumer("workers", "consumed", commit_interval=0.05) as consumer:
        first = next(consumer)

        def uses_it() -> list[str]:
            refused = [error_of(call) for call in (lambda: next(consumer), consumer.some, first.done, first.retry)]
            consumer.__exit__(None, None, None)
            store.__exit__(None, None, None)
            return refused

        parent = f"belongs to process {os.getpid()}, which this one was forked from; "
        consumer_refused, message_refused = in_child(uses_it)[1:3]
        assert consumer_refused == f"Closed: the consumer {parent}make another one here"
        assert message_refused == f"Closed: the message {parent}finish it there, or have a consumer here"
        assert [each.name for each in store.broker.members("workers")] == [consumer.member]
        first.done()
        topic.send(b"2")
        second = next(consumer)
        assert second.body == b"2"
        second.done()
        topic.send(b"3")
        third = next(consumer)

        def consumes_anew() -> str:
            with store.consumer("others", "consumed") as own:
                return next(own).body.decode()

        assert in_child(consumes_anew) == "1"
        third.done()


def test_a_child_of_a_tls_client_says_nothing_on_the_session_of_its_parent(certificates: Certificates, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", **certificates.settings()) as server:
        with blocking.connect(server.address, ssl_context=certificates.context()) as store:
            store.append("a", [es.NewEvent("Happened", b"1")], 0)

            def asks_and_leaves() -> int:
                version = store.version("a")
                store.close()
                return version

            assert in_child(asks_and_leaves) == 1
            assert in_child(store.close) is None
            connections = store.broker.connections
            assert store.version("a") == 1
            assert store.broker.connections == connections


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_shares_a_client_by_fork_and_opens_its_own_by_spawn(
    method: str, server: ServerProcess, store: blocking.BlockingStore, tmp_path: Path
) -> None:
    """As a program of its own: `spawn` imports it again."""
    program = tmp_path / "pool.py"
    program.write_text(
        "import multiprocessing, sys\nimport eventstore as es\n"
        "store = es.blocking.connect(sys.argv[2])\n"
        "def version(name):\n"
        "    return store.version(name)\n"
        "if __name__ != '__main__' or sys.argv[1] == 'fork':\n    store.__enter__()\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:\n"
        "        assert pool.map(version, ['a-1', 'a-2', 'a-3'] * 20) == [1, 2, 3] * 20\n"
    )
    command = [sys.executable, str(program), method, server.address]
    assert os.spawnv(os.P_WAIT, sys.executable, command) == 0


def test_a_client_is_told_of_forks_only_as_long_as_there_is_one(server: ServerProcess) -> None:
    gc.collect()
    before = len(forks._told)
    with blocking.connect(server.address) as store:
        assert len(forks._told) > before
    del store
    gc.collect()
    assert len(forks._told) <= before
