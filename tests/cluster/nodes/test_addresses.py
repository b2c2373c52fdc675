"""Where a node and its replicas listen, and how others reach them."""

from __future__ import annotations

import pytest

from eventstore.errors import InvalidArgument
from eventstore.security.loopback import is_loopback
from eventstore_cluster.nodes.addresses import check_apart, check_http, reached_by, replica_addresses


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


def test_nodes_on_one_host_whose_ports_collide_are_told_which_and_the_next_choice() -> None:
    nodes = {"n1": "127.0.0.1:7701", "n2": "127.0.0.1:7711", "n3": "10.0.0.3:7701"}
    said = (
        r"port 7711 of 127.0.0.1 is that of shard 0 on n1 and of node n2: .* 2 for each of 2 shards\. Start n2 with --listen "
    )
    with pytest.raises(InvalidArgument, match=f"{said}127.0.0.1:7719") as refused:
        check_apart("n2", nodes, 2)
    check_apart("n2", {**nodes, "n2": f"127.0.0.1:{refused.value.limit}"}, 2)
    check_apart("n2", {**nodes, "n2": f"127.0.0.1:{refused.value.limit}"}, 4)
    check_apart("n2", {**nodes, "n2": "127.0.0.1:7702", "n4": "127.0.0.1:7703"}, 0)
    check_apart("n3", nodes, 2)
    with pytest.raises(InvalidArgument, match=r"Start n2 with --listen 127\.0\.0\.1:7705"):
        check_apart("n2", {"n1": "127.0.0.1:7701", "n2": "127.0.0.1:7701"}, 1)


def test_the_port_for_metrics_is_not_that_of_a_shard() -> None:
    check_http("127.0.0.1:7702", "127.0.0.1:7701", 0)
    check_http(None, "127.0.0.1:7701", 0)
    check_http("127.0.0.1:0", "127.0.0.1:0", 0)
    with pytest.raises(
        InvalidArgument, match=r"--http 127.0.0.1:7714 has a port of shard 1, which listens from port 7711 on, 2 for"
    ):
        check_http("127.0.0.1:7714", "127.0.0.1:7701", 1)
