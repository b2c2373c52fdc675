# Generated from eventstore/client/aio/consumer.py by `make generate`: do not edit.
"""Consumers: the members of consumer groups, for their users."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from eventstore.client.blocking.handling import run_handler
from eventstore.client.blocking.member import BlockingMember
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.handling import MessageHandler
from eventstore.client.consumer.member_options import (
    COMMIT_INTERVAL_S,
    HOLD_BYTES,
    HOLD_MESSAGES,
    PULL_BYTES,
    PULL_MESSAGES,
    PULL_WAIT_S,
    WARN_AFTER_S,
    MemberOptions,
    Mode,
    Order,
    Topics,
    member_options,
)
from eventstore.client.consumer.stopping import ConsumerStopped
from eventstore.client.limit import within
from eventstore.records.consumer_groups import Retries


class BlockingConsumer:
    """The messages of the queues assigned to this member of a group: `for message in consumer`.

    Each is a `Delivery`, to be finished by its `done` or `retry`, in any order and on any thread. A message that is not
    finished is delivered again, to this or another member. After a rebalance, messages of a queue that moved to another member
    are no longer handed out, and finishing them does nothing. Any number of tasks may iterate over a consumer, but only one
    thread.
    """

    def __init__(self, member: Any, timeout: float | None, of_client: float | None) -> None:
        """`member`: of one shard, or of several. `timeout`: to wait for a message; `of_client`: to join."""
        self._member: BlockingMember = member
        self._member.timeout_s = timeout
        self._timeout = of_client

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
            ConnectionLost, TimedOut: within the timeout of the client.
        """
        with within(self._timeout):
            self._member.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commits the finished messages and leaves the group; unfinished ones are delivered again, to any member."""
        self._member.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[Delivery]:
        return self._member.deliveries()

    def __next__(self) -> Delivery:
        return self._member.deliveries().__next__()

    def batches(self) -> Iterator[RawBatch]:
        """Returns whole records of one queue at a time, undecoded, to be finished batch by batch: `for batch in …`.

        A consumer hands out either messages or batches.
        """
        return self._member.batches()

    def some(self, *, timeout: float | None = None) -> Sequence[Delivery]:
        """Returns one message or more, as many as have arrived, up to a page: for handlers that take many at once; an empty
        sequence once the consumer is stopped. Raises TimedOut: none came in time, which is that of the consumer unless it is
        given one.
        """
        try:
            with within(timeout):
                return self._member.some()
        except ConsumerStopped:
            return ()

    def stop(self) -> None:
        """Hands out nothing more. Iterations end as if there were no more messages, and `run` returns, once its handlers have
        ended; leave the consumer then, which commits what was finished and has the rest delivered again.

        A blocking consumer is stopped by any thread, or by the handler of a signal: by SIGTERM of itself, if that would have
        ended the process; a second one does. An async one is stopped in its event loop.
        """
        self._member.stop()

    def run(self, handler: MessageHandler, *, concurrency: int = 1) -> None:
        """Calls `handler` with each message, up to `concurrency` (1 to 1,000) at once, for as long as the consumer is open.

        If it returns, the message is done. Whatever it raises, unless this call is being cancelled, is its failure: the message
        is retried after the delays of the group, and is a dead letter after the last; the error is logged. What is neither an
        `Exception` nor a cancellation, such as SystemExit, is raised as well, once the other handlers have ended. Of these,
        KeyboardInterrupt is not a failure: the message is delivered again, as if the consumer had been left. A handler may also
        call `done` or `retry` itself.

        Returns when it is stopped; otherwise it ends only by an error or by being cancelled or interrupted. Tasks are cancelled
        with their handlers; threads of a blocking consumer end their message first. What was finished is committed when the
        consumer is left.

        Raises:
            InvalidArgument
            EventStoreError: what ended the consumer; TimedOut: no message came in the consumer's time.
        """
        run_handler(self._member, handler, concurrency)


class BlockingConsumers(ABC):
    """What begins consumers: a store."""

    _timeout: float | None

    @abstractmethod
    def _new_member(self, options: MemberOptions) -> Any:
        """Returns a member of a group, at the server or on all shards."""

    def consumer(
        self,
        group: str,
        topics: Topics,
        *,
        mode: Mode = "parallel",
        order: Order | None = None,
        member: str | None = None,
        from_end: bool = False,
        retries: Retries | None = None,
        commit_interval: float = COMMIT_INTERVAL_S,
        hold_messages: int = HOLD_MESSAGES,
        hold_bytes: int = HOLD_BYTES,
        pull_messages: int = PULL_MESSAGES,
        pull_bytes: int = PULL_BYTES,
        pull_wait: float = PULL_WAIT_S,
        warn_after: float = WARN_AFTER_S,
        timeout: float | None = None,
    ) -> BlockingConsumer:
        """Returns a member of a consumer group, for use in `with`; the members share the queues of the topics.

        `topics`: a name, names, or tags by name ({"orders": "paid | cancelled"}; None or "*" is every message), the same for
        all members. `mode`: "parallel", messages in their order, any number unfinished at once; "sequential", one unfinished
        message of a queue at a time, also while it is retried. `order`: with "key", one unfinished message of a key at a time,
        while others of its queue continue. `member`: its name, unique in the group; generated by default. `from_end`: whether a
        topic that is new to the group begins at its end; else at its start. `retries`: the group's retry policy from now on, as
        `broker.set_retries` sets it; by default it is left as it is. `commit_interval` (0.01 to 5 seconds): how much is
        delivered again at most after a crash. `hold_messages`, `hold_bytes`: the most to hold in this process, finished or not;
        one page more at worst. `pull_messages`, `pull_bytes`: the largest page to request. `pull_wait` (0.1 to 60 seconds): how
        long a request waits at the server for messages. `warn_after` (0.01 to 86,400 seconds): how long a message may be in
        hand before the log says so, and again after twice that, four times … `timeout`: how many seconds it waits for the next
        message before it raises TimedOut, and continues with the next call; None: for as long as there is none.

        Raises:
            InvalidArgument: a limit is broken; entering it raises more.
        """
        options = member_options(
            group,
            topics,
            member,
            mode=mode,
            order=order,
            retries=retries,
            from_end=from_end,
            commit_interval_s=commit_interval,
            hold_messages=hold_messages,
            hold_bytes=hold_bytes,
            pull_messages=pull_messages,
            pull_bytes=pull_bytes,
            pull_wait_s=pull_wait,
            warn_after_s=warn_after,
        )
        return BlockingConsumer(self._new_member(options), timeout, self._timeout)
