"""`Reaction`: an async function that sends commands when an event has happened.

Events are delivered at least once, but the commands must take effect exactly once. So a command's id is derived only from the
reaction's name, the event's aggregate and version, and the number of commands sent before: delivered again, the event leads
to the same ids, and the store accepts a command id once per aggregate.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeAlias

from eventstore.domain.encoding.codec import class_path
from eventstore.domain.encoding.event_type import EventType
from eventstore.errors import DomainRefused, InvalidArgument
from eventstore.model import ID_BYTES_MAX, VERSION_MAX, Committed, Event
from eventstore.records.timer_record import Delay, check_name, due

NAME_CHARACTERS_MAX: Final = 100
ATTEMPTS: Final = 5
_ATTEMPTS_MAX: Final = 1_000
Start: TypeAlias = Literal["beginning", "end"] | int
OnFailure: TypeAlias = Literal["park", "stop"]


class SendCommand(Protocol):
    """Sends a command and waits until its events are durable; raises the error if it was refused."""

    async def __call__(self, command: object, command_id: str, *, metadata: Mapping[str, object]) -> Committed | None: ...


class TimerSetter(Protocol):
    """Has a command sent when it is due; durable on return. `when`: as `timers.setting.due` returns it."""

    async def __call__(
        self, command: object, command_id: str, *, when: Mapping[str, int], name: str | None, metadata: Mapping[str, object]
    ) -> Committed: ...


class CommandSender:
    """Sends the commands of a reaction. `cause` is the stored event: its aggregate, version, time."""

    def __init__(self, reaction: str, cause: Event, send: SendCommand, set_timer: TimerSetter | None = None) -> None:
        self.cause = cause
        self._reaction = reaction
        self._send, self._set_timer = send, set_timer
        self._sent = 0

    async def __call__(
        self,
        command: object,
        *,
        metadata: Mapping[str, object] | None = None,
        after: Delay | None = None,
        at: datetime | None = None,
        name: str | None = None,
    ) -> Committed | None:
        """Sends a command under an id that is the same each time this event is delivered.

        Its metadata name the event as its cause, and the event's correlation id; `metadata` is added. With `after`, such as
        "30m", or `at`, it is sent when it is due, by a timer of the aggregate that it is for; `name`: by which that is moved
        and cancelled. What is returned then is where the timer was set.

        Raises:
            Rejected, or another error if the command was refused.
        """
        command_id = command_id_of(self._reaction, self.cause, self._sent)
        self._sent += 1
        caused = {"correlation_id": self.cause.correlation_id, "causation_id": reference(self.cause)}
        given = caused if metadata is None else {**caused, **metadata}
        if after is None and at is None:
            return await self._send(command, command_id, metadata=given)
        if self._set_timer is None:
            raise InvalidArgument("what runs this reaction sets no timers; a server or worker does", field="after")
        return await self._set_timer(command, command_id, when=due(after, at), name=check_name(name), metadata=given)

    def leave_out(self) -> None:
        """Uses up the id of a command that is not sent this time: those after it have the ids that they have with it."""
        self._sent += 1


ReactionFunction: TypeAlias = Callable[[Any, CommandSender], Awaitable[None]]


class Reaction:
    """An async function (event, send), the event type it reacts to, and its policy (see `Domain.reacts`)."""

    def __init__(
        self,
        name: str,
        event: EventType[Any],
        function: ReactionFunction,
        *,
        start: Start = "beginning",
        on_failure: OnFailure = "park",
        attempts: int = ATTEMPTS,
    ) -> None:
        place = f"{function.__module__}.{function.__qualname__}"
        if not name.isidentifier() or len(name) > NAME_CHARACTERS_MAX:
            raise DomainRefused(
                f"reaction {place}: its name {name!r:.120} must be an identifier of at most {NAME_CHARACTERS_MAX} characters",
                name=name[:NAME_CHARACTERS_MAX],
            )
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 2:
            raise DomainRefused(f"reaction {place} must be an async function of two parameters: event, send", name=name)
        _check_policy(place, name, start, on_failure, attempts)
        self.name = name
        self.event = event
        self.function = function
        self.start = start
        self.on_failure = on_failure
        self.attempts = attempts

    async def run(self, cause: Event, send: SendCommand, set_timer: TimerSetter | None = None) -> None:
        """Calls the function for a stored event. Raises the function's errors."""
        await self.function(self.event.decode(cause), CommandSender(self.name, cause, send, set_timer))

    def __repr__(self) -> str:
        return f"<reaction {self.name} to {class_path(self.event.cls)}>"


def reference(event: Event) -> str:
    """Returns "ID/VERSION" of an event, as a causation id; a hash in place of an id that is too long."""
    return command_id_of("", event, 0)[1:-2]


def _check_policy(place: str, name: str, start: object, on_failure: object, attempts: object) -> None:
    sequence = type(start) is int and 0 < start <= VERSION_MAX
    if start not in ("beginning", "end") and not sequence:
        raise DomainRefused(
            f'reaction {place}: start is {start!r:.80}, expected "beginning", "end", or the sequence of its first event',
            name=name,
        )
    if on_failure not in ("park", "stop"):
        raise DomainRefused(f'reaction {place}: on_failure is {on_failure!r:.80}, expected "park" or "stop"', name=name)
    if type(attempts) is not int or not 0 < attempts <= _ATTEMPTS_MAX:
        raise DomainRefused(f"reaction {place}: attempts is {attempts!r:.80}, expected 1 to {_ATTEMPTS_MAX}", name=name)


def command_id_of(reaction: str, cause: Event, place: int) -> str:
    """Returns the id of the `place`-th command (from 0) that a reaction sends for an event."""
    text = f"{reaction}/{cause.aggregate_id}/{cause.version}/{place}"
    if len(text.encode()) <= ID_BYTES_MAX:
        return text
    digest = hashlib.blake2b(cause.aggregate_id.encode(), digest_size=16).hexdigest()
    return f"{reaction}/{digest}/{cause.version}/{place}"
