"""A connection to a server for the commands of the broker: a topic or group that is not there is told with the nearest name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from eventstore.errors import EventStoreError, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    from eventstore.client.blocking import BlockingStore
    from eventstore.client.blocking_broker import BlockingBroker


@contextmanager
def connect_to_broker(store: str, command: str) -> Iterator[BlockingStore]:
    """Connected as `command`. A typing error in a name is what an operator meets most: what it raises says what to type."""
    from eventstore import blocking

    with blocking.connect(store, name=f"eventstore {command}") as connected:
        try:
            yield connected
        except (UnknownTopic, UnknownGroup) as error:
            with suppress(EventStoreError):  # the first error is the one to be told
                error.message = _with_next_step(error, connected.broker)
            raise


def _with_next_step(error: UnknownTopic | UnknownGroup, broker: BlockingBroker) -> str:
    import difflib

    if isinstance(error, UnknownTopic):
        what, missing, names = "topic", str(error.topic), [each.name for each in broker.topics()]
        step = "`eventstore topic list` shows all, `eventstore topic create` makes one"
    else:
        what, missing, names = "consumer group", str(error.group), [each.name for each in broker.groups()]
        step = "`eventstore group list` shows all; a group is made by its first consumer"
    near = difflib.get_close_matches(missing, names, 1)
    return f"there is no {what} {missing!r}; {f'did you mean {near[0]!r}?' if near else step}"
