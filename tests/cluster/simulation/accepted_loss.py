"""A person has a replica lead that lacks what was acknowledged, as `eventstore cluster lead --accept-loss` does (R12)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World

_MARGIN: Final = 1.1


class AcceptedLoss:
    """`ever`: it happens in this history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ever = False

    def begin(self) -> None:
        self.ever = True
        self._world.after(self._world.random.uniform(4.0, 12.0), self._depose)

    def _depose(self) -> None:
        """Nobody is in sync, and the leader's key is gone; then its lease is waited for."""
        world = self._world
        if world.quiet:
            return
        world.note("registry", "nobody is in sync, at the word of a person")
        world.losses.away = True
        world.registry.depose()
        world.after(world.lease_s * _MARGIN, self._accept)

    def _accept(self) -> None:
        """One that runs is in sync, alone: most of the time the one that lacks most."""
        world = self._world
        running = [machine for machine in world.machines.values() if self._runs(machine)]
        if not running:
            world.after(0.5, self._accept)
            return
        machine = min(running, key=lambda each: (world.random.random() < 0.2, each.disk.synced[0]))
        process = machine.process
        assert process is not None
        epochs = [each.process.key.epoch for each in running if each.process is not None]
        world.note("registry", f"{machine.name} is to lead, whatever is lost")
        world.losses.away = False
        world.checks.loss_accepted(machine.name)
        world.registry.accept_loss(process.replica.me.member, max(epochs))
        world.after(world.random.uniform(3.0, 10.0), self._depose)

    def _runs(self, machine: Machine) -> bool:
        return machine.process is not None and self._world.registry.is_leased(machine.process.lease)
