"""What replicas say to each other is what docs/PROTOCOL.md says: each example, code and number; nothing else is taken."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import get_args

import pytest

from eventstore import flat
from eventstore.chunks.header import EVENTS, MESSAGES, ChunkHeader
from eventstore.errors import ProtocolError
from eventstore.flat import Decoder, Scalar
from eventstore.model import NewEvent
from eventstore.protocol.frames import LENGTH
from eventstore.records import state_record
from eventstore_cluster.replica.epochs import LastEpoch
from eventstore_cluster.replica.frames import Data, Fetch, FetchAhead, Joined, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.limits import Limits
from eventstore_cluster.replica.places import NOWHERE
from eventstore_cluster.replica.registry_state import Seat
from eventstore_cluster.replication import links, peer, peer_frames
from eventstore_cluster.replication.logs import pieces
from eventstore_cluster.replication.logs.leader_log import PAYLOAD_BYTES
from eventstore_cluster.replication.logs.pieces import Cargo, Documents, Payload, Piece
from eventstore_cluster.replication.peer_frames import (
    FileBytes,
    FileWanted,
    PeerDecoder,
    PeerFrame,
    PeerHello,
    encode_peer_frame,
)
from tests.protocol.records import make_record

PAGE = (Path(__file__).parents[3] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
TEXT = PAGE.split("\n## Between replicas\n")[1]
KEY, TIME = bytes(range(16, 32)), 1_700_000_000_000_000
BEGUN = ChunkHeader(MESSAGES, 1, uuid.UUID(bytes=bytes(range(16))), 1, 1, TIME)
RECORD = make_record("order-42", "c-1", [NewEvent("OrderPlaced", {"total": 12})])
EVENTS_END, DOCUMENTS_END = (1, 4096 + len(RECORD)), (1, 3)


def state(chunk: int, epoch: int) -> tuple[bytes, int]:
    """Returns the record with which an epoch begins, as long as no queue has taken a message, and its CRC."""
    position = (chunk << 32) + 4096
    return state_record.frame(
        state_record.encode_body([]), witness=0, durable=4096, number=1, epoch=epoch, time=TIME, position=position, node=1
    )


STATE, STATE_CRC = state(1, 1)
NEXT_STATE, _ = state(2, 2)
MESSAGES_END = 1, 4096 + len(STATE)
COMPLETED = BEGUN.complete(MESSAGES_END[1], 1, 1, STATE_CRC)
NEXT = ChunkHeader(MESSAGES, 2, BEGUN.store, 2, 1, TIME)
ENDS = EVENTS_END, MESSAGES_END, DOCUMENTS_END
NEXT_ENDS = EVENTS_END, (2, 4096 + len(NEXT_STATE)), (2, 1)
AHEAD = (1, 4304), MESSAGES_END, DOCUMENTS_END
CRCS = int.from_bytes(RECORD[2:6], "little"), STATE_CRC, 0
CARGO = None, Payload(KEY, (Piece(2, 4096, NEXT_STATE, NEXT, COMPLETED),)), Documents((2, 1), (("broker/topics.json", b"{}"),))
EVENTS_CARGO = Payload(KEY, (Piece(*EVENTS_END, RECORD),)), None, None
FRAMES: dict[str, PeerFrame] = {
    "peer-hello": PeerHello(bytes(16), 0, "n2", "8899aabbccddeeff"),
    "peer-join": JoinFrame(
        1, Seat("n2", "0011223344556677"), "8899aabbccddeeff", "0123456789abcdef",
        (LastEpoch(1, (1, 4304)), LastEpoch(1, MESSAGES_END), LastEpoch(1, DOCUMENTS_END)),
    ),
    "peer-joined": Joined(1, 9, 2, (LastEpoch(1, EVENTS_END), LastEpoch(1, MESSAGES_END), LastEpoch(1, DOCUMENTS_END))),
    "peer-fetch": Fetch(10, 2, ENDS, CRCS, 3),
    "peer-data": Data(10, 2, ENDS, (NOWHERE, NOWHERE, NOWHERE), CARGO),
    "peer-data-empty": Data(10, 2, NEXT_ENDS, NEXT_ENDS, None),
    "peer-fetch-ahead": FetchAhead(10, 2, AHEAD, CRCS),
    "peer-stored": Stored(10, 2, AHEAD, 3),
    "peer-not-leading": NotLeading(2),
    "peer-file-wanted": FileWanted(1, EVENTS, 3, 4096, 1_048_576),
    "peer-file-bytes": FileBytes(1, b"\xc4\x36"),
}  # fmt: skip
TAKEN = [*FRAMES.values(), Data(10, 2, ENDS, ENDS, EVENTS_CARGO), FileBytes(2, None)]


def payload_of(frame: PeerFrame) -> bytes:
    return encode_peer_frame(frame)[LENGTH.size :]


def values_of(frame: PeerFrame) -> list[Scalar]:
    return list(Decoder(1 << 20, 100).decode(payload_of(frame)))


def documented_examples() -> dict[str, bytes]:
    blocks = re.findall(r"^```hex (peer-\S+)\n(.*?)^```", PAGE, flags=re.M | re.S)
    return {name: bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for name, block in blocks}


def test_every_example_has_code() -> None:
    assert documented_examples().keys() == FRAMES.keys()


@pytest.mark.parametrize("name", FRAMES)
def test_an_example_is_what_the_code_sends(name: str) -> None:
    assert documented_examples()[name].hex(" ") == encode_peer_frame(FRAMES[name]).hex(" ")


@pytest.mark.parametrize("frame", TAKEN)
def test_a_frame_is_read_as_it_was_written(frame: PeerFrame) -> None:
    assert PeerDecoder().decode(payload_of(frame)) == frame


def test_large_frames_are_read_as_they_were_written_one_after_the_other_and_beside_small_ones() -> None:
    large = Payload(KEY, (Piece(*EVENTS_END, RECORD * 10_000), Piece(3, 4096, RECORD), Piece(4, 4096, RECORD * 9_999)))
    frames = [Data(10, 2, ENDS, ENDS, cargo) for cargo in ((large, None, None), (None, large, CARGO[2]), EVENTS_CARGO, None)]
    decoder = PeerDecoder()
    for frame in (*frames, *reversed(frames), frames[0]):
        assert decoder.decode(payload_of(frame)) == frame


def test_every_code_is_documented() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", TEXT, flags=re.M)
    assert {name: int(code) for code, name in rows} == {
        type(frame).__name__.removeprefix("Peer").removesuffix("Frame"): values_of(frame)[0] for frame in FRAMES.values()
    }


@pytest.mark.parametrize("frame", TAKEN)
def test_a_frame_that_lacks_a_value_or_has_one_too_many_is_refused(frame: PeerFrame) -> None:
    payload = payload_of(frame)
    for wrong in (payload[:-1], payload + b"\x00"):
        with pytest.raises(ProtocolError, match="not a frame of another replica"):
            PeerDecoder().decode(wrong)


@pytest.mark.parametrize("frame", TAKEN)
def test_a_frame_that_ends_after_any_of_its_values_is_refused(frame: PeerFrame) -> None:
    values = values_of(frame)
    for count in range(len(values)):
        with pytest.raises(ProtocolError, match="not a frame of another replica"):
            PeerDecoder().decode(flat.encode(values[:count]))


@pytest.mark.parametrize("frame", TAKEN)
def test_a_value_of_another_type_is_refused(frame: PeerFrame) -> None:
    values = values_of(frame)
    for place, value in enumerate(values):
        for other in (-1, "x" if type(value) is int else 7):
            with pytest.raises(ProtocolError):
                PeerDecoder().decode(flat.encode([*values[:place], other, *values[place + 1 :]]))


def test_a_header_of_another_kind_of_chunk_is_refused() -> None:
    wrong = Payload(KEY, (Piece(2, 4096, NEXT_STATE, ChunkHeader(EVENTS, 2, BEGUN.store, 2, 1, TIME), COMPLETED),))
    with pytest.raises(ProtocolError):
        PeerDecoder().decode(payload_of(Data(10, 2, ENDS, ENDS, (None, wrong, None))))


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    limits = Limits()
    for number, unit in (
        (f"{peer_frames.FRAME_BYTES_MAX:,}", "bytes"),
        (f"{peer_frames._VALUES_MAX:,}", "values"),
        (f"{PAYLOAD_BYTES:,}", "bytes"),
        (f"{pieces._SMALL_BYTES:,}", "bytes"),
        (f"{limits.poll_s:g}", "s"),
        (f"{limits.silence_s:g}", "s"),
        (f"{limits.lag_max_s:g}", "s"),
        (f"{limits.rejoin_s * 1000:g}", "ms"),
        (f"{peer.HELLO_S:g}", "s"),
        (f"{links._AGAIN_S * 1000:g}", "ms"),
    ):
        assert re.search(rf"(?<![\d,.]){re.escape(number)} {unit}\b", TEXT), (number, unit)
    assert len(ENDS) == len(get_args(Cargo)) == 3
