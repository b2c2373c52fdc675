"""Which nodes have another time than etcd: each says it in its own key, so that all know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore_cluster.registry.node_keys import NodeKey

APART_S: Final = 1.0
"""By which the clock of a node may differ."""


def clocks_apart(nodes: Mapping[str, NodeKey]) -> dict[str, float]:
    """Returns by how many seconds the clocks of nodes are ahead of etcd's at least, or behind it if negative; only of those
    that differ by more than a second.
    """
    return {name: key.clock_s for name, key in nodes.items() if abs(key.clock_s) > APART_S}


def clock_trouble(apart: Mapping[str, float]) -> str | None:
    """Returns the warning about `clocks_apart` for operators; None if there are none."""
    if not apart:
        return None
    said = (f"of {name} at least {abs(each):.1f} s {'ahead' if each > 0 else 'behind'}" for name, each in sorted(apart.items()))
    return f"clocks differ from etcd's: {', '.join(said)}; set them by NTP"
