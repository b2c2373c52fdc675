"""The first read of a registry in etcd: tried again for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from eventstore_cluster.registry.etcd.errors import RegistryUnavailable
from eventstore_cluster.registry.etcd.etcd_registry import EtcdRegistry
from eventstore_cluster.registry.registry import Snapshot

START_S: Final = 10.0
"""How long etcd is waited for that is not there yet."""
_RETRY_S: Final = 0.5


async def first_read(
    registry: EtcdRegistry, seconds: float = START_S, waits: Callable[[str], None] = lambda why: None
) -> Snapshot:
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
