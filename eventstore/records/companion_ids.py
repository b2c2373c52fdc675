"""Reserved ids that stand beside an aggregate: `$parked{acc-1}`, `$timers{acc-1}`. They are in the slot of the aggregate.

An id carries that of its aggregate. If that is too long, it carries a number of the same slot, as a tag, and a hash of the id;
then the data of its events name the aggregate.
"""

from __future__ import annotations

import hashlib

from eventstore.errors import InvalidArgument
from eventstore.fields import check_text, shown
from eventstore.model import ID_BYTES_MAX
from eventstore.records.slots import number_of_slot, slot_of


def companion_id(prefix: str, aggregate_id: str) -> str:
    """Returns the reserved id that stands beside an aggregate. `prefix`: what it begins with, up to the first `{`."""
    carrying = f"{prefix}{aggregate_id}}}"
    if len(carrying.encode()) <= ID_BYTES_MAX:
        return carrying
    return f"{prefix}{{{number_of_slot(slot_of(aggregate_id))}}}{_hash_of(aggregate_id)}}}"


def carried_by(prefix: str, companion: str) -> str:
    """Returns the text that a reserved id carries: from its first `{` to its last `}`."""
    return companion[len(prefix) : -1]


def aggregate_of(prefix: str, companion: str, named: object) -> str:
    """Returns the aggregate beside which a reserved id stands. `named`: what the data of its event name; None: nothing.

    Raises:
        InvalidArgument: the data name an aggregate that has another reserved id.
    """
    aggregate_id = check_text("aggregate_id", carried_by(prefix, companion) if named is None else named)
    carrying = f"{prefix}{aggregate_id}}}"
    stands_for = (
        len(carrying.encode()) > ID_BYTES_MAX
        and companion.endswith(f"}}{_hash_of(aggregate_id)}}}")
        and slot_of(companion) == slot_of(aggregate_id)
    )
    if companion != carrying and not stands_for:
        raise InvalidArgument(
            f"a record on {shown(companion)} names {shown(aggregate_id)}, whose records have another id",
            field="aggregate_id",
            value=shown(aggregate_id),
        )
    return aggregate_id


def _hash_of(aggregate_id: str) -> str:
    return hashlib.blake2b(aggregate_id.encode(), digest_size=16).hexdigest()
