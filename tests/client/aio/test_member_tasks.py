"""Member tasks against a scripted server on a real connection."""

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
from eventstore.client.aio.members.member_tasks import MemberTasks
from eventstore.client.consumer.commit_window import Window
from eventstore.client.consumer.member_options import MemberOptions
from eventstore.client.consumer.turns import Turns
from eventstore.errors import EventStoreError, InvalidArgument, StorageFull
from eventstore.protocol.answers import encode_error, encode_ok
from eventstore.protocol.broker_requests import Pull
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.group_requests import CommitOffsets, FailMessages, Heartbeat, Join
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.request_codec import RequestDecoder
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Hello, Ping, Unsubscribe

Says = Callable[[Request], EventStoreError | None]


class Scripted:
    """Accepts every request unless `says` returns an error for it; leaves pulls unanswered. `requests`: those received."""

    def __init__(self, says: Says, queues: int = 1) -> None:
        self.requests: list[Request] = []
        self._says = says
        self._shares = [value for queue in range(queues) for value in ("orders", queue, 0, None, 0, None)]

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
        """Returns the reported reasons and offsets."""
        reports = [request for request in self.requests if isinstance(request, FailMessages)]
        return [(report.reason, [place[2] for place in report.places]) for report in reports]


@asynccontextmanager
async def joined(server: Scripted, interval_s: float = 0.01) -> AsyncIterator[tuple[MemberTasks, Window]]:
    """Yields a member that holds the messages 0 to 9 of the first queue."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, server.serve)
        port = listener.extra(SocketAttribute.local_port)
        with anyio.fail_after(60):
            async with es.connect(f"tcp://127.0.0.1:{port}") as store:
                options = MemberOptions("billing", "m-1", {"orders": None}, commit_interval_s=interval_s)
                member = MemberTasks(store._connection, options, Turns())
                await member.join()
                window = member.state.windows[0]
                window.arrived(0, 10, 10, 1000)
                window.open(range(10))
                yield member, window
        tasks.cancel_scope.cancel()


async def until(member: MemberTasks, condition: Callable[[], bool]) -> None:
    while not condition():
        await member.changed.wait()


async def until_received(server: Scripted, count: int) -> None:
    while len(server.requests) < count:
        await anyio.lowlevel.checkpoint()


def test_a_deleted_message_is_finished_and_the_others_are_reported() -> None:
    def says(request: Request) -> EventStoreError | None:
        gone = isinstance(request, FailMessages) and any(place[2] == 0 for place in request.places)
        return InvalidArgument("holds no message 0", field="offset", value=0) if gone else None

    async def main() -> None:
        async with joined(server := Scripted(says)) as (member, window):
            window.fail(0, "no")
            window.fail(1, "no")
            member.close()
            await member.leave()
        assert server.failed() == [("no", [0, 1]), ("no", [0]), ("no", [1])]
        assert [request.offsets[0][2] for request in server.requests if isinstance(request, CommitOffsets)] == [2]

    trio.run(main)


def test_any_other_refusal_of_a_failure_finishes_nothing_and_ends_the_consumer() -> None:
    def says(request: Request) -> EventStoreError | None:
        return InvalidArgument("too many queues", field="queues") if isinstance(request, FailMessages) else None

    async def main() -> None:
        async with joined(server := Scripted(says)) as (member, window), anyio.create_task_group() as tasks:
            window.fail(0, "no")
            tasks.start_soon(member.report)
            await until(member, lambda: member.error is not None)
            assert isinstance(member.error, InvalidArgument)
            assert window.position == 0
        assert not any(isinstance(request, CommitOffsets) for request in server.requests)

    trio.run(main)


@pytest.mark.parametrize("refusal", [StorageFull("the disk is full"), InvalidArgument("too many", field="queues")])
def test_handled_messages_are_committed_even_if_a_failure_cannot_be_reported(refusal: EventStoreError) -> None:
    def says(request: Request) -> EventStoreError | None:
        return refusal if isinstance(request, FailMessages) else None

    async def main() -> None:
        async with joined(server := Scripted(says)) as (member, window):
            for offset in (0, 1, 3):
                window.finish(offset)
            window.fail(2, "no")
            member.close()
            await member.leave()
        assert [request.offsets[0][2] for request in server.requests if isinstance(request, CommitOffsets)] == [2]

    trio.run(main)


def test_a_retriable_error_is_retried() -> None:
    refusals = iter([StorageFull("the disk is full"), StorageFull("the disk is full")])

    def says(request: Request) -> EventStoreError | None:
        return next(refusals, None) if isinstance(request, CommitOffsets) else None

    async def main() -> None:
        async with joined(server := Scripted(says)) as (member, window):
            async with anyio.create_task_group() as tasks:
                window.finish(0)
                tasks.start_soon(member.report)
                while window.committed != 1 and member.error is None:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert member.error is None
            assert len([request for request in server.requests if isinstance(request, CommitOffsets)]) == 3

    trio.run(main)


def test_many_reasons_do_not_silence_the_member() -> None:
    async def main() -> None:
        async with joined(server := Scripted(lambda request: None), interval_s=0) as (member, window):
            for offset in range(1, 10):
                window.fail(offset, f"reason {offset}")
            member.close()
            await member.leave()
        assert len(server.failed()) == 9
        spoken = [isinstance(request, FailMessages) for request in server.requests]
        assert (True, True) not in pairwise(spoken), "between two reports it says that it lives"
        assert any(isinstance(request, Heartbeat) for request in server.requests)

    trio.run(main)


def test_a_pull_that_waits_for_other_queues_is_dropped_when_one_has_room_again() -> None:
    async def main() -> None:
        async with joined(server := Scripted(lambda request: None, queues=2)) as (member, window):
            window.arrived(10, 6000, 5990, 1000)
            window.open(range(10, 6000))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(member.fetch)
                await until_received(server, 2)
                for offset in range(6000):
                    window.finish(offset)
                await until_received(server, 4)
                tasks.cancel_scope.cancel()
        _, first, dropped, second = server.requests[:4]
        assert isinstance(first, Pull)
        assert [want[1] for want in first.wants] == [1]
        assert isinstance(dropped, Unsubscribe)
        assert isinstance(second, Pull)
        assert sorted(want[1:3] for want in second.wants) == [(0, 6000), (1, 0)]

    trio.run(main)


def test_a_bug_ends_the_consumer_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with joined(Scripted(lambda request: None)) as (member, window):
            async with anyio.create_task_group() as tasks:
                window.fail(0, 7)  # type: ignore[arg-type] # not a reason that fits into a frame
                window.fail(1, "a reason that cannot be compared with the other")
                tasks.start_soon(member.report)
                await until(member, lambda: member.error is not None)
            assert member.error is not None
            assert "TypeError" in member.error.message
        assert "TypeError" in caplog.text

    trio.run(main)
