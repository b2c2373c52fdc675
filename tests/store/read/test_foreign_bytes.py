"""How much of its log a shard keeps of what other shards hand out since a split is shown, as an estimate."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from eventstore.model import NewEvent
from eventstore.records.slots import SLOTS, slot_of
from eventstore.records.splits import Split, slot_filter
from eventstore.store.read.foreign_bytes import ForeignBytes
from eventstore.store.sorted.file_names import INDEX
from tests.store.conftest import Maker
from tests.store.embedded.held_disk import SMALL_FILES
from tests.store.stepped import Stepped, raw

FILE = 64 << 10


def filled(opened: Maker) -> Stepped:
    """Ten sorted files and an ongoing one, with commits of a few bytes and of many."""
    store = opened(settings=replace(SMALL_FILES, file_size_bytes=FILE))
    choice = random.Random(5)
    while len(store.engine.files.headers) < 11:
        sized = NewEvent("A", bytes(choice.choice((10, 100, 2_000))))
        store.append(raw(f"order-{choice.randrange(300)}", f"c-{store.engine.visible_sequence}", sized))
    store.sort()
    return store


def measured(store: Stepped) -> ForeignBytes:
    found = ForeignBytes(store.engine.files, lambda: store.engine.slot_filter)
    while found.measure():
        pass
    return found


def stored(store: Stepped, first: int, last: int, through: int) -> int:
    """Returns the bytes of the events up to `through` whose slots are from `first` to `last`, about: those of their data."""
    return sum(
        len(event.data) + 60 for event in store.state() if event.sequence <= through and first <= slot_of(event[0]) <= last
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_estimate_is_near_what_was_given_away(opened: Maker, share: float) -> None:
    store = filled(opened)
    edge, through = int(SLOTS * share), store.engine.files.headers[-1].first_sequence - 1
    store.engine.slot_filter = slot_filter(0, ((edge, SLOTS - 1),), (Split(2, 0, 1, through),))
    found = measured(store)
    everything, gone = stored(store, 0, SLOTS - 1, through), stored(store, 0, edge - 1, through)
    assert found.shared == sum(header.end for header in store.engine.files.headers[:-1])
    assert abs(found.total / found.shared - gone / everything) < 0.02
    child = slot_filter(1, ((0, edge - 1),), (Split(2, 0, 1, through),))
    store.engine.slot_filter = child
    assert abs(measured(store).total + found.total - found.shared) < 0.02 * found.shared, "each byte belongs to one of both"


def test_what_was_appended_after_a_split_is_not_foreign(opened: Maker) -> None:
    store = filled(opened)
    through = store.engine.files.headers[5].first_sequence - 1
    store.engine.slot_filter = slot_filter(0, ((0, 0),), (Split(2, 0, 1, through),))
    found = measured(store)
    assert found.shared == sum(header.end for header in store.engine.files.headers[:5])
    assert 0.98 * found.shared < found.total <= found.shared
    store.engine.slot_filter = None
    assert (measured(store).total, measured(store).shared) == (0, 0)


def test_a_file_that_cannot_be_read_counts_as_nothing(opened: Maker) -> None:
    store = filled(opened)
    files = store.engine.files
    store.engine.slot_filter = slot_filter(0, ((0, 0),), (Split(2, 0, 1, files.headers[2].first_sequence - 1),))
    files.update(files.headers[0])  # closes its index
    store.disk.remove(files.folder.derived_path(1, INDEX))
    assert 0.98 * files.headers[1].end < measured(store).total <= files.headers[1].end
