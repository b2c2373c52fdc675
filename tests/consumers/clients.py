"""One interface to the three clients of the broker: a test is written once and runs with each, against a real server.

trio, asyncio    `connect`
blocking         `blocking.connect`; each call on a thread
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self, TypeAlias

import anyio
import anyio.to_thread
import pytest
import trio

import eventstore as es
from tests.server_thread import ServerThread
from tests.waiting import DEADLINE_SECONDS, eventually

KINDS = ("trio", "asyncio", "blocking")
SMALL = {
    "broker_preallocate_bytes": 64 * 1024,
    "broker_chunk_size_bytes": 1024 * 1024,
    "broker_retry_delays_s": "0.01,0.01,0.02,0.02",
}
_END = object()
Test: TypeAlias = Callable[..., Awaitable[None]]


async def _on_thread(call: Callable[..., Any], *arguments: object, **named: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *arguments, **named), abandon_on_cancel=True)


class Disguised:
    """Gives an object of the blocking client the methods of the others."""

    def __init__(self, disguised: Any) -> None:
        self._disguised = disguised

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._disguised, name)
        if name == "broker":
            return Disguised(value)
        if name == "topic":
            return lambda *arguments, **named: Disguised(value(*arguments, **named))
        if name == "consumer":
            return lambda *arguments, **named: DisguisedConsumer(value(*arguments, **named))
        return partial(_on_thread, value) if callable(value) else value


class DisguisedConsumer:
    """A blocking consumer as an async one."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._items = iter(consumer)

    @property
    def assigned(self) -> list[tuple[str, int]]:
        return self._consumer.assigned  # type: ignore[no-any-return] # as the one it disguises

    @property
    def member(self) -> str:
        return self._consumer.member  # type: ignore[no-any-return] # as above

    async def __aenter__(self) -> Self:
        await _on_thread(self._consumer.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        with anyio.CancelScope(shield=True):
            await _on_thread(self._consumer.__exit__, *error)

    async def run(self, handler: Any, **named: Any) -> None:
        await _on_thread(self._consumer.run, handler, **named)

    def batches(self) -> Self:
        self._items = self._consumer.batches()
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        item = await _on_thread(next, self._items, _END)
        if item is _END:
            raise StopAsyncIteration
        return item


class World:
    """A test's server, and a client of it."""

    def __init__(self, kind: str, server: ServerThread, store: Any) -> None:
        self.kind = kind
        self.server = server
        self.store = store

    async def restart(self) -> None:
        """Stops the server in order and starts it again on the same port."""
        await anyio.to_thread.run_sync(self.server.restart)

    async def create(self, topic: str = "orders", queues: int = 4) -> Any:
        """Creates a topic and returns it."""
        await self.store.broker.create_topic(topic, queues)
        return self.store.topic(topic)

    async def backlog_is(self, group: str, backlog: int) -> None:
        """Returns once the group has this many messages to consume."""

        async def is_so() -> bool:
            return bool((await self.store.broker.group(group)).backlog == backlog)

        await eventually(is_so, f"the backlog of {group} is {backlog}")


@asynccontextmanager
async def opened(kind: str, address: str) -> AsyncIterator[Any]:
    """Yields a client of this kind."""
    if kind != "blocking":
        async with es.connect(address) as store:
            yield store
        return
    blocking = es.blocking.connect(address)
    await _on_thread(blocking.__enter__)
    try:
        yield Disguised(blocking)
    finally:
        with anyio.CancelScope(shield=True):
            await _on_thread(blocking.close)


def with_each_client(test: Test | None = None, *, kinds: tuple[str, ...] = KINDS, **settings: Any) -> Any:
    """Runs an async test with each client in turn; `settings` are those of the server."""
    if test is None:
        return partial(with_each_client, kinds=kinds, **settings)
    own = [each for each in inspect.signature(test).parameters.values() if each.name != "world"]

    @wraps(test)
    def run(kind: str, tmp_path: Path, **given: Any) -> None:
        async def main() -> None:
            with anyio.fail_after(2 * DEADLINE_SECONDS):
                async with opened(kind, server.address) as store:
                    await test(World(kind, server, store), **given)

        with ServerThread(tmp_path / "data", **{**SMALL, **settings}) as server:
            if kind == "asyncio":
                asyncio.run(main())
            else:
                trio.run(main)

    fixtures = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("kind", "tmp_path")]
    run.__signature__ = inspect.Signature([*fixtures, *own])  # type: ignore[attr-defined] # what pytest looks at
    del run.__wrapped__  # pytest would look at the signature of the test itself
    return pytest.mark.parametrize("kind", kinds)(run)


async def take(messages: AsyncIterator[Any], count: int) -> list[Any]:
    """Returns the next `count` items, and leaves the iterator open."""
    return [await anext(messages) for _ in range(count)]


async def take_done(messages: AsyncIterator[Any], count: int) -> list[Any]:
    """As `take`, and finishes each."""
    found = await take(messages, count)
    for message in found:
        message.done()
    return found
