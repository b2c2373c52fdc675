"""Sends commands all at once on one connection, ahead of every answer: how fast are they handled, regardless of the disk?"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import eventstore.domain as d
from benchmarks.harness.processes import Process
from eventstore.protocol.answers import AnswerDecoder, Ok, Outcomes
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.request_codec import encode_request, encode_send
from eventstore.protocol.requests import Hello

COMMANDS_PER_FRAME: Final = 256
LOOK_EACH_S: Final = 0.005
GIVE_UP_S: Final = 120.0
_RECEIVED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds from the first byte sent until all commands were handled, and until the last of them was answered."""

    handled_s: float
    answered_s: float


def burst(server: Process, commands: Sequence[object]) -> Burst:
    """Sends them in one go. More than the mailboxes hold is refused, which is an error here.

    Raises:
        ValueError: a command was not committed.
    """
    name = uuid.uuid4().hex
    frames = [
        encode_send(2 + first, [value for place in range(first, min(first + COMMANDS_PER_FRAME, len(commands)))
                                for value in _row(commands[place], f"{name}-{place}")])
        for first in range(0, len(commands), COMMANDS_PER_FRAME)
    ]  # fmt: skip
    target = server.figure("commands_handled") + len(commands)
    host, _, port = server.address.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=GIVE_UP_S) as connection:
        answers = _Answers(connection)
        connection.sendall(encode_request(1, Hello(1, "burst")))
        answers.take_hello()
        sent = b"".join(frames)
        started = time.perf_counter()
        connection.sendall(sent)
        while (left := target - server.figure("commands_handled")) > 0:
            elapsed, done = time.perf_counter() - started, len(commands) - left
            if elapsed > GIVE_UP_S:
                raise ValueError(f"{len(commands)} commands are not handled within {GIVE_UP_S:.0f} s")
            time.sleep(max(LOOK_EACH_S, elapsed * left / done / 2 if done else 0.0))  # few looks: they are work for the server
        handled = time.perf_counter()
        answers.take_outcomes(len(frames))
        return Burst(handled - started, time.perf_counter() - started)


def _row(command: object, command_id: str) -> tuple[str, str, str, bytes, None]:
    raw = d.encode_command(command)
    return raw.type, raw.aggregate_id, command_id, raw.payload, None


class _Answers:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self._decode = AnswerDecoder().decode

    def take_hello(self) -> None:
        (answer,) = self._next()
        if not isinstance(answer, Ok):
            raise ValueError(f"the server does not say hello: {answer!r}")

    def take_outcomes(self, count: int) -> None:
        while count > 0:
            for answer in self._next():
                if not isinstance(answer, Outcomes) or any(answer.values[0::3]):
                    raise ValueError(f"commands were not committed: {str(answer)[:300]}")
                count -= 1

    def _next(self) -> list[object]:
        while True:
            data = self._connection.recv(_RECEIVED_BYTES)
            if not data:
                raise ValueError("the server has closed the connection")
            if answers := [self._decode(payload)[1] for payload in self._reader.feed(data)]:
                return list(answers)
