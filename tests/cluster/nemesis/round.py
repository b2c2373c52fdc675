"""A round: a cluster is made, used and broken at the same time, mended, and judged."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

import eventstore as es
from eventstore.errors import EventStoreError
from eventstore.store.verification import verify
from tests.cluster.nemesis.clients import TOPIC, Clients
from tests.cluster.nemesis.faults import Faults
from tests.cluster.nemesis.folders import differences
from tests.cluster.nemesis.growing import GROWTH, Growing
from tests.cluster.nemesis.judge import failovers, judge_banks, judge_events, judge_messages, summary
from tests.cluster.nemesis.polling import in_thread, until
from tests.cluster.nemesis.records import Records, Seen
from tests.cluster.nemesis.stage import STOP_S, Stage
from tests.cluster.nemesis.timeline import Timeline

_RESTART_EVERY_S: Final = 0.5
_WHOLE_S: Final = 90.0
_CLIENTS_S: Final = 60.0
_READERS_S: Final = 60.0
_EQUAL_S: Final = 60.0
_LOGGED: Final = 40


@dataclass(frozen=True, slots=True)
class Report:
    timeline: Timeline
    records: Records
    counts: dict[str, int]
    skipped: Mapping[str, str]
    logged: Counter[str]

    def lines(self) -> list[str]:
        """Returns the figures."""
        found = [f"{kind}: {count}" for kind, count in sorted(self.counts.items())]
        counts, times = self.records.counts, failovers(self.records, self.timeline)
        lines = ["faults: " + ", ".join(found)]
        if self.skipped:
            lines.append("not possible here: " + ", ".join(f"{kind} ({why})" for kind, why in self.skipped.items()))
        lines.append("operations: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        lines.append(f"aggregates: {len(self.records.history)}, errors: {dict(sorted(self.records.errors.items()))}")
        lines.append("to the next acknowledged append, least / median / most (times):")
        lines += [f"  {how:16} {summary(each)}" for how, each in sorted(times.items())]
        lines.append("the nodes logged:")
        lines += [f"  {count:5} {line}" for line, count in self.logged.most_common(_LOGGED)]
        for what, notes in (("slow", self.timeline.slow), ("anomalies", self.timeline.anomalies)):
            lines += [f"{what}: {len(notes)}", *(f"  {each}" for each in notes)]
        return lines


async def play(folder: Path, seconds: float, seed: int, kinds: Sequence[str], *, printed: bool = False) -> Report:
    """Plays a round in a folder, which keeps data and logs."""
    timeline = Timeline(printed=printed)
    stage = Stage(folder, timeline)
    try:
        return await _Round(stage, timeline, seed).play(seconds, kinds)
    finally:
        with trio.CancelScope(shield=True):
            await in_thread(stage.close)


class _Round:
    def __init__(self, stage: Stage, timeline: Timeline, seed: int) -> None:
        self._stage, self._timeline, self._seed = stage, timeline, seed

    async def play(self, seconds: float, kinds: Sequence[str]) -> Report:
        stage, timeline = self._stage, self._timeline
        await in_thread(stage.open)
        records = Records((await in_thread(stage.known_map)).owners)
        clients = Clients(stage, timeline, records, self._seed)
        await clients.connected(_create_topic, "setup")
        faults = Faults(stage, timeline, self._seed, kinds, records.serving_since)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            async with trio.open_nursery() as supervised:
                supervised.start_soon(self._restart_ended)
                growing = Growing(stage, timeline, self._seed, [kind for kind in kinds if kind in GROWTH], faults.counts)
                async with trio.open_nursery() as growth:
                    growth.start_soon(growing.run, seconds)
                    await faults.run(seconds)
                    growth.cancel_scope.cancel()
                timeline.note("mended", "everything")
                if stage.network is not None:
                    await in_thread(stage.network.heal_all)
                await growing.end_draining()
                if not await until(partial(in_thread, stage.settled), _WHOLE_S):
                    timeline.anomaly(f"not whole, or not done, {_WHOLE_S:g} s after everything was mended")
                    await in_thread(stage.note_state)
                clients.stopping = True
                if not await until(clients.wrote, _CLIENTS_S):
                    timeline.anomaly(f"{clients.writing} clients that append or send did not end within {_CLIENTS_S:g} s")
                await self._judge(clients, records)
                supervised.cancel_scope.cancel()
            clients.finished.cancel()
            if clients.writing:
                nursery.cancel_scope.cancel()
        await self._stop()
        return Report(timeline, records, faults.counts, faults.skipped, await in_thread(stage.logged))

    async def _restart_ended(self) -> None:
        while True:
            await in_thread(self._stage.restart_ended)
            await trio.sleep(_RESTART_EVERY_S)

    async def _judge(self, clients: Clients, records: Records) -> None:
        timeline = self._timeline
        records.owners = (await in_thread(self._stage.known_map)).owners
        stored: list[Seen] = []
        bodies: list[str] = []

        async def read(store: es.NetworkStore) -> None:
            stored[:] = [records.seen(event) async for event in store.read_all()]

        async def audit(store: es.NetworkStore) -> None:
            bodies[:] = await _bodies(store)

        for work, what in ((read, "events"), (audit, "messages")):
            for _ in range(5):
                before = sum(records.errors.values())
                await clients.connected(work, "judge")
                if sum(records.errors.values()) == before:
                    break
            else:
                timeline.anomaly(f"the {what} cannot be read in the end")

        async def have_read() -> bool:
            return all(len(seen) >= len(stored) for seen in records.readers.values()) and records.consumed.issuperset(bodies)

        await until(have_read, _READERS_S)
        timeline.note("judging", f"{len(stored)} events, {len(bodies)} messages")
        await in_thread(partial(judge_events, records, stored, timeline))
        await in_thread(partial(judge_banks, records, stored, await in_thread(self._stage.known_map), timeline))
        judge_messages(records, bodies, timeline)

    # ---- the replicas

    async def _stop(self) -> None:
        """Compares the replicas, stops the nodes, and verifies each folder."""
        stage, timeline = self._stage, self._timeline
        view = await in_thread(stage.view)
        kept = {
            shard: [stage.folder / name / f"shard-{shard}" for name in key.state.replicas] for shard, key in view.shards.items()
        }
        for shard, folders in kept.items():
            compare = partial(_differences, folders)

            async def equal(compare: Callable[[], list[str]] = compare) -> bool:
                return not await in_thread(compare)

            if not await until(equal, _EQUAL_S):
                for each in await in_thread(compare):
                    timeline.anomaly(f"shard {shard} has replicas that differ: {each}")
        for name in stage.nodes:
            stage.hold_down(name)
        codes: dict[str, int | None] = {}

        async def terminate(name: str) -> None:
            codes[name] = await in_thread(partial(stage.terminate, name))

        began = timeline.now()
        async with trio.open_nursery() as nursery:
            for name in stage.nodes:
                nursery.start_soon(terminate, name)
        timeline.note("stopped", f"{codes} in {timeline.now() - began:.1f} s")
        for name, code in codes.items():
            if code is None:
                timeline.took_long(f"{name} did not end within {STOP_S:g} s of SIGTERM")
                continue
            if code != 0:
                timeline.anomaly(f"{name} ended with {code} after SIGTERM")
            if left := stage.family(name):
                timeline.anomaly(f"{name} has left processes: {left}")
        for folder in itertools.chain.from_iterable(kept.values()):
            await in_thread(partial(self._verify, folder))

    def _verify(self, folder: Path) -> None:
        try:
            found = verify(folder)
        except EventStoreError as error:
            self._timeline.anomaly(f"verify {folder}: {error}")
            return
        if not found.sound:
            self._timeline.anomaly(f"verify {folder}: {found.findings_total} faults, such as {found.findings[:3]}")
        said = {name: getattr(found, name) for name in ("event_files", "sorted_files", "events")}
        self._timeline.note("verified", f"{folder.parent.name}/{folder.name}: {said}")


async def _create_topic(store: es.NetworkStore) -> None:
    await store.broker.create_topic(TOPIC, queues=2, if_missing=True)


async def _bodies(store: es.NetworkStore) -> list[str]:
    """Returns what the topic holds."""
    found: list[str] = []
    for shard in store.shards.values():
        for queue in await shard.broker.queues(TOPIC):
            offset = queue.begin
            while offset < queue.end:
                pulled = await shard.broker.pull([(TOPIC, queue.queue, offset, None)], 1_000)
                found += [message.body.decode().rstrip(".") for message in pulled.messages()]
                offset = pulled.queues[0].next_offset
    return found


def _differences(folders: list[Path]) -> list[str]:
    try:
        return differences(folders)
    except OSError as error:  # a file is being replaced
        return [repr(error)]
