"""Tells whether an event is still the one that a checkpoint stands at.

A sequence alone does not: a store that was restored from an older copy, or lost its unsynced end, gives the same sequences to
other events. So a checkpoint keeps the identity of its event, and a reader that continues there looks it up first. Where it
is missing or another one, what was derived holds events that the store does not have: it is refused for good, since nothing
can tell which ones.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, NamedTuple, Self

from eventstore.errors import Diverged, InvalidArgument
from eventstore.fields import check_int, shown
from eventstore.model import VERSION_MAX, Event

_DIGEST_BYTES: Final = 16
IDENTITY_DIGITS: Final = 8
_PLACE: Final = re.compile(r"(0|[1-9][0-9]{0,18})(?:-([0-9a-f]{8}))?", re.ASCII)


class LogPosition(NamedTuple):
    """Where a reader stands in one log: the sequence of an event, and the first 8 digits of its identity; empty if unknown."""

    sequence: int
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.sequence}-{self.identity}" if self.identity else str(self.sequence)

    @classmethod
    def parse(cls, field: str, text: str) -> Self:
        """Reads what `str` has written. Raises InvalidArgument about the field."""
        found = _PLACE.fullmatch(text)
        if found is None or (found[1] == "0" and found[2]):
            raise InvalidArgument(
                f"{field} is {shown(text)}, expected a sequence, or sequence-identity with 8 hexadecimal digits",
                field=field,
                value=shown(text),
            )
        return cls(check_int(field, int(found[1]), 0, VERSION_MAX), found[2] or "")

    @classmethod
    def at(cls, event: Event) -> Self:
        return cls(event.sequence, event_identity(event)[:IDENTITY_DIGITS])


def event_identity(event: Event) -> str:
    """Returns 32 hexadecimal digits that follow from everything in the event but its sequence: BLAKE2b of its fields."""
    aggregate_id, version, type_, data, metadata, command_id, timestamp, _, _ = event
    digest = blake2b(f"{version} {timestamp} {metadata is None}".encode(), digest_size=_DIGEST_BYTES)
    for field in (aggregate_id.encode(), type_.encode(), command_id.encode(), data, metadata or b""):
        digest.update(len(field).to_bytes(8, "little"))
        digest.update(field)
    return digest.hexdigest()


def check_start(after: int, end: int) -> None:
    """Raises Diverged if a reader stands after the end of the store: it would miss the events that come up to its place (R13 of
    ADR 14).
    """
    if after > end:
        raise Diverged(
            f"after is {after}, but the store ends at {end}: the number is too large, or the store was restored from an older "
            "copy, or lost events that were not durable yet; what was made of those must be made again from an earlier place",
            what="subscription",
            sequence=after,
        )


def check_identity(what: str, sequence: int, recorded: str, found: Event | None, next_step: str) -> None:
    """Raises Diverged unless `found`, the store's event at `sequence`, has the recorded identity, or begins with its 8 digits.

    `what` names the checkpoint in the error, `next_step` says what the reader can do.
    """
    identity = None if found is None else event_identity(found)
    if identity is not None and recorded in (identity, identity[:IDENTITY_DIGITS]):
        return
    seen = "has no such event" if found is None else f"has another event there ({found.type!r} of {found.aggregate_id!r})"
    raise Diverged(
        f"{what} stands at the event of sequence {sequence}, but the store {seen}: it was restored from an older copy, or lost "
        f"events that were not durable yet; {next_step}",
        what=what,
        sequence=sequence,
    )
