"""Calls of the blocking client interrupted by a signal handler: the client stays usable, and no thread waits forever.

Signals arrive between any two steps of the interpreter. In their place, a tracer raises before each line of our code that
the call runs, one after the other.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import eventstore as es
from eventstore.client import blocking as blocking_client
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.link import BlockingLink
from eventstore.client.blocking.store import BlockingStore
from eventstore.client.blocking.turn import Turn
from eventstore.client.limit import current, within
from eventstore.client.session.calls import PolledSignal
from eventstore.client.session.commit_rows import CommitRows
from eventstore.records.raw_commit import RawCommit
from tests.cluster.led_shards import LedShards
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS

OURS = str(Path(es.__file__).parent)
BLOCKING = str(Path(blocking_client.__file__).parent)
CROSSING = (f"{BLOCKING}/routing", f"{BLOCKING}/loop_thread")
ITERATORS = (f"{BLOCKING}/streams", *CROSSING)
CONNECTION = (f"{BLOCKING}/connection", *CROSSING)
EVENT = [es.NewEvent("T")]


class Interrupted(Exception):
    """Raised by a user's signal handler."""


def interrupted(
    call: Callable[[], object], at: int, error: type[BaseException] = Interrupted, where: tuple[str, ...] = (OURS,)
) -> bool:
    """Runs the call, and raises before the line number `at` of ours. `where`: what paths of files begin with. Returns whether
    there was one, and the call raised.
    """
    lines = 0

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == at:
            raise error
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        return on_line if frame.f_code.co_filename.startswith(where) else None

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


each_line = pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)], ids=["each seventh", "each"])
"""Of the lines that a test interrupts one after the other: all of them take a minute and more."""


def everywhere(call: Callable[[], object], check: Callable[[], object], error: type[BaseException] = Interrupted) -> int:
    """Interrupts the call before each line that it runs, and checks after each. Returns the number of lines."""
    at = 1
    while interrupted(call, at, error):
        check()
        at += 1
    return at


def handled_at(call: Callable[[], object], at: int, handle: Callable[[], object], where: tuple[str, ...] = (OURS,)) -> bool:
    """Runs the call, and calls `handle` before the line number `at` of ours. Returns whether there was one."""
    lines = 0

    def on_line(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if lines == at and event == "line":
            sys.settrace(None)
            handle()
        return on_line

    def on_call(frame: FrameType, event: str, arg: object) -> Any:
        return on_line if lines < at and frame.f_code.co_filename.startswith(where) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines >= at


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
        with es.blocking.connect(shared.address) as store:

            def call() -> None:
                with suppress(es.Closed):
                    append(store)

            closed = handled_at(call, at, store.close)
            if closed:
                with pytest.raises(es.Closed):
                    store.version("small")
                assert store._connection._link.socket is None
        return closed

    at = 1
    while closed_at(at):
        at += 1
    assert at > 50


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedShards]:
    with LedShards(tmp_path_factory.mktemp("shards"), 2) as shards:
        yield shards


class Iterating:
    """Iterations over the same 12 events of two aggregates, in several pages, of a store or of two shards."""

    def __init__(self, store: BlockingStore, begin: Callable[[BlockingStore], Any]) -> None:
        self.store = store
        self._begin = begin
        for number in range(3):
            for each in ("pages-1", "pages-4"):
                store.append(each, [es.NewEvent("T", bytes(140 * 1024))] * 2, es.ANY, command_id=f"page-{number}")
        self.wanted = self.taken(self.begin())

    def begin(self) -> Iterator[Any]:
        """Returns an iterator that has connected."""
        return iter(self._begin(self.store))

    def taken(self, iterator: Iterator[Any], seen: list[es.Event] | None = None) -> list[es.Event]:
        """Takes the rest, up to CaughtUp of a subscription, and adds it to the events that were seen."""
        seen = [] if seen is None else seen
        for item in iterator:
            if isinstance(item, es.CaughtUp):
                break
            seen.append(item)
        return seen

    def check(self, seen: list[es.Event], *, cut_off: bool = False) -> None:
        """Fails if an event is missing, or is there twice, or in another order than its aggregate has it."""
        for each in ("pages-1", "pages-4"):
            versions = [event.version for event in seen if event.aggregate_id == each]
            wanted = [event.version for event in self.wanted if event.aggregate_id == each]
            assert versions == (wanted[: len(versions)] if cut_off else wanted)


@pytest.fixture(params=["read", "read_all", "subscribe", "read_all of two shards", "subscribe of two shards"])
def iterating(request: pytest.FixtureRequest) -> Iterator[Iterating]:
    name, of_shards = request.param.split()[0], "shards" in request.param
    server = request.getfixturevalue("two_shards" if of_shards else "shared")
    begins: dict[str, Callable[[BlockingStore], Any]] = {
        "read": lambda store: store.read("pages-1"),
        "read_all": lambda store: store.read_all(aggregate_prefix="pages-"),
        "subscribe": lambda store: store.subscribe(aggregate_prefix="pages-"),
    }
    with es.blocking.connect(server.address) as store:
        yield Iterating(store, begins[name])


