"""An etcd for all tests of a module, and a name for the cluster of each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from eventstore_cluster.nodes.creation import create_cluster
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.node_keys import NodeKey
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.cluster.nodes.named_node import registry_of


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@pytest.fixture
def cluster() -> str:
    return f"c{uuid.uuid4().hex}"


@pytest.fixture
async def registry(etcd: Etcd, cluster: str) -> AsyncIterator[EtcdRegistry]:
    """A cluster of two shards on the first two of three nodes."""
    async with registry_of(etcd, cluster) as (_, opened):
        nodes = {f"node/n{at}": NodeKey(f"127.0.0.1:{at}", "run", "0").value() for at in (1, 2)}
        assert await opened.transact({}, nodes)
        await create_cluster(opened, 2, 2)
        assert await opened.transact({}, {"node/n3": NodeKey("127.0.0.1:3", "run", "0").value()})
        yield opened
