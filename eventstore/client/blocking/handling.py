"""Runs a handler on the messages of a blocking consumer: in the caller's thread, or in several others.

With several, the caller's thread takes the messages and hands each to a free thread, so that Ctrl-C reaches a thread that only
waits. Threads cannot be cancelled: handlers in flight end before the error is raised.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import suppress
from typing import NoReturn

from eventstore.client.blocking.member import BlockingMember
from eventstore.client.consumer.delivery import Delivery
from eventstore.client.consumer.handling import MessageHandler, check_concurrency, handled, raised
from eventstore.client.consumer.stopping import ConsumerStopped
from eventstore.errors import InvalidArgument
from eventstore.failures import ends_process


def run_handler(member: BlockingMember, handler: MessageHandler, concurrency: int) -> None:
    """Handles messages until the consumer is stopped, or ends by an error, or the caller is interrupted.

    Raises:
        InvalidArgument: the concurrency is out of range, or the handler is a coroutine function.
        EventStoreError: what ended the consumer.
    """
    check_concurrency(concurrency)
    if inspect.iscoroutinefunction(handler):
        raise InvalidArgument(
            "a blocking consumer runs no coroutine functions: give it a plain function, or use `eventstore.connect`",
            field="handler",
        )
    if concurrency == 1:
        with suppress(ConsumerStopped):
            while True:
                _handle(handler, member.next())
    else:
        with suppress(ConsumerStopped):
            _Threads(member, handler, concurrency).run()


def _handle(handler: MessageHandler, message: Delivery) -> None:
    try:
        handler(message)
    except BaseException as error:
        raised(message, error)
        if ends_process(error):
            raise
    else:
        handled(message)


class _Threads:
    """Threads that handle one message each at a time."""

    def __init__(self, member: BlockingMember, handler: MessageHandler, count: int) -> None:
        self._member = member
        self._handler = handler
        self._count = count
        self._free = threading.Semaphore(count)
        self._ended_by: BaseException | None = None

    def run(self) -> NoReturn:
        """Raises ConsumerStopped, or what ended a handler or the consumer."""
        from concurrent.futures import ThreadPoolExecutor  # whose module cannot be imported at the end of a program

        with ThreadPoolExecutor(self._count, "consumer") as threads:  # leaving it waits for the handlers in flight
            while True:
                self._free.acquire()
                self._raise_ended()
                try:
                    message = self._member.next()
                except ConsumerStopped:
                    self._raise_ended()
                    raise
                threads.submit(self._work, message)

    def _raise_ended(self) -> None:
        if self._ended_by is not None:
            raise self._ended_by

    def _work(self, message: Delivery) -> None:
        try:
            _handle(self._handler, message)
        except BaseException as error:  # a SystemExit, say, which must reach the thread that runs all this
            self._ended_by = error
            self._member.stop()
        finally:
            self._free.release()
