"""What shards cost and bring: `python -m benchmarks.cluster [--quick] [--json]`.

Nodes of 1, 2 and 4 shards (`eventstore node`), each with two client processes that have 256 requests in flight. A row compares
two of them in turns, with the rate and the processor time of all their server processes (node and shards) for each request.

appends, 4 to 1     durable appends; the processor time says what each further core will be worth
appends, 2 to 1     durable appends; on a machine of two cores, clients included
commands, 2 to 1    commands of docs/examples/bank.py, whose events are synced
reading, 4 to 1     everything by `read_all`, by one trio client
routing             the processor time of a client for an append, at the node of one shard to that at the shard itself
idle                memory and processor time of an idle shard process of four
counted             syncs, frames and wake-ups of the servers for 1,000 appends, with 1 to 8 shards
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

import trio

import eventstore as es
from benchmarks.harness.processes import EVENTSTORE, ROOT, Process
from benchmarks.harness.report import report_rows
from benchmarks.harness.subject import processor_s
from eventstore_cluster.status import ShardRow, cluster_status

_CLIENTS: Final = 2

Figures = dict[str, float]


class Node(Process):
    """A node of this many shards."""

    def __init__(self, shards: int, *options: str) -> None:
        command = ("node", "--listen", "{listen}", "--data", "{data}", "--shards", str(shards), *options)
        super().__init__(f"node-{shards}", EVENTSTORE, *command)
        self.shards = shards

    def __enter__(self) -> Self:
        super().__enter__()
        while any(row.leader is None for row in self._status()):
            time.sleep(0.05)
        return self

    def _status(self) -> list[ShardRow]:
        self.rows = cluster_status(self.address, 0).shards
        return self.rows

    @property
    def pids(self) -> list[int]:
        return [self._server.pid, *(row.pid for row in self.rows if row.pid is not None)]

    def counts(self) -> Counter[str]:
        """Returns what the shards have counted: syncs, frames, and how often their threads woke."""
        found: Counter[str] = Counter()
        for row in self.rows:
            with es.blocking.connect(f"tcp://{row.leader}") as shard:
                stats = shard.stats()
            found.update(syncs=int(str(stats["batches"])), frames=int(str(stats["requests"])))
            for thread in Path(f"/proc/{row.pid}/task").iterdir():
                switches = (thread / "status").read_text().partition("voluntary_ctxt_switches:")[2]
                found.update({"wake-ups": int(switches.split()[0])})
        return found

    def processor_s(self) -> float:
        return sum(processor_s(pid) for pid in self.pids)


class Turn:
    """Requests a second of all clients together, and microseconds of processor time for a request."""

    def __init__(self, address: str, servers: Process, kind: str, count: int, clients: int = _CLIENTS) -> None:
        program = [sys.executable, "-m", "benchmarks.harness.shard_client", address, kind, str(count)]
        running = [
            subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for _ in range(clients)
        ]
        for each in running:
            _line(each)
        used, started = servers.processor_s(), time.perf_counter()
        for each in running:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        found: list[dict[str, Any]] = [json.loads(_line(each)) for each in running]
        seconds, used = time.perf_counter() - started, servers.processor_s() - used
        for each in running:
            each.communicate()
        requests = clients * count
        self.rate = requests / seconds
        self.server_us = used / requests * 1e6
        self.client_us = sum(each["processor_s"] for each in found) / requests * 1e6


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ValueError(f"a client ended: {process.wait()}")
    return line


def compared(kind: str, many: int, count: int, rounds: int, *options: str) -> Figures:
    """Compares a node of many shards with one of one, in turns."""
    with Node(1, *options) as one, Node(many, *options) as several:
        turns: dict[int, list[Turn]] = {1: [], many: []}
        for number in range(rounds + 1):
            for node in (one, several)[:: 1 if number % 2 else -1]:
                turn = Turn(node.address, node, kind, count)
                if number:  # the first round warms up
                    turns[node.shards].append(turn)
    pairs = list(zip(turns[1], turns[many], strict=True))
    return {
        "rate to 1 shard": statistics.median(more.rate / alone.rate for alone, more in pairs),
        "server time to 1 shard": statistics.median(more.server_us / alone.server_us for alone, more in pairs),
        "rate /s": statistics.median(more.rate for _, more in pairs),
        "rate of 1 shard /s": statistics.median(alone.rate for alone, _ in pairs),
        "server, µs": statistics.median(more.server_us for _, more in pairs),
        "server of 1 shard, µs": statistics.median(alone.server_us for alone, _ in pairs),
        "client, µs": statistics.median(more.client_us for _, more in pairs),
    }


def reading(events: int, rounds: int) -> Figures:
    """Compares `read_all` of a node of four shards with that of one."""
    rates: dict[int, list[float]] = {1: [], 4: []}
    with Node(1) as one, Node(4) as four:
        for node in (one, four):
            Turn(node.address, node, "append", events // _CLIENTS)
        for number in range(rounds):
            for node in (one, four)[:: 1 if number % 2 else -1]:
                started = time.perf_counter()
                count = trio.run(_read, node.address)
                rates[node.shards].append(count / (time.perf_counter() - started))
    ratio = statistics.median(more / alone for alone, more in zip(rates[1], rates[4], strict=True))
    return {"rate to 1 shard": ratio, "events /s": statistics.median(rates[4])}


async def _read(address: str) -> int:
    count = 0
    async with es.connect(address) as store:
        async for _ in store.read_all():
            count += 1
    return count


def routing(count: int, rounds: int) -> Figures:
    """Compares clients at the address of a node of one shard with clients at the shard."""
    routed, direct = [], []
    with Node(1) as node:
        shard = f"tcp://{node.rows[0].leader}"
        for _ in range(rounds):
            routed.append(Turn(node.address, node, "append", count).client_us)
            direct.append(Turn(shard, node, "append", count).client_us)
    more = statistics.median(with_map - without for with_map, without in zip(routed, direct, strict=True))
    return {"more for an append, µs": more, "client at the shard, µs": statistics.median(direct)}


def idle(seconds: float) -> Figures:
    """Returns what an idle shard process uses."""
    with Node(4) as node:
        time.sleep(2.0)
        pids = node.pids[1:]
        before, started = [processor_s(pid) for pid in pids], time.perf_counter()
        time.sleep(seconds)
        used = [processor_s(pid) - was for pid, was in zip(pids, before, strict=True)]
        elapsed = time.perf_counter() - started
        resident = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6 for pid in pids]
    return {"resident MB": statistics.median(resident), "% of a core": statistics.median(used) / elapsed * 100}


def counted(count: int) -> Figures:
    """Counts what appends cost as shards are added."""
    figures: Figures = {}
    for shards in (1, 2, 4, 8):
        with Node(shards) as node:
            before = node.counts()
            Turn(node.address, node, "append", count)
            for name, more in (node.counts() - before).items():
                figures[f"{name}, {shards} shards"] = more / (count * _CLIENTS) * 1_000
    return dict(sorted(figures.items(), key=lambda figure: figure[0].split(",")[0]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 requests and 3 rounds, not 100,000 and 7")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    count, rounds = (20_480, 3) if options.quick else (102_400, 7)
    bank = ("--domain", "bank:app")
    rows: dict[str, Callable[[], Figures]] = {
        "appends, 4 to 1": lambda: compared("append", 4, count, rounds),
        "appends, 2 to 1": lambda: compared("append", 2, count, rounds),
        "commands, 2 to 1": lambda: compared("command", 2, count, rounds, *bank),
        "reading, 4 to 1": lambda: reading(4 * count, rounds),
        "routing": lambda: routing(count, rounds),
        "idle": lambda: idle(5.0 if options.quick else 20.0),
        "counted": lambda: counted(count),
    }
    report_rows(rows, f"cluster{'-quick' if options.quick else ''}", as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
