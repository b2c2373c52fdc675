"""A lease is renewed as long as one member of etcd answers, however long another takes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.lease_keeping import keep_renewed
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.waiting import eventually

LEASE_S = 3
_PATIENT_S = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with running(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


async def test_a_lease_is_kept_through_a_member_that_hangs(etcd: Etcd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:  # accepts connections and answers nothing, as one that is paused
        endpoints = f"http://127.0.0.1:{hanging.getsockname()[1]}", etcd.url
        async with Gateway(EtcdOptions((etcd.url,))) as gateway:
            lease = await Lease.grant(gateway, LEASE_S)
        async with Gateway(EtcdOptions(endpoints, request_timeout_s=_PATIENT_S)) as gateway, trio.open_nursery() as nursery:
            first = lease.until
            lost = trio.Event()

            async def keep() -> None:
                await keep_renewed(gateway, lease, lambda: True)
                lost.set()

            async def settled() -> bool:
                return lost.is_set() or lease.until > first + LEASE_S

            nursery.start_soon(keep)
            await eventually(settled, "it has been renewed for longer than it lasts")
            assert not lost.is_set()
            nursery.cancel_scope.cancel()


async def test_a_lease_that_is_gone_is_noticed(etcd: Etcd) -> None:
    async with Gateway(EtcdOptions((etcd.url,))) as gateway:
        lease = await Lease.grant(gateway, LEASE_S)
        await Lease(lease.id, LEASE_S, 0.0).revoke(gateway)
        asked = []
        await keep_renewed(gateway, lease, lambda: asked.append(None) is None and len(asked) > 1)
        assert (lease.until, len(asked)) == (0.0, 2)
