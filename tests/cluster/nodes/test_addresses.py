"""Where a node and its replicas listen, and how others reach them."""

from __future__ import annotations

import pytest

from eventstore.errors import InvalidArgument
from eventstore_cluster.nodes.addresses import is_loopback, reached_by, replica_addresses


def test_a_replica_listens_above_its_node_for_clients_and_for_replicas_or_on_free_ports() -> None:
    assert replica_addresses("127.0.0.1:7701", 0) == ("127.0.0.1:7711", "127.0.0.1:7712")
    assert replica_addresses("n1:7701", 3) == ("n1:7717", "n1:7718")
    assert replica_addresses("127.0.0.1:0", 3) == ("127.0.0.1:0", "127.0.0.1:0")
    assert replica_addresses("127.0.0.1:65524", 0) == ("127.0.0.1:65534", "127.0.0.1:65535")
    with pytest.raises(InvalidArgument, match="65536 and 65537"):
        replica_addresses("127.0.0.1:65524", 1)


@pytest.mark.parametrize(
    ("listen_at", "advertise", "host"),
    [
        ("10.0.0.1:7701", None, "10.0.0.1"),
        ("0.0.0.0:7701", "n1.example", "n1.example"),
        ("10.0.0.1:7701", "203.0.113.1", "203.0.113.1"),
        ("[::]:7701", "2001:db8::1", "[2001:db8::1]"),
        ("::1:7701", None, "[::1]"),
    ],
)
def test_others_reach_a_node_where_it_listens_or_as_it_says(listen_at: str, advertise: str | None, host: str) -> None:
    assert reached_by(listen_at, advertise) == host


@pytest.mark.parametrize(
    ("listen_at", "advertise"), [("0.0.0.0:1", None), ("[::]:1", None), (":::1", None), ("n1:1", "::"), ("n1:1", "")]
)
def test_an_address_that_means_all_addresses_is_none_for_others(listen_at: str, advertise: str | None) -> None:
    with pytest.raises(InvalidArgument, match="--advertise"):
        reached_by(listen_at, advertise)


def test_names_are_not_resolved_to_see_whether_they_are_loopback() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "[::1]", "localhost")] == [True] * 4
    assert [is_loopback(each) for each in ("10.0.0.1", "[2001:db8::1]", "localhost.example")] == [False] * 3
