"""What the status of a cluster says of shards that do not answer."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

from eventstore.records.cluster_map import ClusterMap, Shard
from eventstore_cluster.status import status_of
from tests.security.conftest import Certificates
from tests.server_thread import ServerThread


def error_of(leader: str) -> str:
    """Returns what is said of a shard that a registry has at this address."""
    known = ClusterMap(uuid.uuid4().bytes, 1, 1, (Shard(0, uuid.uuid4().bytes, ((0, 4095),), leader),))
    (row,) = status_of(known, None, 0).shards
    assert row.error is not None
    return row.error


def test_a_shard_that_takes_tls_only_is_answered_by_what_to_add_and_one_that_is_away_by_where_to_look(
    tmp_path: Path, certificates: Certificates
) -> None:
    with ServerThread(tmp_path / "data", **certificates.settings()) as server:
        said = error_of(server.address.partition("://")[2])
        assert said.endswith("with --etcd give --tls-ca (EVENTSTORE_TLS_CA)"), "the log has nothing to add"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert error_of(f"127.0.0.1:{port}").endswith("is the server running?; the log of its node says why")
