"""The cluster that is broken: three nodes, later four, and an etcd of three, each a host of its own, and who does what now."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

from eventstore.errors import EventStoreError
from eventstore.records.cluster_map import ClusterMap
from eventstore_cluster.nodes.cluster_view import ClusterView, cluster_view
from eventstore_cluster.nodes.handing_over import NewLeader, hand_over
from eventstore_cluster.registry.etcd.options import EtcdOptions
from tests.cli.processes import run
from tests.cluster.nemesis.etcd_process import MEMBERS, EtcdMember, EtcdProcesses
from tests.cluster.nemesis.network import Network, possible
from tests.cluster.nemesis.timeline import Timeline
from tests.cluster.node_process import children, has_ended
from tests.cluster.nodes.named_node import NamedNode, keys
from tests.ports import free_port
from tests.waiting import wait_until

FIRST: Final = ("n1", "n2", "n3")
LATER: Final = "n4"
"""It joins while the cluster is broken."""
SHARDS: Final = 2
LEASE_S: Final = 2
STOP_S: Final = 20.0
_HEALTH_S: Final = 5.0
_HAND_OVER_S: Final = 5.0
_LEFT_S: Final = 5
_LOGGED_CHARACTERS: Final = 160
_VARIES: Final = re.compile(r"\(.*?\)|\S*\d\S*")
CLUSTER: Final = "nemesis"
_DISK: Final = "n3"
_DISK_BYTES: Final = 512 * 1024 * 1024
SETTINGS: Final = {
    "file_size_bytes": 1024 * 1024, "preallocate_bytes": 64 * 1024, "broker_chunk_size_bytes": 256 * 1024,
    "broker_preallocate_bytes": 64 * 1024, "broker_retained_chunks_max": 1_000_000, "broker_member_timeout_s": 5,
}  # fmt: skip
"""Small files, so that they roll and are sorted while the cluster is broken."""


class Stage:
    """`network`: None where this process may not make one. `disk`: the node whose disk can be filled. `outstanding`: tells what
    clients wait for.

    The methods block. One node is started at a time; everything else about a node is done by one thread at a time.
    """

    def __init__(self, folder: Path, timeline: Timeline) -> None:
        self.folder, self.timeline = folder, timeline
        self.network = Network([*FIRST, LATER, *MEMBERS]) if possible() else None
        self.disk: str | None = None
        self.outstanding: Callable[[], list[str]] = list
        self._nodes: dict[str, NamedNode] = {}
        self._ended: list[NamedNode] = []
        self.wanted: set[str] = set()
        self._starting = threading.Lock()
        self._view: ClusterView | None = None
        ports = [free_port() for _ in range(2 * len(MEMBERS))]
        members = zip(MEMBERS, ports[::2], ports[1::2], strict=True)
        self.etcd = EtcdProcesses(
            folder, [EtcdMember(name, self._host(name), (own, peers), self._before(name)) for name, own, peers in members]
        )

    def _host(self, name: str) -> str:
        return "127.0.0.1" if self.network is None else self.network.addresses[name]

    def _before(self, name: str) -> tuple[str, ...]:
        return () if self.network is None else self.network.before(name)

    def open(self) -> None:
        """Starts everything, and waits until all shards are served."""
        if os.geteuid() == 0:
            self._mount()
        self.etcd.start()
        self.etcd.ready()
        for name in FIRST:
            self.start(name)
        for name in FIRST:
            self._nodes[name].wait_until_serving()
        given = ["--shards", SHARDS, "--replicas", len(FIRST), "--cluster", CLUSTER, "--etcd", self.etcd.url, "--wait", 60]
        created = run("cluster", "create", *given)
        assert created.returncode == 0, created.stderr

    def _mount(self) -> None:
        (self.folder / _DISK).mkdir()
        size = f"size={_DISK_BYTES}"
        if (
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.folder / _DISK], capture_output=True).returncode
            == 0
        ):
            self.disk = _DISK

    def close(self) -> None:
        """Kills what still runs."""
        self.wanted.clear()
        for name in self.nodes:
            self.kill(self.family(name))
        for node in [*self._nodes.values(), *self._ended]:
            node.kill()
        self.etcd.kill()
        if self.network is not None:
            for name in (*FIRST, LATER, *MEMBERS):
                self.kill(self.network.pids(name))
            self.network.close()
        if self.disk is not None:
            subprocess.run(["umount", "--lazy", self.folder / self.disk], check=False)

    # ---- nodes

    @property
    def nodes(self) -> list[str]:
        """The names of those that were started."""
        return sorted(self._nodes)

    def start(self, name: str) -> None:
        """Starts a node, and has it started again whenever it ends."""
        with self._starting:
            self._start(name)

    def _start(self, name: str) -> None:
        self.wanted.add(name)
        if name in self._nodes:
            self._ended.append(self._nodes[name])
        host, port = self._host(name), 0 if self.network is None else 7701
        self._nodes[name] = NamedNode(
            self.folder, name, self.etcd.url, CLUSTER, before=("setsid", *self._before(name)), wait=False,
            options=["--lease", str(LEASE_S), "--insecure", "--keep-left", str(_LEFT_S)], listen=f"{host}:{port}",
            http=f"{host}:{port and port - 1}", **SETTINGS,
        )  # fmt: skip

    def restart_ended(self) -> None:
        """Does what an init system does."""
        with self._starting:
            for name in sorted(self.wanted):
                node = self._nodes[name]
                if node.process.poll() is not None:
                    last = node.log().splitlines()[-1:]
                    self.timeline.note("restart", f"{name} had ended with {node.process.poll()}: {''.join(last)[:300]}")
                    self._start(name)

    def hold_down(self, name: str) -> None:
        """Has a node that ends not be started again, until `start`."""
        with self._starting:
            self.wanted.discard(name)

    def family(self, name: str) -> list[int]:
        """Returns the processes of a node: the supervisor first, also shards that outlive it."""
        if name not in self._nodes:
            return []
        pid = self._nodes[name].pid
        found = [pid] if not has_ended(pid) else []
        if self.network is not None:
            found += [each for each in self.network.pids(name) if each != pid]
        else:
            found += _descendants(pid)
        return found

    def templates(self, name: str) -> list[int]:
        """Returns the process that those of the shards are copies of, if the node runs."""
        with suppress(OSError):
            return children(self._nodes[name].pid)
        return []

    def shard_process(self, name: str, shard: int) -> int | None:
        """Returns the process of a replica, which has files of its folder open; None if there is none at the moment."""
        folder = str(self.folder / name / f"shard-{shard}") + "/"
        for pid in self.family(name)[1:]:
            with suppress(OSError):
                if b"replica_process" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    continue
                for descriptor in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{descriptor}").startswith(folder):
                            return pid
        return None

    def kill(self, pids: Iterable[int]) -> None:
        send(pids, signal.SIGKILL)

    def terminate(self, name: str) -> int | None:
        """Sends SIGTERM to a node; returns its exit code, None if it did not end in time."""
        node = self._nodes[name]
        node.process.send_signal(signal.SIGTERM)
        try:
            return node.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return None

    def address(self, name: str) -> str | None:
        """Returns where clients reach a node; None before it has served."""
        if self.network is not None:
            return f"tcp://{self._host(name)}:7701"
        said = self._nodes[name].said("the node serves")
        return str(said[0]["address"]) if said else None

    def note_state(self) -> None:
        """Notes what the registry and the nodes say, to see why something is not as it should be."""
        view = self.view()
        for number, key in view.shards.items():
            self.timeline.note(
                "state", f"shard {number}: led by {view.leaders.get(number)}, {view.serving.get(number)}, {key.state}"
            )
        for name in self.nodes:
            try:
                with urlopen(self._http(name), timeout=_HEALTH_S) as answer:
                    said = answer.read()
            except HTTPError as error:
                with error:
                    said = error.read()
            except OSError as error:
                said = repr(error).encode()
            self.timeline.note("state", f"{name}: {said.decode()}")
        for each in self.outstanding():
            self.timeline.note("state", each)

    def _http(self, name: str) -> str:
        return f"http://{self._host(name)}:7700/health" if self.network is not None else f"{self._nodes[name].http}/health"

    def logged(self) -> Counter[str]:
        """Returns how often the nodes logged each error and warning, without its numbers, and what is no line of JSON."""
        found: Counter[str] = Counter()
        for node in (*self._ended, *self._nodes.values()):
            for line in node.log().splitlines():
                said = f"not JSON: {line}"
                with suppress(ValueError):
                    fields = json.loads(line)
                    if fields.get("level") in ("info", "debug"):
                        continue
                    said = f"{fields.get('event')}: {fields.get('reason') or fields.get('error') or ''}"
                found[_VARIES.sub("…", said)[:_LOGGED_CHARACTERS]] += 1
        return found

    # ---- the registry

    @property
    def registry_options(self) -> EtcdOptions:
        return EtcdOptions(tuple(self.etcd.url.split(",")))

    def view(self) -> ClusterView:
        """Returns what the registry says, or what it said last while it is away."""
        with suppress(EventStoreError):
            seen = cluster_view(keys(self.etcd, CLUSTER))
            if seen is not None:
                self._view = seen
        assert self._view is not None
        return self._view

    def known_map(self) -> ClusterMap:
        return self.view().map()

    def leader(self, shard: int) -> str | None:
        return self.view().leaders.get(shard)

    def led_by(self, name: str) -> list[int]:
        """Returns the shards that a node leads."""
        return [shard for shard, leader in self.view().leaders.items() if leader == name]

    def hand_over(self, shard: int, name: str) -> NewLeader:
        """Raises EventStoreError: the replica cannot lead now, or something does not answer."""
        return hand_over(self.registry_options, CLUSTER, shard, name, _HAND_OVER_S)

    def in_sync(self) -> dict[int, list[str]]:
        """Returns for each shard the nodes whose replicas have everything."""
        return {number: sorted({each.node for each in key.state.in_sync}) for number, key in self.view().shards.items()}

    def kept(self) -> dict[int, tuple[str, ...]]:
        """Returns for each shard the nodes that are to keep it now."""
        return {number: key.state.replicas for number, key in self.view().shards.items()}

    def under_way(self) -> list[int]:
        """Returns the shards of which something is wanted that is not done."""
        states = {number: key.state for number, key in self.view().shards.items()}
        return [number for number, state in states.items() if state.wanted or state.successor or state.split]

    def whole(self) -> bool:
        """Whether all shards are served and all replicas are in sync, those that are being copied excepted."""
        view = self.view()
        states = [key.state for key in view.shards.values()]
        in_sync = [{each.node for each in state.in_sync}.issuperset(state.before or state.replicas) for state in states]
        return not view.unserved() and all(in_sync)

    def settled(self) -> bool:
        """Whether it is whole, and nothing is wanted of any shard."""
        return self.whole() and not self.under_way()

    def remove_replica(self, name: str, shard: int) -> None:
        """Deletes the folder of a replica whose node is down."""
        wait_until(lambda: not self.family(name), "the node is down")
        shutil.rmtree(self.folder / name / f"shard-{shard}", ignore_errors=True)


def send(pids: Iterable[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for child in children(pid):
            found += [child, *_descendants(child)]
    return found
