"""The settings of a broker. Changing any of them is safe for existing data."""

# No `from __future__ import annotations`: see `eventstore.settings.setting_declaration`.
from dataclasses import dataclass
from typing import Annotated, Literal

from eventstore.settings.setting_declaration import DAY_S, GIB, KIB, MIB, Setting, check_fields


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How a broker works. Changing any of these is safe for existing data. None switches a rule of retention off.

    Raises:
        InvalidArgument: a value is out of range; names the setting, the value and the range.
    """

    durability: Annotated[
        Literal["sync", "async"], Setting("When a message is acknowledged, as `durability` for events.", "Broker")
    ] = "sync"
    flush_interval_s: Annotated[
        float,
        Setting("How often messages are synced with durability `async`.", "Broker", 0.001, 60.0, name="flush_interval_s"),
    ] = 0.1
    chunk_size_bytes: Annotated[
        int, Setting("Size of a message chunk, which is the unit of deletion.", "Broker", 4 * KIB, 2 * GIB)
    ] = 256 * MIB
    preallocate_bytes: Annotated[
        int,
        Setting(
            "As `preallocate_bytes`, for messages. Nothing is reserved before the first message.", "Broker", 4 * KIB, 2 * GIB
        ),
    ] = 64 * MIB
    waiting_bytes_max: Annotated[
        int,
        Setting(
            "Messages that are not written yet, or whose topic is being created. Above 80 % of it the server stops "
            "reading from connections that send messages.",
            "Broker",
            64 * KIB,
            4 * GIB,
        ),
    ] = 64 * MIB
    queue_chunk_entries: Annotated[
        int, Setting("Entries in one file of a queue's index.", "Broker", 16, 16_000_000, unit="messages")
    ] = 1_000_000
    recent_messages_max: Annotated[
        int,
        Setting("Messages kept in memory; consumers that keep up never read a file.", "Broker", 0, 10_000_000, unit="messages"),
    ] = 10_000
    recent_bytes_max: Annotated[int, Setting("The same limit in bytes.", "Broker", 0, 64 * GIB)] = 64 * MIB
    open_files_max: Annotated[int, Setting("Message chunks kept open.", "Broker", 1, 100_000, unit="files")] = 256
    warm_bytes_max: Annotated[
        int,
        Setting(
            "Bytes of the last three message chunks, the newest first, that are read into the page cache after a start, in the "
            "background, while memory is below `broker_map_below`; 0: none.",
            "Broker",
            0,
            64 * GIB,
        ),
    ] = 768 * MIB
    idle_release_s: Annotated[
        float,
        Setting(
            "Message chunks that were not read for this time are unmapped once memory is above `broker_release_above`.",
            "Broker",
            0.0,
            DAY_S,
        ),
    ] = 5.0
    release_above: Annotated[
        float,
        Setting(
            "Share of the memory in use, of the machine's or of the control group's limit, above which idle message chunks "
            "are unmapped.",
            "Broker",
            0.0,
            1.0,
            unit="share of memory",
        ),
    ] = 0.40
    map_below: Annotated[
        float,
        Setting(
            "Share of the memory in use, as above, from which on no message chunk is mapped; they are read instead.",
            "Broker",
            0.0,
            1.0,
            unit="share of memory",
        ),
    ] = 0.75
    create_topics: Annotated[bool, Setting("Create a topic when a message is sent to it and it does not exist.", "Broker")] = (
        False
    )
    default_queues: Annotated[
        int, Setting("Queues of a topic that is created without a number.", "Broker", 1, 256, unit="queues")
    ] = 4
    member_timeout_s: Annotated[
        float,
        Setting(
            "A consumer without a heartbeat for this time is expired, and its queues go to other members.", "Broker", 0.1, DAY_S
        ),
    ] = 15.0
    offsets_interval_s: Annotated[
        float, Setting("How often the offsets of consumer groups are saved.", "Broker", 0.01, 3600.0)
    ] = 1.0
    retry_delays_s: Annotated[
        tuple[float, ...],
        Setting(
            "Delays before the second, third … delivery of a failed message; after the last it is a dead letter.",
            "Broker",
            0.0,
            DAY_S,
            metavar="SECONDS,…",
        ),
    ] = (1.0, 10.0, 60.0, 300.0)
    retention_interval_s: Annotated[
        float, Setting("How often message chunks are checked for deletion.", "Retention", 0.01, DAY_S)
    ] = 10.0
    retained_chunks_max: Annotated[
        int | None,
        Setting(
            "The oldest message chunks above this number are deleted; 0: no limit.", "Retention", 1, 1_000_000, unit="chunks"
        ),
    ] = 100
    retained_age_s: Annotated[
        float | None,
        Setting("Message chunks whose last message is older are deleted; 0: no limit.", "Retention", 1.0, 36_500 * DAY_S),
    ] = 7 * DAY_S
    retained_bytes_max: Annotated[
        int | None,
        Setting(
            "The oldest message chunks are deleted until the rest is within this size; 0: no limit.",
            "Retention",
            4 * KIB,
            1 << 60,
        ),
    ] = None
    retention: Annotated[
        Literal["any", "all"],
        Setting("Whether one of these three rules is enough to delete a chunk, or all that are set must agree.", "Retention"),
    ] = "any"
    ignore_unconsumed: Annotated[
        bool, Setting("Also delete messages that a consumer group has not consumed yet.", "Retention")
    ] = False

    def __post_init__(self) -> None:
        check_fields(self)
