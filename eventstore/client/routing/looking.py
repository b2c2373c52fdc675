"""How long a call waits that has to look for its shard again: until the client knows a newer map, or for a growing time."""

from __future__ import annotations

from typing import Any, Protocol

from eventstore.client.backoff import Backoff
from eventstore.client.patience import OTHERS_S
from eventstore.client.routing.table import RoutingTable


class Routed(Protocol):
    """A router. `entry`: its connection to the cluster."""

    entry: Any
    table: RoutingTable


class Looking(Backoff):
    """The delays of one call of a router. A newer map than that of its last attempt ends them; they begin again."""

    def __init__(self, router: Routed) -> None:
        super().__init__(router.entry.options.reconnect_timeout)
        self._table = router.table
        self._version = router.table.known.version

    def knows_more(self) -> bool:
        """Whether there is a newer map than at the last attempt."""
        return self._table.known.version > self._version

    def lasts_long(self, now_s: float) -> bool:
        """Whether it has looked for as long as one waits for a silent server, before others are asked."""
        return self.lost_for_s(now_s) >= OTHERS_S

    def looked(self) -> None:
        """The next attempt goes by the map that is known now."""
        if self.knows_more():
            self.renew()
        self._version = self._table.known.version
