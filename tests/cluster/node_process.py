"""A real node in a process of its own, with its shards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from eventstore_cluster.status import ShardRow, cluster_status
from tests.logged_process import EVENTSTORE, LoggedProcess
from tests.waiting import DEADLINE_SECONDS, wait_until

SERVES = "the node serves"


class NodeProcess(LoggedProcess):
    """`eventstore node` on free ports of the loopback interface."""

    def __init__(
        self,
        data: Path,
        shards: int | None = None,
        *,
        before: Sequence[str] = (),
        listen: str = "127.0.0.1:0",
        wait: bool = True,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.data = data
        given = {"preallocate_bytes": 1024 * 1024, "log_format": "json", "http": "127.0.0.1:0", **settings}
        command = [*before, *EVENTSTORE, "node", "--data", str(data), "--listen", listen, *options]
        command += [f"--set={name}={value}" for name, value in given.items()]
        if shards is not None:
            command += ["--shards", str(shards)]
        super().__init__(command, data.with_name(f"{data.name}-{id(self)}.log"), SERVES, wait=wait)

    def rows(self) -> list[ShardRow]:
        """Returns what `cluster status` shows."""
        return cluster_status(self.address, 0).shards

    def shard_address(self, shard: int) -> str:
        return f"tcp://{self.rows()[shard].leader}"

    def shard_pids(self) -> list[int]:
        """Returns the processes of the shards, which are copies of the node's template."""
        return sorted(copy for template in children(self.pid) for copy in children(template))

    def wait_for_pid(self, shard: int, *, other_than: int) -> int:
        """Waits until another process serves the shard."""
        wait_until(lambda: (self.rows()[shard].pid or other_than) != other_than, "the shard serves again")
        pid = self.rows()[shard].pid
        assert pid is not None
        return pid

    def health(self) -> dict[str, Any]:
        with urlopen(f"{self.http}/health", timeout=DEADLINE_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def metrics(self) -> str:
        with urlopen(f"{self.http}/metrics", timeout=DEADLINE_SECONDS) as answer:
            text: bytes = answer.read()
            return text.decode()

    def kill(self) -> None:
        """Ends the node and, whatever they do, its shards."""
        shards: list[int] = []
        if self.process.poll() is None:
            with contextlib.suppress(OSError):  # it ends at this moment
                shards = self.shard_pids()
        super().kill()
        for pid in shards:
            kill_process(pid)


def children(pid: int) -> list[int]:
    """Returns the processes that one has started, and whose end it has not noticed yet. Raises OSError: it is gone."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += map(int, (thread / "children").read_text().split())
    return found


def kill_process(pid: int | None) -> None:
    """Kills a process; one that has ended, and that its parent has noticed, is left alone."""
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_ended(pids: Sequence[int]) -> None:
    for pid in pids:
        wait_until(lambda pid=pid: has_ended(pid), f"process {pid} ends")  # type: ignore[misc] # its type is that of `pids`
