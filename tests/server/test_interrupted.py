"""Calls of the blocking client interrupted by a signal handler: the client stays usable, and no thread waits forever.

Signals arrive between any two steps of the interpreter. In their place, a tracer raises before each line of our code that
the call runs, one after the other.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import eventstore as es
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.link import BlockingLink
from eventstore.client.blocking.store import BlockingStore
from eventstore.client.blocking.turn import Turn
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.commit_rows import CommitRows
from eventstore.records.raw_commit import RawCommit
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

OURS = str(Path(es.__file__).parent)
EVENT = [es.NewEvent("T")]


class Interrupted(Exception):
    """Raised by a user's signal handler."""


def interrupted(call: Callable[[], object], at: int, error: type[BaseException] = Interrupted) -> bool:
    """Runs the call, and raises before the line number `at` of ours. Returns whether there was one, and the call raised."""
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
    assert lines < at, "the call swallowed the exception"
    return False


def everywhere(call: Callable[[], object], check: Callable[[], object], error: type[BaseException] = Interrupted) -> int:
    """Interrupts the call before each line that it runs, and checks after each. Returns the number of lines."""
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
def test_a_call_interrupted_anywhere_leaves_a_usable_client(
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
def test_an_interruption_while_reconnecting_leaves_a_usable_client(shared: ServerThread) -> None:
    with es.blocking.connect(shared.address) as store:

        def call() -> None:
            store._connection._disconnect()
            store.append("often", EVENT, es.ANY)

        assert everywhere(call, lambda: store.version("small")) > 50


@pytest.mark.heavy
def test_other_threads_of_an_interrupted_client_do_not_wait_forever(shared: ServerThread) -> None:
    """Their calls are carried out, or end with ConnectionLost."""
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


def test_a_read_in_progress_ends_or_continues(shared: ServerThread) -> None:
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
    """Sends a signal after these seconds, whose handler calls `handle`."""
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


def test_a_signal_in_the_middle_of_large_appends_leaves_a_usable_client(shared: ServerThread) -> None:
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


def test_a_time_limit_by_an_alarm_is_not_mistaken_for_a_lost_connection(shared: ServerThread) -> None:
    """The usual handler of an alarm raises TimeoutError."""
    with es.blocking.connect(shared.address) as store:

        def call() -> None:
            store._connection._disconnect()
            store.append("often", EVENT, es.ANY)

        assert everywhere(call, lambda: store.version("small"), TimeoutError) > 50


def test_a_handler_that_closes_the_client_ends_the_call_with_closed(shared: ServerThread) -> None:
    """As a handler of SIGTERM does."""
    with es.blocking.connect(shared.address) as store:
        store.broker.create_topic("waited", queues=1, if_missing=True)
        with pytest.raises(es.Closed), handled_in(0.05, store.close):
            store.broker.pull([("waited", 0, 0, None)], wait=60.0)


def test_a_handler_that_uses_the_client_at_any_moment_of_a_large_append_does_not_break_it(shared: ServerThread) -> None:
    large, versions = [es.NewEvent("T", bytes(3 * 1024 * 1024))] * 4, list[int]()
    with es.blocking.connect(shared.address) as store:
        connected = store._connection._link.socket
        for attempt in range(1, 9):
            with handled_in(attempt / 1000, lambda: versions.append(store.version("missing"))):
                assert store.append("large-frames", large, 4 * attempt - 4).version == 4 * attempt
        assert store._connection._link.socket is connected
    assert versions == [0] * 8


def test_a_handler_that_uses_the_client_does_not_end_the_interrupted_call(shared: ServerThread) -> None:
    versions: list[int] = []
    with es.blocking.connect(shared.address) as store:
        store.broker.create_topic("waited", queues=1, if_missing=True)
        with handled_in(0.05, lambda: versions.append(store.version("missing"))):
            pulled = store.broker.pull([("waited", 0, 0, None)], wait=1.0)
    assert versions == [0]
    assert pulled.count == 0


def test_a_second_handler_that_raises_while_the_first_ends_the_call_leaves_a_usable_client(
    shared: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two signals at once: the second handler runs as soon as the turn begins to end, so that it could reset nothing."""

    def raise_instead(*_: object) -> None:
        raise Interrupted

    with es.blocking.connect(shared.address) as store:
        connected = store._connection._link.socket
        with monkeypatch.context() as patched:
            patched.setattr(BlockingLink, "receive", raise_instead)
            patched.setattr(Turn, "__exit__", raise_instead)
            with pytest.raises(Interrupted):
                append(store)
        assert store.version("missing") == 0
        assert store._connection._link.socket is not connected, "the next call starts over"


@pytest.mark.parametrize("call", [append, lambda store: store.version("small")])
def test_a_call_interrupted_between_its_turns_sends_nothing_later(
    call: Callable[[BlockingStore], None], shared: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_instead(*_: object) -> None:
        raise Interrupted

    with es.blocking.connect(shared.address) as store:
        version = store.version("often")
        connected = store._connection._link.socket
        with monkeypatch.context() as patched:
            patched.setattr(BlockingConnection, "finish", raise_instead)
            with pytest.raises(Interrupted):
                call(store)
        assert store.version("often") == version
        assert store._connection._link.socket is not connected, "the next call starts over"


def test_rows_of_threads_that_wait_at_the_same_time_leave_in_one_frame(
    shared: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_max = 4
    queued = threading.Barrier(threads_max)
    frames: list[int] = []
    finish, encode = BlockingConnection.finish, CommitRows.encode

    def finish_together(self: BlockingConnection, done: PolledSignal) -> None:
        queued.wait(DEADLINE_SECONDS)
        finish(self, done)

    def encode_counted(self: CommitRows, request_id: int, rows: Sequence[RawCommit]) -> bytes:
        frames.append(len(rows))
        return encode(self, request_id, rows)

    monkeypatch.setattr(BlockingConnection, "finish", finish_together)
    monkeypatch.setattr(CommitRows, "encode", encode_counted)
    with es.blocking.connect(shared.address) as store, ThreadPoolExecutor(threads_max) as threads:
        appends = [threads.submit(store.append, f"together-{number}", EVENT, 0) for number in range(threads_max)]
        assert [append.result().version for append in appends] == [1] * threads_max
    assert frames == [threads_max]


def test_a_thread_whose_answer_is_there_does_not_wait_for_the_others(shared: ServerThread) -> None:
    done = PolledSignal()
    done.set()
    with es.blocking.connect(shared.address) as store, ThreadPoolExecutor(1) as thread, store._connection.turn.lock:
        thread.submit(store._connection.finish, done).result(DEADLINE_SECONDS)


@pytest.mark.heavy
def test_a_handler_that_closes_the_client_at_any_line_of_a_call_breaks_nothing(
    shared: ServerThread,
) -> None:
    def closed_at(at: int) -> bool:
        lines = 0
        with es.blocking.connect(shared.address) as store:

            def on_line(frame: FrameType, event: str, arg: object) -> Any:
                nonlocal lines
                lines += event == "line"
                if lines == at and event == "line":
                    sys.settrace(None)
                    store.close()
                return on_line

            def on_call(frame: FrameType, event: str, arg: object) -> Any:
                return on_line if lines < at and frame.f_code.co_filename.startswith(OURS) else None

            sys.settrace(on_call)
            try:
                append(store)
            except es.Closed:
                pass
            finally:
                sys.settrace(None)
            if lines >= at:
                with pytest.raises(es.Closed):
                    store.version("small")
                assert store._connection._link.socket is None
        return lines >= at

    at = 1
    while closed_at(at):
        at += 1
    assert at > 50
