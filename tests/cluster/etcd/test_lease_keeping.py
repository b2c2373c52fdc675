"""A lease is renewed as long as one member of etcd answers, however long another takes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from itertools import count

import pytest
import trio

from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease, now
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
                await keep_renewed(gateway, lease, lambda: None)
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
        answers: list[str | None] = [None, "not now"]
        await keep_renewed(gateway, lease, answers.pop)
        assert (lease.until, answers) == (0.0, [])


async def test_the_log_says_that_a_lease_is_not_renewed_that_it_has_run_out_and_that_it_is_renewed_again_once_each(
    etcd: Etcd, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "eventstore.cluster")
    async with Gateway(EtcdOptions((etcd.url,))) as gateway, trio.open_nursery() as nursery:
        granted = await Lease.grant(gateway, 300)
        lease = Lease(granted.id, 1, now() + 1.0)  # as this one counts, it is soon over
        etcd.kill()
        tries = count(1)

        def refuses() -> None:
            next(tries)

        nursery.start_soon(keep_renewed, gateway, lease, refuses)

        async def tried_in_vain() -> bool:
            return len(caplog.messages) > 1 and next(tries) > 40  # half of them look

        await eventually(tried_in_vain, "the lease has run out, and is tried on")
        yet, over = caplog.messages
        assert yet.startswith("the lease is not renewed yet, and lasts another 0.")
        assert over.startswith("the lease has run out, and is not renewed; it is tried on: etcd does not answer")
        etcd.start()

        async def again() -> bool:
            return len(caplog.messages) > 2

        await eventually(again, "it is renewed")
        assert caplog.messages[2:] == ["the lease is renewed again"]
        nursery.cancel_scope.cancel()


async def test_that_a_lease_is_not_to_be_renewed_is_said_once(etcd: Etcd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventstore.cluster")
    async with Gateway(EtcdOptions((etcd.url,))) as gateway:
        granted = await Lease.grant(gateway, 300)
        left = iter(range(3))
        with trio.CancelScope() as scope:

            def refuses() -> str | None:
                if next(left, None) is None:
                    scope.cancel()
                return "the disk does not answer"

            await keep_renewed(gateway, Lease(granted.id, 1, now() + 3600.0), refuses)
    (said,) = caplog.messages
    assert said.startswith("the lease is not renewed yet, and lasts another 3")
    assert said.endswith(" s: the disk does not answer")
