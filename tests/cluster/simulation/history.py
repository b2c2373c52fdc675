"""Runs the history of a seed, and says what broke together with how to see it again."""

from __future__ import annotations

from tests.cluster.simulation.checks import Broken
from tests.cluster.simulation.world import World

_TRACED_LINES = 60


def run(seed: int, **kind: bool) -> World:
    """`kind`: as `World` takes it. Raises Broken with the seed and the last steps of its history."""
    try:
        return World(seed, **kind).run()
    except Exception as error:
        options = "".join(f" --{name.replace('_', '-')}" for name, chosen in kind.items() if chosen)
        again = f"python -m tests.cluster.simulate --from {seed} --seeds 1 --trace{options}"
        raise Broken(f"seed {seed}: {error!r}\n{again}\n" + "\n".join(trace(seed, **kind)[-_TRACED_LINES:])) from error


def trace(seed: int, **kind: bool) -> list[str]:
    """Returns every step of the history as a line."""
    world = World(seed, traced=True, **kind)
    try:
        world.run()
    except Exception as error:
        world.trace.append(repr(error))
    return world.trace
