"""Makes requests of every kind, as the values they have on the wire: mostly valid, so that they get far, and often not quite.

The names are few, so that requests meet what earlier ones made: aggregates, topics, groups, members, subscriptions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from eventstore import flat
from eventstore.flat import Scalar
from eventstore.protocol import broker_requests as broker
from eventstore.protocol import group_requests as groups
from eventstore.protocol import reaction_requests as reactions
from eventstore.protocol import requests as events
from eventstore.protocol.request_declaration import Request
from tests.records.parking_fields import parked, unparked

Values = list[Scalar]

_AGGREGATES: Final = [*(f"a-{n}" for n in range(6)), "{tag}-1", "$parked{a-1}", "é" * 127]
_COMMANDS: Final = [f"c-{n}" for n in range(40)]
_TOPICS: Final = ["orders", "events", "retry:g-1", "dead:g-1", "../x", "Ünï"]
_GROUPS: Final = ["g-1", "g-2", ".hidden"]
_MEMBERS: Final = ["m-1", "m-2", "m-3"]
_TYPES: Final = ["Deposited", "Opened", "T"]
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
        return [self.one(_TYPES), self.data(), self.maybe(self.data())]

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

    def place(self) -> Values:
        return [self.one(_TOPICS), self.number(3), self.number()]

    def filter(self) -> Values:
        prefix, one = self.maybe("a-"), self.maybe(self.one(_AGGREGATES))
        return [prefix, one, self.maybe(self.number()), self.maybe(self.number(2**62)), *self.rows(lambda: [self.one(_TYPES)])]

    def member(self) -> Values:
        return [self.one(_GROUPS), self.one(_MEMBERS)]


_HEAD_BYTES: Final = 10  # request id as uint 64, code
_Maker = Callable[[RequestMaker], Values]

MAKERS: Final[dict[type[Request], _Maker]] = {
    events.Append: lambda m: m.rows(m.commit) or m.commit(),
    events.Read: lambda m: [
        m.one(_AGGREGATES), m.number(), m.maybe(m.number()), m.chance(0.5), m.maybe(m.number()), m.number(2**20),
    ],
    events.ReadAll: lambda m: [m.number(), m.maybe(m.number()), m.number(2**20), *m.filter()],
    events.Version: lambda m: [m.one(_AGGREGATES)],
    events.FindCommand: lambda m: [m.one(_AGGREGATES), m.one(_COMMANDS)],
    events.Subscribe: lambda m: [m.maybe(m.number()), m.number(2**16), *m.filter()],
    events.Credit: lambda m: [m.subscription(), m.number(2**16)],
    events.Unsubscribe: lambda m: [m.subscription()],
    events.Stats: lambda m: [],
    events.Ping: lambda m: [],
    events.ListClients: lambda m: [m.number(3), m.number(1_000)],
    events.Send: lambda m: m.rows(m.command) or m.command(),
    events.ListAggregates: lambda m: [m.maybe("a-"), m.maybe(m.one(_AGGREGATES)), m.number(100)],
    events.Map: lambda m: [0],  # with another number it waits for a change
    broker.SendMessages: lambda m: [m.one(_TOPICS), *m.rows(m.message)],
    broker.Pull: lambda m: [
        m.number(100), m.number(2**20), m.number(30), *(m.member() if m.chance(0.5) else [None, None]),
        *m.rows(lambda: [m.one(_TOPICS), m.number(3), m.number(), m.maybe("paid | sold")]),
    ],
    broker.FindMessage: lambda m: [m.one(["9b130000000100001053", "zz", "0" * 20])],
    broker.ReadMessage: lambda m: m.place(),
    broker.FindKey: lambda m: [m.one(_TOPICS), m.one(_AGGREGATES), m.number(100), m.number(2**20), m.number(2**63)],
    broker.OffsetAt: lambda m: [m.one(_TOPICS), m.number(3), m.number(2**50)],
    broker.CreateTopic: lambda m: [m.one(_TOPICS), m.maybe(m.number(4)), m.chance(0.5)],
    broker.ListTopics: lambda m: [],
    broker.ShowTopic: lambda m: [m.one(_TOPICS)],
    broker.DeleteTopic: lambda m: [m.one(_TOPICS), m.chance(0.3)],
    broker.AddQueues: lambda m: [m.one(_TOPICS), m.number(3)],
    broker.CloseQueue: lambda m: [m.one(_TOPICS), m.number(3)],
    broker.RemoveQueue: lambda m: [m.one(_TOPICS), m.number(3)],
    broker.ListChunks: lambda m: [m.number()],
    groups.Join: lambda m: [*m.member(), m.chance(0.5), *m.rows(lambda: [m.one(_TOPICS), m.maybe("paid")])],
    groups.Heartbeat: lambda m: [*m.member(), m.number()],
    groups.Leave: lambda m: m.member(),
    groups.CommitOffsets: lambda m: [*m.member(), m.number(), *m.rows(m.place)],
    groups.FailMessages: lambda m: [*m.member(), m.number(), "why", *m.rows(m.place)],
    groups.FailInPlace: lambda m: [*m.member(), m.number(), "why", *m.rows(lambda: [*m.place(), m.number(5)])],
    groups.ReplayDead: lambda m: [m.one(_GROUPS), *m.rows(lambda: [m.number()])],
    groups.ResetGroup: lambda m: [
        m.one(_GROUPS), m.one(_TOPICS), m.maybe(m.number(3)), m.one(["start", "end", "offset", "time"]), m.maybe(m.number()),
    ],
    groups.SetRetries: lambda m: [
        m.one(_GROUPS), m.maybe(m.number(5)), m.maybe(m.one(_TOPICS)), *m.rows(lambda: [m.number(50)]),
    ],
    groups.UnsetRetries: lambda m: [m.one(_GROUPS)],
    groups.ShowRetries: lambda m: [m.one(_GROUPS)],
    groups.ListGroups: lambda m: [],
    groups.ShowGroup: lambda m: [m.one(_GROUPS), m.number(3)],
    groups.ListMembers: lambda m: [m.one(_GROUPS)],
    groups.ListInHand: lambda m: [m.maybe(m.one(_GROUPS))],
    groups.DeleteGroup: lambda m: [m.one(_GROUPS)],
    groups.ForgetTopic: lambda m: [m.one(_GROUPS), m.one(_TOPICS)],
    reactions.RecordParking: lambda m: m.parking(),
    reactions.CheckParking: lambda m: [],
    reactions.ListReactions: lambda m: [],
    reactions.NoteProjection: lambda m: [m.one(_AGGREGATES), m.number(), m.maybe(m.number()), m.number()],
    reactions.ListProjections: lambda m: [m.number(3)],
    reactions.ListParked: lambda m: [m.one(["notify", "none"]), m.number(3)],
    reactions.RetryParked: lambda m: [m.one(["notify", "none"]), m.maybe(m.one(_AGGREGATES)), "me", "why"],
    reactions.SkipParked: lambda m: [m.one(["notify", "none"]), m.one(_AGGREGATES), "me", "why"],
    reactions.ReplayReaction: lambda m: [m.one(["notify", "none"]), m.number(), "me", "why"],
    reactions.ListAlarms: lambda m: [m.number(3)],
    reactions.SilenceAlarm: lambda m: [m.one(["slow_syncs", "none"]), m.number(), "me", "why"],
    reactions.TestAlarms: lambda m: ["me"],
}  # fmt: skip
"""The values of each kind of request. HELLO is not among them: it comes first, and once."""
_KINDS: Final = list(MAKERS)
_OFTEN: Final = [events.Append, events.Send, broker.SendMessages, broker.CreateTopic, broker.Pull, groups.Join]
