"""Whether a cluster that grows while it is written to keeps its promises, and what that costs its clients:
`python -m benchmarks.growing [--quick] [--json]`; needs an etcd (Debian: etcd-server).

Nodes and clients are processes of this machine.

growing     4 shards on 1 node; a second node joins, and the cluster is rebalanced; a third one joins, each shard is split into
            two, and the cluster is rebalanced. All the time one client appends events as fast as it can, many at once and with
            expected versions, and another one subscribes. What was acknowledged is compared with what is stored, and with what
            the subscription saw: `lost`, `doubled` and `reordered` count events, and each must be 0
moving      appends one at a time to a shard of two replicas, at first in quiet, then while the one that leads moves to a third
            node, which a limit holds to so many bytes a second: the 99th percentile, and how fast the replica was copied
stalls      5,000 appends a second, in an open loop, to one of two shards on one node: at first in quiet, then while the shard
            moves to a second node, then while it is split in two there. The longest and the 99th percentile from when an append
            was due
beside      the same, while the other shard takes 5,000 appends a second as well, and how many of them it took
beside, full
            the same, while the other shard takes as many as it can
reading     a subscription from the beginning until it has caught up, to a shard on one node, and again when three splits have
            made four of it, which have its files and leave out what is not theirs: events/s, medians of rounds
planning    a rebalance of 1,000 shards of three replicas on 100 nodes, half of which have just joined; without processes
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import trio

import eventstore as es
from benchmarks.harness.paced import PacedLoad, ThreadedLoad
from benchmarks.harness.report import report_rows, say
from benchmarks.replicas import CLUSTER, Cluster, Figures, wait_until
from eventstore.client.blocking.store import BlockingStore
from eventstore_cluster.nodes.cluster_view import cluster_view
from eventstore_cluster.nodes.moving.moving import move, wait_until_moved
from eventstore_cluster.nodes.moving.plans import carry_out, limit_moves, pending, survey
from eventstore_cluster.nodes.placing.balancing import rebalance
from eventstore_cluster.nodes.placing.fleet import Fleet, PlacedNode, PlacedShard
from eventstore_cluster.nodes.splitting.splitting import split, wait_until_split

_WRITERS: Final = 8
_BATCH: Final = 64
_WAIT_S: Final = 600.0
_PAYLOAD: Final = b"x" * 4_000
_RATE: Final = 20_000_000
_PACE: Final = 5_000

Place = tuple[str, str]
"""An aggregate, and the command that an event of it followed from."""


class Load(ThreadedLoad):
    """`events`: what is appended, in this order for each aggregate."""

    def __init__(self, address: str, events: Iterator[tuple[str, str, bytes]]) -> None:
        self.acknowledged: dict[str, list[str]] = defaultdict(list)
        self.subscribed: list[tuple[str, int, str]] = []
        self.appended = 0
        self._address, self._events = address, events
        self._own: list[list[es.Commit]] = [[] for _ in range(_WRITERS)]
        super().__init__()

    async def _work(self) -> None:
        async with es.connect(self._address, reconnect_timeout=_WAIT_S, silence_timeout=120.0) as store:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._subscribe)
                async with trio.open_nursery() as writers:
                    for own in self._own:
                        writers.start_soon(self._append, store, own)
                with trio.move_on_after(_WAIT_S):  # what is not seen by then is lost
                    while len(self.subscribed) < self.appended:  # noqa: ASYNC110 # nothing else waits for it
                        await trio.sleep(0.1)
                nursery.cancel_scope.cancel()

    def _next(self, own: list[es.Commit]) -> list[es.Commit]:
        """Returns what one writer appends next: each aggregate has the same writer, always."""
        while len(own) < _BATCH:
            aggregate_id, command_id, data = next(self._events)
            known = self.acknowledged[aggregate_id]
            known.append(command_id)
            writer = self._own[hash(aggregate_id) % _WRITERS]
            writer.append(es.Commit(aggregate_id, [es.NewEvent("Happened", data)], len(known) - 1, command_id))
        batch, own[:] = own[:_BATCH], own[_BATCH:]
        return batch

    async def _append(self, store: es.NetworkStore, own: list[es.Commit]) -> None:
        while not self._stopped.is_set():
            for outcome in await store.append_many(self._next(own)):
                if isinstance(outcome, BaseException):
                    raise outcome
            self.appended += _BATCH

    async def _subscribe(self) -> None:
        async with es.connect(self._address, reconnect_timeout=_WAIT_S, silence_timeout=120.0) as store:
            async with store.subscribe() as stream:
                async for item in stream:
                    if isinstance(item, es.Event) and not item.aggregate_id.startswith("$"):
                        self.subscribed.append((item.aggregate_id, item.version, item.command_id))

    def wait_for(self, more: int) -> None:
        goal = self.appended + more
        wait_until(lambda: self._error is not None or self.appended >= goal, _WAIT_S)
        self.check()

    def stop(self) -> None:
        """Ends it, and forgets what was prepared and never sent."""
        super().stop()
        for each in (commit for own in self._own for commit in own):
            self.acknowledged[each.aggregate_id].remove(each.command_id)


def found_wrong(acknowledged: dict[str, list[str]], seen: Sequence[tuple[str, int, str]]) -> Counter[str]:
    """Returns how many acknowledged events a reader did not see, saw again, or saw in another order within their aggregate."""
    wrong: Counter[str] = Counter()
    by_aggregate: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for aggregate_id, version, command_id in seen:
        by_aggregate[aggregate_id].append((version, command_id))
    for aggregate_id in by_aggregate.keys() | acknowledged.keys():
        wanted = list(enumerate(acknowledged.get(aggregate_id, ()), 1))
        found = by_aggregate[aggregate_id]
        once = list(dict.fromkeys(found))
        wrong["lost"] += len(set(wanted).difference(found))
        wrong["doubled"] += len(found) - len(once) + len(set(found).difference(wanted))
        wrong["reordered"] += sum(first > second for first, second in pairwise(once))
    return wrong


def growing(events: Iterator[tuple[str, str, bytes]], phase: int) -> Figures:
    """`phase`: so many events are appended before, between and after what is done."""
    with Cluster(1, "--set=file_size_bytes=4194304", shards=4) as cluster:
        began = time.monotonic()
        load = Load(cluster.address, events)
        try:
            load.wait_for(phase)
            cluster.start("n2")
            _rebalance(cluster, "n2")
            _say_kept(cluster)
            load.wait_for(phase)
            cluster.start("n3")
            for shard in range(4):
                took = wait_until_split(cluster.options, CLUSTER, split(cluster.options, CLUSTER, shard, 2), _WAIT_S)
                say(f"   shard {shard} is split after {took:.1f} s")
            _rebalance(cluster, "n3")
            _say_kept(cluster)
            load.wait_for(phase)
        finally:
            load.stop()
        say(f"   {load.appended} events are appended, {len(load.subscribed)} were seen")
        seconds = time.monotonic() - began
        with cluster.client() as store:
            stored = [
                (event.aggregate_id, event.version, event.command_id)
                for event in store.read_all()
                if not event.aggregate_id.startswith("$")
            ]
            shards, leaders = len(store.shards), len({shard.node for shard in cluster.rows()})
        wrong = found_wrong(load.acknowledged, stored) + found_wrong(load.acknowledged, load.subscribed)
    return {
        "events": load.appended, "events /s": load.appended / seconds, "shards": shards, "nodes that lead": leaders,
        **{what: float(wrong[what]) for what in ("lost", "doubled", "reordered")},
    }  # fmt: skip


def _rebalance(cluster: Cluster, joined: str) -> None:
    def ready() -> bool:
        view = cluster_view(survey(cluster.options, CLUSTER, 0.0).seen)
        return view is not None and not view.unserved() and joined in view.nodes

    wait_until(ready)
    found = survey(cluster.options, CLUSTER, 1.0)
    carry_out(cluster.options, CLUSTER, found, rebalance(found.fleet))
    wait_until(lambda: not pending(cluster.options, CLUSTER), _WAIT_S)


def _say_kept(cluster: Cluster) -> None:
    kept: dict[str, list[int]] = defaultdict(list)
    for row in cluster.rows():
        kept[str(row.node)].append(row.shard)
    say("   " + ", ".join(f"{node} leads {shards}" for node, shards in sorted(kept.items())))


def moving(megabytes: int, rate: int, quiet_s: float) -> Figures:
    with Cluster(2, "--set=file_size_bytes=134217728") as cluster, cluster.client() as store:
        event = [es.NewEvent("Happened", _PAYLOAD)]
        for first in range(0, megabytes * 250, 500):
            store.append_many([es.Commit(f"m-{first + at}", event, es.ANY) for at in range(500)])
        cluster.start("n3")
        wait_until(lambda: survey(cluster.options, CLUSTER, 0.0).fleet.nodes.keys() >= {"n3"})
        limit_moves(cluster.options, CLUSTER, 1, rate, unlimited=False)
        end = time.monotonic() + quiet_s
        quiet = _appends(store, lambda: time.monotonic() >= end)
        size = next(iter(survey(cluster.options, CLUSTER, 0.0).fleet.shards.values())).size
        asked = move(cluster.options, CLUSTER, 0, str(cluster.row().node), "n3")
        with ThreadPoolExecutor(1) as pool:
            moved: Future[float] = pool.submit(wait_until_moved, cluster.options, CLUSTER, asked, _WAIT_S)
            meanwhile = _appends(store, moved.done)
        seconds = moved.result()
    before, after = _percentile(quiet), _percentile(meanwhile)
    return {
        "p99 quiet, ms": before * 1e3, "p99 while it moves, ms": after * 1e3, "p99 to quiet": after / before,
        "longest, ms": max(meanwhile) * 1e3, "MB": size / 1e6, "seconds": seconds, "MB/s": size / seconds / 1e6,
        "limit, MB/s": rate / 1e6,
    }  # fmt: skip


def stalls(seconds: float, beside: float) -> Figures:
    with Cluster(1, shards=2) as cluster:
        cluster.start("n2")
        wait_until(lambda: survey(cluster.options, CLUSTER, 0.0).fleet.nodes.keys() >= {"n2"})
        load = PacedLoad(cluster.address, _PACE, beside)
        try:
            warm, end = time.monotonic() + seconds / 4, time.monotonic() + seconds * 5 / 4
            load.during(lambda: time.monotonic() >= warm)
            found = {"quiet": load.during(lambda: time.monotonic() >= end)}
            with ThreadPoolExecutor(1) as pool:
                asked = move(cluster.options, CLUSTER, 0, "n1", "n2")
                done: Future[float] = pool.submit(wait_until_moved, cluster.options, CLUSTER, asked, _WAIT_S)
                found["moving"] = load.during(done.done)
                say(f"   moved after {done.result():.1f} s")
                number = split(cluster.options, CLUSTER, 0, 2)
                done = pool.submit(wait_until_split, cluster.options, CLUSTER, number, _WAIT_S)
                found["splitting"] = load.during(done.done)
                say(f"   split after {done.result():.1f} s")
        finally:
            load.stop()
    figures = {"appends /s": float(_PACE)}
    for name, each in found.items():
        figures |= {f"p99 {name}, ms": _percentile(each.seconds) * 1e3, f"longest {name}, ms": max(each.seconds) * 1e3}
    if beside:
        figures |= {f"other shard {name}, events/s": each.beside for name, each in found.items()}
        figures |= {
            f"other shard {name} to quiet": each.beside / found["quiet"].beside
            for name, each in found.items()
            if name != "quiet"
        }
    return figures


def planning(rounds: int) -> Figures:
    nodes = {f"n{at}": PlacedNode(f"n{at}", f"zone-{at % 5}") for at in range(100)}
    shards = {
        at: PlacedShard(
            at, tuple(f"n{(at + 7 * turn) % 50}" for turn in range(3)), f"n{at % 50}", at * at % 997 * 1_000_000, at % 89
        )
        for at in range(1_000)
    }
    took, plan = [], None
    for _ in range(rounds):
        began = time.perf_counter()
        plan = rebalance(Fleet(nodes, shards))
        took.append(time.perf_counter() - began)
    return {"seconds, median": statistics.median(took), "changes": float(len(plan.changes) if plan else 0)}


def reading(events: int, rounds: int) -> Figures:
    with Cluster(1, "--set=file_size_bytes=8388608") as cluster, cluster.client() as store:
        for first in range(0, events, 1_000):
            commits = [
                es.Commit(f"r-{at % 9_973}", [es.NewEvent("Happened", b"x" * 256)], es.ANY)
                for at in range(first, first + 1_000)
            ]
            store.append_many(commits)
        before = [_read(cluster, events) for _ in range(rounds)]
        for shard in (0, 0, 1):
            took = wait_until_split(cluster.options, CLUSTER, split(cluster.options, CLUSTER, shard, 2), _WAIT_S)
            say(f"   shard {shard} is split after {took:.1f} s")
        after = [_read(cluster, events) for _ in range(rounds)]
    rates = {"before, events/s": statistics.median(before), "after three splits, events/s": statistics.median(after)}
    return {**rates, "after to before": rates["after three splits, events/s"] / rates["before, events/s"]}


def _read(cluster: Cluster, events: int) -> float:
    """Returns how many events a second a new subscription gets until it has caught up."""
    seen: set[tuple[str, int]] = set()
    with cluster.client() as store:
        began = time.perf_counter()
        for item in store.subscribe():
            if isinstance(item, es.CaughtUp):
                break
            if isinstance(item, es.Event) and not item.aggregate_id.startswith("$"):
                seen.add((item.aggregate_id, item.version))
        seconds = time.perf_counter() - began
    assert len(seen) == events, f"{len(seen)} of {events} events were seen"
    return events / seconds


def _appends(store: BlockingStore, done: Callable[[], bool]) -> list[float]:
    """Appends one at a time; returns how long each one took."""
    found: list[float] = []
    event = [es.NewEvent("Happened", b"x" * 100)]
    while not done():
        began = time.perf_counter()
        store.append(f"a-{len(found) % 97}", event, es.ANY)
        found.append(time.perf_counter() - began)
    return found


def _percentile(times: Sequence[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def generated() -> Iterator[tuple[str, str, bytes]]:
    """Returns events of many aggregates that are alive for some time, like orders."""
    for number in count():
        aggregate = number - number * number % 997
        yield f"order-{aggregate}", f"c-{number}", json.dumps({"number": number, "filled": "." * (number % 400)}).encode()


def recorded(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Returns the events of a file, again and again, each time of other aggregates."""
    for turn in count():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                event = json.loads(line)
                yield f"{event['aggregate_id']}-{turn}", event["command_id"], json.dumps(event["data"]).encode()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer events, and a smaller shard")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", default="", help="only rows whose names contain this")
    parser.add_argument(
        "--events", type=Path, help="real events: lines of JSON with aggregate_id, command_id and data, gzipped"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often the cluster grows (default: %(default)s)")
    parser.add_argument("--size", type=int, help="of the shard that moves, in MB")
    parser.add_argument("--rate", type=int, default=_RATE // 1_000_000, help="the limit, in MB/s (default: %(default)s)")
    options = parser.parse_args(argv)
    if shutil.which("etcd") is None:
        print("etcd is not installed: apt-get install etcd-server", file=sys.stderr)
        return 1
    events = generated() if options.events is None else recorded(options.events)
    phase = 20_000 if options.quick else 100_000
    rows: dict[str, Callable[[], Figures]] = {}
    for number in range(options.rounds):
        rows["growing" + (f" {number + 1}" if options.rounds > 1 else "")] = partial(growing, events, phase)
    size = options.size or (200 if options.quick else 2_000)
    rows["moving"] = partial(moving, size, options.rate * 1_000_000, 5.0 if options.quick else 30.0)
    rows["reading"] = partial(reading, 100_000 if options.quick else 500_000, 3 if options.quick else 5)
    for name, beside in {"stalls": 0.0, "beside": float(_PACE), "beside, full": math.inf}.items():
        rows[name] = partial(stalls, 5.0 if options.quick else 20.0, beside)
    rows["planning"] = partial(planning, 3 if options.quick else 9)
    chosen = {name: measure for name, measure in rows.items() if options.rows in name}
    report_rows(chosen, f"growing{'-quick' if options.quick else ''}", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
