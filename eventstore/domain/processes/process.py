"""`Process`, the base class of process managers: an aggregate that takes steps when events have happened elsewhere.

A step is a commit on the process. Its event, the *step*, has the event, the deadline or the refusal that was taken, and the
commands that the method has sent. The methods run again when the process is restored, on the same events and in the same order,
so they make the same state; what they send then is left out. The commands of a step are sent once it is stored, by a reaction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from eventstore.commands import raw_command
from eventstore.domain.aggregate import Aggregate
from eventstore.domain.encoding.codec import class_path
from eventstore.domain.event_methods import accepts_positional
from eventstore.domain.timers.setting import cancel_later, send_later
from eventstore.errors import DomainRefused, Rejected
from eventstore.records.timer_record import Delay

F = TypeVar("F", bound=Callable[..., object])
Kind: TypeAlias = Literal["event", "kept", "deadline", "refused", "compensate", "end", "quiet"]
SENDS_MAX: Final = 100
"""Commands of one step."""
KEPT_MAX: Final = 100
"""Events that came in another state than theirs, and wait for it."""
_MARK: Final = "__eventstore_process__"
_QUIET: Final = "$quiet"  # the timer after which a process counts as stuck


@dataclass(frozen=True)
class On:
    """What a method takes, and between which states it leads.

    Attributes:
        kind: "event", "deadline" or "refused".
        what: the class of an event or command, or the name of a deadline.
        by: the field of an event with the text that names the process; None: the event's aggregate id.
        starts: whether the event begins a process.
        at: in which states it is taken; empty: in any.
        to: the state after it; None: it stays, or the method sets it.
    """

    kind: Kind
    what: type | str
    by: str | None
    starts: bool
    at: tuple[str, ...]
    to: str | None

    @property
    def name(self) -> str:
        """The name of the class, or of the deadline."""
        return self.what if isinstance(self.what, str) else self.what.__name__

    def is_in(self, state: str) -> bool:
        """Whether it is taken in this state."""
        return not self.at or state in self.at


def on(
    event: type, *, by: str | None = None, starts: bool = False, at: str | tuple[str, ...] = (), to: str | None = None
) -> Callable[[F], F]:
    """Marks the method of a process that takes events of this class: `(self, event)`.

    `by`: the field of the event that names the process; by default it is the id of the event's aggregate. `starts`: an event
    that begins a process; others that come before are passed over. `at`: the states in which it is taken; one that comes in
    another state is kept, and taken as soon as the process is in one of them. `to`: the state after the step.
    """
    return _marked(On("event", event, by, starts, _states(at), to), 2)


def deadline(name: str, *, at: str | tuple[str, ...] = (), to: str | None = None) -> Callable[[F], F]:
    """Marks the method that runs when the deadline `name` is over, which `later` has set: `(self)`. `at`, `to`: as of `on`; in
    another state than `at` nothing happens, nor if the deadline was cancelled or set again meanwhile.
    """
    return _marked(On("deadline", name, None, False, _states(at), to), 1)


def refused(command: type, *, at: str | tuple[str, ...] = (), to: str | None = None) -> Callable[[F], F]:
    """Marks the method that runs when a command of this class, which the process has sent, was rejected by its handler:
    `(self, rejection)`, an `es.Rejected`. The commands of that step which come after it are not sent. Without such
    a method the step is parked. `at`, `to`: as of `on`; in another state than `at` the method does not run.
    """
    return _marked(On("refused", command, None, False, _states(at), to), 2)


def _states(at: str | tuple[str, ...]) -> tuple[str, ...]:
    return (at,) if isinstance(at, str) else tuple(at)


def _marked(takes: On, parameters: int) -> Callable[[F], F]:
    def mark(method: F) -> F:
        if method.__name__ == "_":
            raise DomainRefused(f"the method for {takes.name} is named _: give it a name of its own", name=takes.name)
        if not accepts_positional(method, parameters):
            raise DomainRefused(
                f"{method.__qualname__} must take {'self' if parameters == 1 else 'self and what is taken'}", name=takes.name
            )
        method.__dict__.setdefault(_MARK, []).append(takes)
        return method

    return mark


@dataclass(frozen=True)
class StepCommand:
    """A command that a step sends. `payload`: its fields as JSON."""

    type: str
    aggregate_id: str
    payload: str


@dataclass(frozen=True)
class Undo:
    """What takes back a command. `step`, `place`: which one of which step that was."""

    step: int
    place: int
    command: StepCommand


@dataclass(frozen=True)
class RefusedCommand:
    """A command of a step that was rejected. `step`, `place`: which one of which step."""

    message: str
    reason: str
    step: int
    place: int

    @property
    def error(self) -> Rejected:
        """As its sender got it."""
        return Rejected(self.message, reason=self.reason)


@dataclass(frozen=True)
class EarlyEvent:
    """An event that waits for its state. `value`: its fields as JSON, of version `schema`; `source`: its ID/VERSION."""

    name: str
    value: str
    source: str
    schema: int


class TakenStep(NamedTuple):
    """What a step takes. `name`: of the event's type, of the deadline, or of the command that was refused; `value`: what the
    method gets; `source`: the event as ID/VERSION.
    """

    kind: Kind
    name: str
    value: object
    source: str


class Process(Aggregate):
    """Base class of process managers. Register one with `app.process(CLASS)`.

    Attributes:
        state: where it stands, as `to` of its methods says; empty before it begins.
        ended: it takes nothing any more.
        stuck: it has made no step for `stuck_after`.
        begun_with: `code` of the class when it began. A method that changes asks for it, so that processes which are under way
            end as they began.
    """

    stuck_after: ClassVar[str | None] = None
    """After how long without a step it counts as stuck, such as "2h": it is parked then, which is an alarm."""
    code: ClassVar[int] = 1
    """The version of its code; raised when methods change what they do."""

    state: str = ""
    ended: bool = False
    stuck: bool = False
    begun_with: int = 0
    steps: int = 0
    undone_by: tuple[Undo, ...] = ()
    """What `compensate` sends, the last one first."""
    deadlines: Mapping[str, int] = MappingProxyType({})
    """The deadlines that are set, each with the number of the step that has set it."""
    refused_steps: frozenset[int] = frozenset()
    kept: tuple[EarlyEvent, ...] = ()

    @property
    def key(self) -> str:
        """What names the process among those of its class: the text of the events' field `by`, or their aggregate id."""
        return self.id.partition("-")[2]

    def send(self, command: object, *, undo: object | None = None) -> None:
        """Sends a command once this step is stored, after those sent before. `undo`: the command that takes back what it did,
        which `compensate` sends.

        Raises:
            RuntimeError: no method of the process runs.
            DomainRefused: it sends more than 100 commands.
        """
        sends = self._sends()
        sends.append(_sent(command))
        if len(sends) > SENDS_MAX:
            raise DomainRefused(f"a step of {class_path(type(self))} sends more than {SENDS_MAX} commands", limit=SENDS_MAX)
        if undo is not None:
            self.undone_by = (Undo(self.steps + 1, len(sends) - 1, _sent(undo)), *self.undone_by)

    def compensate(self) -> None:
        """Sends the `undo` of all that was sent and not refused, the last one first; each once."""
        self._sends().extend(each.command for each in self.undone_by)
        self.undone_by = ()

    def later(self, name: str, *, after: Delay | None = None, at: datetime | None = None) -> None:
        """Sets a deadline, after which the method marked with `deadline(name)` runs; one of this name is replaced. It is kept
        with the step.

        Raises:
            InvalidArgument: as `send_later`.
            RuntimeError: no method of the process runs.
            DomainRefused: no method is marked with `deadline(name)`.
        """
        self._sends()
        number = self.steps + 1
        self.deadlines = {**self.deadlines, name: number}
        if not self._aggregate_applying:
            kind = steps_of(type(self))
            if ("deadline", name) not in kind.methods:
                raise DomainRefused(f"{class_path(type(self))} has no method marked with deadline({name!r})", name=name)
            send_later(self, kind.command("deadline", self.id, name, str(number)), after=after, at=at, name=name)

    def cancel(self, name: str) -> None:
        """Cancels a deadline; does nothing if it is not set. Raises RuntimeError."""
        self._sends()
        if name in self.deadlines:
            self._is_over(name)
            if not self._aggregate_applying:
                cancel_later(self, name)

    def end(self) -> None:
        """Ends the process with this step: its deadlines are cancelled, and it takes nothing any more."""
        for each in sorted(self.deadlines):
            self.cancel(each)
        self.ended = True

    def _is_over(self, name: str) -> None:
        self.deadlines = {each: number for each, number in self.deadlines.items() if each != name}

    def _sends(self) -> list[StepCommand]:
        sends: list[StepCommand] | None = vars(self).get("_sent")
        if sends is None:
            raise RuntimeError("a process sends, waits and ends only in its methods that take events, deadlines and refusals")
        return sends

    def take(self, taken: TakenStep, code: int) -> list[StepCommand]:
        """Runs the method that takes this, and returns what it sends. `code`: of the class when it was taken first. Used by the
        framework.
        """
        sends = vars(self)["_sent"] = list[StepCommand]()
        try:
            if taken.kind == "quiet":
                self.stuck = True
                return sends
            if isinstance(taken.value, EarlyEvent):
                self.kept = (*self.kept, taken.value)
                return sends
            self.kept = tuple(each for each in self.kept if each.source != taken.source)
            self._run(taken)
            self.begun_with = self.begun_with or code
            self.steps += 1
            self.stuck = False
            if self.stuck_after is not None and not self._aggregate_applying:
                self._wait_for_the_next(self.stuck_after)
            return sends
        finally:
            del vars(self)["_sent"]

    def _run(self, taken: TakenStep) -> None:
        if taken.kind == "compensate":
            self.compensate()
        elif taken.kind == "end":
            self.end()
        elif (found := steps_of(type(self)).methods.get((taken.kind, taken.name))) is not None:
            takes, method = found
            if isinstance(refusal := taken.value, RefusedCommand):
                self.refused_steps |= {refusal.step}
                self.undone_by = tuple(
                    each for each in self.undone_by if each.step != refusal.step or each.place < refusal.place
                )
                if not takes.is_in(self.state):
                    return
                method(self, refusal.error)
            elif takes.kind == "deadline":
                self._is_over(taken.name)
                method(self)
            else:
                method(self, taken.value)
            if takes.to is not None:
                self.state = takes.to

    def _wait_for_the_next(self, stuck_after: str) -> None:
        if self.ended:
            cancel_later(self, _QUIET)
        else:
            quiet = steps_of(type(self)).command("quiet", self.id, "", str(self.steps))
            send_later(self, quiet, after=stuck_after, name=_QUIET)


