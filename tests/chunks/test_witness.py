"""Data that holds forged records is cut like any torn tail; rot is still told apart, by what data cannot know."""

from __future__ import annotations

import random
import struct

import pytest

from eventstore.chunks import witness
from eventstore.chunks.header import RECORDS_FROM
from eventstore.chunks.record import MARK, PREFIX, PREFIX_BYTES, TRAILER, TRAILER_MARK
from eventstore.chunks.recovery import Recovered, recover
from eventstore.chunks.witness import NO_KEY, Evidence, Judge
from eventstore.errors import Corrupt
from tests.chunks.sample_records import FRAMING, record, sealed
from tests.chunks.test_recovery import HEAD, Seen, opened

KEY, CHUNK = bytes(range(16)), 1


def proven(sequence: int, body: bytes, durable: int) -> bytes:
    """Returns a record as a writer with the key makes it."""
    raw = bytearray(record(sequence, body, durable=durable))
    struct.pack_into("<H", raw, PREFIX["witness"].offset, witness.witness(KEY, CHUNK, durable))
    return sealed(raw)


def recovered(records: bytes, key: bytes = KEY) -> Recovered:
    return recover(opened(HEAD + records), "chunk", 1, RECORDS_FROM, Judge(CHUNK, FRAMING, key), Seen())


FIRST = proven(1, b"a" * 40, RECORDS_FROM)
AT = RECORDS_FROM + len(FIRST)
FORGED = b"".join(record(9, durable=durable) for durable in range(AT, AT + 20_000, 40))
GUESSED = b"".join(
    sealed(raw[:6] + guess.to_bytes(2, "little") + raw[8:])
    for guess in range(2_000)
    for raw in (record(9, durable=AT + 16),)
)  # fmt: skip


@pytest.mark.parametrize("forged", [FORGED, GUESSED, FORGED + bytes(600) + FORGED])
def test_a_torn_batch_that_holds_forged_records_is_cut_wherever_it_is_torn(forged: bytes) -> None:
    batch = proven(2, forged, AT)
    for kept in [*range(1, 300, 31), *random.Random(1).sample(range(300, len(batch)), 20)]:
        found = recovered(FIRST + batch[:kept])
        assert (found.end, found.torn) == (AT, batch[:kept].rstrip(b"\0"))
    holed = bytes(512) + batch[512:]
    assert recovered(FIRST + holed).end == AT, "the head of the batch never reached the disk"


def test_a_witness_of_the_past_that_a_client_has_read_proves_nothing_about_the_torn_batch() -> None:
    read = proven(9, b"seen by a client", RECORDS_FROM)
    assert recovered(FIRST + proven(2, read * 50, AT)[:-5]).end == AT
    elsewhere = bytearray(record(9, durable=AT + 1))
    struct.pack_into("<H", elsewhere, PREFIX["witness"].offset, witness.witness(KEY, CHUNK + 1, AT + 1))
    assert recovered(FIRST + proven(2, sealed(elsewhere) * 50, AT)[:-5]).end == AT


@pytest.mark.parametrize("at", [0, 3, 7, 9, 30, 60, 400])
def test_rot_in_a_commit_that_holds_forged_records_is_still_rot(at: int) -> None:
    forged = proven(2, FORGED, AT)
    later = proven(3, b"acknowledged", AT + len(forged))
    damaged = bytearray(forged)
    damaged[at] ^= 4
    framed = at not in (0, 9)  # otherwise its length cannot be trusted, and the forged records outnumber the only proof
    if framed:
        with pytest.raises(Corrupt, match="nothing was cut"):
            recovered(FIRST + bytes(damaged) + later)
    many = b"".join(proven(3 + number, b"", AT + len(forged)) for number in range(600))
    with pytest.raises(Corrupt, match="nothing was cut"):
        recovered(FIRST + bytes(damaged) + many)


def test_in_a_file_of_an_older_program_any_good_record_counts_as_it_did() -> None:
    with pytest.raises(Corrupt, match="nothing was cut"):
        recovered(FIRST + b"rot" + record(3, durable=AT + 3), NO_KEY)


def heads(count: int, key: bytes) -> bytes:
    """Returns overlapping heads of records, each of which reaches to the same end: checking each costs a square."""
    size = count * PREFIX_BYTES + TRAILER.size
    made = []
    for place in range(count):
        length, durable = size - place * PREFIX_BYTES, AT + 1 + place
        made.append(PREFIX.struct.pack(MARK, PREFIX_BYTES - 2, 1, 0, length, durable, 9, 1, 1))
    return b"".join(made) + TRAILER.struct.pack(TRAILER_MARK, 0)


@pytest.mark.parametrize("key", [NO_KEY, KEY])
@pytest.mark.parametrize("count", [500, 4_000])
def test_the_bytes_checked_are_linear_in_the_length_of_the_rest_whatever_it_holds(key: bytes, count: int) -> None:
    made = heads(count, key)
    # one trailer cannot hold many lengths: give each head one that the bytes behind it confirm
    raw = bytearray(made)
    for place in range(count // 2):
        length = len(raw) - (count // 2 - place) * TRAILER.size - place * PREFIX_BYTES
        struct.pack_into("<I", raw, place * PREFIX_BYTES + 8, length)
        end = place * PREFIX_BYTES + length
        TRAILER.struct.pack_into(raw, end - TRAILER.size, TRAILER_MARK, length)
    found = Judge(CHUNK, FRAMING, key).evidence(bytes(raw), AT + count * PREFIX_BYTES, 2)
    assert found.checked_bytes <= 4 * len(raw)
    assert found.durable == 0
    found = Judge(CHUNK, FRAMING, key).evidence(b"x" + bytes(raw), AT - 1, 2)
    assert found.checked_bytes <= 4 * (len(raw) + 1)
    assert found == Evidence(0, 0, found.failed, found.checked_bytes)
    assert found.failed > count // 4, "these did look like records"
