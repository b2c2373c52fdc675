# Generated from eventstore/client/aio/consumer.py by `make generate`: do not edit.
"""Consumers: the members of consumer groups, for their users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NoReturn, Self

from eventstore.client.blocking.connection import Connection
from eventstore.client.blocking.handling import run_handler
from eventstore.client.blocking.member import Member
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import Handler
from eventstore.client.consumer.member_options import MemberOptions


class BlockingConsumer:
    """The messages of the queues assigned to this member of a group: `for message in consumer`.

    Each is a `Delivery`, to be finished by its `done` or `retry`, in any order and on any thread. A message that is not
    finished is delivered again, to this or another member. After a rebalance, messages of a queue that moved to another member
    are no longer handed out, and finishing them does nothing. Any number of tasks may iterate over a consumer, but only one
    thread.
    """

    def __init__(self, connection: Connection, options: MemberOptions) -> None:
        self._member = Member(connection, options)

    @property
    def member(self) -> str:
        """The name of this member of the group."""
        return self._member.options.member

    @property
    def assigned(self) -> list[tuple[str, int]]:
        """The queues that this member reads now, as (topic, queue)."""
        return self._member.assigned

    @property
    def generation(self) -> int | None:
        """The number of the group's assignment, which grows with each rebalance. None while this is not a member."""
        return self._member.generation

    def __enter__(self) -> Self:
        """Joins the group.

        Raises:
            UnknownTopic
            InvalidArgument: a name or a limit; or other members read a topic with other tags.
            ConnectionLost
        """
        self._member.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Commits the finished messages and leaves the group; unfinished ones are delivered again, to any member."""
        return self._member.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Delivery]:
        return self._member.deliveries()

    def __next__(self) -> Delivery:
        return self._member.deliveries().__next__()

    def batches(self) -> Iterator[RawBatch]:
        """Returns whole records of one queue at a time, undecoded, to be finished batch by batch: `for batch in …`.

        A consumer hands out either messages or batches.
        """
        return self._member.batches()

    def some(self) -> Sequence[Delivery]:
        """Returns one message or more, as many as have arrived, up to a page: for handlers that take many at once."""
        return self._member.some()

    def run(self, handler: Handler, *, concurrency: int = 1) -> NoReturn:
        """Calls `handler` with each message, up to `concurrency` (1 to 1,000) at once, for as long as the consumer is open.

        If it returns, the message is done. If it raises an `Exception`, the message is retried after the delays of the group,
        and is a dead letter after the last; the error is logged. A handler may also call `done` or `retry` itself.

        Ends only by an error or by being cancelled or interrupted. Tasks are cancelled with their handlers; threads of a
        blocking consumer end their message first. What was finished is committed when the consumer is left.

        Raises:
            InvalidArgument
            EventStoreError: what ended the consumer.
        """
        run_handler(self._member, handler, concurrency)