@each_line
@pytest.mark.heavy
def test_an_iteration_interrupted_anywhere_continues_or_says_that_it_cannot(iterating: Iterating, step: int) -> None:
    cut_off = Counter[bool]()
    at = 1
    while True:
        iterator, seen = iterating.begin(), list[es.Event]()
        more = interrupted(lambda: iterating.taken(iterator, seen), at, where=ITERATORS)  # noqa: B023 # called at once
        if not more:
            iterating.check(seen)
            break
        for _ in range(3):
            try:
                iterating.taken(iterator, seen)
            except es.ConnectionLost:
                continue
            except es.Closed:
                iterating.check(seen, cut_off=True)
                cut_off[True] += 1
            else:
                iterating.check(seen)
                cut_off[False] += 1
            break
        assert iterating.store.version("missing") == 0
        at += step
    assert cut_off[True] > 0
    assert at > 20


@each_line
@pytest.mark.heavy
def test_a_handler_may_take_from_an_iterator_at_any_line_of_another_call(iterating: Iterating, step: int) -> None:
    at = 1
    while True:
        iterator, seen = iterating.begin(), list[es.Event]()
        seen.append(next(iterator))

        def handle() -> None:
            seen.extend(next(iterator) for _ in range(3))  # noqa: B023 # called at once

        more = handled_at(lambda: iterating.store.version("missing"), at, handle, CONNECTION)
        iterating.check(iterating.taken(iterator, seen))
        if not more:
            break
        at += step
    assert at > 10


@each_line
@pytest.mark.heavy
def test_a_handler_that_takes_from_the_iterator_that_it_interrupts_is_refused(iterating: Iterating, step: int) -> None:
    at = 1
    refused = 0
    while True:
        iterator, seen = iterating.begin(), list[es.Event]()

        def handle() -> None:
            nonlocal refused
            try:
                if len(seen) < len(iterating.wanted):  # noqa: B023 # called at once
                    seen.append(next(iterator))  # noqa: B023
            except RuntimeError:
                refused += 1

        def take() -> None:
            with suppress(RuntimeError):  # the handler took it first
                iterating.taken(iterator, seen)  # noqa: B023 # called at once

        more = handled_at(take, at, handle, ITERATORS + CONNECTION)
        iterating.check(iterating.taken(iterator, seen) if len(seen) < len(iterating.wanted) else seen)
        if not more:
            break
        at += step
    assert refused > 0


def test_threads_that_share_an_iterator_get_each_event_once_or_are_refused(iterating: Iterating) -> None:
    iterator, seen, refused = iterating.begin(), list[es.Event](), list[str]()
    began = threading.Barrier(4)

    def take() -> None:
        began.wait(DEADLINE_SECONDS)
        try:
            while len(seen) < len(iterating.wanted) // 2:  # some more than that: a subscription has nothing after the last one
                seen.append(next(iterator))
        except RuntimeError as error:
            refused.append(str(error))

    with ThreadPoolExecutor(4) as threads:
        for each in [threads.submit(take) for _ in range(4)]:
            each.result(DEADLINE_SECONDS)
    assert all("is in use" in each for each in refused)
    if len(seen) < len(iterating.wanted):
        iterating.taken(iterator, seen)
    iterating.check(sorted(seen, key=lambda event: event.version))


def test_after_an_error_of_ours_a_read_continues_and_holds_no_page(
    shared: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending the request may time out; a page that is not wanted any longer is not received."""

    def time_out(*_: object) -> None:
        limit = current()
        assert limit is not None
        raise limit.over()

    with es.blocking.connect(shared.address) as store:
        store.append("often", EVENT, es.ANY)
        iterator = store.read("often")
        with monkeypatch.context() as patched:
            patched.setattr(BlockingLink, "send", time_out)
            for _ in range(3):
                with pytest.raises(es.TimedOut), within(60.0):
                    next(iterator)
        session = store._connection._session
        assert not any(each.wanted for each in (*session._sent.values(), *session._unsent))
        assert next(iterator).version == 1


@pytest.mark.parametrize("server", ["shared", "two_shards"])
def test_dropping_an_iterator_runs_nothing_of_ours_in_which_the_exception_of_a_handler_is_lost(
    server: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue(server).address
    with es.blocking.connect(address) as store:
        store.append("often", EVENT, es.ANY)
        held = [store.read("often"), store.read_all(), store.subscribe()]
        assert all(next(each) for each in held)
        assert not interrupted(held.clear, 1)


@pytest.mark.parametrize("server", ["shared", "two_shards"])
def test_nor_does_that_of_the_async_client(server: str, request: pytest.FixtureRequest) -> None:
    async def use() -> None:
        async with es.connect(request.getfixturevalue(server).address) as store:
            await store.append("often", EVENT, es.ANY)
            held = [store.read("often"), store.read_all(), store.subscribe()]
            for place in range(3):
                assert await anext(held[place])
            assert not interrupted(held.clear, 1)
            assert all(each._connection.session.dropped for each in (store.shards or {0: store}).values())

    trio.run(use)
