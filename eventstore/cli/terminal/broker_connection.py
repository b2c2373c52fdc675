"""Connects the commands of the broker to a server, or to shards; the error for an unknown topic or group names the nearest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from eventstore.errors import EventStoreError, InvalidArgument, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from eventstore.client.blocking.broker import BlockingBroker
    from eventstore.client.blocking.store import BlockingStore


@contextmanager
def connect_to_broker(store: str, command: str, shard: int | None = None) -> Iterator[BlockingStore]:
    """Connects as `command`, of several shards to all or to this one. A mistyped name is an operator's most frequent error: the
    message says what to type instead.
    """
    from eventstore import blocking

    with blocking.connect(store, name=f"eventstore {command}", timeout=None) as connected:
        try:
            yield connected if shard is None else one_shard(connected, shard)
        except (UnknownTopic, UnknownGroup) as error:
            with suppress(EventStoreError):  # the first error is the one to report
                error.message = _with_next_step(error, connected.broker)
            raise


def each_shard(connected: BlockingStore) -> list[tuple[int | None, BlockingStore]]:
    """Returns the number and the store of each shard; None and the store itself if there are not several."""
    return [*connected.shards.items()] or [(None, connected)]


def check_is_one(connected: BlockingStore, what: str) -> None:
    """Raises InvalidArgument if there are several shards. `what`: that each of them has its own."""
    if connected.shards:
        raise InvalidArgument(
            f"each of the {len(connected.shards)} shards has its own {what}: give --shard N, too", field="shard"
        )


def one_shard(connected: BlockingStore, number: int) -> BlockingStore:
    """Returns the store of a shard. Raises InvalidArgument if there is none of this number."""
    shards = connected._of_shards() or {0: connected}
    if number not in shards:
        known = f"there are 0 to {max(shards)}" if len(shards) > 1 else "the only one is 0"
        raise InvalidArgument(f"there is no shard {number}; {known}", field="shard", value=number)
    return shards[number]


def _with_next_step(error: UnknownTopic | UnknownGroup, broker: BlockingBroker) -> str:
    import difflib

    if isinstance(error, UnknownTopic):
        what, missing, names = "topic", str(error.topic), [each.name for each in broker.topics()]
        step = "`eventstore topic list` shows all, `eventstore topic create` creates one"
    else:
        what, missing, names = "consumer group", str(error.group), [each.name for each in broker.groups()]
        step = "`eventstore group list` shows all; its first consumer creates a group"
    near = difflib.get_close_matches(missing, names, 1)
    return f"there is no {what} {missing!r}; {f'did you mean {near[0]!r}?' if near else step}"
