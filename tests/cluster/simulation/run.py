"""One run of a simulated process on a machine: its clock, its lease, and that nothing happens in it once it is dead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Seat

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World


class Run(ABC):
    """`member`: what it says that it is. Its clock runs a little fast or slow."""

    member: Seat

    def __init__(self, world: World, machine: Machine, run: str, lease: str) -> None:
        self.world, self.machine, self.run, self.lease = world, machine, run, lease
        self.alive = True
        self.paused_until = 0.0
        self.shard_key: ShardKey | None = None
        self._rate = world.random.uniform(0.996, 1.004)
        self._offset = world.random.uniform(0, 1000)

    def clock(self) -> float:
        return self._offset + self.world.now * self._rate

    def later(self, delay: float, step: Callable[[], None]) -> None:
        """Runs a step of this process, unless it is dead then; while it is paused, the step waits."""
        self.world.after(delay, lambda: self._resumed(step))

    def _resumed(self, step: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            self.later(self.paused_until - self.world.now + 1e-6, step)
        else:
            step()

    def keep_alive(self) -> None:
        sent = self.clock()
        self.world.keep_alive(self, lambda kept: self.renewed(sent, kept))
        self.later(self.world.lease_s / 3, self.keep_alive)

    @abstractmethod
    def renewed(self, sent: float, kept: bool) -> None:
        """The lease was renewed by what was sent at that time of its clock; not `kept`: it had run out."""
