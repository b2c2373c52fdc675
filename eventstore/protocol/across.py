"""How the answers of several shards to a request become one: the rules that declarations name as `across`.

Each shard has all topics, groups and reactions, with queues, offsets and events of its own. Which shards are asked, and what
happens when one is split meanwhile, is up to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from eventstore.errors import EventStoreError

Answers = Mapping[int, Any]
"""By the number of the shard."""


@dataclass(frozen=True, slots=True)
class Across:
    """`merge`: makes one answer of those of several shards. `lacking`: by these errors a shard says that it does not have what
    is named: an earlier call may have failed after some shards. They are the answer if no shard has it. `enough`: whether no
    further shard is asked after this answer. `about_one`: what in a request means something on one shard only, and the
    method to call on that; None: nothing.
    """

    merge: Callable[[Answers], Any]
    lacking: tuple[type[EventStoreError], ...] = ()
    enough: Callable[[Any], bool] = lambda answer: False
    about_one: Callable[[Any], tuple[str, str] | None] = lambda request: None


def _last(answers: Answers) -> Any:
    return [*answers.values()][-1]


FIRST: Final = Across(_last, enough=lambda answer: True)
"""The answer of the first shard: all have the same."""

FIRST_FOUND: Final = Across(_last, enough=lambda messages: messages.count > 0)
"""The answer of the first shard that has a message."""

ANY: Final = Across(lambda answers: any(answers.values()))
"""Whether it is true of a shard."""


def nothing(*lacking: type[EventStoreError]) -> Across:
    """All shards are asked, and answer nothing."""
    return Across(lambda answers: None, lacking)


def rows_of_each(*lacking: type[EventStoreError], about_one: Callable[[Any], tuple[str, str] | None] | None = None) -> Across:
    """The rows of each shard, with its number."""
    return Across(_numbered, lacking, about_one=about_one or (lambda request: None))


def _numbered(answers: Answers) -> list[Any]:
    return [row._replace(shard=shard) for shard, rows in answers.items() for row in rows]


def rows_by_name(*lacking: type[EventStoreError], **columns: Callable[[Any, Any], Any]) -> Across:
    """One row for all that begin with the same name. `columns`: what the values of each are combined by."""

    def merge(answers: Answers) -> list[Any]:
        found: dict[str, Any] = {}
        for row in chain.from_iterable(answers.values()):
            if (before := found.get(row[0])) is not None:
                row = row._replace(**{name: how(getattr(before, name), getattr(row, name)) for name, how in columns.items()})
            found[row[0]] = row
        return list(found.values())

    return Across(merge, lacking)


def largest_of_each_name(column: str, *lacking: type[EventStoreError]) -> Across:
    """Of the rows that begin with the same name that with the most in a column, those with more first; with its shard."""

    def merge(answers: Answers) -> list[Any]:
        found: dict[str, Any] = {}
        for row in sorted(_numbered(answers), key=lambda row: -getattr(row, column)):
            found.setdefault(row[0], row)
        return list(found.values())

    return Across(merge, lacking)


def one_shard(method: str) -> Across:
    """The request names what is on one shard. `method`: of the client's broker, which makes it."""
    return Across(_last, about_one=lambda request: (f"`broker.{method}`", method))
