"""What replicas say to each other as bytes: frames of flat msgpack, like clients' frames; docs/PROTOCOL.md describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, islice
from struct import Struct
from typing import Any, Final, TypeAlias

from eventstore.chunks.header import EVENTS, MESSAGES, ChunkHeader, decode_header
from eventstore.errors import EventStoreError, ProtocolError
from eventstore.flat import Decoder, Malformed, Scalar, encode
from eventstore.protocol.frames import LENGTH
from eventstore_cluster.replica.epochs import LastEpoch
from eventstore_cluster.replica.frames import Data, Fetch, FetchAhead, Frame, Joined, JoinFrame, NotLeading, Stored
from eventstore_cluster.replica.places import LogEnds
from eventstore_cluster.replica.registry_state import Seat
from eventstore_cluster.replication.logs.pieces import Cargo, Documents, Payload, Piece

FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
"""A record of the largest size, and what goes with it."""
VERSION: Final = 3
VERSION_MIN: Final = 2
ASKS_AHEAD: Final = 3
"""The version from which on a leader knows FetchAhead and Stored."""
_VALUES_MAX: Final = 4096
_COPIED_BYTES_MAX: Final = 4096  # up to here, packing bytes is faster than parts
_LARGE_BYTES: Final = 1024 * 1024
_LARGE_BYTES_MAX: Final = 16 * 1024 * 1024
_BIN32: Final = Struct(">BI")
_NOTHING: Final = object()


class PeerCode(IntEnum):
    """The first value of a frame."""

    HELLO = 1
    JOIN = 2
    JOINED = 3
    FETCH = 4
    DATA = 5
    NOT_LEADING = 6
    FILE_WANTED = 7
    FILE_BYTES = 8
    FETCH_AHEAD = 9
    STORED = 10


@dataclass(frozen=True, slots=True)
class PeerHello:
    """The first frame in both directions.

    Attributes:
        run: of the process that says it.
        version: of the frames that it speaks on this connection.
    """

    cluster: bytes
    shard: int
    node: str
    run: str
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class FileWanted:
    """Asks any replica for bytes of a chunk file that is final, as they are on its disk.

    Attributes:
        number: repeated in the answer.
    """

    number: int
    kind: int
    chunk: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Answers `FileWanted`.

    Attributes:
        data: fewer bytes at the end of the file; None: the replica does not have it, or it is not final there.
    """

    number: int
    data: bytes | None


FileFrame: TypeAlias = FileWanted | FileBytes
PeerFrame: TypeAlias = Frame | PeerHello | FileFrame


def encode_peer_frame(frame: PeerFrame) -> bytes:
    """Returns the frame with its length."""
    if isinstance(frame, Data) and frame.payload is not None:
        return _framed(_encode_data(frame, frame.payload))
    payload = encode(_values(frame))
    return LENGTH.pack(len(payload)) + payload


def _framed(parts: list[bytes]) -> bytes:
    return b"".join((LENGTH.pack(sum(map(len, parts))), *parts))


def _encode_data(data: Data, cargo: Cargo) -> list[bytes]:
    """Returns the payload in parts, of which large records are not copied."""
    parts: list[bytes] = []
    values = _head(data)
    for payload in cargo[:-1]:
        if payload is None:
            values.append(0)
            continue
        values += (len(payload.pieces), payload.key)
        for piece in payload.pieces:
            headers = [None if each is None else each.encode() for each in (piece.begun, piece.completed)]
            values += (piece.chunk, piece.offset, *headers)
            if len(piece.data) <= _COPIED_BYTES_MAX:
                values.append(piece.data)
            else:
                parts += (encode(values), _BIN32.pack(0xC6, len(piece.data)), piece.data)
                values = []
    documents = cargo[-1]
    if documents is None:
        values.append(None)
    else:
        values += (len(documents.documents), *documents.end)
        for each in documents.documents:
            values += each
    parts.append(encode(values))
    return parts


def _head(data: Data) -> list[Scalar]:
    places = chain.from_iterable((*data.start, *data.committed))
    return [PeerCode.DATA, data.session, data.epoch, len(data.start), *places, data.payload is not None]


def _values(frame: PeerFrame) -> list[Scalar]:
    match frame:
        case Fetch(session, epoch, ends, last_crcs, sorted_through):
            return [PeerCode.FETCH, session, epoch, sorted_through, len(ends), *chain.from_iterable(ends), *last_crcs]
        case FetchAhead(session, epoch, ends, last_crcs):
            return [PeerCode.FETCH_AHEAD, session, epoch, len(ends), *chain.from_iterable(ends), *last_crcs]
        case Stored(session, epoch, ends, sorted_through):
            return [PeerCode.STORED, session, epoch, sorted_through, len(ends), *chain.from_iterable(ends)]
        case Data():
            return _head(frame)
        case PeerHello(cluster, shard, node, run, version):
            return [PeerCode.HELLO, version, cluster, shard, node, run]
        case JoinFrame(number, member, run, leader_run, logs):
            return [PeerCode.JOIN, number, member.node, member.incarnation, run, leader_run, len(logs), *_flat_logs(logs)]
        case Joined(number, session, epoch, logs):
            return [PeerCode.JOINED, number, session, epoch, len(logs), *_flat_logs(logs)]
        case NotLeading(epoch):
            return [PeerCode.NOT_LEADING, epoch]
        case FileWanted(number, kind, chunk, offset, length):
            return [PeerCode.FILE_WANTED, number, kind, chunk, offset, length]
        case FileBytes(number, data):
            return [PeerCode.FILE_BYTES, number, data]


def _flat_logs(logs: Sequence[LastEpoch]) -> list[Scalar]:
    return [value for each in logs for value in (each.epoch, *each.end)]


