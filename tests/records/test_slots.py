"""Slots are those of docs/PROTOCOL.md, in every process and language."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.model import ID_BYTES_MAX
from eventstore.records.parking_record import reserved_id
from eventstore.records.slots import LOCAL, SLOTS, number_of_slot, slot_of

_PAGE = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
_TABLE = _PAGE.split("| id | slot |")[1].split("\n\n")[0]
VECTORS = [
    ("" if text == "the empty text" else text.strip("`"), int(slot))
    for text, slot in re.findall(r"^\| (.*) \| (\d+) \|$", _TABLE, re.M)
]


def test_the_page_has_vectors() -> None:
    assert len(VECTORS) == 21


@pytest.mark.parametrize(("aggregate_id", "slot"), VECTORS)
def test_a_slot_is_that_of_the_page(aggregate_id: str, slot: int) -> None:
    assert slot_of(aggregate_id) == slot


def test_a_slot_is_the_crc32c() -> None:
    assert slot_of("123456789") == 0xE3069283 % SLOTS  # the check value of CRC-32C


def test_slots_spread_over_mailboxes() -> None:
    counts = Counter(slot_of(f"order-{number}") % 4 for number in range(10_000))
    assert all(2_200 < count < 2_800 for count in counts.values())


@pytest.mark.parametrize("aggregate_id", ["$", "$note", "$note{}", "$note}a{", "${"])
def test_a_reserved_id_about_no_other_is_local(aggregate_id: str) -> None:
    assert slot_of(aggregate_id) == LOCAL


@given(st.text(alphabet="ab{}$", min_size=1, max_size=12))
def test_what_is_reserved_about_an_aggregate_is_where_it_is(aggregate_id: str) -> None:
    if not aggregate_id.startswith("$"):
        assert slot_of(reserved_id(aggregate_id)) == slot_of(aggregate_id)


@given(st.text(alphabet="ab{}$é", min_size=1, max_size=12), st.integers(240, ID_BYTES_MAX))
def test_so_it_is_about_an_id_too_long_to_be_carried(some: str, size: int) -> None:
    aggregate_id = f"a{some * size}".encode()[:size].decode(errors="ignore")
    reserved = reserved_id(aggregate_id)
    assert len(reserved.encode()) <= ID_BYTES_MAX
    assert slot_of(reserved) == slot_of(aggregate_id)


@pytest.mark.parametrize("slot", [0, 1, 2047, SLOTS - 1])
def test_every_slot_has_a_number(slot: int) -> None:
    assert slot_of(f"{{{number_of_slot(slot)}}}") == slot


@given(st.text(max_size=20), st.text(alphabet=st.characters(exclude_characters="}", exclude_categories=["Cs"]), min_size=1))
def test_ids_of_one_tag_share_a_slot(before: str, tag: str) -> None:
    before = before.replace("{", "").replace("$", "")
    assert slot_of(f"{before}{{{tag}}}x") == slot_of(f"{{{tag}}}") != LOCAL


@given(st.text(max_size=60))
def test_every_text_has_a_slot(aggregate_id: str) -> None:
    assert LOCAL <= slot_of(aggregate_id) < SLOTS
