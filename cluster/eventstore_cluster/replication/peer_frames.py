"""What replicas say to each other as bytes: frames of flat msgpack, like clients' frames; docs/PROTOCOL.md describes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
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
_KINDS: Final = (EVENTS, MESSAGES)
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
    payload = encode(_values(frame))
    return LENGTH.pack(len(payload)) + payload


def _values(frame: PeerFrame) -> list[Scalar]:
    match frame:
        case PeerHello(cluster, shard, node, run, version):
            return [PeerCode.HELLO, version, cluster, shard, node, run]
        case JoinFrame(number, member, run, leader_run, logs):
            return [PeerCode.JOIN, number, member.node, member.incarnation, run, leader_run, len(logs), *_flat_logs(logs)]
        case Joined(number, session, epoch, logs):
            return [PeerCode.JOINED, number, session, epoch, len(logs), *_flat_logs(logs)]
        case Fetch(session, epoch, ends, last_crcs, sorted_through):
            return [PeerCode.FETCH, session, epoch, sorted_through, len(ends), *_flat_ends(ends), *last_crcs]
        case FetchAhead(session, epoch, ends, last_crcs):
            return [PeerCode.FETCH_AHEAD, session, epoch, len(ends), *_flat_ends(ends), *last_crcs]
        case Stored(session, epoch, ends, sorted_through):
            return [PeerCode.STORED, session, epoch, sorted_through, len(ends), *_flat_ends(ends)]
        case Data(session, epoch, start, committed, payload):
            head = [PeerCode.DATA, session, epoch, len(start), *_flat_ends(start), *_flat_ends(committed)]
            return [*head, payload is not None, *(() if payload is None else _flat_cargo(payload))]
        case NotLeading(epoch):
            return [PeerCode.NOT_LEADING, epoch]
        case FileWanted(number, kind, chunk, offset, length):
            return [PeerCode.FILE_WANTED, number, kind, chunk, offset, length]
        case FileBytes(number, data):
            return [PeerCode.FILE_BYTES, number, data]


def _flat_ends(ends: LogEnds) -> list[Scalar]:
    return [value for place in ends for value in place]


def _flat_logs(logs: Sequence[LastEpoch]) -> list[Scalar]:
    return [value for each in logs for value in (each.epoch, *each.end)]


def _flat_cargo(cargo: Cargo) -> list[Scalar]:
    *payloads, documents = cargo
    values: list[Scalar] = []
    for payload in payloads:
        values += [0] if payload is None else [len(payload.pieces), payload.key]
        for piece in () if payload is None else payload.pieces:
            headers = [None if each is None else each.encode() for each in (piece.begun, piece.completed)]
            values += [piece.chunk, piece.offset, *headers, piece.data]
    if documents is None:
        return [*values, None]
    return [*values, len(documents.documents), *documents.end, *(value for each in documents.documents for value in each)]


class PeerDecoder:
    """Decodes frames; all connections of an event loop share one."""

    def __init__(self) -> None:
        self._decoder = Decoder(FRAME_BYTES_MAX, _VALUES_MAX)

    def decode(self, payload: bytes) -> PeerFrame:
        """Raises ProtocolError."""
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
        case PeerCode.HELLO:
            version, cluster, shard, node, run = _typed(values, int, bytes, int, str, str)
            return PeerHello(cluster, shard, node, run, version)
        case PeerCode.JOIN:
            number, node, incarnation, run, leader_run = _typed(values, int, str, str, str, str)
            return JoinFrame(number, Seat(node, incarnation), run, leader_run, _logs(values))
        case PeerCode.JOINED:
            number, session, epoch = _numbers(values, 3)
            return Joined(number, session, epoch, _logs(values))
        case PeerCode.FETCH:
            session, epoch, sorted_through, kinds = _numbers(values, 4)
            return Fetch(session, epoch, _ends(values, kinds), tuple(_numbers(values, kinds)), sorted_through)
        case PeerCode.DATA:
            session, epoch, kinds = _numbers(values, 3)
            start, committed = _ends(values, kinds), _ends(values, kinds)
            (has_cargo,) = _typed(values, bool)
            return Data(session, epoch, start, committed, _cargo(values) if has_cargo else None)
        case PeerCode.FETCH_AHEAD:
            session, epoch, kinds = _numbers(values, 3)
            return FetchAhead(session, epoch, _ends(values, kinds), tuple(_numbers(values, kinds)))
        case PeerCode.STORED:
            session, epoch, sorted_through, kinds = _numbers(values, 4)
            return Stored(session, epoch, _ends(values, kinds), sorted_through)
        case PeerCode.NOT_LEADING:
            return NotLeading(*_numbers(values, 1))
        case PeerCode.FILE_WANTED:
            return FileWanted(*_numbers(values, 5))
        case PeerCode.FILE_BYTES:
            (number,), data = _numbers(values, 1), next(values)
            if data is not None and not isinstance(data, bytes):
                raise ValueError(f"{type(data).__name__} where bytes are expected")
            return FileBytes(number, data)
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


def _ends(values: Iterator[Any], kinds: int) -> LogEnds:
    found = _numbers(values, 2 * kinds)
    return tuple(zip(found[::2], found[1::2], strict=True))


def _logs(values: Iterator[Any]) -> tuple[LastEpoch, ...]:
    (kinds,) = _numbers(values, 1)
    found = []
    for _ in range(kinds):
        epoch, chunk, offset = _numbers(values, 3)
        found.append(LastEpoch(epoch, (chunk, offset)))
    return tuple(found)


def _cargo(values: Iterator[Any]) -> Cargo:
    events, messages = (_payload(values, kind) for kind in _KINDS)
    return events, messages, _documents(values)


def _payload(values: Iterator[Any], kind: int) -> Payload | None:
    (count,) = _numbers(values, 1)
    if not count:
        return None
    (key,) = _typed(values, bytes)
    return Payload(key, tuple(_piece(values, kind) for _ in range(count)))


def _piece(values: Iterator[Any], kind: int) -> Piece:
    chunk, offset = _numbers(values, 2)
    begun, completed = _header(next(values), kind), _header(next(values), kind)
    (data,) = _typed(values, bytes)
    return Piece(chunk, offset, data, begun, completed)


def _header(raw: Any, kind: int) -> ChunkHeader | None:
    return None if raw is None else decode_header(raw, "a header from the leader", kind)


def _documents(values: Iterator[Any]) -> Documents | None:
    count = next(values)
    if count is None:
        return None
    end = _numbers(values, 2)
    found = tuple((str(name), raw) for name, raw in (_typed(values, str, bytes) for _ in range(int(count))))
    return Documents((end[0], end[1]), found)
