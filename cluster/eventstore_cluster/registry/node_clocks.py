"""Which nodes have another time than etcd. Each node says it in its own key, so that all know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore_cluster.registry.node_keys import NodeKey

APART_S: Final = 1.0
"""By which the clock of a node may differ."""


def clocks_apart(nodes: Mapping[str, NodeKey]) -> dict[str, float]:
    """Returns by how many seconds at least each node's clock is ahead of etcd's, or behind it if negative. Leaves out nodes
    whose clocks differ by a second or less.
    """
    return {name: key.clock_s for name, key in nodes.items() if abs(key.clock_s) > APART_S}


def clock_trouble(apart: Mapping[str, float]) -> str | None:
    """Returns the warning about `clocks_apart` for operators; None if there are none."""
    if not apart:
        return None
    said = (f"of {name} at least {abs(each):.1f} s {'ahead' if each > 0 else 'behind'}" for name, each in sorted(apart.items()))
    return f"clocks differ from etcd's: {', '.join(said)}; set them by NTP"
