"""The simulated process of a shard in preparation: takes over its parent's files as they become final, and the rest when the
shard gets its slots. Then it is the process of a replica, or of a stranger if the parent does not have them any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore_cluster.registry.replica_keys import CloneKey, ReplicaKey
from eventstore_cluster.registry.replicated_keys import ShardKey
from eventstore_cluster.replica.registry_state import Seat
from tests.cluster.simulation.disk import IN_A_CHUNK, place
from tests.cluster.simulation.process import Process
from tests.cluster.simulation.run import Run

if TYPE_CHECKING:
    from tests.cluster.simulation.world import Machine, World

_LOOK_S: Final = 0.2


class Clone(Run):
    """`earlier`: incarnations of its folder."""

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine, world.token(machine.name + "."), world.token("lease"))
        disk = machine.disk
        self.earlier = tuple(disk.incarnations)
        disk.begin(world.token("i"))
        self.member = Seat(machine.name, disk.incarnations[-1])
        self._said: int | None = None
        self._finishes = False
        machine.clone = self  # it may die with its first look
        self.keep_alive()
        self._look()

    def renewed(self, sent: float, kept: bool) -> None:
        if not kept:
            self.world.note(self.machine.name, "the lease of a clone ran out")
            self.world.stop(self.machine, restart_s=0.1)

    def _look(self) -> None:
        if self._finishes:
            return
        self.later(_LOOK_S, self._look)
        disk, parent = self.machine.disk, self.machine.parent_disk
        if parent.finished and parent.sorted > disk.linked:
            disk.link(parent, parent.sorted * IN_A_CHUNK)
            disk.linked = parent.sorted
        if disk.linked != self._said:
            self._say(disk.linked)
        self.world.after(self.world.reach_registry(self), self._read)

    def _say(self, through: int) -> None:
        lease = CloneKey(through, "", int(self.lease.removeprefix("lease")))
        key = ReplicaKey(
            self.member.incarnation, self.run, 0, (), (), False, self.earlier, lease, self.machine.name
        )  # fmt: skip

        def said() -> None:
            if self.world.registry.is_leased(self.lease):
                self.world.registry.said(self.machine.name, key)
                self.world.family.changed(self.world)
                self._said = through

        self.world.after(self.world.reach_registry(self), said)

    def _read(self) -> None:
        key = self.world.registry.key
        self.later(self.world.reach_registry(self), lambda: self._saw(key))

    def _saw(self, key: ShardKey) -> None:
        if key.slots and not self._finishes:
            self._finishes = True
            self.world.note(self.machine.name, f"finishes the clone of shard {self.world.number_of_shard}")
            self.world.family.happens(self.world, self.machine)
            self.later(self.world.disk_delay(), lambda: self._finish(key))

    def _finish(self, key: ShardKey) -> None:
        disk = self.machine.disk
        if self.takes_over(key):
            disk.finish()
            self._becomes(Process(self.world, self.machine, self.run, 0.0, clone=self))
        else:
            self.world.note(self.machine.name, "abandons its clone, which is fetched")
            disk.wipe()
            disk.finish()
            self._becomes(Process(self.world, self.machine, self.run, 0.0, lease=self.lease))

    def takes_over(self, key: ShardKey) -> bool:
        """Takes over all that the shard begins with. Returns whether its parent has it on this machine."""
        birth, through = key.lineage.birth, key.lineage.splits[0].through
        assert birth is not None
        parent = self.machine.parent_disk
        found = parent.records[0][:through]
        if not parent.finished or len(found) < through or parent.synced[0] < through:
            return False
        if found and (found[-1][1], place(through)[1]) != (birth.checksum, birth.end):
            return False
        self.machine.disk.link(parent, through)
        return True

    def _becomes(self, process: Process) -> None:
        self.alive = False
        self.machine.clone, self.machine.process = None, process
