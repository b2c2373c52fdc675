"""A node takes its name in an etcd that hangs, or that started only just now."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.typing import EventDict

from eventstore.settings.server import ServerSettings
from eventstore_cluster.nodes.options import ReplicatedOptions
from eventstore_cluster.nodes.registration import Registration
from eventstore_cluster.registry.etcd.errors import OutcomeUnknown, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.failing import Failing
from eventstore_cluster.registry.node_keys import NodeKey, read_node
from tests.cluster.etcd.real_etcd import Etcd, running
from tests.waiting import eventually

pytestmark = pytest.mark.heavy
FAILING = Failing(0, 1, "the disk is full")
NAME, ADDRESS = "n1", "127.0.0.1:1"


def registration(
    gateway: Gateway, registry: EtcdRegistry, etcd: Etcd, data: Path, failing: Callable[[], tuple[Failing, ...]] = tuple
) -> Registration:
    settings = ServerSettings(data=data, listen="127.0.0.1:0")
    options = ReplicatedOptions(settings, {}, NAME, "test", EtcdOptions((etcd.url,)), 2, "127.0.0.1")
    return Registration(gateway, registry, options, ADDRESS, failing)


async def test_an_etcd_that_hangs_while_a_node_registers_is_waited_for(tmp_path: Path, logged: list[EventDict]) -> None:
    async def waits() -> bool:
        return any(each["event"] == "waiting for etcd" for each in logged)

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


async def test_an_etcd_that_dies_while_a_node_waits_for_its_name_is_named(tmp_path: Path, logged: list[EventDict]) -> None:
    async def waits() -> bool:
        return any(each["event"] == "waiting for the name of the node" for each in logged)

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


class Losing(Gateway):
    """`lost`: the next transactions are lost, or only their answers."""

    lost: str | None = None

    async def call(self, path: str, body: Mapping[str, Any], *, changes: bool = False) -> dict[str, Any]:
        lost = self.lost if path == "/v3/kv/txn" else None
        answer = {} if lost == "requests" else await super().call(path, body, changes=changes)
        if lost is not None:
            raise OutcomeUnknown("the answer of etcd was lost")
        return answer


@pytest.mark.parametrize(
    ("lost", "then"), [("requests", (FAILING,)), ("requests", ()), ("answers", (FAILING,)), ("answers", ())]
)
async def test_what_does_not_run_is_told_also_if_etcd_lost_it_or_did_not_say_that_it_has_it(
    tmp_path: Path, lost: str, then: tuple[Failing, ...]
) -> None:
    with running(tmp_path) as (etcd,):
        async with Losing(EtcdOptions((etcd.url,))) as gateway:
            registry, failing = EtcdRegistry(gateway, "test"), tuple[Failing, ...]()
            own = registration(gateway, registry, etcd, tmp_path, lambda: failing)
            await own.take(await registry.read())
            lease = own._lease
            assert lease is not None
            failing, gateway.lost = (FAILING,), lost
            with pytest.raises(OutcomeUnknown):
                await own._tell(lease)
            failing, gateway.lost = then, None
            await own._tell(lease)
            value = (await registry.read()).value(f"node/{NAME}")
            assert value is not None
            assert read_node(NAME, value).failing == then
