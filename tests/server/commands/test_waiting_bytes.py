"""The bytes of commands that wait for their handlers are bounded, for a connection and for all."""

from __future__ import annotations

import pytest

import eventstore as es
from eventstore.protocol.answers import Failure
from eventstore.protocol.request_codec import encode_send
from eventstore.protocol.requests import Ping
from tests.server.commands.domain_hosts import DomainHost
from tests.server.commands.tallies import Add, Rename, Wait
from tests.server.commands.test_mixed import added, append, release, row, send, waiting
from tests.server.conftest import Begin
from tests.server.raw import Ok, RawClient, outcomes_of
from tests.waiting import wait_until

MIB = 1024 * 1024
LARGE = "x" * (4 * MIB - 1_000)


def waiting_bytes(running: DomainHost) -> int:
    return int(running.stats()["commands_waiting_bytes"])


def frames(first: int, count: int, aggregate: str = "a") -> list[bytes]:
    return [
        encode_send(number, row(Rename(aggregate, LARGE), f"{aggregate}-{number}")) for number in range(first, first + count)
    ]


def send_as_far_as_read(client: RawClient, data: memoryview) -> int:
    """Sends without waiting; returns how many bytes it was."""
    client.socket.setblocking(False)
    try:
        return client.socket.send(data)
    except BlockingIOError:
        return 0
    finally:
        client.socket.settimeout(60)


def test_a_connection_is_read_no_further_while_its_large_commands_wait(host: Begin) -> None:
    running = host(waiting_commands_bytes_max=16 * MIB)
    with RawClient(running.port) as client, RawClient(running.port) as other:
        client.send(send(2, Wait("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        data, sent = memoryview(b"".join(frames(3, 12))), 0

        def is_held() -> bool:
            nonlocal sent
            sent += send_as_far_as_read(client, data[sent:])
            return waiting_bytes(running) > 16 * MIB

        wait_until(is_held, "as much waits as may")
        for _ in range(50):
            assert other.ask(Ping()) == Ok()
            sent += send_as_far_as_read(client, data[sent:])
        assert waiting_bytes(running) < 21 * MIB
        assert sent < len(data)
        release(running, "a")
        client.send(bytes(data[sent:]))
        assert [client.answer()[0] for _ in range(13)] == list(range(2, 15))
        assert waiting_bytes(running) == 0


def test_over_the_bound_of_all_connections_commands_are_refused_until_there_is_room(host: Begin) -> None:
    running = host(mailbox_waiting_bytes_max=18 * MIB)
    with RawClient(running.port) as client, RawClient(running.port) as other, running.connect() as store:
        client.send(send(2, Wait("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        for frame in frames(3, 5):
            client.send(frame)
        request_id, error = client.error()
        assert (request_id, type(error)) == (7, es.Overloaded)
        assert error.fields["limit"] == 18 * MIB
        other.send(frames(8, 1, "b")[0])
        assert other.error()[0] == 8
        assert store.send(Add("c")).version == 1  # type: ignore[union-attr] # a small one fits
        assert waiting_bytes(running) < 18 * MIB
        release(running, "a")
        assert [client.answer()[0] for _ in range(5)] == [2, 3, 4, 5, 6]
        other.send(frames(9, 1, "b")[0])
        assert other.answer()[0] == 9
        assert waiting_bytes(running) == 0


@pytest.mark.parametrize("gone", [False, True])
def test_what_is_refused_or_belongs_to_a_lost_connection_is_counted_no_more(host: Begin, gone: bool) -> None:
    running = host()
    with RawClient(running.port) as client:
        client.send(encode_send(2, ("Unknown", "a", "c-1", b"{}", None)))
        assert not isinstance(client.answer()[1], Failure)
        assert waiting_bytes(running) == 0
        client.send(send(3, Wait("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        assert waiting_bytes(running) > 0
        if gone:
            client.close()
        release(running, "a")
    wait_until(lambda: waiting_bytes(running) == 0, "nothing waits")


def test_plain_appends_that_wait_behind_commands_are_bounded_too(host: Begin) -> None:
    running = host(mailbox_waiting_bytes_max=18 * MIB)
    if running.worker is not None:
        return  # it takes no appends
    with RawClient(running.port) as client, running.connect() as store:
        client.send(send(2, Wait("a")))
        wait_until(lambda: waiting(running, "a"), "the handler waits")
        large = es.NewEvent("Renamed", b'{"name":"' + LARGE.encode() + b'"}')
        for number in range(3, 8):
            client.send(append(number, "a", None, large))
        request_id, answer = client.answer()
        assert request_id == 7
        assert outcomes_of(answer)[0][:2] == (3, es.Overloaded.code)
        assert store.append("b", [added(1, 0)], 0).version == 1
        release(running, "a")
        assert [outcomes_of(client.answer()[1])[0][0] for _ in range(5)] == [0] * 5
        client.send(append(8, "a", None, large))
        assert outcomes_of(client.answer()[1])[0][0] == 0
