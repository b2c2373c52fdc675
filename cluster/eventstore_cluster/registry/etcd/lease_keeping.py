"""Renews a lease through a member of etcd that does not answer, and through an election among its members.

A member that is paused answers nothing until a request to it times out, and one that follows waits for the leader it knows.
So one that has not answered soon is left waiting, and the next is asked: the first answer counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from eventstore_cluster.registry.etcd.errors import RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease

_RENEWALS: Final = 3
"""In the time of a lease, while etcd answers."""
_SOON: Final = 0.1
"""The part of the time of a lease after which the next member is asked."""
_log = logging.getLogger("eventstore.cluster")


async def keep_renewed(gateway: Gateway, lease: Lease, may_ask: Callable[[], bool]) -> None:
    """Renews the lease while `may_ask` says so; returns when etcd does not know it any more."""
    async with trio.open_nursery() as asking:
        renewed, attempt = trio.current_time(), 0

        async def ask(attempt: int) -> None:
            nonlocal renewed
            asked = trio.current_time()
            try:
                kept = await lease.keep_alive(gateway, attempt)
            except (RegistryUnavailable, RegistryRefused) as error:
                _log.log(logging.WARNING if attempt == 0 else logging.DEBUG, "the lease cannot be renewed: %s", error.message)
                return
            if not kept:
                asking.cancel_scope.cancel()
            renewed = max(renewed, asked)

        while True:
            due = renewed + lease.ttl_s / _RENEWALS
            if trio.current_time() < due:
                attempt = 0
                await trio.sleep_until(due)
                continue
            if may_ask():
                asking.start_soon(ask, attempt)
            attempt += 1
            await trio.sleep(lease.ttl_s * _SOON)
