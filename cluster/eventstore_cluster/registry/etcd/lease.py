"""A lease in etcd: its keys are gone when it is not renewed in time.

Its end is counted on CLOCK_BOOTTIME, which runs while the machine sleeps, from before the request that renewed it: so it never
ends later here than at etcd, as long as both clocks run equally fast; `MARGIN` is for clocks that do not (R11).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from eventstore_cluster.registry.etcd.errors import RegistryRefused
from eventstore_cluster.registry.etcd.gateway import Gateway

MARGIN: Final = 0.98


def now() -> float:
    """Returns the seconds since the machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Lease:
    """A lease.

    Attributes:
        until: keys under it exist at least until then, by `now`; 0 once it is gone.
    """

    id: int
    ttl_s: int
    until: float

    @staticmethod
    async def grant(gateway: Gateway, ttl_s: int) -> Lease:
        """Raises RegistryUnavailable, OutcomeUnknown (the lease, if there is one, runs out by itself), RegistryRefused."""
        asked = now()
        answer = await gateway.call("/v3/lease/grant", {"TTL": str(ttl_s)}, changes=True)
        granted = min(ttl_s, int(answer["TTL"]))
        return Lease(int(answer["ID"]), ttl_s, asked + granted * MARGIN)

    async def keep_alive(self, gateway: Gateway, attempt: int | None = None) -> bool:
        """Renews the lease. Returns False if etcd does not know it any more. `attempt`: asks one endpoint only, another one for
        each number; several attempts may be under way together.

        Raises:
            RegistryUnavailable: it may still be renewed, until it runs out.
            RegistryRefused
        """
        asked, path, body = now(), "/v3/lease/keepalive", {"ID": str(self.id)}
        answer = await (gateway.call(path, body) if attempt is None else gateway.call_one(attempt, path, body))
        granted = min(self.ttl_s, int(answer.get("result", {}).get("TTL", 0)))
        self.until = max(self.until, asked + granted * MARGIN) if granted > 0 else 0.0
        return granted > 0

    async def revoke(self, gateway: Gateway) -> None:
        """Deletes the lease and its keys; nothing if it is gone already."""
        self.until = 0.0
        try:
            await gateway.call("/v3/lease/revoke", {"ID": str(self.id)})
        except RegistryRefused as error:
            if error.status != _NOT_FOUND:
                raise


_NOT_FOUND: Final = 5
