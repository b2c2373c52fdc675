"""What a request takes of the event loop and of threads after its turn is charged to its connection as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

import eventstore as es
from eventstore import flat
from eventstore.broker.broker import open_broker
from eventstore.model import COMMIT_EVENTS_MAX
from eventstore.protocol.broker_requests import FindKey, Pull
from eventstore.protocol.group_requests import Join, ShowGroup
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Ping
from eventstore.records.raw_commit import RawCommit
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.scheduler import NOTED_S
from eventstore.server.requests.appends import AppendBatcher, due_s
from eventstore.server.requests.batch_replies import BatchReplies
from eventstore.server.serve import Server
from eventstore.settings.broker import BrokerSettings
from eventstore.timing.work_time import WorkTime, counted, on_thread
from tests.collisions import colliding
from tests.server.conftest import Serve
from tests.server.net.test_scheduler import Clock
from tests.server.raw import Ok, RawClient, append_frame
from tests.waiting import wait_until

CLIENTS = 6
TOPICS = [f"topic-{number}" for number in range(4)]


def burn() -> int:
    return sum(range(200_000))


async def test_steps_on_the_event_loop_and_on_threads_are_counted_and_waits_are_not() -> None:
    spent, waited = WorkTime(), trio.Event()

    async def work() -> int:
        found = burn()
        await waited.wait()
        return found + await trio.to_thread.run_sync(on_thread, burn)

    seen: list[float] = []

    async def run() -> None:
        assert await counted(work(), spent) == 2 * burn()
        seen.append(spent.seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        first = spent.seconds
        assert first > 0
        for _ in range(20):
            burn()
        assert spent.seconds == first, "others ran, not the work"
        waited.set()
    assert seen[0] > first


async def test_what_others_compute_meanwhile_is_known() -> None:
    spent, of_another = WorkTime(), list[float]()

    def compute() -> None:
        for _ in range(10):
            burn()
        of_another.append(time.thread_time())

    async def work() -> None:
        another = threading.Thread(target=compute)
        another.start()
        another.join()

    await counted(work(), spent)
    assert spent.seconds > of_another[0] > spent.seconds - spent.waited


async def test_errors_and_cancellation_pass_through() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await counted(fail(), WorkTime())

    async def wait() -> None:
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        scope.cancel()
        await counted(wait(), WorkTime())
    assert scope.cancelled_caught


@pytest.mark.parametrize("kind", ["look-ups by key", "joins"])
def test_who_has_much_done_after_its_turn_rests_and_is_named(serve: Serve, kind: str) -> None:
    server = serve()
    *keys, wanted = colliding(513)
    with es.blocking.connect(server.address) as store:
        for name in TOPICS:
            store.broker.create_topic(name, 256)
        store.topic("topic-0").send_many([es.NewMessage(b"{}", key=key) for key in keys])

    def request(number: int) -> Request:
        if kind == "joins":
            return Join(f"group-{number % 10}", f"member-{number}", topics=tuple((name, None) for name in TOPICS))
        return FindKey("topic-0", wanted)

    sent = 0
    with RawClient(server.port) as greedy, RawClient(server.port) as other:

        def is_slowed() -> bool:
            nonlocal sent
            for number in range(sent, sent + 20):
                greedy.send(encode_request(number + 100, request(number)))
            sent += 20
            while greedy.answer()[0] != sent + 99:
                assert other.ask(Ping()) == Ok()
            return server.ask(lambda running: running.gate.scheduler.slowed) > 0

        wait_until(is_slowed, "it rests")
        named = server.ask(lambda running: running.gate.scheduler.last_slowed)
        assert named is not None
        assert named.endswith("FindKey" if kind == "look-ups by key" else "Join")


@pytest.mark.parametrize(("commits_of_each", "events"), [(COMMITS_PER_FRAME_MAX, 1), (1, COMMIT_EVENTS_MAX)])
def test_a_turn_takes_frames_that_are_much_work_of_one_or_two_clients_however_many_send_them(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, commits_of_each: int, events: int
) -> None:
    turns, submit = list[list[ServerConnection]](), AppendBatcher._submit
    event = flat.encode(es.NewEvent("T", b"")) * events

    def watched(batcher: AppendBatcher, replies: BatchReplies, commits: list[RawCommit], size: int) -> None:
        turns.append([connection for connection, _, _, _ in replies.requests])
        submit(batcher, replies, commits, size)

    def frame(client: int, number: int) -> bytes:
        commits = ((f"a-{client}-{number}-{each}", 0, "c", None, event) for each in range(commits_of_each))
        return append_frame(number, *commits)

    monkeypatch.setattr(AppendBatcher, "_submit", watched)
    server = serve()
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as senders:
            for number, client in enumerate(clients):
                senders.submit(client.send, b"".join(frame(number, each) for each in (100, 101)))
            for client in clients:
                assert sorted(client.answer()[0] for _ in range(2)) == [100, 101]
    assert sum(map(len, turns)) == 2 * CLIENTS
    assert max(len(set(turn)) for turn in turns) <= 2, "one that was ready first, and one that waits its turn"


@pytest.mark.parametrize(
    ("commits", "data", "least", "most"),
    [(1, b"", 0.030, 0.060), (40, b"", 0.030, 0.060), (1, b"x" * 1_000_000, 0.0, 0.001), (1_000, b"x" * 1_000, 0.008, 0.009)],
    ids=["100,000 events of one commit", "of forty", "a large event", "commits of 1 KB"],
)
def test_what_appends_will_take_is_known_about_before_they_are_made(
    commits: int, data: bytes, least: float, most: float
) -> None:
    each = flat.encode(es.NewEvent("T", data)) * (1 if data else COMMIT_EVENTS_MAX // commits)
    assert least <= due_s(len(each) * commits, [("a", 0, "c", None, each)] * commits) <= most


def test_who_appends_commits_of_many_events_rests_and_is_named(serve: Serve) -> None:
    server, events = serve(), flat.encode(es.NewEvent("T", b"")) * COMMIT_EVENTS_MAX
    sent = 0
    with RawClient(server.port) as greedy, RawClient(server.port) as other:

        def is_slowed() -> bool:
            nonlocal sent
            sent += 1
            assert other.ask(Ping()) == Ok()
            greedy.send(append_frame(100 + sent, (f"a-{sent}", 0, "c", None, events)))
            assert greedy.answer()[0] == 100 + sent
            return server.ask(lambda running: running.gate.scheduler.slowed) > 0

        wait_until(is_slowed, "it rests")
        named = server.ask(lambda running: running.gate.scheduler.last_slowed)
    assert named is not None
    assert named.endswith("Append")


def test_a_pull_that_reads_on_after_its_turn_pays_for_that(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        store.broker.create_topic("orders", 1)
        for _ in range(40):
            store.topic("orders").send_many([es.NewMessage(b"{}", tag="somebody")] * 1_000)

    def stop_clock(running: Server) -> None:
        clock = Clock()
        clock.now, running.gate.scheduler.clock = running.gate.scheduler.clock(), clock

    def paid(running: Server) -> float:
        (connection,) = running.gate.connections
        return connection.taken_s

    with RawClient(server.port) as client:
        wait_until(lambda: server.ask(lambda running: len(running.gate.connections)) == 1, "the other one is gone")
        server.ask(stop_clock)  # turns take no time
        assert isinstance(client.ask(Pull(64, 4096, 30_000, wants=(("orders", 0, 0, "nobody"),))), Messages)
        assert server.ask(paid) > 2 * NOTED_S


class Steps(trio.abc.Instrument):
    """How many requests were answered by each step of the tasks that answer later."""

    def __init__(self, connections: Collection[ServerConnection]) -> None:
        self._connections, self._owed = connections, 0
        self.answered: list[int] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._owed = sum(each.owed for each in self._connections)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("DeferredReplies._work"):
            self.answered.append(self._owed - sum(each.owed for each in self._connections))


def test_answers_that_take_time_and_wait_for_nothing_let_others_in_between(serve: Serve) -> None:
    server = serve()
    with es.blocking.connect(server.address) as store:
        for name in TOPICS:
            store.broker.create_topic(name, 256)
    with RawClient(server.port) as greedy:
        assert isinstance(greedy.ask(Join("group", "member", topics=tuple((name, None) for name in TOPICS))), Ok)
        steps = server.ask(lambda running: Steps(running.gate.scheduler._connections))
        server.ask(lambda _: trio.lowlevel.add_instrument(steps))
        for number in range(50):
            greedy.send(encode_request(number + 100, ShowGroup("group")))
        while greedy.answer()[0] != 149:
            pass
        server.ask(lambda _: trio.lowlevel.remove_instrument(steps))
    assert sum(steps.answered) == 50
    assert max(steps.answered) <= 5, "a thousand rows take longer than a slice"


class Passes(trio.abc.Instrument):
    """How many requests were answered later between two looks at the sockets."""

    def __init__(self, connections: Collection[ServerConnection]) -> None:
        self._connections, self._owed, self._now = connections, 0, 0
        self.most = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._owed = sum(each.owed for each in self._connections)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith("DeferredReplies._work"):
            self._now += self._owed - sum(each.owed for each in self._connections)

    def before_io_wait(self, timeout: float) -> None:
        self.most, self._now = max(self.most, self._now), 0


def serves_others(running: Server) -> bool:
    return running.gate.scheduler.quick_at > trio.current_time() - 0.05


def test_answers_to_many_connections_that_take_time_are_made_one_after_the_other(serve: Serve) -> None:
    server, many = serve(), 16
    with es.blocking.connect(server.address) as store, ExitStack() as stack:
        for name in TOPICS:
            store.broker.create_topic(name, 256)
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(many)]
        assert isinstance(clients[0].ask(Join("group", "member", topics=tuple((name, None) for name in TOPICS))), Ok)
        for client in clients:
            assert isinstance(client.ask(ShowGroup("group")), Ok), "the first is answered at once"
        wait_until(lambda: not server.ask(serves_others), "nobody else asks now; somebody may")
        passes = server.ask(lambda running: Passes(running.gate.scheduler._connections))
        server.ask(lambda _: trio.lowlevel.add_instrument(passes))
        for client in clients:
            client.send(b"".join(encode_request(number + 100, ShowGroup("group")) for number in range(10)))
        for client in clients:
            while client.answer()[0] != 109:
                pass
        server.ask(lambda _: trio.lowlevel.remove_instrument(passes))
    assert 0 < passes.most <= 2, "not one for each connection"


async def test_what_is_written_on_a_thread_is_part_of_the_request(tmp_path: Path) -> None:
    taken: list[float] = []

    def burn_long(*_: object) -> None:
        began = time.thread_time()
        for _ in range(20):
            burn()
        taken.append(time.thread_time() - began)

    async with open_broker(tmp_path, BrokerSettings()) as broker:
        document, topics = broker.groups.offsets.document, broker.topics
        write, visible = document.write, topics.before_visible
        document.write = lambda tree: (burn_long(), write(tree))[1]
        topics.before_visible = lambda topic: (burn_long(), visible(topic))[1]
        for work in (broker.administration.create_topic("orders", 1), broker.coordinator.set_policy("group", None)):
            spent = WorkTime()
            await counted(work, spent)
            assert spent.seconds >= taken.pop()
