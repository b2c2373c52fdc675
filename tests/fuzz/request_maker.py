"""Makes requests of every kind, as the values they have on the wire: mostly valid, so that they get far, and often not quite.

What a request takes follows from its declaration. The names are few, so that requests meet what earlier ones made: aggregates,
topics, groups, members, subscriptions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Final

from eventstore import flat
from eventstore.flat import Scalar
from eventstore.model import NewEvent
from eventstore.protocol import broker_requests as broker
from eventstore.protocol import group_requests as groups
from eventstore.protocol import reaction_requests as reactions
from eventstore.protocol import requests as events
from eventstore.protocol import timer_requests as timers
from eventstore.protocol.request_declaration import DECLARATIONS, Argument, Request
from eventstore.query import Query
from tests.records.parking_fields import parked, unparked

Values = list[Scalar]

_AGGREGATES: Final = [*(f"a-{n}" for n in range(6)), "{tag}-1", "$parked{a-1}", "é" * 127]
_COMMANDS: Final = [f"c-{n}" for n in range(40)]
_TOPICS: Final = ["orders", "events", "retry:g-1", "dead:g-1", "../x", "Ünï"]
_GROUPS: Final = ["g-1", "g-2", ".hidden"]
_MEMBERS: Final = ["m-1", "m-2", "m-3"]
_TYPES: Final = ["Deposited", "Opened", "T"]
_TAGS: Final = ["course:c1", "student:s1", "ü"]
_EDGES: Final = [
    0,
    1,
    2,
    7,
    255,
    256,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -(2**31),
    -(2**63),
]
_STRANGE: Final[list[Scalar]] = [
    None, True, False, "", "\0", "x" * 256, "x" * 70_000, "\U0001f600", b"", b"\xff\xfe", b"{}", b"x" * 70_000, "{", "a\nb",
]  # fmt: skip


class RequestMaker:
    """Makes requests from a seed. `subscriptions`: the request ids that UNSUBSCRIBE and CREDIT may name."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)
        self.subscriptions: list[int] = []

    def request(self) -> tuple[type[Request], Values]:
        """Returns a kind of request and its values, one of six with one mistake or more."""
        kind = self._random.choice(_OFTEN if self._random.random() < 0.3 else _KINDS)
        values = MAKERS[kind](self)
        if self._random.random() < 1 / 6:
            for _ in range(self._random.choice((1, 1, 1, 3))):
                values = self._mistaken(values)
        return kind, values

    def garbled(self, payload: bytes) -> bytes:
        """Returns the payload with a few bytes after its head changed, cut off, doubled or added."""
        head, rest = payload[:_HEAD_BYTES], bytearray(payload[_HEAD_BYTES:])
        place = self._random.randrange(len(rest) + 1)
        match self._random.randrange(4):
            case 0:
                rest[place : place + 1] = self._random.randbytes(1)
            case 1:
                del rest[place:]
            case 2:
                rest[place:place] = rest[place : place + 8]
            case _:
                rest += self._random.randbytes(self._random.randrange(1, 9))
        return head + bytes(rest)

    def chance(self, part: float) -> bool:
        return self._random.random() < part

    # ---- values

    def one(self, of: Sequence[Scalar]) -> Scalar:
        return self._random.choice(of)

    def number(self, high: int = 20) -> int:
        return self._random.choice(_EDGES) if self._random.random() < 0.1 else self._random.randrange(high)

    def maybe(self, value: Scalar) -> Scalar:
        return value if self._random.random() < 0.5 else None

    def data(self) -> bytes:
        size = self._random.choice((0, 3, 40, 300, 5_000)) if self._random.random() < 0.99 else 300_000
        return json.dumps({"x": "y" * size}).encode() if self._random.random() < 0.5 else self._random.randbytes(size)

    def parking(self) -> Values:
        named = self._random.choice((None, None, None, "a-1", "a-2", "x"))
        more = {} if named is None else {"aggregate_id": named}
        type_, data = self._random.choice((("$Parked", parked(**more)), ("$Unparked", unparked(**more)), ("T", self.data())))
        return [self.one((*_AGGREGATES, "$parked{a-2}")), type_, data if self.chance(0.9) else self.data()]

    def setting(self) -> Values:
        when = self._random.choice(((10**12, None), (None, 2**52), (None, None)))
        return [self.one(_AGGREGATES), self.one(("c-1", "c-2")), "T", self.one((b"{}", self.data())), *when, "late", None]

    def timer_event(self) -> Values:
        events = (("$TimerCancelled", b'{"timer":"late"}'), ("$TimerEnded", b"{}"), ("T", self.data()))
        return [self.one((*_AGGREGATES, "$timers{a-2}")), self.one(("c-1", "c-2")), *self._random.choice(events), None]

    def timer_change(self) -> Values:
        how = self._random.choice((("run", None), ("cancel", None), ("move", 2**50), ("move", None)))
        return [self.one((*_AGGREGATES, "a-2")), self.one(("late", "a-2/1")), *how, "ada", "why"]

    def subscription(self) -> int:
        return self._random.choice(self.subscriptions) if self.subscriptions else 2**40 + self._random.randrange(9)

    def rows(self, make: Callable[[], Sequence[Scalar]], high: int = 4) -> Values:
        count = self._random.randrange(high) if self._random.random() < 0.98 else 300
        return [value for _ in range(count) for value in make()]

    def _mistaken(self, values: Values) -> Values:
        place = self._random.randrange(len(values) + 1)
        other: Scalar = self._random.choice((self._random.choice(_STRANGE), self._random.choice(_EDGES)))
        match self._random.randrange(4):
            case 0:
                return [*values[:place], *values[place + 1 :]]
            case 1:
                return [*values[:place], other, *values[place:]]
            case _:
                return [*values[:place], other, *values[place + 1 :]]

    # ---- rows

    def commit(self) -> Values:
        made = flat.encode([value for _ in range(self._random.randrange(1, 4)) for value in self._event()])
        condition = self._random.choice((None, True, 0, 0, self.number(8), "3/c-1", "x/y"))
        return [self.one(_AGGREGATES), condition, self.one(_COMMANDS), self.maybe(self.number(10**15)), made]

    def _event(self) -> Values:
        event = NewEvent(str(self.one(_TYPES)), self.data(), self.maybe(self.data()), self._tags())
        return list(event) if self._random.random() < 0.95 else [self.number(20), *event[1:]]

    def _tags(self) -> list[str]:
        return self._random.sample(_TAGS, self._random.randrange(len(_TAGS))) if self._random.random() < 0.5 else []

    def query(self) -> bytes:
        """Returns a packed query, rarely other bytes."""
        if self._random.random() < 0.1:
            return self.data()
        types = self._random.sample(_TYPES, self._random.randrange(len(_TYPES)))
        query = Query(types, self._tags())
        return (query if self._random.random() < 0.5 else query | Query(tags=self._tags())).packed()

    def command(self) -> Values:
        account = self.one(_AGGREGATES)
        payload = json.dumps({"account": account, "cents": self.number(100)}).encode()
        return [
            self.one(["Deposit", "Withdraw", "Open", "Nothing"]), account, self.one(_COMMANDS),
            payload if self._random.random() < 0.8 else self.data(), self.maybe(b'{"user":"ada"}'),
        ]  # fmt: skip

    def message(self) -> Values:
        properties = flat.encode(["name", "value"])
        return [
            self.data(),
            self.maybe(self.one(_AGGREGATES)),
            self.maybe("paid"),
            self.maybe(properties),
            self.maybe(self.number(3)),
        ]


