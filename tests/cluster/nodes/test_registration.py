"""A node takes its name in an etcd that hangs, or that started only just now."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import trio

from eventstore.settings.server import ServerSettings
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.nodes.registration import Registration
from eventstore_cluster.registry.etcd.errors import RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.node_keys import NodeKey
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.waiting import eventually

pytestmark = pytest.mark.heavy
NAME, ADDRESS = "n1", "127.0.0.1:1"


def registration(gateway: Gateway, registry: EtcdRegistry, etcd: Etcd, data: Path) -> Registration:
    settings = ServerSettings(data=data, listen="127.0.0.1:0")
    options = ReplicatedOptions(settings, {}, NAME, "test", EtcdOptions((etcd.url,)), 2, "127.0.0.1")
    return Registration(gateway, registry, options, ADDRESS)


async def test_an_etcd_that_hangs_while_a_node_registers_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def waits() -> bool:
        return "waiting for etcd" in caplog.text

    with running(tmp_path) as (etcd,):
        async with Gateway(EtcdOptions((etcd.url,), request_timeout_s=1.0)) as gateway:
            registry = EtcdRegistry(gateway, "test")
            seen = await registry.read()
            etcd.send(signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(registration(gateway, registry, etcd, tmp_path).take, seen)
                await eventually(waits, "it waits for etcd")
                etcd.send(signal.SIGCONT)
            key = (await registry.read()).value(f"node/{NAME}")
            assert key is not None
            assert key["address"] == ADDRESS


async def test_a_node_that_starts_again_with_its_etcd_gets_its_name(tmp_path: Path) -> None:
    with running(tmp_path) as (etcd,):
        async with Gateway(EtcdOptions((etcd.url,))) as gateway:
            registry = EtcdRegistry(gateway, "test")
            lease = await Lease.grant(gateway, 2)
            killed = NodeKey("127.0.0.1:2", "killed", "0").value()
            assert await registry.transact({}, {f"node/{NAME}": killed}, lease=lease)
            etcd.kill()
            etcd.start()
            etcd.ready()  # it gives the lease its whole time once more
            await registration(gateway, registry, etcd, tmp_path).take(await registry.read())
            key = (await registry.read()).value(f"node/{NAME}")
            assert key is not None
            assert key["address"] == ADDRESS


async def test_an_etcd_that_dies_while_a_node_waits_for_its_name_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def waits() -> bool:
        return "waiting for the name of the node" in caplog.text

    with running(tmp_path) as (etcd,):
        async with Gateway(EtcdOptions((etcd.url,), request_timeout_s=1.0)) as gateway:
            registry = EtcdRegistry(gateway, "test")
            killed = NodeKey("127.0.0.1:2", "killed", "0").value()
            assert await registry.transact({}, {f"node/{NAME}": killed}, lease=await Lease.grant(gateway, 60))
            with pytest.RaisesGroup(pytest.RaisesExc(RegistryUnavailable, match="etcd does not answer")):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(registration(gateway, registry, etcd, tmp_path).take, await registry.read())
                    await eventually(waits, "it waits for its name")
                    etcd.kill()
