"""MAP: a store that is no cluster is a cluster of one shard, and a map that does not come yet costs nothing."""

from __future__ import annotations

from eventstore.errors import InvalidArgument
from eventstore.protocol.handshake import read_map
from eventstore.protocol.requests import Map, Ping, Unsubscribe
from eventstore.records.cluster_map import single_map
from tests.server.conftest import Serve
from tests.server.raw import Ok, RawClient


def test_a_store_that_is_no_cluster_owns_every_slot_and_says_hello_as_ever(serve: Serve) -> None:
    with RawClient(serve().port) as client:
        assert client.welcome is not None
        assert (client.welcome.cluster, client.welcome.shard) == (None, None)
        answer = client.ask(Map())
        assert isinstance(answer, Ok)
        assert read_map(answer.values) == single_map(client.welcome.store)


def test_a_map_that_does_not_change_is_waited_for_until_the_client_ends_it(serve: Serve) -> None:
    with RawClient(serve().port) as client:
        waiting = client.send_request(Map(1))
        assert client.ask(Ping()) == Ok()
        assert client.ask(Unsubscribe(waiting)) == Ok()
        assert client.quiet()


def test_maps_that_wait_on_a_connection_are_bounded(serve: Serve) -> None:
    with RawClient(serve().port) as client:
        for _ in range(64):
            client.send_request(Map(1))
        refused = client.send_request(Map(1))
        answered, error = client.error()
        assert answered == refused
        assert isinstance(error, InvalidArgument)
        assert error.fields["limit"] == 64
