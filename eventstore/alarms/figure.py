"""A figure that rules are about: a metric, under its name in /metrics without `eventstore_` and `_total`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, sorted: which group, reaction or shard a figure is of; empty: of the server."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A counter only grows, while its process lives."""

    name: str
    labels: Labels
    value: float
    kind: Literal["counter", "gauge"] = "gauge"


ReadFigures: TypeAlias = Callable[[Collection[str]], Iterable[Figure]]
"""Returns the figures of these names that exist; called on a thread."""


def labels_text(labels: Labels) -> str:
    """Returns `group=billing, topic=orders`."""
    return ", ".join(f"{name}={value}" for name, value in labels)
