"""Recovery of the tail checks that versions have no gap, within a file and between files."""

from __future__ import annotations

import pytest

from eventstore.errors import Corrupt
from eventstore.model import NewEvent
from tests.store.conftest import Maker
from tests.store.stepped import EVENTS, Stepped, order_of_files, raw


def store_of_three_files(opened: Maker, *, tagged: bool = False) -> Stepped:
    store = opened()
    number = 0
    while len(store.engine.files.headers) < 3:
        number += 1
        events = [NewEvent("T", b"", b"m", [f"t-{each}"] * (each % 2)) for each in range(number % 4 if tagged else 0)]
        store.append(raw(f"order-{number % 3}", f"command-{number}", *events))
    return store


def test_memory_after_a_restart_is_what_it_was_before(opened: Maker) -> None:
    store = store_of_three_files(opened, tagged=True)
    assert store.engine.tail.files[0].tags

    def memory(of: Stepped) -> list[tuple[object, ...]]:
        return [
            (
                file.number, file.first_sequence, file.next_sequence, file.end, file.offsets, file.sequences, file.versions,
                file.previous, file.heads, file.commands, file.tags,
            )
            for file in of.engine.tail.files
        ]  # fmt: skip

    before = memory(store)
    store = store.reopen()
    assert order_of_files(store) == ["completed", "completed", "ongoing"]
    assert memory(store) == before


@pytest.mark.parametrize("again", [False, True], ids=["within a file", "from file to file"])
def test_a_gap_in_versions_is_corrupt(opened: Maker, again: bool) -> None:
    store = store_of_three_files(opened)
    if not again:
        store.append(raw("order-1", "one"))
    file = next(file for file in reversed(store.engine.tail.files) if "order-1" in file.heads)
    assert again == (file is not store.engine.tail.current)
    file.versions[file.heads["order-1"]] += 7  # memory is wrong, so the log gets a gap with a valid checksum
    store.append(raw("order-1", "behind the gap"))
    start, _ = store.engine.tail.current.extent(len(store.engine.tail.current.offsets) - 1)
    store.close()
    with pytest.raises(Corrupt, match=r"'order-1' goes from version \d+ to \d+") as damage:
        opened(store.disk)
    assert damage.value.fields["file"] == str(EVENTS / "0000000003.events")
    assert damage.value.fields["offset"] == start


def test_a_completed_file_that_contradicts_its_header_is_corrupt(opened: Maker) -> None:
    from dataclasses import replace

    from tests.simulated_disk import SimulatedDisk

    store = store_of_three_files(opened)
    header, disk = store.engine.files.headers[0], store.disk
    assert isinstance(disk, SimulatedDisk)
    store.close()
    path = EVENTS / "0000000001.events"
    other = replace(header, records=header.records + 1)
    disk.replace(path, other.encode() + disk.content(path)[128 : header.end] + other.footer())
    with pytest.raises(Corrupt, match="do not match the header's counts"):
        opened(disk)


def test_a_store_whose_last_file_is_completed_begins_the_next_one(opened: Maker) -> None:
    from tests.simulated_disk import CRASH_MODES, SimulatedCrash, SimulatedDisk

    for mode in CRASH_MODES:
        for nth in range(1, 40):
            disk = SimulatedDisk(nth)
            store = opened(disk, f"{mode}-{nth}")
            for number in range(12):
                store.append(raw("order", f"command-{number}"))
            before = store.state()
            disk.crash_at(nth)
            number = 12
            try:
                while len(store.engine.files.headers) < 3:
                    store.append(raw("order", f"command-{number}"))
                    before = store.state()
                    number += 1
                break
            except SimulatedCrash:
                pass
            store = opened(disk.crash(mode), f"{mode}-{nth}-after")
            assert store.state()[: len(before)] == before
            at = len(store.state())
            assert store.append(raw("order", "next", expected=at))[0] == (0, at + 1, at + 1)
            states = order_of_files(store)
            assert states == ["completed"] * (len(states) - 1) + ["ongoing"]
