"""Replicas whose processes cannot run, as their nodes say in their keys, so that it is known where the node cannot be asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from eventstore.chunks.documents import DocumentValue

_WHY_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Failing:
    """A replica that cannot run.

    Attributes:
        since: seconds of Unix time, by the clock of the node.
        why: how the last process ended, or why none could start.
    """

    shard: int
    since: int
    why: str


def failing_value(failing: Iterable[Failing]) -> list[DocumentValue]:
    return [[each.shard, each.since, each.why[:_WHY_CHARACTERS_MAX]] for each in failing]


def read_failing(value: Any) -> tuple[Failing, ...]:
    """Raises TypeError or ValueError: something else wrote it."""
    return tuple(Failing(int(shard), int(since), str(why)) for shard, since, why in value)


def failing_text(shard: int, nodes: Iterable[tuple[str, Iterable[Failing]]]) -> str | None:
    """Returns which replicas of the shard cannot run, since when and why; None if all can. `nodes`: what each says."""
    found = [
        f"its replica on {node} cannot run since {utc_text(each.since)}: {each.why}"
        for node, failing in nodes
        for each in failing
        if each.shard == shard
    ]
    return "; ".join(found) or None


def utc_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
