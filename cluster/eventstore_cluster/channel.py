"""The channel between a node and the process of one of its shards: a pair of sockets that carries a JSON object in each line.

The end of the channel is a message as well. The node ends it to have the shard stop; if the node is killed, the kernel does.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from types import TracebackType
from typing import Final, Self

import trio

from eventstore.chunks.documents import Tree

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Metrics of a shard are the longest: a line for each topic, queue and group."""
_RECEIVE_BYTES: Final = 64 * 1024


class Channel:
    """One end. Any task may send; one receives."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()
        self._sending = trio.Lock()  # a line goes out whole

    async def send(self, message: Tree) -> None:
        """Sends a message. Does nothing if the other side is gone: `receive` says so."""
        line = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        try:
            async with self._sending:
                await self._stream.send_all(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    def send_at_once(self, message: Tree) -> None:
        """Sends a message before this process ends, if the other side takes it without waiting and nothing is being sent."""
        if not self._sending.locked():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._stream.socket.fileno())) as own:
                own.send(json.dumps(message).encode() + b"\n", socket.MSG_DONTWAIT)

    async def end(self) -> None:
        """Ends this direction; the other side may still send."""
        try:
            async with self._sending:
                await self._stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()

    async def receive(self) -> Tree | None:
        """Returns the next message; None when the other side has ended the channel, or sent something else than messages."""
        looked = 0
        while (end := self._received.find(b"\n", looked)) < 0:
            looked = len(self._received)
            if looked > LINE_BYTES_MAX:
                return None
            try:
                more = await self._stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not more:
                return None
            self._received += more
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.aclose()
