"""Events with tags, as the library's dynamic consistency boundaries have them, and its queries as queries of this store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final

from eventsourcing.dcb.api import DCBEvent, DCBQueryItem, DCBSequencedEvent

from eventstore.model import Event, NewEvent
from eventstore.query import Query

DCB_KIND: Final = "dcb"
"""What the ids of these events' aggregates begin with, behind the scope."""


def new_tagged_event(event: DCBEvent) -> NewEvent:
    """Returns the event to append. Raises InvalidArgument."""
    return NewEvent(event.type, event.data, tags=event.tags)


def sequenced_event(event: Event) -> DCBSequencedEvent:
    """Returns an event of the log as the library has it; its tags are in the order of their bytes, each once."""
    return DCBSequencedEvent(DCBEvent(event.type, event.data, list(event.tags)), event.sequence)


def query_of(items: Sequence[DCBQueryItem]) -> Query:
    """Returns the query of these items; of none, the one that lets every event pass. Raises InvalidArgument."""
    return reduce(or_, (Query(each.types, each.tags) for each in items)) if items else Query()