def _sent(command: object) -> StepCommand:
    raw = raw_command(command)
    return StepCommand(raw.type, raw.aggregate_id, raw.payload.decode())


class StepsOf(Protocol):
    """What is known of a registered class."""

    @property
    def methods(self) -> Mapping[tuple[str, str], tuple[On, Callable[..., object]]]:
        """Its methods, by the kind and the name of what they take."""

    def command(self, kind: str, process: str, name: str, value: str = "") -> object:
        """Returns the command by which a process is told of a deadline. `value`: the number of the step that has set it."""


known: Final[dict[type[Process], StepsOf]] = {}


def steps_of(cls: type[Process]) -> StepsOf:
    """Returns what is known of a registered class. Raises DomainRefused."""
    found = known.get(cls)
    if found is None:
        what = f"process {class_path(cls)} is not registered: call app.process({cls.__name__})"
        raise DomainRefused(what, name=class_path(cls))
    return found


def methods_of(cls: type[Process], name_of: Callable[[On], str]) -> dict[tuple[str, str], tuple[On, Callable[..., object]]]:
    """Returns the methods of a class, and of its bases, by what they take. `name_of`: the name under which that is stored.

    Raises:
        DomainRefused: two methods take the same, or none begins a process.
    """
    found: dict[tuple[str, str], tuple[On, Callable[..., object]]] = {}
    names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    for method in (inspect.getattr_static(cls, name) for name in names):
        for takes in getattr(method, "__dict__", {}).get(_MARK, ()):
            key = takes.kind, name_of(takes)
            if found.setdefault(key, (takes, method))[1] is not method:
                what = f"process {class_path(cls)} has two methods for {takes.name}, {found[key][1].__name__} and "
                raise DomainRefused(f"{what}{method.__name__}", name=takes.name)
    if not any(takes.starts for takes, _ in found.values()):
        what = f"process {class_path(cls)} never begins: mark a method with @d.on(EVENT, starts=True)"
        raise DomainRefused(what, name=class_path(cls))
    return found
