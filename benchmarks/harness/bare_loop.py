"""The least an append can cost in Python: decode, two checks, frame, CRC, one write and sync a batch. And what ours costs.

The bare loop knows no restart, no index, no bounds and no errors; the store's own path does the same work behind
`StoreEngine.append_batch`, `take`, `write` and `mark_written`. Both get the same frames and write to the same kind of file.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path

import msgpack
from crc32c import crc32c

from benchmarks.harness.subject import EVENT_TYPE, PAYLOAD
from eventstore import flat
from eventstore.protocol import RequestDecoder, encode_append
from eventstore.protocol.frames import LENGTH_BYTES
from eventstore.protocol.requests import Append
from eventstore.records.raw_commit import RawCommit
from eventstore.settings.store import StoreSettings
from eventstore.store.opening import open_folder

BATCH = 256
AGGREGATES = 5_000
_HEADER = struct.Struct("<IIQqIHHH")
_LENGTH = struct.Struct("<I")


def frames(batches: int, tag: str) -> list[bytes]:
    """Payloads of APPEND requests of `BATCH` commits of one event each, with the exact versions they are based on."""
    event = flat.encode((0, EVENT_TYPE, PAYLOAD, None))
    versions: dict[str, int] = {}
    made = []
    for batch in range(batches):
        commits: list[RawCommit] = []
        for place in range(batch * BATCH, (batch + 1) * BATCH):
            aggregate_id = f"{tag}-{place % AGGREGATES:08d}"
            version = versions.get(aggregate_id, 0)
            versions[aggregate_id] = version + 1
            commits.append((aggregate_id, version, f"{place:032x}", None, event))
        made.append(encode_append(batch + 1, commits)[LENGTH_BYTES:])
    return made


def bare_rate(folder: Path, payloads: list[bytes]) -> float:
    """Events per second of the bare loop."""
    versions: dict[str, int] = {}
    commands: dict[str, dict[str, int]] = {}
    descriptor = os.open(folder / "bare.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(descriptor, 0, 64 << 20)
    offset = sequence = 0
    started = time.perf_counter()
    for payload in payloads:
        values = msgpack.unpackb(b"\xdc" + (2 + 5 * BATCH).to_bytes(2, "big") + payload, use_list=False)
        records = []
        for place in range(2, len(values), 5):
            aggregate_id, expected, command_id, _, event = values[place : place + 5]
            if versions.get(aggregate_id, 0) != expected:
                raise ValueError("version conflict")
            known = commands.setdefault(aggregate_id, {})
            if command_id in known:
                raise ValueError("repeated command")
            versions[aggregate_id] = known[command_id] = expected + 1
            sequence += 1
            ids, command = aggregate_id.encode(), command_id.encode()
            body = b"".join((ids, command, event))
            length = _HEADER.size + len(body) + 4
            header = _HEADER.pack(length, crc32c(body), sequence, 0, expected + 1, 1, len(ids), len(command))
            records.append(b"".join((header, body, _LENGTH.pack(length))))
        data = b"".join(records)
        os.pwrite(descriptor, data, offset)
        os.fdatasync(descriptor)
        offset += len(data)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return len(payloads) * BATCH / seconds


def store_rate(folder: Path, payloads: list[bytes]) -> float:
    """Events per second of the store's own path, in process, with the thread that zeroes space ahead as in a server."""
    opened = open_folder(folder / "store", StoreSettings(sort=False))
    engine, decode = opened.engine, RequestDecoder().decode
    zeroing = threading.Thread(target=engine.writer.zero_ahead.run)
    zeroing.start()
    started = time.perf_counter()
    for payload in payloads:
        _, request = decode(payload)
        assert isinstance(request, Append)
        outcomes = engine.append_batch(request.commits)
        while (segment := engine.take()) is not None:
            engine.write(segment)
            engine.mark_written(segment, durable=True)
        if any(outcome[0] for outcome in outcomes):
            raise ValueError(f"an append was refused: {outcomes[0]}")
    seconds = time.perf_counter() - started
    engine.writer.zero_ahead.stop()
    zeroing.join()
    opened.close()
    return len(payloads) * BATCH / seconds
