"""The address of a node: the map, at once or when it changes, and Elsewhere for every other request."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from eventstore import flat
from eventstore.errors import Elsewhere
from eventstore.protocol.answers import Failure, Ok
from eventstore.protocol.handshake import read_map
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Append, Hello, Map, Ping, Read, Stats, Subscribe, Unsubscribe, Version
from eventstore.records.cluster_map import ClusterMap, Shard, even_slots
from eventstore.server.access.security import Security
from eventstore.server.bootstrap import bind, gate_limits, listen
from eventstore.settings.server import ServerSettings
from eventstore_cluster.entry import ClusterEntry
from tests.security.access_file import give
from tests.server.raw import RawClient
from tests.service_thread import ServiceThread

CLUSTER = uuid.UUID(int=7)


def map_of_version(version: int) -> ClusterMap:
    shards = (Shard(number, bytes(15) + bytes([number]), slots) for number, slots in enumerate(even_slots(2)))
    return ClusterMap(CLUSTER.bytes, version, 1, tuple(shards))


class Running:
    """An entry that serves until `stop`."""

    def __init__(self, entry: ClusterEntry, address: str, scope: trio.CancelScope) -> None:
        self.entry, self.address, self.http_address = entry, address, None
        self._scope = scope

    def stop(self) -> None:
        self._scope.cancel()


async def begin(nursery: trio.Nursery, settings: ServerSettings) -> Running:
    listener = bind(settings.listen)
    listen(listener, settings.listen)
    security = Security(settings)
    entry = ClusterEntry(listener, gate_limits(settings), lambda: {"shards": 2}, security=security)
    entry.publish(map_of_version(3))
    await nursery.start(entry.run)
    return Running(entry, f"tcp://127.0.0.1:{listener.getsockname()[1]}", nursery.cancel_scope)


@pytest.fixture
def served() -> Iterator[ServiceThread[Running]]:
    with ServiceThread(begin, {}) as running:
        yield running


def test_hello_names_the_cluster_and_no_shard(served: ServiceThread[Running]) -> None:
    with RawClient(served.port) as client:
        assert client.welcome is not None
        assert (client.welcome.store, client.welcome.cluster) == (CLUSTER.bytes, CLUSTER.bytes)
        assert (client.welcome.map_version, client.welcome.shard, client.welcome.node) == (3, None, None)
        assert client.ask(Ping()) == Ok()
        assert client.ask(Stats()) == Ok(("shards", 2))


@pytest.mark.parametrize(
    "request_",
    [
        Append([("a", 0, "c", None, flat.encode(["T", b"1", None, 0]))]), Read("a"), Version("a"), Subscribe(0),
    ],
    ids=lambda each: type(each).__name__,
)  # fmt: skip
def test_everything_else_is_elsewhere_as_a_whole(served: ServiceThread[Running], request_: Request) -> None:
    with RawClient(served.port) as client:
        answer = client.ask(request_)
        assert isinstance(answer, Failure)
        assert isinstance(answer.error, Elsewhere)
        assert answer.error.fields == {"slot": None, "map_version": 3}


def test_a_newer_map_is_told_to_those_who_wait_for_it_and_not_to_one_that_has_ended(served: ServiceThread[Running]) -> None:
    with RawClient(served.port) as waiting, RawClient(served.port) as ended:
        number = waiting.send_request(Map(3))
        gone = ended.send_request(Map(3))
        assert ended.ask(Unsubscribe(gone)) == Ok()
        assert ended.ask(Unsubscribe(gone)) == Ok()
        assert waiting.ask(Ping()) == Ok()
        served.ask(lambda running: running.entry.publish(map_of_version(5)))
        answered, answer = waiting.answer()
        assert answered == number
        assert isinstance(answer, Ok)
        assert read_map(answer.values) == map_of_version(5)
        assert ended.quiet()


def test_an_identity_at_its_limit_of_requests_is_answered_one_after_the_other(tmp_path: Path) -> None:
    token = give(tmp_path, "billing", "reader", limits={"requests": 1})
    with ServiceThread(begin, {"data": tmp_path}) as guarded, RawClient(guarded.port, greet=False) as client:
        assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
        asked = [client.send_request(Ping()) for _ in range(20)]
        assert [client.answer() for _ in asked] == [(number, Ok()) for number in asked]
        assert guarded.ask(lambda running: running.entry._door.budgets.held) == 21
