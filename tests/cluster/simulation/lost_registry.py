"""The registry loses everything, or is set back to an older copy, until a person has it rebuilt on the replicas' word (R12)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from eventstore_cluster.nodes.rebuilding import choice
from eventstore_cluster.registry.kept_keys import KeptShard
from eventstore_cluster.registry.replica_keys import ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Known

if TYPE_CHECKING:
    from tests.cluster.simulation.world import World

_HEARD_S = 3.0
_BACKUP_AGE_S = 6.0
_STORE = uuid.UUID(int=1)


class LostRegistry:
    """`away`: from the loss on until it is rebuilt. `hopeless`: the folder that everything was in is lost as well."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.away = self.hopeless = False
        self._waits = False
        self._kept: dict[str, KeptShard] = {}
        self._backups: list[tuple[float, KeptShard]] = []

    def written(self) -> None:
        """The state of the shard was written: each node hears of it a little later, and keeps it."""
        world = self._world
        if self.away:
            return
        found = self._found()
        self._backups.append((world.now, found))
        for name in world.machines:
            world.after(world.random.uniform(0.0, _HEARD_S), lambda name=name: self._hear(name, found))  # type: ignore[misc]

    def _found(self) -> KeptShard:
        registry = self._world.registry
        return KeptShard(registry.state_revision, ShardKey(_STORE, (), registry.state))

    def _hear(self, name: str, found: KeptShard) -> None:
        kept = self._kept.get(name, found)
        self._kept[name] = found.newest(kept)

    def known(self, name: str) -> Known | None:
        """Returns what the node has heard of the registry."""
        kept = self._kept.get(name)
        return None if kept is None else Known(*kept.age, kept.key.state.nonce)

    def happen(self) -> None:
        """Something happens to the registry, now or just after the next leader was elected: then others have more than it."""
        if self._world.quiet:
            return
        if self._world.random.random() < 0.5:
            self._happen()
        else:
            self._waits = True

    def opened(self) -> None:
        """A leader takes appends."""
        if self._waits and not self._world.quiet:
            self._waits = False
            self._world.after(self._world.random.choice((0.02, 0.1, 0.5)), self._happen)

    def _happen(self) -> None:
        """Loses everything, or an older copy comes back and a person removes that."""
        world = self._world
        old = [kept for at, kept in self._backups if at < world.now - _BACKUP_AGE_S]
        if old and world.random.random() < 0.5:
            world.note("registry", "is set back")
            world.registry.lose()
            world.registry.restore(world.random.choice(old).key.state)
            self.away = True
            world.after(world.random.uniform(3.0, 12.0), self._lose)
        else:
            self._lose()

    def _lose(self) -> None:
        self._world.note("registry", "has lost everything")
        self.away = True
        self._world.registry.lose()
        self._world.after(2.0, self._rebuild)

    def _rebuild(self) -> None:
        world = self._world
        world.after(1.0, self._rebuild)
        running = {machine.name: machine.process.key for machine in world.machines.values() if self._is_seen(machine.name)}
        if not running or not self.away:
            return
        generation = choice.newest(self._kept).key.state.generation + 1
        chosen = choice.choose(0, self._kept, running, generation)
        if chosen.risks and not (world.quiet and len(running) == len(world.machines)):
            return  # others may be seen later
        world.note("registry", f"is rebuilt: {chosen}")
        self.away = False
        self.hopeless = bool(chosen.risks) and not _one_led(running)
        world.registry.restore(chosen.key.state)
        if not self.hopeless:
            world.checks.chosen(chosen.node)
        self.written()
        world.after(world.random.uniform(2.0, 8.0), self.happen)

    def _is_seen(self, name: str) -> bool:
        process = self._world.machines[name].process
        return process is not None and self._world.registry.is_leased(process.lease)


def _one_led(running: dict[str, ReplicaKey]) -> bool:
    """Whether a replica says that it led the last epoch: whatever the nodes know, in these histories it has everything."""
    last = max(epoch for key in running.values() for epoch, _, _ in key.reach)
    return sum(key.led and key.reach[-1][0] == last for key in running.values()) == 1
