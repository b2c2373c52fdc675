"""More connections than allowed, or than there are file descriptors: they are refused or wait, and others are not affected."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trio

import eventstore as es
from eventstore.errors import Overloaded
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import Ping, Subscribe, Version
from eventstore.server.net.connection import BOUND_MAX
from tests.server.conftest import Launch, Serve
from tests.server.raw import Ok, RawClient, append_frame, commit, outcomes_of
from tests.server_process import ServerProcess
from tests.waiting import wait_until


def test_a_connection_over_the_limit_is_refused_with_an_error(serve: Serve) -> None:
    server = serve(connections_max=3)
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(3)]
        for client in clients:  # they wait for events: none is idle
            client.send_request(Subscribe())
            client.answer()
        for greet in (False, True):
            with RawClient(server.port, greet=False) as late:
                if greet:
                    late.send_request(Ping())
                request_id, error = late.error()
                assert (request_id, type(error), error.fields) == (0, Overloaded, {"limit": 3})
                assert late.is_gone()
        with pytest.raises(es.Overloaded), es.blocking.connect(server.address):
            pass
        assert all(client.ask(Ping()) == Ok() for client in clients)
        clients[0].close()
        wait_until(lambda: server.ask(lambda running: len(running.gate.connections)) == 2, "the first one is gone")
        with RawClient(server.port) as late:
            assert late.ask(Ping()) == Ok()
        assert server.ask(lambda running: running.gate.acceptor.turned_away) == 3


@contextmanager
def descriptors() -> Iterator[int]:
    """Raises the limit of open files; returns how many connections that allows with both ends here, 2,000 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield min(2_000, hard // 2 - 100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.heavy
def test_thousands_of_connections_are_served_at_once(launch: Launch) -> None:
    with descriptors() as count, ExitStack() as stack:
        server = launch(connections_max=count)
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(count)]
        for number, client in enumerate(clients):
            client.send(append_frame(10, commit(f"a-{number % 50}", f"c-{number}")))
        for client in clients:
            request_id, answer = client.answer()
            assert request_id == 10
            assert outcomes_of(answer)[0][0] == 0
        for number, client in enumerate(clients[:50]):
            assert client.ask(Version(f"a-{number}")) == Ok((len(range(number, count, 50)),))
        for number in range(50):  # one is busy, the others are there
            clients[0].send(append_frame(11 + number, commit("busy", f"c-{number}")))
            assert outcomes_of(clients[0].answer()[1])[0][:2] == (0, number + 1)
        open_files = server.descriptors()
        stack.close()
        wait_until(lambda: server.descriptors() <= open_files - count, "the descriptors are free again")
        with RawClient(server.port) as client:
            assert client.ask(Ping()) == Ok()


class Ends(trio.abc.Instrument):
    """How many tasks of this name ended between two looks at the sockets."""

    def __init__(self, name: str) -> None:
        self._name, self._now = name, 0
        self.most = self.all = 0

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        if task.name.endswith(self._name):
            self._now += 1
            self.all += 1

    def before_io_wait(self, timeout: float) -> None:
        self.most, self._now = max(self.most, self._now), 0


@pytest.mark.parametrize("by", ["the clients", "timeouts"])
@pytest.mark.parametrize("kind", ["pulls", "subscriptions"])
def test_what_ends_with_many_connections_does_not_end_at_once(serve: Serve, kind: str, by: str) -> None:
    server, many = serve(frame_timeout_s=0.5), 20
    with es.blocking.connect(server.address) as store, ExitStack() as stack:
        store.broker.create_topic("orders", 1)
        waits = Pull(1, 4096, 60_000, wants=(("orders", 0, 0, None),)) if kind == "pulls" else Subscribe()
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(many)]
        ends = Ends("MessagePulls._serve" if kind == "pulls" else "Subscriptions._serve")
        server.ask(lambda _: trio.lowlevel.add_instrument(ends))
        for client in clients:
            client.send(b"".join(encode_request(number, waits) for number in range(2, 2 + BOUND_MAX)))
        gate = server.ask(lambda running: running.gate)
        wait_until(
            lambda: server.ask(lambda _: sum(len(each.bound) for each in gate.connections)) == many * BOUND_MAX, "all wait"
        )
        if by == "timeouts":
            for client in clients:
                client.send(b"x")
        else:
            server.ask(lambda _: [client.cut() for client in clients])
        wait_until(lambda: server.ask(lambda _: ends.all) == many * BOUND_MAX, "all have ended")
        server.ask(lambda _: trio.lowlevel.remove_instrument(ends))
    assert ends.most <= many * BOUND_MAX / 5


def test_closed_connections_leak_nothing(launch: Launch) -> None:
    server = launch()
    with RawClient(server.port) as client:
        client.send(append_frame(1, commit("a", "first")))
        client.answer()
        before = server.descriptors()
        for number in range(300):
            other = RawClient(server.port, greet=number % 3 != 0)
            if number % 2:
                other.send(append_frame(7, commit("a", f"c-{number}"))[: number % 50 + 1])
            if number % 5:
                other.close()
            else:
                other.cut()
        wait_until(lambda: server.descriptors() == before, "the descriptors are free again")
        assert client.ask(Ping()) == Ok()
    assert server.terminate() == 0


def test_without_descriptors_new_connections_wait_and_others_are_served(launch: Launch) -> None:
    server = launch()
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        client = stack.enter_context(RawClient(server.port))
        client.send(append_frame(5, commit("a", "c-0")))
        client.answer()
        lowest = max(map(int, os.listdir(f"/proc/{server.pid}/fd"))) + 1
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (lowest, hard))
        waiting: list[RawClient] = []

        def is_out() -> bool:
            waiting.append(stack.enter_context(RawClient(server.port, greet=False)))
            return bool(server.said("accepting pauses: Too many open files"))

        wait_until(is_out, "the descriptors run out")
        for number in range(1, 101):
            client.send(append_frame(5, commit("a", f"c-{number}")))
            assert outcomes_of(client.answer()[1])[0][:2] == (0, number + 1)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
        for late in waiting:
            late.greet()
            assert late.ask(Version("a")) == Ok((101,))
    assert server.terminate() == 0


@pytest.mark.heavy
def test_connections_leave_the_store_the_descriptors_it_needs(launch: Launch) -> None:
    server = launch(
        before=("sh", "-c", 'ulimit -n 96; exec "$@"', "sh"),
        open_files_max=4, file_size_bytes=64 * 1024, preallocate_bytes=16 * 1024,
    )  # fmt: skip
    assert server.said("fewer connections than set: raise the limit of open files (ulimit -n)")[0]["connections_max"] == 48
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for _ in range(48)]
        refused = [stack.enter_context(RawClient(server.port, greet=False)) for _ in range(20)]
        assert {type(each.error()[1]) for each in refused} == {Overloaded}
        for number in range(600):  # through several files, each of which is sorted by a child process
            client = clients[number % 48]
            client.send(append_frame(5 + number, commit(f"a-{number % 48}", f"c-{number}", bytes(1_000))))
            assert outcomes_of(client.answer()[1])[0][0] == 0
        with_sorted(server, clients[0])
        assert all(client.ask(Version("a-1")) == Ok((13,)) for client in clients)
    assert server.terminate() == 0


def with_sorted(server: ServerProcess, client: RawClient) -> None:
    wait_until(lambda: any("is sorted" in str(line["event"]) for line in server.lines()), "a file is sorted")
