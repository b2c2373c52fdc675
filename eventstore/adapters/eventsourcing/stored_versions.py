"""Versions: those of an aggregate here are 1, 2, 3, …; the library's begin where its class says, at 1 as a rule, or at 0.

An event whose version there is another than here says so in its metadata. Versions of events there are those here or one less;
versions of snapshots have gaps.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from eventstore.json_values import Json
from eventstore.model import Event, NewEvent

_FIELD: Final = "originator_version"


def new_event(stored: StoredEvent, version: int) -> NewEvent:
    """Returns the event to append, as the aggregate's `version`. Raises InvalidArgument."""
    metadata = None if stored.originator_version == version else {_FIELD: stored.originator_version}
    return NewEvent(stored.topic, stored.state, metadata)


def originator_version(event: Event) -> int:
    """Returns its version as the library counts. Raises PayloadInvalid if another program wrote metadata that is not JSON."""
    if event.metadata is None:
        return event.version
    metadata: Json = event.metadata_json()
    found = metadata.get(_FIELD) if isinstance(metadata, dict) else None
    return found if isinstance(found, int) else event.version


def stored_event(event: Event, originator_id: UUID | str) -> StoredEvent:
    """Returns the event as the library has it."""
    return StoredEvent(originator_id, originator_version(event), event.type, event.data)
