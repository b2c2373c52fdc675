"""What a member makes of the server's answers: a server that says what a test tells it to, on a real connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest
import trio
from anyio.abc import SocketAttribute, SocketStream

import eventstore as es
from eventstore.client.membership import Membership
from eventstore.client.reader import Reader
from eventstore.client.window import Window
from eventstore.errors import EventStoreError, InvalidArgument, StorageFull
from eventstore.protocol.answers import encode_error, encode_ok
from eventstore.protocol.broker_requests import CommitOffsets, FailMessages, Heartbeat, Join, Pull
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.requests import Hello, Ping, Request, Unsubscribe

Says = Callable[[Request], EventStoreError | None]


class Scripted:
    """Takes every request, unless `says` has an error for it, and lets pulls wait. `requests`: what a member has said."""

    def __init__(self, says: Says, queues: int = 1) -> None:
        self.requests: list[Request] = []
        self._says = says
        self._shares = [value for queue in range(queues) for value in ("orders", queue, 0, None)]

    async def serve(self, stream: SocketStream) -> None:
        reader, decode = FrameReader(), RequestDecoder().decode
        async with stream:
            try:
                async for data in stream:
                    for payload in reader.feed(data):
                        await stream.send(self._answer(*decode(payload)))
            except anyio.BrokenResourceError:
                return

    def _answer(self, request_id: int, request: Request) -> bytes:
        if isinstance(request, Hello):
            return encode_ok(request_id, *Welcome(1, "scripted", bytes(16)).values())
        if isinstance(request, Ping):
            return encode_ok(request_id)
        self.requests.append(request)
        if (error := self._says(request)) is not None:
            return encode_error(request_id, error)
        if isinstance(request, Pull | Unsubscribe):
            return b""
        return encode_ok(request_id, *((1, *self._shares) if isinstance(request, Join) else ()))

    def failed(self) -> list[tuple[str, list[int]]]:
        """Reasons and offsets, as they were reported."""
        reports = [request for request in self.requests if isinstance(request, FailMessages)]
        return [(report.reason, [place[2] for place in report.places]) for report in reports]


@asynccontextmanager
async def member(server: Scripted, interval_s: float = 0.01) -> AsyncIterator[tuple[Membership, Window]]:
    """A member that holds the messages 0 to 9 of the first queue."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        port = listener.extra(SocketAttribute.local_port)
        with anyio.fail_after(60):
            async with es.connect(f"tcp://127.0.0.1:{port}") as store:
                membership = Membership(store._connection, Reader("billing", "m-1", {"orders": None}), "parallel", interval_s)
                await membership.join()
                window = membership.consumption.windows[0]
                window.arrived(0, 10, 10, 1000)
                window.open(range(10))
                yield membership, window
        tasks.cancel_scope.cancel()


async def until(membership: Membership, condition: Callable[[], bool]) -> None:
    while not condition():
        await membership.changed.wait()


async def until_said(server: Scripted, count: int) -> None:
    while len(server.requests) < count:
        await anyio.lowlevel.checkpoint()


def test_a_message_that_is_gone_is_finished_and_the_others_are_reported() -> None:
    def says(request: Request) -> EventStoreError | None:
        gone = isinstance(request, FailMessages) and any(place[2] == 0 for place in request.places)
        return InvalidArgument("holds no message 0", field="offset", value=0) if gone else None

    async def main() -> None:
        async with member(server := Scripted(says)) as (membership, window):
            window.fail(0, "no")
            window.fail(1, "no")
            membership.close()
            await membership.leave()
        assert server.failed() == [("no", [0, 1]), ("no", [0]), ("no", [1])]
        assert [request.offsets[0][2] for request in server.requests if isinstance(request, CommitOffsets)] == [2]

    trio.run(main)


