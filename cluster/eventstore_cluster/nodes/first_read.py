"""Reads a registry in etcd for a command: the first time, and until what it waits for is there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from eventstore.errors import EventStoreError
from eventstore_cluster.registry.etcd.errors import RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.options import EtcdOptions
from eventstore_cluster.registry.registry import RegistrySnapshot
from eventstore_cluster.registry.replicated_keys import CLUSTER

START_S: Final = 10.0
"""How long etcd is waited for that is not there yet."""
_RETRY_S: Final = 0.5
T = TypeVar("T")
_log = logging.getLogger("eventstore.cluster")


def on_registry(etcd: EtcdOptions, cluster: str, do: Callable[[EtcdRegistry], Awaitable[T]]) -> T:
    """Runs what works on the registry, in an event loop of its own, and returns what it returns."""

    async def run() -> T:
        async with Gateway(etcd) as gateway:
            return await do(EtcdRegistry(gateway, cluster))

    return trio.run(run)


def wait_on_registry(
    etcd: EtcdOptions, cluster: str, pending: Callable[[RegistrySnapshot], object], wait_s: float
) -> tuple[RegistrySnapshot, float]:
    """Runs `read_while` in an event loop of its own. Returns its result, and how many seconds that took."""

    async def waited(registry: EtcdRegistry) -> tuple[RegistrySnapshot, float]:
        began = trio.current_time()
        return await read_while(registry, pending, wait_s), trio.current_time() - began

    return on_registry(etcd, cluster, waited)


def _warn(why: str) -> None:
    _log.warning("waiting for etcd: %s", why)  # a command prints it on standard error


async def first_read(
    registry: EtcdRegistry, seconds: float = START_S, waits: Callable[[str], None] = _warn
) -> RegistrySnapshot:
    """Returns all keys, as soon as etcd answers. `waits` is called once if it does not at first, and told why.

    Raises:
        RegistryUnavailable: it has not in this time; names its endpoints.
        RegistryRefused, Corrupt
    """
    deadline, waited = trio.current_time() + seconds, False
    while True:
        try:
            return await registry.read()
        except RegistryUnavailable as error:
            if trio.current_time() + _RETRY_S >= deadline:
                raise RegistryUnavailable(f"{error.message}, and that --etcd names it") from None
            if not waited:
                waits(error.message)
            waited = True
        await trio.sleep(_RETRY_S)


async def first_read_of_cluster(registry: EtcdRegistry, seconds: float = START_S) -> RegistrySnapshot:
    """Returns all keys of a cluster that was created, as soon as etcd answers.

    Raises:
        EventStoreError: etcd has no such cluster.
        RegistryUnavailable: etcd has not answered in this time; names its endpoints.
        RegistryRefused, Corrupt
    """
    seen = await first_read(registry, seconds)
    if CLUSTER in seen.entries:
        return seen
    try:
        others = await registry.clusters(CLUSTER)
    except RegistryRefused:
        others = []
    if others:
        raise EventStoreError(
            f"etcd has no cluster {registry.name}, but {', '.join(others)}: name that with --cluster; `eventstore cluster "
            "create` makes a new one"
        )
    raise EventStoreError(
        f"etcd has no cluster {registry.name}, and names no other: check --etcd, or make it with `eventstore cluster create`; "
        "if it was there, etcd has lost its data: `eventstore cluster rebuild`, and not create"
    )


async def read_while(
    registry: EtcdRegistry, pending: Callable[[RegistrySnapshot], object], wait_s: float, seen: RegistrySnapshot | None = None
) -> RegistrySnapshot:
    """Returns all keys as soon as nothing is pending in them, or as they are after `wait_s` seconds. `seen`: the keys as they
    were read last, if they were.

    Raises:
        RegistryUnavailable, RegistryRefused
    """
    found = seen or await registry.read()
    with trio.move_on_after(wait_s):
        while pending(found):
            found = await registry.changed(found)
    return found
