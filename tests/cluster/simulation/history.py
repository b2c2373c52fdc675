"""Runs the history of a seed, and says what broke together with how to see it again."""

from __future__ import annotations

from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.world import World

_TRACED_LINES = 60


def run(seed: int, **kind: bool) -> World:
    """`kind`: as `World` takes it; without any, `mixed`. Raises Broken with the seed and the last steps of its history."""
    try:
        return world(seed, **kind).run()
    except Exception as error:
        options = "".join(f" --{name.replace('_', '-')}" for name, chosen in kind.items() if chosen)
        again = f"python -m tests.cluster.simulate --from {seed} --seeds 1 --trace{options}"
        raise Broken(f"seed {seed}: {error!r}\n{again}\n" + "\n".join(trace(seed, **kind)[-_TRACED_LINES:])) from error


def trace(seed: int, **kind: bool) -> list[str]:
    """Returns every step of the history as a line."""
    traced = world(seed, traced=True, **kind)
    try:
        traced.run()
    except Exception as error:
        traced.trace.append(repr(error))
    return traced.trace


def world(seed: int, *, traced: bool = False, **kind: bool) -> World:
    """Returns the world of a seed before its first step."""
    return World(seed, traced=traced, **(kind if any(kind.values()) else mixed(seed)))


def mixed(seed: int) -> dict[str, bool]:
    """Of six seeds in turn, two have replicas move, one has the shard split, one has both at once; in the others the registry
    may be lost, or a person accept loss, which goes with neither.
    """
    return {"moves": seed % 6 in (1, 3, 4), "splits": seed % 3 == 0}
