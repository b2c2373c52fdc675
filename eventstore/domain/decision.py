"""`Decision`, the base class of what a command is decided on if that is no single aggregate: the events that pass a query."""

from __future__ import annotations

from typing import ClassVar

from eventstore.domain.aggregate import Aggregate
from eventstore.query import Query, QueryItem


class Decision(Aggregate):
    """State that is made of the events that pass a query, of all aggregates of one scope. `@applies` methods fold them; events
    that have none are left out.

    What a handler applies is stored in the aggregate that the command names: `id`. `version` is the number of events so far.
    """

    ignores_unknown: ClassVar[bool] = True


def with_types_of(model: type[Decision], query: Query) -> Query:
    """Returns a query with the types that a model applies in each item that names none."""
    if all(item.types for item in query.items):
        return query
    applied = frozenset(model.event_types())
    items = (item if item.types else QueryItem(applied, item.tags) for item in query.items)
    return Query.of(tuple(dict.fromkeys(items)))
