"""Compares the replicas of a shard by their files: each sorts for itself, so by the records of each file, not their order."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from eventstore.chunks.header import EVENTS, HEADER_BYTES, MESSAGES, RECORDS_FROM, decode_header
from eventstore.chunks.record import PREFIX, UNORDERED, Framing, walk
from eventstore.records import commit, message

_KINDS: Final = (("events", EVENTS, commit.FRAMING), ("broker/messages", MESSAGES, message.FRAMING))
_IDENTITY: Final = PREFIX.part("crc", "sequence")


class Chunk(NamedTuple):
    """`said`: what the header says; `records`: the CRC and sequence of each record."""

    said: tuple[object, ...]
    records: list[tuple[int, int]]


def differences(folders: list[Path]) -> list[str]:
    """Returns where the replicas in these folders differ. Of folders that are in use: perhaps what is not so a moment later."""
    found = []
    for name, kind, framing in _KINDS:
        replicas = [_chunks(folder / name, kind, framing) for folder in folders]
        numbers = sorted(set().union(*replicas))
        for number in numbers:
            first, *others = [replica.get(number) for replica in replicas]
            for other, folder in zip(others, folders[1:], strict=True):
                if first != other:
                    found.append(f"{name} {number}: {_shown(first)} in {folders[0]}, {_shown(other)} in {folder}")
    return found


def _chunks(folder: Path, kind: int, framing: Framing) -> dict[int, Chunk]:
    return {int(path.stem): _chunk(path, kind, framing) for path in sorted(folder.glob(f"*.{folder.name}"))}


def _chunk(path: Path, kind: int, framing: Framing) -> Chunk:
    raw = path.read_bytes()
    header = decode_header(raw[:HEADER_BYTES], str(path), kind)
    records = memoryview(raw)[RECORDS_FROM : header.end if header.completed else None]
    walked = walk(records, RECORDS_FROM, UNORDERED, framing)
    found = [_IDENTITY.unpack_from(raw, offset) for offset in walked.offsets]
    fault = walked.fault if header.completed else None
    said = (
        header.number, header.store, header.epoch, header.first_sequence, header.created, header.completed,
        header.last_sequence, header.end, header.records, header.checksum, fault,
    )  # fmt: skip
    return Chunk(said, sorted(found))


def _shown(chunk: Chunk | None) -> str:
    return "nothing" if chunk is None else f"{len(chunk.records)} records {chunk.said}"
