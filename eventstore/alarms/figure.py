"""A figure that rules are about: a metric, under its name in /metrics without `eventstore_` and `_total`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeAlias

from eventstore.fields import size_text

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values, sorted: which group, reaction or shard a figure is of; empty: of the server."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A counter only grows, while its process lives."""

    name: str
    labels: Labels
    value: float
    kind: Literal["counter", "gauge"] = "gauge"


_WHOLE_FROM: Final = 1_000_000  # from here on all digits before the point are shown


ReadFigures: TypeAlias = Callable[[Collection[str]], Iterable[Figure]]
"""Returns the figures of these names that exist; called on a thread."""


def labels_text(labels: Labels) -> str:
    """Returns `group=billing, topic=orders`."""
    return ", ".join(f"{name}={value}" for name, value in labels)


def value_text(name: str, value: float) -> str:
    """Returns a value of the figure `name` for people: six digits with the unit that the name ends with, never as 6.5e+10."""
    if name.endswith("_bytes"):
        return size_text(value)
    number = f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{Decimal(f'{value:.6g}'):,f}"
    return f"{number} s" if name.endswith("_seconds") else number
