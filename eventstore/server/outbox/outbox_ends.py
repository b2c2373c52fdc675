"""The two ends of an outbox: in this process, or clients of other servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import trio

from eventstore.errors import EventStoreError, InvalidArgument, UnknownOperation, UnsupportedVersion
from eventstore.model import Event
from eventstore.records.message import RawMessage
from eventstore.server.outbox.outbox_resume import Published, ResumableStore, TopicState

BATCH_EVENTS_MAX: Final = 1_024
_LASTING: Final = (InvalidArgument, UnsupportedVersion, UnknownOperation)
_ASK_AGAIN_S: Final = 0.02

MessagePosition: TypeAlias = tuple[int, int, int]
"""The (queue, queue offset, position) of a message."""


class PublishedStore(ResumableStore, Protocol):
    """The store whose events are published. `store`: its uuid."""

    @property
    def store(self) -> str: ...

    async def events(self, after: int) -> tuple[list[Event], int]:
        """Returns the next events after this sequence, about `BATCH_EVENTS_MAX` at most, and the sequence up to which these
        are all; waits until there are new ones.

        Only durable ones: a message cannot be taken back.
        """
        ...


class PublishedTopic(Published, Protocol):
    """The topic the events are sent to."""

    @property
    def topic(self) -> str: ...

    async def open(self) -> TopicState:
        """Opens the topic, and creates it if it does not exist."""
        ...

    async def is_same(self) -> bool:
        """Whether the topic is still the one that was opened, and not deleted or created again. `send` refuses any other."""
        ...

    async def send(self, messages: Sequence[RawMessage]) -> list[MessagePosition]:
        """Sends the messages in order; returns their places. After a failure the topic holds a prefix of them: none, some
        or all.

        Raises:
            EventStoreError
        """
        ...

    def is_durable(self, position: int) -> bool:
        """Whether the message at this position survives any crash of the broker."""
        ...


async def wait_until_durable(target: PublishedTopic, position: int) -> None:
    """Waits until the message at this position survives any crash of the broker."""
    while not target.is_durable(position):  # noqa: ASYNC110 # a broker does not report what it has synced
        await trio.sleep(_ASK_AGAIN_S)


def is_lasting(error: Exception) -> bool:
    """Whether sending again cannot help."""
    return isinstance(error, _LASTING) or not isinstance(error, EventStoreError | OSError)