_HEAD_BYTES: Final = 10  # request id as uint 64, code
_Maker = Callable[[RequestMaker], Values]

_BY_NAME: Final[dict[str, Callable[[RequestMaker], Scalar]]] = {
    "aggregate_id": lambda m: m.one(_AGGREGATES),
    "aggregate_prefix": lambda m: "a-",
    "prefix": lambda m: "a-",
    "key": lambda m: m.one(_AGGREGATES),
    "projection": lambda m: m.one(_AGGREGATES),
    "command_id": lambda m: m.one(_COMMANDS),
    "event_type": lambda m: m.one(_TYPES),
    "topic": lambda m: m.one(_TOPICS),
    "dead_letters": lambda m: m.one(_TOPICS),
    "tags": lambda m: "paid | sold",
    "group": lambda m: m.one(_GROUPS),
    "member": lambda m: m.one(_MEMBERS),
    "message_id": lambda m: m.one(["9b130000000100001053", "zz", "0" * 20]),
    "to": lambda m: m.one(["start", "end", "offset", "time"]),
    "reaction": lambda m: m.one(["notify", "none"]),
    "alarm": lambda m: m.one(["slow_syncs", "none"]),
    "queue": lambda m: m.number(3),
    "queues": lambda m: m.number(4),
    "skip": lambda m: m.number(3),
    "wait_ms": lambda m: m.number(30),
    "bytes_max": lambda m: m.number(2**20),
    "credit": lambda m: m.number(2**16),
    "to_time": lambda m: m.number(2**62),
    "time": lambda m: m.number(2**50),
    "before": lambda m: m.number(2**63),
    "at": lambda m: m.number(2**63),
    "from_version": lambda m: m.number(8),
    "subscription": lambda m: m.subscription(),
    "query": lambda m: m.query(),
}
"""What requests name, so that they meet what earlier ones made; and numbers of a size that gets far."""
_BY_TYPE: Final[dict[type, Callable[[RequestMaker], Scalar]]] = {
    bool: lambda m: m.chance(0.5),
    int: lambda m: m.number(),
    bytes: lambda m: m.data(),
    str: lambda m: m.one(["why", *_AGGREGATES]),
}


def _declared(kind: type[Request]) -> _Maker:
    """Returns the maker of a kind of request that follows from its declaration."""

    def value(m: RequestMaker, argument: Argument) -> Scalar:
        make = _BY_NAME.get(argument.name) or next(_BY_TYPE[each] for each in argument.types if each in _BY_TYPE)
        return m.maybe(make(m)) if NoneType in argument.types else make(m)

    def make(m: RequestMaker) -> Values:
        values: Values = []
        for argument in DECLARATIONS[kind].arguments:
            if argument.high == 1 and argument.rows:
                continue  # most do without
            if argument.rows:
                values += m.rows(lambda rows=argument.rows: [value(m, each) for each in rows])
            else:
                values.append(value(m, argument))
        return values

    return make


MAKERS: Final[dict[type[Request], _Maker]] = {
    **{kind: _declared(kind) for kind in DECLARATIONS if kind is not events.Hello},
    events.Append: lambda m: m.rows(m.commit) or m.commit(),
    events.Send: lambda m: m.rows(m.command) or m.command(),
    events.Map: lambda m: [0],  # with another number it waits for a change
    broker.SendMessages: lambda m: [m.one(_TOPICS), *m.rows(m.message)],
    reactions.RecordParking: lambda m: m.parking(),
    timers.SetTimer: lambda m: m.setting(),
    timers.RecordTimers: lambda m: m.rows(m.timer_event) or m.timer_event(),
    timers.ChangeTimer: lambda m: m.timer_change(),
}
"""The values of each kind of request. HELLO is not among them: it comes first, and once."""
_KINDS: Final = list(MAKERS)
_OFTEN: Final = [events.Append, events.Send, broker.SendMessages, broker.CreateTopic, broker.Pull, groups.Join]
