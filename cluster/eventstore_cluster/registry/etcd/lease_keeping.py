"""Renews a lease through a member of etcd that does not answer, and through an election among its members.

A paused member answers nothing until a request to it times out, and a follower waits for the leader it knows. So if a member
has not answered soon, the next is asked as well, and the first answer counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from eventstore_cluster.registry.etcd.errors import RegistryRefused, RegistryUnavailable
from eventstore_cluster.registry.etcd.gateway import Gateway
from eventstore_cluster.registry.etcd.lease import Lease, now

_RENEWALS: Final = 3
"""In the time of a lease, while etcd answers."""
_SOON: Final = 0.1
"""The part of the time of a lease after which the next member is asked."""
_log = logging.getLogger("eventstore.cluster")


async def keep_renewed(gateway: Gateway, lease: Lease, refuses: Callable[[], str | None]) -> None:
    """Renews the lease; returns when etcd does not know it any more. `refuses`: returns why the lease must not be renewed now;
    None if it may be. Logs when the lease is not renewed, when it is again, and that it ran out between.
    """
    async with trio.open_nursery() as asking:
        renewed, attempt, spell = trio.current_time(), 0, _Spell(lease)

        async def ask(attempt: int) -> None:
            nonlocal renewed
            asked = trio.current_time()
            try:
                kept = await lease.keep_alive(gateway, attempt)
            except (RegistryUnavailable, RegistryRefused) as error:
                if asked > renewed:
                    spell.goes_on(error.message)
                else:
                    _log.info("the lease was renewed by another member of etcd: %s", error.message)
                return
            if not kept:
                asking.cancel_scope.cancel()
                return
            renewed = max(renewed, asked)
            spell.ends()

        while True:
            due = renewed + lease.ttl_s / _RENEWALS
            if trio.current_time() < due:
                attempt = 0
                await trio.sleep_until(due)
                continue
            if (why := refuses()) is None:
                asking.start_soon(ask, attempt)
            else:
                spell.goes_on(why)
            attempt += 1
            await trio.sleep(lease.ttl_s * _SOON)


class _Spell:
    """A time in which the lease is not renewed. Logs it twice at most, and its end."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._said = self._said_over = False

    def goes_on(self, why: str) -> None:
        left_s = self._lease.until - now()
        if left_s <= 0.0:
            if not self._said_over:
                _log.warning("the lease has run out, and is not renewed; it is tried on: %s", why)
            self._said = self._said_over = True
        elif not self._said:
            _log.warning("the lease is not renewed yet, and lasts another %.1f s: %s", left_s, why)
            self._said = True

    def ends(self) -> None:
        if self._said:
            _log.info("the lease is renewed again")
        self._said = self._said_over = False
