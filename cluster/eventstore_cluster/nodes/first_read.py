"""The first read of a registry in etcd: tried again for a while."""

from __future__ import annotations

from typing import Final

import trio

from eventstore_cluster.registry.etcd.errors import RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.registry import Snapshot

START_S: Final = 10.0
"""How long etcd is waited for that is not there yet."""
_RETRY_S: Final = 0.5


async def first_read(registry: EtcdRegistry, seconds: float = START_S) -> Snapshot:
    """Returns all keys, as soon as etcd answers.

    Raises:
        RegistryUnavailable: it has not in this time; names its endpoints.
        RegistryRefused, Corrupt
    """
    deadline = trio.current_time() + seconds
    while True:
        try:
            return await registry.read()
        except RegistryUnavailable as error:
            if trio.current_time() + _RETRY_S >= deadline:
                raise RegistryUnavailable(f"{error.message}, and that --etcd names it") from None
        await trio.sleep(_RETRY_S)
