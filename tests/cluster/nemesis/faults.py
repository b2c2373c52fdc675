"""Breaks the cluster, one thing or two at a time, chosen by a seed. What is broken is mended after some seconds."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from eventstore.errors import EventStoreError
from tests.cluster.nemesis.etcd_process import MEMBERS
from tests.cluster.nemesis.growing import GROWTH
from tests.cluster.nemesis.polling import in_thread, until
from tests.cluster.nemesis.stage import LEASE_S, STOP_S, Stage, send
from tests.cluster.nemesis.timeline import Fall, Timeline

BREAKING: Final = ("kill", "stop", "etcd", "etcd away", "cut", "hand over", "wipe", "full", "restart")
ALL: Final = (*BREAKING, *GROWTH)
_ALONE: Final = ("wipe", "full", "restart", "etcd away")
"""They need a cluster that is whole: with another fault at once, all replicas of a shard could be lost. Without etcd nothing
else is chosen: who leads is asked there."""
_WEIGHTS: Final = {
    "kill": 5,
    "stop": 4,
    "etcd": 2,
    "etcd away": 1,
    "cut": 4,
    "hand over": 3,
    "wipe": 2,
    "full": 1,
    "restart": 1,
}
_TWO_AT_ONCE: Final = 0.3
_SERVING_FIRST: Final = 0.75
SERVING_S: Final = 30.0
"""A start of a process that has died takes seconds on a busy machine, and the supervisor waits longer each time."""
_WHOLE_S: Final = 40.0
AWAY_S: Final = 60.0
"""Longer than any lease, and than most who wait for etcd."""
_FILLER: Final = "filler"


def impossible(*, network: bool, disk: bool) -> dict[str, str]:
    """Returns the kinds of faults that are not possible here, each with what it lacks. `network`: there are hosts whose
    network can be cut; `disk`: a node has a small disk of its own.
    """
    lacking = {} if network else {"cut": "only root may make network namespaces, with `ip`"}
    return lacking if disk else lacking | {"full": "only root may mount a small disk"}


def in_time(kinds: Sequence[str], seconds: float) -> list[str]:
    """Returns those that may be begun in a round that has so many seconds left."""
    return [kind for kind in kinds if kind != "etcd away" or seconds >= AWAY_S]


class Faults:
    """`kinds`: of `ALL`. `skipped`: those that are not possible here, and why."""

    def __init__(
        self, stage: Stage, timeline: Timeline, seed: int, kinds: Sequence[str], serves: Callable[[float], bool]
    ) -> None:
        """`serves`: whether every shard has acknowledged an append since a time."""
        self._stage, self._timeline, self._serves = stage, timeline, serves
        self._chance = random.Random(f"faults {seed}")
        lacking = impossible(network=stage.network is not None, disk=stage.disk is not None)
        self.skipped = {kind: why for kind, why in lacking.items() if kind in kinds}
        for kind, why in self.skipped.items():
            self._note("not possible", f"{kind}: {why}")
        self._kinds = [kind for kind in kinds if kind in BREAKING and kind not in self.skipped]
        self._busy: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Breaks things for some time, and mends them all."""
        end = trio.current_time() + seconds
        if not self._kinds:
            await trio.sleep(seconds)
        while trio.current_time() < end:
            if self._chance.random() < _SERVING_FIRST:
                await self._until_serving()
            await trio.sleep(self._chance.uniform(0.5, 3.0))
            kinds = in_time(self._kinds, end - trio.current_time())
            if not kinds:
                await trio.sleep_until(end)
                break
            first = self._choose(kinds)
            if first in _ALONE:
                if await self.until_whole():
                    await self._break(first)
                continue
            beside = [kind for kind in self._kinds if kind not in _ALONE]
            second = self._choose(beside) if beside and self._chance.random() < _TWO_AT_ONCE else None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._break, first)
                if second is not None:
                    await trio.sleep(self._chance.uniform(0.0, 3.0))
                    nursery.start_soon(self._break, second)

    def _choose(self, kinds: Sequence[str]) -> str:
        return self._chance.choices(kinds, [_WEIGHTS[kind] for kind in kinds])[0]

    async def _break(self, kind: str) -> None:
        breaks: dict[str, Callable[[], Awaitable[str]]] = {
            "kill": self._kill, "stop": self._stop, "etcd": self._break_etcd, "etcd away": self._away, "cut": self._cut,
            "hand over": self._hand_over, "wipe": self._wipe, "full": self._fill, "restart": self._restart,
        }  # fmt: skip
        began = self._timeline.now()
        what = await breaks[kind]()
        self._timeline.faults.append((began, self._timeline.now(), what))
        self.counts[what] += 1

    async def until_whole(self, seconds: float = _WHOLE_S) -> bool:
        """Waits until all shards are served and all replicas in sync, but those that are copied; False if that takes longer."""
        return await until(partial(in_thread, self._stage.whole), seconds)

    async def _until_serving(self) -> None:
        """Waits until clients are served again, now that everything is mended; that should not take long."""
        mended = self._timeline.now()

        async def serving() -> bool:
            return self._serves(mended)

        if not await until(serving, SERVING_S):
            self._timeline.took_long(f"not every shard has acknowledged an append {SERVING_S:g} s after everything was mended")
            await in_thread(self._stage.note_state)

    def _note(self, what: str, detail: str) -> None:
        self._timeline.note(what, detail)

    # ---- processes

    def _target(self) -> tuple[str, list[int], str, list[int]]:
        """Chooses processes of a node; returns what they are, their ids, the node, and the shards that they lead."""
        what = self._chance.choice(("leader", "leader", "follower", "supervisor", "node", "template"))
        view = self._stage.view()
        shard = self._chance.choice([*view.shards, *view.preparing])
        leaders = {number: view.leaders.get(number) for number in view.shards}
        leader = leaders.get(shard)
        rest = [name for name in self._stage.nodes if name not in self._busy]
        name = self._chance.choice(rest or self._stage.nodes)
        key = view.shards.get(shard) or view.preparing[shard]
        others = [each for each in rest if each != leader and each in key.state.replicas]
        if what == "leader" and leader is not None and leader in rest:
            name = leader
        elif what == "follower" and others:
            name = self._chance.choice(others)
        leads = [number for number in leaders if leaders[number] == name]
        if what in ("leader", "follower"):
            pid = self._stage.shard_process(name, shard)
            return what, [] if pid is None else [pid], name, [shard] if shard in leads else []
        pids = self._stage.family(name)
        if what == "template":  # its shards are not ended by that
            return what, self._stage.templates(name), name, []
        return what, pids if what == "node" else pids[:1], name, leads

    async def _kill(self) -> str:
        what, pids, name, leads = await in_thread(self._target)
        fault = f"kill {what}"
        self._note(fault, f"{name} {pids}" + (f", leader of {leads}" if leads else ""))
        self._busy.add(name)
        if what in ("supervisor", "node"):
            self._stage.hold_down(name)
        self._fell(fault, leads)
        self._stage.kill(pids)
        if what in ("supervisor", "node"):
            await trio.sleep(self._chance.choice((0.2, 1.0, 6.0)))
            self._note("start", name)
            await in_thread(partial(self._stage.start, name))
        self._busy.discard(name)
        return fault

    async def _stop(self) -> str:
        what, pids, name, leads = await in_thread(self._target)
        seconds, fault = self._chance.choice((0.5, 1.5, 3.0, 5.0, 8.0)), f"stop {what}"
        self._note(fault, f"{name} {pids} for {seconds:g} s" + (f", leader of {leads}" if leads else ""))
        self._busy.add(name)
        if seconds > LEASE_S and what != "supervisor":
            self._fell(fault, leads)
        send(pids, signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            send(pids, signal.SIGCONT)
            self._busy.discard(name)
        self._note("go on", f"{name} {pids}")
        return fault

    def _fell(self, how: str, shards: Iterable[int]) -> None:
        self._timeline.falls += [Fall(self._timeline.now(), shard, how) for shard in shards]

    async def _hand_over(self) -> str:
        shard, replicas = self._chance.choice(list((await in_thread(self._stage.kept)).items()))
        name = self._chance.choice(replicas)
        self._note("hand over", f"shard {shard} to {name}")
        with suppress(EventStoreError):  # it may not be in sync, or nothing may answer: then it is not done, or later
            led = await in_thread(partial(self._stage.hand_over, shard, name))
            self._note("handed over", f"shard {shard}: {led.node} leads in epoch {led.epoch}")
        return "hand over"

    # ---- etcd and the network

    async def _break_etcd(self) -> str:
        etcd, stops = self._stage.etcd, self._chance.random() < 0.4
        whose = self._chance.choice(("member", "leader", "quorum"))
        names = self._chance.sample(MEMBERS, 2 if whose == "quorum" else 1)
        if whose == "leader" and (leader := await in_thread(etcd.leader)) is not None:
            names = [leader]
        if self._busy.intersection(MEMBERS):
            return "nothing"
        self._busy.update(names)
        seconds = self._chance.choice((0.5, 3.0, 8.0)) if stops else self._chance.choice((0.0, 2.0, 10.0))
        fault = f"{'stop' if stops else 'kill'} {whose} of etcd"
        self._note(fault, f"{names} for {seconds:g} s")
        if stops:
            etcd.send(names, signal.SIGSTOP)
        else:
            await in_thread(partial(etcd.kill, names))
        try:
            await trio.sleep(seconds)
        finally:
            etcd.send(names, signal.SIGCONT)
            etcd.start(names)
            self._busy.difference_update(names)
        self._note("go on", f"etcd {names}")
        return fault

    async def _away(self) -> str:
        """All of etcd is away for a minute: no shard has a leader for most of it, and no node ends."""
        etcd, fault = self._stage.etcd, "etcd away"
        self._note(fault, f"for {AWAY_S:g} s")
        await in_thread(etcd.kill)
        try:
            await trio.sleep(AWAY_S)
        finally:
            etcd.start()
        self._note("go on", "etcd")
        return fault

    async def _cut(self) -> str:
        network, seconds = self._stage.network, self._chance.choice((0.5, 2.0, 4.0, 8.0, 12.0))
        assert network is not None
        first, second = self._chance.sample(self._stage.nodes, 2)
        others, fault = [second], "cut"
        if (where := self._chance.random()) < 0.4:
            others, fault = self._chance.sample(MEMBERS, self._chance.choice((1, len(MEMBERS)))), "cut from etcd"
        elif where < 0.5:
            first, *others = self._chance.sample(MEMBERS, len(MEMBERS))
            fault = "cut within etcd"
        elif where < 0.7:  # from all others, clients and etcd excepted
            others = [name for name in self._stage.nodes if name != first]
        to, back = [(first, other) for other in others], [(other, first) for other in others]
        ways = self._chance.choice((to, back, to + back))
        fault += " both ways" if len(ways) > len(others) else " one way"
        self._note(fault, ", ".join(f"{sender} to {receiver}" for sender, receiver in ways) + f", for {seconds:g} s")
        try:
            for sender, receiver in ways:
                await in_thread(partial(network.cut, sender, receiver))
            await trio.sleep(seconds)
        finally:
            with trio.CancelScope(shield=True):
                for sender, receiver in ways:
                    await in_thread(partial(network.heal, sender, receiver))
        self._note("mended", ", ".join(f"{sender} to {receiver}" for sender, receiver in ways))
        return fault

    # ---- disks, and orderly restarts

    async def _wipe(self) -> str:
        stage = self._stage
        shard, in_sync = self._chance.choice(list((await in_thread(stage.in_sync)).items()))
        leader = await in_thread(partial(stage.leader, shard))
        name = self._chance.choice([each for each in in_sync if each != leader])
        self._note("wipe", f"{name} shard {shard}")
        stage.hold_down(name)
        stage.kill(stage.family(name))
        await in_thread(partial(stage.remove_replica, name, shard))
        await trio.sleep(self._chance.choice((0.0, 1.0, 6.0)))
        self._note("start", name)
        await in_thread(partial(stage.start, name))
        return "wipe"

    async def _fill(self) -> str:
        stage, seconds = self._stage, self._chance.choice((1.0, 5.0, 12.0))
        assert stage.disk is not None
        leads = await in_thread(partial(stage.led_by, stage.disk))
        filler = stage.folder / stage.disk / _FILLER
        self._note("full disk", f"{stage.disk} for {seconds:g} s" + (f", leader of {leads}" if leads else ""))
        try:
            await in_thread(partial(_fill_disk, str(filler)))
            await trio.sleep(seconds)
        finally:
            filler.unlink(missing_ok=True)
        self._note("space", stage.disk)
        return "full disk"

    async def _restart(self) -> str:
        stage = self._stage
        for name in stage.nodes:
            leads = await in_thread(partial(stage.led_by, name))
            self._note("restart", name + (f", leader of {leads}" if leads else ""))
            stage.hold_down(name)
            self._fell("orderly stop", leads)
            began = self._timeline.now()
            code = await in_thread(partial(stage.terminate, name))
            took = self._timeline.now() - began
            if code is None:
                self._timeline.took_long(f"{name} did not end within {STOP_S:g} s of SIGTERM")
                stage.kill(stage.family(name))
            elif code != 0:
                self._timeline.anomaly(f"{name} ended with {code} after SIGTERM")
            self._note("start", f"{name}, stopped in {took:.1f} s")
            await in_thread(partial(stage.start, name))
            if not await self.until_whole():
                self._note("not whole", f"{await in_thread(stage.in_sync)}")
        return "rolling restart"


def _fill_disk(path: str) -> None:
    """Writes a file until the disk is full, down to the last page."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1024 * 1024, 4096):
            with suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
    finally:
        os.close(descriptor)
