"""Hosts in network namespaces on one bridge, between which packets can be lost, in one direction or in both. For root alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_NOBODY: Final = "02:00:00:00:00:fe"
_GATE: Final = 254


def possible() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


class Network:
    """This process reaches all hosts. To lose packets, the sender is told that the receiver has a hardware address that nobody
    has: connections stay open on both sides, and hear nothing.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        own = os.getpid()
        self._bridge, self._net = f"nm{own}", f"10.{64 + own % 64}.{own // 64 % 256}"
        self.addresses = {host: f"{self._net}.{number}" for number, host in enumerate(hosts, 1)}
        self._cut: set[tuple[str, str]] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.{_GATE}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for number, (host, address) in enumerate(self.addresses.items(), 1):
            space, outer = self._space(host), f"{self._bridge}v{number}"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", outer, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")

    def _space(self, host: str) -> str:
        return f"{self._bridge}-{host}"

    def before(self, host: str) -> tuple[str, ...]:
        """Returns the prefix of a command that is to run on a host."""
        return ("ip", "netns", "exec", self._space(host))

    def pids(self, host: str) -> list[int]:
        """Returns the processes that run on a host."""
        found = subprocess.run(["ip", "netns", "pids", self._space(host)], capture_output=True, text=True)
        return [int(each) for each in found.stdout.split()]

    def cut(self, sender: str, receiver: str) -> None:
        """Loses what one host sends to the other."""
        self._cut.add((sender, receiver))
        to = self.addresses[receiver]
        _ip("-n", self._space(sender), "neigh", "replace", to, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")

    def heal(self, sender: str, receiver: str) -> None:
        if (sender, receiver) in self._cut:
            self._cut.discard((sender, receiver))
            _ip("-n", self._space(sender), "neigh", "del", self.addresses[receiver], "dev", "eth0")

    def heal_all(self) -> None:
        for sender, receiver in list(self._cut):
            self.heal(sender, receiver)

    def close(self) -> None:
        """Removes everything; processes that still run on the hosts keep theirs until they end."""
        for host in self.addresses:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._space(host))
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)


def _ip(*arguments: str) -> None:
    try:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
