"""How a blocking store is opened and closed: entered, it connects at once; otherwise its first call does, in whichever process
and thread that is, and it is closed at the exit of the process.

What the first call finds out, whether there is one server or a cluster, is the attribute `_router`. Until then there is none,
and Python asks `__getattr__`: the calls that follow pay nothing for it.
"""

from __future__ import annotations

import atexit
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from eventstore.client.address import parse_addresses
from eventstore.client.blocking.connection import BlockingConnection
from eventstore.client.blocking.one_way import BlockingOneWay
from eventstore.client.blocking.routing import BlockingRouter, open_router
from eventstore.client.limit import seconds_of, within
from eventstore.client.options import ClientOptions
from eventstore.client.routing.table import is_entry
from eventstore.client.session.one_way_queue import tell
from eventstore.errors import MessagesFailed


class BlockingOpened:
    """A store as a context, or without. `_router`: None at a single server."""

    _router: BlockingRouter | None

    def __init__(self, address: str, options: ClientOptions) -> None:
        self._connection = BlockingConnection(parse_addresses(address), options)
        self._timeout = options.timeout
        self._one_way = BlockingOneWay()
        self._layout: int | None = None  # of the slots of a shard of `shards`

    if not TYPE_CHECKING:  # a type checker would believe in every attribute

        def __getattr__(self, name: str) -> Any:
            if name != "_router":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            _left_open.add(self)
            with within(seconds_of(None, self._timeout)):  # what asks is not always a call with a limit of its own
                return self._found()

    def _found(self) -> BlockingRouter | None:
        """Connects, unless that is done, and sets `_router`."""
        connection = self._connection
        welcome = connection.open()
        made = open_router(connection) if is_entry(welcome, connection.addresses) else None
        kept: BlockingRouter | None = self.__dict__.setdefault("_router", made)
        if made is not kept and made is not None:  # another thread has done the same meanwhile
            made.close()
        return kept

    @property
    def _opened(self) -> BlockingRouter | None:
        """The router, if there is one by now."""
        return self.__dict__.get("_router")

    def __enter__(self) -> Self:
        self._connection.__enter__()
        try:
            self._found()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        tell(self._ended(flushes=error is None or isinstance(error, Exception)), error)
        return None

    def close(self) -> None:
        """Ends the connection. Callers that wait for an answer get Closed, and so do calls from now on. Messages that were sent
        with `wait=False` leave before, within the client's `timeout`; raises MessagesFailed if some are not stored.
        """
        tell(self._ended(flushes=True), None)

    def _ended(self, *, flushes: bool) -> MessagesFailed | None:
        try:
            return self._one_way.close(self._timeout, flushes=flushes)
        finally:
            _left_open.discard(self)
            if (router := self._opened) is not None:
                router.close()
            self._connection.close()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now, in a cluster also to each shard that a call waits for, as calls do without one."""
        router = self._opened
        return self._connection.welcome is not None and (router is None or router.connected)


_log: Final = logging.getLogger(__name__)
_left_open: Final[WeakSet[BlockingOpened]] = WeakSet()
"""The stores that a call has opened."""


def _close_all() -> None:
    for each in list(_left_open):
        try:
            each.close()
        except MessagesFailed as failed:  # the others are closed nevertheless
            _log.warning("at exit: %s", failed)


atexit.register(_close_all)
