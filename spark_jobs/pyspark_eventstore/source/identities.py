"""Identities of the events that a snapshot, an offset or a run of an export stands at.

A sequence alone does not tell a store from one that was restored from an older copy (see `eventstore.event_identity`).
"""

from __future__ import annotations

from collections.abc import Iterable

from eventstore.event_identity import check_identity, event_identity
from eventstore.model import Event
from pyspark_eventstore.files.event_objects import EVENT_COLUMNS, events_of_batch
from pyspark_eventstore.source.partition_reader import read_slices
from pyspark_eventstore.source.predicates import Wanted
from pyspark_eventstore.source.slices import plan
from pyspark_eventstore.source.snapshot import Snapshot
from pyspark_eventstore.source.source_options import PARTITION_BYTES, Offsets
from pyspark_eventstore.source.table import arrow_schema, table_schema

Identities = dict[str, str]
"""The identity of one event by the uuid of a store."""


def event_in(snapshot: Snapshot, sequence: int) -> Event | None:
    """Returns the event of a sequence; None if the snapshot ends before it, or at 0.

    Reads one row of a sorted file. Of a file that is not sorted yet it walks the records from the mark before it.

    Raises:
        Corrupt, FolderRefused
    """
    if not 0 < sequence <= snapshot.last_sequence:
        return None
    store, wanted = snapshot.data_folder.store, Wanted()
    slices = plan([snapshot], {store: sequence - 1}, {store: sequence}, wanted, PARTITION_BYTES)
    schema = arrow_schema(table_schema(EVENT_COLUMNS, permissive=False))
    batches = read_slices(slices, schema, wanted, permissive=False, report=None, whole=True)
    return next((event for batch in batches for event in events_of_batch(batch)), None)


def identities_of(snapshots: Iterable[Snapshot]) -> Identities:
    """Returns the identity of each snapshot's last event; nothing for an empty store. Raises as `event_in` does."""
    ends = {each.data_folder.store: event_in(each, each.last_sequence) for each in snapshots}
    return {store: event_identity(event) for store, event in ends.items() if event is not None}


def place_in(snapshot: Snapshot, upto: Offsets) -> str | None:
    """Returns the store whose place in `upto` is one of this log: its own, or else the nearest one that it was split off from.
    None if there is none, or its place is after the events that both have.
    """
    if (own := snapshot.data_folder.store) in upto:
        return own
    shared = snapshot.shared_with(upto)
    if shared is None:
        return None
    store, last = shared
    return store if upto[store] <= last else None


def check_identities(what: str, upto: Offsets, recorded: Identities, snapshots: Iterable[Snapshot], next_step: str) -> None:
    """Raises Diverged unless the stores of these snapshots have the events at `upto`, as far as their identities are known.

    Raises:
        Diverged, Corrupt, FolderRefused
    """
    for snapshot in snapshots:
        store = place_in(snapshot, upto)
        if store in recorded:
            found = event_in(snapshot, upto[store])
            check_identity(f"{what} of {snapshot.data_folder.path}", upto[store], recorded[store], found, next_step)
