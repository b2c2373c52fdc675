"""Calls of the blocking client that somebody's signal handler interrupts: the client goes on, and nobody waits for ever.

Signals come between any two steps of the interpreter. Here a tracer raises in their place, in front of each line of our code
that the call runs, one after the other.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import eventstore as es
from eventstore.client.blocking import BlockingStore
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

OURS = str(Path(es.__file__).parent)
EVENT = [es.NewEvent("T")]


class Interrupted(Exception):
    """What a user's signal handler raises."""


def interrupted(call: Callable[[], object], at: int, error: type[BaseException] = Interrupted) -> bool:
    """Runs it, and raises in front of our line number `at`; whether it came to that, and out of the call."""
    lines = 0

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == at:
            raise error
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        return on_line if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        call()
    except error:
        return True
    finally:
        sys.settrace(before)
    assert lines < at, "what was raised did not come out of the call"
    return False


def everywhere(call: Callable[[], object], check: Callable[[], object], error: type[BaseException] = Interrupted) -> int:
    """Interrupts the call in front of each line that it runs, and checks after each; how many lines there were."""
    at = 1
    while interrupted(call, at, error):
        check()
        at += 1
    return at


def append(store: BlockingStore) -> None:
    store.append("often", EVENT, es.ANY)


def append_many(store: BlockingStore) -> None:
    store.append_many([es.Commit(f"often-{place}", EVENT, es.ANY) for place in range(3)])


def send(store: BlockingStore) -> None:
    store.topic("often").send_many([b"x"] * 3)


def send_once(store: BlockingStore) -> None:
    store.topic("often", resend=False).send(b"x")


def read(store: BlockingStore) -> None:
    assert len(list(store.read("many"))) == 3


@pytest.mark.heavy
@pytest.mark.parametrize("call", [append, append_many, send, send_once, read])
def test_a_call_that_is_interrupted_anywhere_leaves_a_client_that_goes_on(
    call: Callable[[BlockingStore], None], shared: ServerThread
) -> None:
    with es.blocking.connect(shared.address) as store:
        store.append("many", EVENT * 3, 0, command_id="once")
        store.broker.create_topic("often", if_missing=True)

        def check() -> None:
            assert store.version("many") == 3
            before = store.version("small")
            assert store.append("small", EVENT, before).version == before + 1

        assert everywhere(lambda: call(store), check) > 50
        call(store)
        versions = [event.version for event in store.read("often")]
        assert versions == list(range(1, len(versions) + 1))


@pytest.mark.heavy
def test_an_interruption_while_connecting_again_is_one_like_others(shared: ServerThread) -> None:
    with es.blocking.connect(shared.address) as store:

        def call() -> None:
            store._exchange._disconnect()
            store.append("often", EVENT, es.ANY)

        assert everywhere(call, lambda: store.version("small")) > 50


@pytest.mark.heavy
def test_other_threads_of_an_interrupted_client_do_not_wait_for_ever(shared: ServerThread) -> None:
    """What they wait for is carried out, or ends with ConnectionLost."""
    stop = threading.Event()
    done, lost, outcomes = [0] * 3, [0] * 3, set()

    def others(number: int) -> None:
        while not stop.is_set():
            try:
                store.append(f"others-{number}", EVENT, es.ANY)
                done[number] += 1
            except es.ConnectionLost as error:
                outcomes.add(error.fields["outcome"])
                lost[number] += 1

    with es.blocking.connect(shared.address) as store:
        threads = [threading.Thread(target=others, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            everywhere(lambda: append(store), lambda: store.version("small"))
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()
        assert outcomes <= {"unknown"}
        for number in range(3):
            assert done[number] <= store.version(f"others-{number}") <= done[number] + lost[number]


def test_a_reading_that_was_begun_ends_or_goes_on(shared: ServerThread) -> None:
    with es.blocking.connect(shared.address) as store:
        for _ in range(3):
            store.append("pages", [es.NewEvent("T", bytes(256 * 1024))] * 4, es.ANY)

        def check() -> None:
            versions = []
            try:
                for event in pages:
                    versions.append(event.version)
            except es.ConnectionLost:
                return
            assert versions == list(range(2, len(versions) + 2))

        at = 1
        while True:
            pages = store.read("pages", to_version=12)
            assert next(pages).version == 1
            if not interrupted(lambda: store.version("small"), at):
                break
            check()
            at += 1
        check()


@contextmanager
def handled_in(seconds: float, handle: Callable[[], object]) -> Iterator[None]:
    """A signal after so many seconds, and what its handler does."""
    before = signal.signal(signal.SIGUSR1, lambda *_: handle())
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    raise Interrupted


def test_a_signal_in_the_middle_of_large_appends_leaves_a_client_that_goes_on(shared: ServerThread) -> None:
    large = [es.NewEvent("T", bytes(256 * 1024)) for _ in range(4)]

    def append_often() -> None:
        for _ in range(1_000):
            store.append("large", large, es.ANY)

    with es.blocking.connect(shared.address) as store:
        for attempt in range(1, 9):
            with pytest.raises(Interrupted), handled_in(attempt / 1000, interrupt):
                append_often()
            assert store.version("small") >= 0
        versions = [event.version for event in store.read("large")]
        assert versions == list(range(1, len(versions) + 1))


def test_a_time_limit_by_an_alarm_is_not_taken_for_a_lost_connection(shared: ServerThread) -> None:
    """The usual handler of an alarm raises TimeoutError."""
    with es.blocking.connect(shared.address) as store:

        def call() -> None:
            store._exchange._disconnect()
            store.append("often", EVENT, es.ANY)

        assert everywhere(call, lambda: store.version("small"), TimeoutError) > 50


def test_a_handler_that_closes_the_client_ends_the_call_with_closed(shared: ServerThread) -> None:
    """As a handler of SIGTERM does."""
    with es.blocking.connect(shared.address) as store:
        store.broker.create_topic("waited", queues=1, if_missing=True)
        with pytest.raises(es.Closed), handled_in(0.05, store.close):
            store.broker.pull([("waited", 0, 0, None)], wait=60.0)


def test_a_handler_that_uses_the_client_itself_does_not_end_the_call_it_came_into(shared: ServerThread) -> None:
    versions: list[int] = []
    with es.blocking.connect(shared.address) as store:
        store.broker.create_topic("waited", queues=1, if_missing=True)
        with handled_in(0.05, lambda: versions.append(store.version("nobody"))):
            pulled = store.broker.pull([("waited", 0, 0, None)], wait=1.0)
    assert versions == [0]
    assert pulled.count == 0
