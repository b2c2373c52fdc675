"""Marks of imported events: members of their metadata that say what must not follow from them.

An event of years ago must not send mail today. The mark is in the event, not in the import, so that whoever reads it later, in
another process or on another shard, or from an export, knows it, too. Only what acts on events heeds it: reactions and
publishing. Aggregates and projections take the event as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from eventstore.errors import InvalidArgument
from eventstore.json_values import parsed
from eventstore.model import METADATA_IS_JSON, Event, NewEvent
from eventstore.tags import TAGGED, enveloped

NO_REACTIONS: Final = "no_reactions"
NO_PUBLISH: Final = "no_publish"
MARKS: Final = (NO_REACTIONS, NO_PUBLISH)


def is_marked(event: Event, mark: str) -> bool:
    """Whether the metadata of the event have this mark with the value true."""
    metadata = event.metadata
    # Most events have no metadata, or none that need parsing: a backslash may hide a name.
    if metadata is None or not (mark.encode() in metadata or b"\\" in metadata) or not event[8] & METADATA_IS_JSON:
        return False
    try:
        found = parsed(metadata)
    except (ValueError, RecursionError):  # a client flagged it as JSON, and this is not checked
        return False
    return isinstance(found, dict) and found.get(mark) is True


def marked(event: NewEvent, marks: Sequence[str]) -> NewEvent:
    """Returns the event with these marks; what its metadata have stays as it is spelled.

    Raises:
        InvalidArgument: its metadata are not a JSON object, or give a mark another value.
    """
    return with_members(event, dict.fromkeys(marks, True))


def with_members(event: NewEvent, members: Mapping[str, bool | int | str]) -> NewEvent:
    """Returns the event with these members in its metadata; what they have stays as it is spelled.

    Raises:
        InvalidArgument: its metadata are not a JSON object, or give a member another value.
    """
    format_, metadata = event[0], event.metadata
    found: object = {}
    if metadata is not None:
        found = parsed(metadata) if format_ & METADATA_IS_JSON else None
    if not isinstance(found, dict):
        what = f"the metadata is not a JSON object, which could be marked as {next(iter(members))}"
        raise InvalidArgument(what, field="metadata")
    for name, value in members.items():
        if found.get(name, value) is not value and (type(value) is bool or found[name] != value):
            raise InvalidArgument(f"the metadata has {name!r} with another value than {json.dumps(value)}", field="metadata")
    missing = [name for name in members if name not in found]
    if not missing:
        return event
    spelled = ([] if metadata is None or not found else [metadata.strip()[1:-1].decode()]) + [
        f"{json.dumps(name)}:{json.dumps(members[name])}" for name in missing
    ]
    whole = f"{{{','.join(spelled)}}}".encode()
    stored = enveloped(event.tags, whole, event.subject) if format_ & TAGGED else whole
    return tuple.__new__(NewEvent, (format_ | METADATA_IS_JSON, event[1], event[2], stored))
