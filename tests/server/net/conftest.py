"""Checks the gates of these tests after each step of each task."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from eventstore.chunks.writing.group_commit import GroupCommit
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from tests.invariants import checked


def check_of_gate(gate: Gate) -> Callable[[], None]:
    """Returns what checks a gate, its connections and budgets."""
    known: set[ServerConnection] = set()  # a closed one may still have a page made

    def check() -> None:
        known.update(gate.connections)
        gate.check_invariants()
        gate.outbound.check_invariants(known)
        known.difference_update([each for each in known if each.closed and not each.reserved_bytes])

    return check


def check_of_group_commit(committer: GroupCommit[Any, Any]) -> Callable[[], None]:
    return committer.check_invariants


def _checked(
    run: Callable[..., Awaitable[None]], check_of: Callable[[Any], Callable[[], None]]
) -> Callable[..., Awaitable[None]]:
    @functools.wraps(run)
    async def checks(own: Any, *args: Any, **arguments: Any) -> None:
        with checked(check_of(own)):
            await run(own, *args, **arguments)

    return checks


@pytest.fixture(scope="module", autouse=True)
def invariants() -> Iterator[None]:
    """Has each gate and group commit that runs in this process fail once it contradicts itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gate, "run", _checked(Gate.run, check_of_gate))
        patch.setattr(GroupCommit, "run", _checked(GroupCommit.run, check_of_group_commit))
        yield
