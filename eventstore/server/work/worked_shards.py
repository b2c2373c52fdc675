"""The shards that a worker works on: one store for each, over a connection that follows the shard's leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from eventstore.client.aio.store import NetworkStore
from eventstore.records.slots import LOCAL, slot_of
from eventstore.server.mailbox_wiring import FindCommand, Found

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class WorkedShards:
    """`stores`: by shard; a store that is not of several shards is its only one. `owner`: returns the shard of an aggregate."""

    stores: Mapping[int, NetworkStore]
    owner: Callable[[str], int]

    @property
    def has_several(self) -> bool:
        return len(self.stores) > 1

    @property
    def attention(self) -> str | None:
        """Says which shards are away."""
        away = [str(number) for number, store in self.stores.items() if not store.connected] if self.has_several else []
        which = f"shards {', '.join(away)} are" if len(away) > 1 else f"shard {away[0]} is" if away else None
        return None if which is None else f"{which} away: commands to their aggregates wait"

    async def watch(self) -> None:
        """Has the log say when a shard is away, and when it is reached again; until cancelled."""
        log = structlog.get_logger("eventstore.worker")
        away: set[int] = set()
        while self.has_several:
            await trio.sleep(_LOOK_S)
            for number, store in self.stores.items():
                if store.connected and number in away:
                    away.remove(number)
                    log.info("a shard is reached again", shard=number)
                elif not store.connected and number not in away:
                    away.add(number)
                    log.warning("a shard is away: commands to its aggregates wait", shard=number)

    def finding(self, by_shard: Mapping[int, FindCommand]) -> FindCommand:
        """Returns what looks up a command at the shard of its aggregate."""

        def find_command(aggregate_id: str, command_id: str, found: Found) -> None:
            by_shard[self.owner(aggregate_id)](aggregate_id, command_id, found)

        return find_command


def least_of(durabilities: Sequence[Callable[[], int | None]]) -> Callable[[], int | None]:
    """Returns what gives the least of them, since commits of several shards are answered together. A shard that has not said
    it has answered no commit.
    """
    return lambda: min((known for each in durabilities if (known := each()) is not None), default=None)


async def shards_of(store: NetworkStore) -> WorkedShards:
    """Returns the shards of a store. Slots stay with their shards; what leads a shard may change. Raises ConnectionLost."""
    if not store.shards:
        return WorkedShards({0: store}, lambda aggregate_id: 0)
    owners = (await store.cluster_map()).owners

    def owner(aggregate_id: str) -> int:
        slot = slot_of(aggregate_id)
        return owners[0 if slot == LOCAL else slot]

    return WorkedShards(store.shards, owner)
