"""Stores and settings for `benchmarks.spark`: stores are made through the engine, and copied for more of the same."""

from __future__ import annotations

import random
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final

from crc32c import crc32c

from benchmarks.harness import synthesis
from eventstore import flat
from eventstore.chunks.files import OsFiles
from eventstore.model import ANY
from eventstore.settings.store import StoreSettings
from eventstore.store.append import NewCommit
from eventstore.store.data_folder import event_folder, read_identity
from eventstore.store.opening import open_folder
from eventstore.store.sorted import index_format as index

EVENTS_PER_AGGREGATE: Final = 100
PAYLOAD_BYTES: Final = 256
EVENT_BYTES: Final = 400  # of an event file, roughly
ORDERS_FROM: Final = 1_767_225_600_000_000  # 2026-01-01
_PART_BYTES_MIN: Final = 4 * 1024 * 1024
_PART_BYTES_MAX: Final = 128 * 1024 * 1024


def part_bytes(events: int) -> int:
    """How large event files and partitions are: so that every subject has at least a dozen to share among the cores."""
    return max(_PART_BYTES_MIN, min(_PART_BYTES_MAX, events * EVENT_BYTES // 12))


def make_store(path: Path, events: int) -> None:
    """Events of 256 bytes of JSON that does not compress, all in sorted files but for the last thousand."""
    opened = open_folder(path, StoreSettings(file_size_bytes=part_bytes(events), sort=False, durability="async"))
    pad = random.Random(7).randbytes(1 << 16).hex()
    aggregates = max(events // EVENTS_PER_AGGREGATE, 1)
    try:
        for first in range(0, events, synthesis.BATCH):
            if first + synthesis.BATCH >= events:
                opened.engine.front.end = opened.engine.front.limit  # these begin a separate file
            numbers = range(first, min(first + synthesis.BATCH, events))
            synthesis.write(opened.engine, [_commit(number, aggregates, pad) for number in numbers])
            synthesis.sort_completed(opened.engine)
    finally:
        opened.close()


def make_orders(path: Path, events: int) -> None:
    """Orders of ten events within an hour, a new one every second, all in sorted files but for the last thousand events; one
    event in ten is a `Placed`, one a `Paid`.
    """
    opened = open_folder(path, StoreSettings(file_size_bytes=part_bytes(events), sort=False, durability="async"))
    pad = random.Random(7).randbytes(1 << 16).hex()
    try:
        for first in range(0, events, synthesis.BATCH):
            if first + synthesis.BATCH >= events:
                opened.engine.front.end = opened.engine.front.limit  # these begin a separate file
            batch = [each for second in range(first // 10, (first + synthesis.BATCH) // 10) for each in _of_second(second, pad)]
            synthesis.write(opened.engine, batch)
            synthesis.sort_completed(opened.engine)
    finally:
        opened.close()


def _of_second(second: int, pad: str) -> list[NewCommit]:
    """Returns one event of each of ten orders: of the one that begins now, and of those that began 6 to 54 minutes ago."""
    made: list[NewCommit] = []
    for place, name in enumerate(("Placed", *["Moved"] * 8, "Paid")):
        start = (second + place) * 7919 % (len(pad) - PAYLOAD_BYTES)
        data = f'{{"pad":"{pad[start : start + PAYLOAD_BYTES - 10]}"}}'
        event = flat.encode((1, name, data.encode(), None))
        when = ORDERS_FROM + second * 1_000_000
        made.append((order_id(second - 360 * place), ANY, f"{second:028x}{place:04x}", when, event))
    return made


def order_id(order: int) -> str:
    return f"order-{order * 2_654_435_761 % 2**32:010d}"


def _commit(number: int, aggregates: int, pad: str) -> NewCommit:
    start = number * 7919 % (len(pad) - PAYLOAD_BYTES)
    head = f'{{"amount":{number % 1_000},"pad":"'
    data = f'{head}{pad[start : start + PAYLOAD_BYTES - len(head) - 2]}"}}'
    return aggregate(number % aggregates), ANY, f"{number:032x}", None, flat.encode((1, "Deposited", data.encode(), None))


def aggregate(place: int) -> str:
    return f"account-{place * 2_654_435_761 % 2**32:010d}"


def copy_store(source: Path, target: Path) -> None:
    """Copies a store; only the uuid in headers and documents differs. For reading only."""
    before, after = read_identity(OsFiles(), source), uuid.uuid4()
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("directory", "lock", "*.previous"))
    for document in (target / "store.json", target / "events" / "chunks.json"):
        document.write_text(document.read_text(encoding="utf-8").replace(str(before), str(after)), encoding="utf-8")
    folder = event_folder(OsFiles(), source, before)
    for path in (target / "events").glob("*.events"):
        with path.open("r+b") as file:
            file.write(replace(folder.read_header(int(path.stem)), store=after).encode())
    for path in (target / "events").glob("*.index"):
        with path.open("r+b") as file:
            head = file.read(index.HEADER_BYTES - 4).replace(before.bytes, after.bytes, 1)
            file.seek(0)
            file.write(head + crc32c(head).to_bytes(4, "little"))


# Compiling for speed gains less in a minute than it takes.
_QUICK: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


def spark_settings(folder: str, events: int, *, quick: bool = False) -> dict[str, str]:
    """Returns the settings of a session with its scratch data in `folder`."""
    return {
        **(_QUICK if quick else {}),
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.files.maxPartitionBytes": str(part_bytes(events)),
        "spark.driver.memory": "4g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