class PeerDecoder:
    """Decodes frames; all connections of an event loop share one. While large frames follow each other, as when a replica is
    copied, its buffer is kept: a new one for each costs half of the decoding.
    """

    def __init__(self) -> None:
        self._large = False
        self._renew()

    def _renew(self) -> None:
        self._decoder = Decoder(FRAME_BYTES_MAX, _VALUES_MAX, _LARGE_BYTES_MAX)

    def decode(self, payload: bytes) -> PeerFrame:
        """Raises ProtocolError."""
        before, self._large = self._large, len(payload) > _LARGE_BYTES
        if before and not self._large:
            self._renew()
        try:
            values = iter(self._decoder.decode(payload))
            frame = _read(next(values), values)
            if next(values, _NOTHING) is not _NOTHING:
                raise ValueError("values after the last one")
        except (Malformed, ValueError, TypeError, StopIteration, EventStoreError) as error:
            raise ProtocolError(f"not a frame of another replica: {error}", field="frame") from None
        return frame


def _read(code: Scalar, values: Iterator[Any]) -> PeerFrame:
    match code:
        case PeerCode.FETCH:
            session, epoch, sorted_through, kinds = _numbers(values, 4)
            places = _numbers(values, 3 * kinds)
            return Fetch(session, epoch, _ends(places[: 2 * kinds]), tuple(places[2 * kinds :]), sorted_through)
        case PeerCode.DATA:
            session, epoch, kinds = _numbers(values, 3)
            places = _numbers(values, 4 * kinds)
            start, committed = _ends(places[: 2 * kinds]), _ends(places[2 * kinds :])
            if type(has_cargo := next(values)) is not bool:
                raise ValueError(f"{type(has_cargo).__name__} where a bool is expected")
            return Data(session, epoch, start, committed, _cargo(values) if has_cargo else None)
        case PeerCode.FETCH_AHEAD:
            session, epoch, kinds = _numbers(values, 3)
            places = _numbers(values, 3 * kinds)
            return FetchAhead(session, epoch, _ends(places[: 2 * kinds]), tuple(places[2 * kinds :]))
        case PeerCode.STORED:
            session, epoch, sorted_through, kinds = _numbers(values, 4)
            return Stored(session, epoch, _ends(_numbers(values, 2 * kinds)), sorted_through)
        case PeerCode.HELLO:
            version, cluster, shard, node, run = _typed(values, int, bytes, int, str, str)
            return PeerHello(cluster, shard, node, run, version)
        case PeerCode.JOIN:
            number, node, incarnation, run, leader_run = _typed(values, int, str, str, str, str)
            return JoinFrame(number, Seat(node, incarnation), run, leader_run, _logs(values))
        case PeerCode.JOINED:
            number, session, epoch = _numbers(values, 3)
            return Joined(number, session, epoch, _logs(values))
        case PeerCode.NOT_LEADING:
            return NotLeading(*_numbers(values, 1))
        case PeerCode.FILE_WANTED:
            return FileWanted(*_numbers(values, 5))
        case PeerCode.FILE_BYTES:
            (number,), data = _numbers(values, 1), next(values)
            return FileBytes(number, None if data is None else _bytes(data))
    raise ValueError(f"code {code!r}")


def _typed(values: Iterator[Any], *types: type) -> list[Any]:
    found = list(islice(values, len(types)))
    if tuple(map(type, found)) != types:
        raise ValueError(f"{_names(map(type, found))} where {_names(types)} is expected")
    for value, wanted in zip(found, types, strict=True):
        if wanted is int and value < 0:
            raise ValueError(f"{value} where no number is negative")
    return found


def _names(types: Iterable[type]) -> str:
    return ", ".join(each.__name__ for each in types) or "nothing"


def _numbers(values: Iterator[Any], count: int) -> list[int]:
    """Returns this number of integers, at little cost: most values of a frame that is sent for each batch are."""
    found = list(islice(values, count))
    if len(found) != count or (found and (set(map(type, found)) != {int} or min(found) < 0)):
        raise ValueError(f"{_names(map(type, found))} where {count} numbers are expected")
    return found


def _ends(found: list[int]) -> LogEnds:
    return tuple(zip(found[::2], found[1::2], strict=True))


def _logs(values: Iterator[Any]) -> tuple[LastEpoch, ...]:
    (kinds,) = _numbers(values, 1)
    found = []
    for _ in range(kinds):
        epoch, chunk, offset = _numbers(values, 3)
        found.append(LastEpoch(epoch, (chunk, offset)))
    return tuple(found)


def _cargo(values: Iterator[Any]) -> Cargo:
    return _payload(values, EVENTS), _payload(values, MESSAGES), _documents(values)


def _payload(values: Iterator[Any], kind: int) -> Payload | None:
    (count,) = _numbers(values, 1)
    if not count:
        return None
    key = _bytes(next(values))
    return Payload(key, tuple([_piece(values, kind) for _ in range(count)]))  # no generator: it may not end with StopIteration


def _piece(values: Iterator[Any], kind: int) -> Piece:
    chunk, offset = _numbers(values, 2)
    begun, completed = next(values), next(values)
    return Piece(chunk, offset, _bytes(next(values)), _header(begun, kind), _header(completed, kind))


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError(f"{type(value).__name__} where bytes are expected")
    return value


def _header(raw: Any, kind: int) -> ChunkHeader | None:
    return None if raw is None else decode_header(raw, "a header from the leader", kind)


def _documents(values: Iterator[Any]) -> Documents | None:
    count = next(values)
    if count is None:
        return None
    end = _numbers(values, 2)
    found = [_typed(values, str, bytes) for _ in range(int(count))]
    return Documents((end[0], end[1]), tuple([(str(name), raw) for name, raw in found]))
