"""Checks that the folders hold the stores and events that an option, an offset or a run of an export names.

A sequence alone does not tell a store from a store that was restored from an older copy (see `eventstore.event_identity`), nor
its folder from another store's folder, which has a uuid of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from eventstore.errors import FolderRefused, InvalidArgument
from eventstore.following.checkpoint import Checkpoint
from eventstore.model import Event
from eventstore.records.commit import LONG_HEADER_BYTES, first_sequence, joint_place_of
from pyspark_eventstore.files.event_objects import EVENT_COLUMNS, events_of_batch
from pyspark_eventstore.source.partition_reader import open_event_file, read_slices
from pyspark_eventstore.source.predicates import Wanted
from pyspark_eventstore.source.slices import plan
from pyspark_eventstore.source.snapshot import FolderSnapshot, read_header
from pyspark_eventstore.source.source_options import PARTITION_BYTES, Offsets
from pyspark_eventstore.source.table import OFFSET, arrow_schema, table_schema

_STORES_SHOWN: Final = 5


def event_in(snapshot: FolderSnapshot, sequence: int) -> Event | None:
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


def joint_end(snapshot: FolderSnapshot, sequence: int) -> int:
    """Returns the sequence of the last event of the joint commit that has this event; the sequence itself of any other event.
    Reads as `event_in` does, and the header of the record.

    Raises:
        Corrupt, FolderRefused
    """
    store, wanted = snapshot.data_folder.store, Wanted()
    slices = plan([snapshot], {store: sequence - 1}, {store: sequence}, wanted, PARTITION_BYTES)
    schema = arrow_schema(table_schema((OFFSET,), permissive=False))
    while True:
        before = read_header(snapshot.data_folder.folder, slices[0].number)
        batches = read_slices(slices, schema, wanted, permissive=False, report=None, whole=True)
        (offset,) = [row for batch in batches for row in batch.column(OFFSET).to_pylist()]
        now, file = open_event_file(slices[0])
        try:
            record = file.read_at(offset, LONG_HEADER_BYTES)
        finally:
            file.close()
        if now.sorted == before.sorted:  # else its records are elsewhere since
            joint = joint_place_of(record)
            return sequence if joint is None else first_sequence(record) - joint.events_before + joint.events - 1


def ends_of(snapshots: Iterable[FolderSnapshot]) -> dict[str, Checkpoint]:
    """Returns where each store ends, by its uuid; leaves out empty stores.

    Raises:
        Corrupt, FolderRefused
    """
    ends = {each.data_folder.store: event_in(each, each.last_sequence) for each in snapshots}
    return {store: Checkpoint.at(event) for store, event in ends.items() if event is not None}


def place_in(snapshot: FolderSnapshot, upto: Offsets) -> str | None:
    """Returns the store in `upto` whose place is in this log: the log's own store, or else the nearest store that it was split
    off from. None if there is no such store, or if its place is after the events that both have.
    """
    if (own := snapshot.data_folder.store) in upto:
        return own
    shared = snapshot.shared_with(upto)
    if shared is None:
        return None
    store, last = shared
    return store if upto[store] <= last else None


def check_places(what: str, recorded: Mapping[str, Checkpoint], snapshots: Iterable[FolderSnapshot], next_step: str) -> None:
    """Checks that the stores of these snapshots have the recorded events, as far as their identities are known.

    Raises:
        Diverged: a store does not have the event.
        Corrupt, FolderRefused
    """
    upto = {store: place.sequence for store, place in recorded.items()}
    for snapshot in snapshots:
        store = place_in(snapshot, upto)
        if store is not None and recorded[store].identity is not None:
            found = event_in(snapshot, upto[store])
            recorded[store].check(f"{what} of {snapshot.data_folder.path}", found, next_step)


def check_named(option: str, named: Offsets, snapshots: Sequence[FolderSnapshot], *, also_before: bool, ended: bool) -> None:
    """Checks that these snapshots have the stores and sequences that an option names. `also_before`: stores that they were
    split off from count too. `ended`: no store may end before its sequence.

    Raises:
        InvalidArgument
    """
    here = {each.data_folder.store: each for each in snapshots}
    known = here.keys() | (_lineage(snapshots) if also_before else set())
    for store, sequence in sorted(named.items()):
        if store not in known:
            there = _told([f"{uuid} in {each.data_folder.path}" for uuid, each in here.items()])
            what = f"{option} names store {store}, which is not among the data folders of the query: {there}"
            raise InvalidArgument(f"{what}; name its data folder, too, or leave it out of {option}", field=option, value=store)
        if ended and store in here and sequence > here[store].last_sequence:
            ends = f"which ends at sequence {here[store].last_sequence} ({here[store].data_folder.path})"
            why = "the number is too large, or the store was restored from an older copy"
            what = f"{option} is {sequence} for store {store}, {ends}: {why}"
            next_step = "put the right store back, or give a sequence that it has"
            raise InvalidArgument(f"{what}; {next_step}", field=option, value=sequence)


def check_stores(what: str, read: Offsets, snapshots: Sequence[FolderSnapshot], next_step: str) -> None:
    """Refuses a store that has taken the place of a store that was read: it is new here, and the other one is missing. A store
    that is only new, or only missing, is not refused; nor is a shard that was split off from a store that was read.

    Raises:
        FolderRefused
    """
    here = {each.data_folder.store for each in snapshots} | _lineage(snapshots)
    gone = sorted(store for store, sequence in read.items() if sequence and store not in here)
    for each in snapshots:
        store = each.data_folder.store
        if gone and store not in read and each.shared_with(read) is None:
            missing = _told([f"{before} (up to sequence {read[before]})" for before in gone])
            instead = f"holds store {store}, and {what} is of store {missing}, whose data folder is not here"
            raise FolderRefused(each.data_folder.path, f"{instead}; name that, too, or put it back, or {next_step}")


def _lineage(snapshots: Iterable[FolderSnapshot]) -> set[str]:
    """Returns the stores that these snapshots' stores were split off from."""
    return {str(before.store) for each in snapshots for before in each.data_folder.ancestors}


def _told(stores: Sequence[str]) -> str:
    more = len(stores) - _STORES_SHOWN
    return ", ".join(stores[:_STORES_SHOWN]) + (f" and {more} more" if more > 0 else "")