def test_any_other_refusal_of_a_failure_finishes_nothing_and_ends_the_consumer() -> None:
    def says(request: Request) -> EventStoreError | None:
        return InvalidArgument("too many queues", field="queues") if isinstance(request, FailMessages) else None

    async def main() -> None:
        async with member(server := Scripted(says)) as (membership, window), anyio.create_task_group() as tasks:
            window.fail(0, "no")
            tasks.start_soon(membership.speak)
            await until(membership, lambda: membership.error is not None)
            assert isinstance(membership.error, InvalidArgument)
            assert window.position == 0
        assert not any(isinstance(request, CommitOffsets) for request in server.requests)

    trio.run(main)


@pytest.mark.parametrize("refusal", [StorageFull("the disk is full"), InvalidArgument("too many", field="queues")])
def test_what_was_handled_is_committed_also_where_a_failure_cannot_be_reported(refusal: EventStoreError) -> None:
    def says(request: Request) -> EventStoreError | None:
        return refusal if isinstance(request, FailMessages) else None

    async def main() -> None:
        async with member(server := Scripted(says)) as (membership, window):
            for offset in (0, 1, 3):
                window.finish(offset)
            window.fail(2, "no")
            membership.close()
            await membership.leave()
        assert [request.offsets[0][2] for request in server.requests if isinstance(request, CommitOffsets)] == [2]

    trio.run(main)


def test_an_error_that_says_try_again_is_waited_for() -> None:
    refusals = iter([StorageFull("the disk is full"), StorageFull("the disk is full")])

    def says(request: Request) -> EventStoreError | None:
        return next(refusals, None) if isinstance(request, CommitOffsets) else None

    async def main() -> None:
        async with member(server := Scripted(says)) as (membership, window):
            async with anyio.create_task_group() as tasks:
                window.finish(0)
                tasks.start_soon(membership.speak)
                while window.committed != 1 and membership.error is None:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert membership.error is None
            assert len([request for request in server.requests if isinstance(request, CommitOffsets)]) == 3

    trio.run(main)


def test_many_reasons_do_not_silence_the_member() -> None:
    async def main() -> None:
        async with member(server := Scripted(lambda request: None), interval_s=0) as (membership, window):
            for offset in range(1, 10):
                window.fail(offset, f"reason {offset}")
            membership.close()
            await membership.leave()
        assert len(server.failed()) == 9
        spoken = [isinstance(request, FailMessages) for request in server.requests]
        assert (True, True) not in pairwise(spoken), "between two reports it says that it lives"
        assert any(isinstance(request, Heartbeat) for request in server.requests)

    trio.run(main)


def test_a_pull_that_waits_for_other_queues_is_dropped_when_one_has_room_again() -> None:
    async def main() -> None:
        async with member(server := Scripted(lambda request: None, queues=2)) as (membership, window):
            window.arrived(10, 6000, 5990, 1000)
            window.open(range(10, 6000))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(membership.fetch)
                await until_said(server, 2)
                for offset in range(6000):
                    window.finish(offset)
                await until_said(server, 4)
                tasks.cancel_scope.cancel()
        _, first, dropped, second = server.requests[:4]
        assert isinstance(first, Pull)
        assert [want[1] for want in first.wants] == [1]
        assert isinstance(dropped, Unsubscribe)
        assert isinstance(second, Pull)
        assert sorted(want[1:3] for want in second.wants) == [(0, 6000), (1, 0)]

    trio.run(main)


def test_a_bug_ends_the_consumer_with_an_error_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with member(Scripted(lambda request: None)) as (membership, window):
            async with anyio.create_task_group() as tasks:
                window.fail(0, 7)  # type: ignore[arg-type] # what no frame can carry as a reason
                window.fail(1, "a reason that cannot be sorted beside it")
                tasks.start_soon(membership.speak)
                await until(membership, lambda: membership.error is not None)
            assert membership.error is not None
            assert "TypeError" in membership.error.message
        assert "TypeError" in caplog.text

    trio.run(main)
