"""The header and footer of a chunk: boxes, checksums, and the interrupted completion at which they differ."""

from __future__ import annotations

import dataclasses
import uuid

import pytest
from crc32c import crc32c

from eventstore.chunks.header import (
    COMPLETED,
    EVENTS,
    FOOTER,
    FOOTER_BYTES,
    HEADER_BYTES,
    MESSAGES,
    RECORDS_FROM,
    SORTED,
    ChunkHeader,
    check_footer,
    decode_header,
    finish_completion,
)
from eventstore.errors import Corrupt, FolderRefused

STORE = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
ONGOING = ChunkHeader(EVENTS, 3, STORE, 7, 101, 1_700_000_000_000_000)
END = 4096 + 900
COMPLETE = ONGOING.complete(END, 201, 60, 0x1_2345_6789_ABCD_EF01)


def little(raw: bytes) -> int:
    return int.from_bytes(raw, "little")


def test_the_offsets_of_the_header_match_its_box() -> None:
    raw = COMPLETE.encode()
    assert len(raw) == HEADER_BYTES == 128
    assert raw[0:8] == b"EVTCHUNK"
    assert little(raw[8:10]) == 1
    assert little(raw[10:12]) == EVENTS
    assert little(raw[12:14]) == COMPLETED
    assert raw[14:16] == bytes(2)
    assert little(raw[16:20]) == RECORDS_FROM
    assert little(raw[20:24]) == 7
    assert little(raw[24:32]) == 3
    assert raw[32:48] == STORE.bytes
    assert little(raw[48:56]) == 101
    assert little(raw[56:64]) == 1_700_000_000_000_000
    assert little(raw[64:72]) == 200
    assert little(raw[72:80]) == END
    assert little(raw[80:88]) == 60
    assert little(raw[88:96]) == 0x2345_6789_ABCD_EF01, "the checksum is a sum modulo 2^64"
    assert raw[96:124] == bytes(28)
    assert little(raw[124:128]) == crc32c(raw[:124])


def test_the_offsets_of_the_footer_match_its_box() -> None:
    raw = COMPLETE.footer()
    assert len(raw) == FOOTER_BYTES == FOOTER.size == 64
    assert raw[0:8] == b"EVTCHEND"
    assert [little(raw[at : at + 8]) for at in (8, 16, 24, 32)] == [101, 200, 60, 0x2345_6789_ABCD_EF01]
    assert raw[40:60] == bytes(20)
    assert little(raw[60:64]) == crc32c(raw[:60])


@pytest.mark.parametrize("header", [ONGOING, COMPLETE, dataclasses.replace(COMPLETE, flags=COMPLETED | SORTED)])
def test_a_header_reads_back_as_written(header: ChunkHeader) -> None:
    assert decode_header(header.encode() + b"whatever follows", "f", EVENTS) == header
    assert header.state == {0: "ongoing", 1: "completed", 3: "sorted"}[header.flags]


def test_every_flipped_bit_in_a_header_is_detected() -> None:
    for at in range(HEADER_BYTES):
        damaged = bytearray(COMPLETE.encode())
        damaged[at] ^= 4
        with pytest.raises((Corrupt, FolderRefused), match=r"^f: "):
            decode_header(bytes(damaged), "f", EVENTS)


def test_a_short_header_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="127 bytes"):
        decode_header(COMPLETE.encode()[:127], "f", EVENTS)


def test_a_newer_format_and_another_kind_are_refused() -> None:
    newer = bytearray(COMPLETE.encode())
    newer[8] = 3
    with pytest.raises(FolderRefused, match="format version 3"):
        decode_header(bytes(newer), "f", EVENTS)
    with pytest.raises(FolderRefused, match="kind 1, expected kind 2"):
        decode_header(COMPLETE.encode(), "f", MESSAGES)


def test_a_footer_of_another_header_is_corrupt() -> None:
    check_footer(COMPLETE.footer(), COMPLETE, "f")
    other = ONGOING.complete(END, 201, 61, 5)
    for footer in (other.footer(), b"", COMPLETE.footer()[:-1], bytes(64)):
        with pytest.raises(Corrupt) as damage:
            check_footer(footer, COMPLETE, "f")
        assert damage.value.fields["offset"] == END


def test_a_completion_interrupted_at_any_byte_of_the_header_is_finished() -> None:
    old, new = ONGOING.encode(), COMPLETE.encode()
    for written in range(HEADER_BYTES + 1):
        assert finish_completion(new[:written] + old[written:], COMPLETE.footer(), END) == COMPLETE, written


def test_a_damaged_header_is_not_mistaken_for_an_interrupted_completion() -> None:
    for base in (ONGOING.encode(), COMPLETE.encode()):
        for at in range(HEADER_BYTES):
            for bit in range(8):
                damaged = bytearray(base)
                damaged[at] ^= 1 << bit
                found = finish_completion(bytes(damaged), COMPLETE.footer(), END)
                assert found is None or (bytes(damaged) != base and found == COMPLETE)
                if found is not None:  # one bit away from both: of one only the last differing byte is left
                    assert _is_mixture(bytes(damaged))


def _is_mixture(raw: bytes) -> bool:
    old, new = ONGOING.encode(), COMPLETE.encode()
    return any(raw == new[:at] + old[at:] for at in range(HEADER_BYTES + 1))


def test_an_interrupted_completion_needs_the_footer_that_belongs_to_it() -> None:
    torn = COMPLETE.encode()[:70] + ONGOING.encode()[70:]
    other = dataclasses.replace(COMPLETE, first_sequence=1).footer()
    for footer in (b"", bytes(64), other, COMPLETE.footer()[:-1] + b"x"):
        assert finish_completion(torn, footer, END) is None
    assert finish_completion(torn[:100], COMPLETE.footer(), END) is None
    assert finish_completion(b"x" + torn[1:], COMPLETE.footer(), END) is None
