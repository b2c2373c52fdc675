"""A directory of several LMDB pages, and damage to its pages."""

from __future__ import annotations

import struct
from pathlib import Path

from eventstore.model import Event
from eventstore.store.append import COMMITTED, CONFLICT, DUPLICATE
from tests.simulated_disk import SimulatedDisk
from tests.store.stepped import Stepped, raw

PAGE = 4096
NAMES = [f"customer-{number:04d}" for number in range(700)]


Many = tuple[SimulatedDisk, list[Event]]


def answers_right(store: Stepped, state: list[Event]) -> None:
    assert store.state() == state
    for number in range(0, 700, 7):
        name = NAMES[number]
        assert [event.version for event in store.read(name)] == [1, 2]
        assert store.engine.version(name) == 2
        assert store.append(raw(name, f"first-{name}"), raw(name, f"second-{name}"))[0][0] == DUPLICATE
        assert store.append(raw(name, f"new-{name}", expected=0))[0][:2] == (CONFLICT, 2)
    assert store.engine.version("nobody") == 0
    assert store.append(raw("nobody", "x", expected=0)) == [(COMMITTED, 1, len(state) + 1)]


def unclean(directory: Path) -> None:
    """Leaves the mark that a killed process leaves."""
    (directory / "in-use").touch()


def data(directory: Path) -> Path:
    return directory / "data.mdb"


def used_pages(directory: Path) -> list[int]:
    """Returns the pages in use: branches, leaves and other pages of the trees."""
    raw_data = data(directory).read_bytes()
    return [page for page in range(2, len(raw_data) // PAGE) if any(raw_data[page * PAGE : (page + 1) * PAGE])]


def zero_leaf_of(directory: Path, name: str) -> None:
    """Zeroes the leaf that holds the aggregate, and older versions of this leaf."""
    raw_data, where = bytearray(data(directory).read_bytes()), -1
    while (where := raw_data.find(name.encode(), where + 1)) >= 0:
        page = where // PAGE * PAGE
        if struct.unpack_from("<10xH", raw_data, page)[0] & 0x0F == 2:  # P_LEAF
            raw_data[page : page + PAGE] = bytes(PAGE)
    data(directory).write_bytes(bytes(raw_data))


def flip_keys(directory: Path, name: str, bit: int = 0) -> None:
    """Flips a bit of the last byte of an aggregate's id, in leaves and in branches."""
    raw_data, where = bytearray(data(directory).read_bytes()), -1
    while (where := raw_data.find(name.encode(), where + 1)) >= 0:
        raw_data[where + len(name) - 1] ^= 1 << bit
    data(directory).write_bytes(bytes(raw_data))
