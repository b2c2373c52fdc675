"""Nodes that show each other certificates, and know who their clients are: as real processes beside a real etcd."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from eventstore import blocking
from eventstore.errors import PermissionDenied, Unauthenticated
from eventstore.model import ANY, NewEvent
from eventstore.security.audit import AUDIT
from eventstore_cluster.nodes.moving.plans import start_draining
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.replicated_keys import LEADERS
from eventstore_cluster.replication.audited_state import ELECTED, REQUESTED
from tests.cli.processes import run
from tests.cluster.etcd.real_etcd import Etcd
from tests.cluster.nodes.named_node import NamedNode, keys
from tests.security.access_file import give
from tests.security.conftest import Certificates
from tests.waiting import wait_until

pytestmark = pytest.mark.heavy


def secured(tmp_path: Path, certificates: Certificates, name: str) -> tuple[dict[str, Any], str]:
    """Returns the settings of a node, and the token of a client that every node knows."""
    file = tmp_path / "access" / "access.json"
    token = give(file.parent, "orders", "writer:order-") if not file.exists() else ""
    give(file.parent, "nodes", "cluster", "command", certificates=["CN=localhost"])
    return {**certificates.settings(), "access_file": str(file)}, token


@pytest.mark.long
def test_replicas_follow_over_tls_and_only_nodes_may(
    tmp_path: Path, etcd: Etcd, cluster: str, certificates: Certificates
) -> None:
    settings, token = secured(tmp_path, certificates, "n1")
    context, auditor = certificates.context(), give(tmp_path / "access", "auditor", "read")
    with (
        NamedNode(tmp_path, "n1", etcd.url, cluster, **settings) as one,
        NamedNode(tmp_path, "n2", etcd.url, cluster, **settings) as two,
    ):
        created = run(
            "cluster", "create", "--shards", 1, "--replicas", 2, "--cluster", cluster, "--etcd", etcd.url, "--wait", 0
        )
        assert "was created" in created.stderr
        both = f"{one.address},{two.address}"
        assert both.count("tls://") == 2
        wait_until(lambda: any(key.startswith(LEADERS) for key in keys(etcd, cluster).entries), "a replica leads")
        with blocking.connect(both, ssl_context=context, token=token, reconnect_timeout=60) as store:
            done = store.append("order-1", [NewEvent("Placed", b"{}")], expected_version=ANY, command_id="c-1")
            assert done.version == 1  # both replicas have it: fewer are not enough
            with pytest.raises(PermissionDenied):
                store.append("x-1", [NewEvent("Placed", b"{}")], expected_version=ANY, command_id="c-1")
        with blocking.connect(both, ssl_context=context, token=auditor) as store:
            shard = f"tls://{store.cluster_map().shards[0].leader}"
        with blocking.connect(shard, ssl_context=context, token=auditor) as store:

            def audited() -> list[Any]:
                return [json.loads(event.data) for event in store.read(AUDIT)]

            wait_until(lambda: any(each["what"] == ELECTED for each in audited()), "that it leads is recorded")
            (record,) = [each for each in audited() if each["what"] == ELECTED]
            assert (record["origin"], record["details"]["epoch"]) == ("etcd", 1)
            assert record["who"].endswith("(claimed)"), "who created the cluster"
            assert record["details"]["replicas"] in ("n1, n2", "n2, n1")
            start_draining(EtcdOptions((etcd.url,), by="ann"), cluster, "n2")
            wait_until(lambda: any(each["what"] == REQUESTED for each in audited()), "what is asked of a node is recorded")
            (record,) = [each for each in audited() if each["what"] == REQUESTED]
            assert (record["who"], record["details"]["node"], record["details"]["draining"]) == ("ann", "n2", True)
        with pytest.raises(Unauthenticated):
            blocking.connect(one.address, ssl_context=context).__enter__()
        leader = next(value for key, value in peers(etcd, cluster))
        host, _, port = leader.rpartition(":")
        for client in ("billing", None):  # a certificate of the CA that is no node's, and none
            with socket.create_connection((host, int(port))) as plain:
                try:
                    with certificates.context(client).wrap_socket(plain, server_hostname="localhost") as stranger:
                        answered = stranger.recv(1)
                except OSError:
                    answered = b""
                assert answered == b"", "one that is let in is greeted"
        wait_until(lambda: one.said("a connection is refused") + two.said("a connection is refused"), "that is logged")
        assert not one.said("this replica may not be reached") + two.said("this replica may not be reached")


def peers(etcd: Etcd, cluster: str) -> list[tuple[str, str]]:
    """Returns where the leaders of shards talk to their followers."""
    found = []
    for key in keys(etcd, cluster).entries:
        value = keys(etcd, cluster).value(key)
        if key.startswith(LEADERS) and value is not None:
            found.append((key, str(value["address"])))
    return found
