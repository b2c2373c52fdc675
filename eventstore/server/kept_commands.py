"""Keeps the commands that a server has answered in a topic, for `eventstore replay`.

It delays no answer: a message is written after its command was answered, with others, and is left out if too many wait, or if
the process ends before. So the topic is a record to try code with, not a log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from eventstore.broker.broker import Broker
from eventstore.domain.kept_commands import KeptCommand, KeptOutcome, fields_kept, refusal_of
from eventstore.errors import EventStoreError, InvalidArgument
from eventstore.metrics import Metric, MetricSource, counter
from eventstore.records.message import BODY_BYTES_MAX, RawMessage
from eventstore.records.topic_names import check_name
from eventstore.server.feature import Feature
from eventstore.server.mailbox_wiring import ServerEntry, first_outcome_of
from eventstore_mailbox import COMMITTED, FAILED, UNCHANGED

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of commands that wait to be written; while more are answered than the disk takes, some are not kept."""

_SENT_AT_ONCE: Final = 1_024
_AGAIN_S: Final = 1.0
_log = logging.getLogger(__name__)


def check_keep_commands(topic: str | None, *, with_broker: bool) -> None:
    """Raises InvalidArgument if the name is not valid for a topic, or the server has no broker."""
    if topic is None:
        return
    check_name("keep_commands", topic)
    if not with_broker:
        raise InvalidArgument(
            f"keep_commands is {topic!r}, but broker is false; switch it on", field="keep_commands", value=topic
        )


def kept_commands(topic: str | None, broker: Broker | None, last_sequence: Callable[[], int]) -> KeptCommands | None:
    """Returns what keeps the commands; None: they are not to be kept. `last_sequence`: see `KeptCommands`."""
    return None if topic is None or broker is None else KeptCommands(broker, topic, last_sequence)


class KeptCommands:
    """`kept`, `left_out`: how many commands were written, and how many were not."""

    def __init__(self, broker: Broker, topic: str, last_sequence: Callable[[], int]) -> None:
        """`last_sequence`: returns that of the last event that is visible."""
        self.kept = self.left_out = 0
        self._broker, self._topic, self._last_sequence = broker, topic, last_sequence
        self._waiting: deque[RawMessage] = deque()
        self._waiting_bytes = 0
        self._more = trio.Event()
        self._written = trio.Event()
        self._written.set()
        self.feature = Feature(metrics=[MetricSource(KEPT_METRICS, lambda: self)], run=self.run, drain=self._drain)

    def after(self, answer: Callable[[Sequence[ServerEntry]], None]) -> Callable[[Sequence[ServerEntry]], None]:
        """Returns what answers settled commands, and keeps them then."""

        def answer_and_keep(entries: Sequence[ServerEntry]) -> None:
            answer(entries)
            self.take(entries)

        return answer_and_keep

    def take(self, entries: Sequence[ServerEntry]) -> None:
        """Takes commands that are answered now."""
        for entry in entries:
            try:
                message = self._message(entry)
            except Exception:  # what was answered is answered, and so are the others
                self.left_out += 1
                _log.exception("a command of type %s cannot be kept", ascii(entry.command.handler.command.name))
                continue
            if message is None:
                continue
            if self._waiting_bytes + len(message[0]) > WAITING_BYTES_MAX:
                self.left_out += 1
            else:
                self._waiting.append(message)
                self._waiting_bytes += len(message[0])
        if self._waiting and self._written.is_set():
            self._written = trio.Event()
            self._more.set()

    async def _drain(self, _: float) -> None:
        await self._written.wait()

    async def run(self) -> None:
        """Writes what was taken, until cancelled. After an error it goes on with what came after that."""
        failed = False
        while True:
            await self._more.wait()
            self._more = trio.Event()
            while self._waiting:
                messages = [self._waiting.popleft() for _ in range(min(len(self._waiting), _SENT_AT_ONCE))]
                self._waiting_bytes -= sum(len(body) for body, *_ in messages)
                try:
                    if self._topic not in self._broker.topics.by_name:
                        await self._broker.administration.create_topic(self._topic)
                    outcomes = await self._broker.send_many(self._topic, messages)
                    refused = sum(isinstance(each, EventStoreError) for each in outcomes)
                    self.kept, self.left_out = self.kept + len(messages) - refused, self.left_out + refused
                    failed = False
                except EventStoreError as error:
                    self.left_out += len(messages)
                    if not failed:
                        _log.warning("commands are not kept in topic %r: %s", self._topic, error.message)
                    failed = True
                    await trio.sleep(_AGAIN_S)
            self._written.set()

    def _message(self, entry: ServerEntry) -> RawMessage | None:
        """Returns the message of a command; None: it was repeated, or was not handled."""
        outcome = self._outcome(entry)
        if outcome is None:
            return None
        kind, command = entry.command.handler.command, entry.command.command
        fields, left_out = fields_kept(kind, command)
        body = KeptCommand(kind.name, entry.aggregate_id, entry.command_id, fields, *outcome, left_out).encode()
        if len(body) > BODY_BYTES_MAX:
            self.left_out += 1
            return None
        return body, entry.aggregate_id, None, None, None

    def _outcome(self, entry: ServerEntry) -> tuple[KeptOutcome, str | None, int] | None:
        if entry.status == COMMITTED and entry.outcome is not None:
            return "committed", None, first_outcome_of(entry.outcome)[2]
        if entry.status == UNCHANGED:
            return "unchanged", None, self._last_sequence()
        if entry.status == FAILED:
            assert entry.error is not None
            return *refusal_of(entry.error), self._last_sequence()
        return None


KEPT_METRICS: Final[tuple[Metric[KeptCommands], ...]] = (
    counter("commands_kept", "commands written to the topic of `keep_commands`", lambda kept: kept.kept),
    counter(
        "commands_not_kept",
        "commands that were not: too many waited, or the broker failed",
        lambda kept: kept.left_out,
        "it grows: the disk does not take as many commands as are answered",
    ),
)
