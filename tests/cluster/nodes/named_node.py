"""A real node of a cluster with replicas, and the registry that tests look into."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.error import HTTPError

import trio

from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import RegistrySnapshot
from tests.cluster.node_process import NodeProcess

T = TypeVar("T")


class HasUrl(Protocol):
    """An etcd; the URLs of several members are separated by commas."""

    @property
    def url(self) -> str: ...


class NamedNode(NodeProcess):
    """`eventstore node --name` on free ports of the loopback interface."""

    def __init__(
        self,
        folder: Path,
        name: str,
        etcd: str,
        cluster: str,
        *,
        options: Sequence[str] = (),
        **given: Any,
    ) -> None:
        self.name = name
        of_cluster = ["--name", name, "--etcd", etcd, "--cluster", cluster, *options]
        super().__init__(folder / name, options=of_cluster, **given)

    def health(self) -> dict[str, Any]:
        """Returns it also while all replicas start, when it is unhealthy."""
        try:
            return super().health()
        except HTTPError as answer:
            with answer:
                found: dict[str, Any] = json.load(answer)
                return found

    def attention(self) -> str:
        return str(self.health()["attention"])

    def replicas(self) -> list[int]:
        """Returns the shards whose processes it has."""
        return [each["shard"] for each in self.health()["shards"]]


@asynccontextmanager
async def registry_of(etcd: HasUrl, cluster: str, by: str = "") -> AsyncIterator[tuple[Gateway, EtcdRegistry]]:
    async with Gateway(EtcdOptions(tuple(etcd.url.split(",")), request_timeout_s=5.0, by=by)) as gateway:
        yield gateway, EtcdRegistry(gateway, cluster)


def keys(etcd: HasUrl, cluster: str) -> RegistrySnapshot:
    """Returns what the registry holds."""

    async def read() -> RegistrySnapshot:
        async with registry_of(etcd, cluster) as (_, registry):
            return await registry.read()

    return trio.run(read)


def change(etcd: HasUrl, cluster: str, changes: Callable[[RegistrySnapshot], dict[str, Any]]) -> None:
    """Changes keys, whoever else writes them."""

    async def write() -> None:
        async with registry_of(etcd, cluster) as (_, registry):
            assert await registry.transact({}, changes(await registry.read()))

    trio.run(write)
