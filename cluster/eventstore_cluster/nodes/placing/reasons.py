"""Why a plan changes something, for people: said when it is chosen, of the nodes as the plan has left them until then."""

from __future__ import annotations

from eventstore.fields import counted, size_text
from eventstore_cluster.nodes.placing.fleet import Loads


def fuller(loads: Loads, source: str, target: str) -> str:
    """Says in what a node has more than another: bytes, appends or replicas, where they differ most."""
    amounts = loads.amounts(source), loads.amounts(target)
    everything = loads.everything
    gaps = [(more - less) / all_ if all_ else 0.0 for more, less, all_ in zip(*amounts, everything, strict=True)]
    most = max(range(len(gaps)), key=lambda at: gaps[at])
    more, less = (_said(most, each[most]) for each in amounts)
    return f"{source} {more}, {target} {less}"


def emptiest(loads: Loads, name: str, others: list[str] | None = None) -> str:
    """Says what a node has. `others`: the nodes that keep the shard's other replicas."""
    size, _, count = loads.amounts(name)
    sizes, _, counts = loads.everything
    nodes = counted(len(loads.fleet.nodes), "node")
    has = f"{size_text(size)} of the {size_text(sizes)}" if sizes else f"{count:.0f} of the {counted(round(counts), 'replica')}"
    zone = loads.fleet.nodes[name].zone
    apart = zone and others is not None and zone not in map(loads.zone, others)
    return f"{name} has {has} of {nodes}{f', zone {zone} has none of it' if apart else ''}"


def _said(what: int, amount: float) -> str:
    says = f"has {size_text(amount)}", f"takes {amount:,.0f} events/s", f"has {counted(round(amount), 'replica')}"
    return says[what]
