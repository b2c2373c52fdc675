"""A bank that goes on while the machine that leads it is killed: nothing that was acknowledged is missing, on any machine."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import eventstore as es
from demo.stage import DEADLINE_SECONDS, Stage, expect, wait_until
from demo_cluster.processes import Etcd, Node, run

LEASE_S: Final = 2
SHARDS: Final = 2
ACCOUNTS: Final = 40
APPENDS: Final = 2000
_NAMES: Final = ("n1", "n2", "n3")


class ClusterStory:
    def __init__(self, scratch: Path, stage: Stage) -> None:
        self._stage = stage
        self._etcd = Etcd(scratch)
        self._nodes = {name: Node(scratch, name, self._etcd.url, LEASE_S) for name in _NAMES}

    def run(self) -> None:
        try:
            self._create()
            self._return(self._lose_a_machine())
            self._compare()
        finally:
            for machine in (*self._nodes.values(), self._etcd):
                machine.kill()

    def _create(self) -> None:
        self._etcd.start()
        for node in self._nodes.values():
            node.start()
        created = run("cluster", "create", "--shards", str(SHARDS), "--replicas", "3", "--etcd", self._etcd.url)
        self._stage.say("Three nodes and an etcd", f"{created.splitlines()[0]}\n{self._etcd.used}")
        self._show()

    def _status(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = json.loads(
            run("cluster", "status", "--interval", "0", "--json", "--etcd", self._etcd.url)
        )["shards"]
        return shards

    def _show(self) -> None:
        rows = [(row["shard"], row["node"], row["epoch"], ", ".join(row["in_sync"]), row["events"]) for row in self._status()]
        self._stage.show(("shard", "leader", "epoch", "in sync", "events"), rows)

    def _lose_a_machine(self) -> str:
        """Kills the node that leads the first shard while a client appends. Returns its name."""
        victim = str(self._status()[0]["node"])
        addresses = ",".join(node.address for node in self._nodes.values())
        versions = dict.fromkeys((f"account-{number}" for number in range(ACCOUNTS)), 0)
        with es.blocking.connect(addresses, reconnect_timeout=DEADLINE_SECONDS) as store:
            started = time.perf_counter()
            for number in range(APPENDS):
                self._append(store, versions, number)
            took = time.perf_counter() - started
            self._stage.say(f"{APPENDS:,} appends, each on the disks of three machines", f"{APPENDS / took:,.0f} a second")
            killed = time.perf_counter()
            self._nodes[victim].kill()
            for number in range(ACCOUNTS):  # of both shards
                self._append(store, versions, number)
            self._stage.say(
                f"SIGKILL of {victim} and of all its processes",
                f"the same client appended to all accounts within {time.perf_counter() - killed:.1f} s; leases are {LEASE_S} s",
            )
            for account, version in versions.items():
                stored = [event.version for event in store.read(account)]
                expect(stored == list(range(1, version + 1)), f"{account} has {stored}, acknowledged was {version}")
            self._stage.say(f"All {sum(versions.values()):,} acknowledged events are there, once each")
        return victim

    def _append(self, store: es.blocking.BlockingStore, versions: dict[str, int], number: int) -> None:
        account = f"account-{number % ACCOUNTS}"
        versions[account] = store.append(account, [es.NewEvent("Paid", {"cents": number})], versions[account]).version

    def _return(self, victim: str) -> None:
        began = time.perf_counter()
        self._nodes[victim].start()
        wait_until(lambda: all(len(row["in_sync"]) == len(_NAMES) for row in self._status()), f"{victim} is in sync")
        self._stage.say(f"{victim} is started again", f"in sync after {time.perf_counter() - began:.1f} s")
        self._show()

    def _compare(self) -> None:
        for node in self._nodes.values():
            node.stop()
        rows = []
        for shard in range(SHARDS):
            found = {name: checksum(node.data / f"shard-{shard}") for name, node in self._nodes.items()}
            expect(len(set(found.values())) == 1, f"the replicas of shard {shard} differ: {found}")
            for node in self._nodes.values():
                run("verify", str(node.data / f"shard-{shard}"))
            rows.append((shard, *found.values()))
        self._stage.say("All nodes stopped; their files compared, and verified")
        self._stage.show(("shard", *_NAMES), rows)


def checksum(folder: Path) -> str:
    """Returns a checksum over the event files of a replica; the zeros that are written ahead of events do not count."""
    total = sha256()
    for path in sorted((folder / "events").glob("*.events")):
        total.update(path.read_bytes().rstrip(b"\0"))
    return total.hexdigest()[:16]
