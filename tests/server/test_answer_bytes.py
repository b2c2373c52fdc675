"""Requests are answered by the bytes that they always were: `tests/fixtures/answers.json`. A new kind need not be added.

What differs between two runs (a time, a port, a checksum) is replaced by the name of its type before it is compared.
`python -m tests.server.test_answer_bytes` writes the file anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from eventstore import flat
from eventstore.flat import Scalar
from eventstore.model import NewEvent
from eventstore.protocol.broker_requests import (
    AddQueues,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    FindKey,
    FindMessage,
    ListChunks,
    ListTopics,
    OffsetAt,
    Pull,
    ReadMessage,
    RemoveQueue,
    SendMessages,
    ShowTopic,
)
from eventstore.protocol.group_requests import (
    CommitOffsets,
    DeleteGroup,
    FailInPlace,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Join,
    Leave,
    ListDepartures,
    ListGroups,
    ListInHand,
    ListMembers,
    ReplayDead,
    ResetGroup,
    SetRetries,
    ShowGroup,
    ShowRetries,
    UnsetRetries,
)
from eventstore.protocol.payload import payload_decoder
from eventstore.protocol.reaction_requests import (
    CheckParking,
    ListAlarms,
    ListParked,
    ListProjections,
    ListReactions,
    NoteProjection,
    RecordParking,
    ReplayReaction,
    RetryParked,
    SilenceAlarm,
    SkipParked,
    TestAlarms,
)
from eventstore.protocol.request_declaration import DECLARATIONS, Request
from eventstore.protocol.requests import (
    Append,
    FindCommand,
    FindCommands,
    Hello,
    ListAggregates,
    ListClients,
    Map,
    Ping,
    Read,
    ReadAll,
    Send,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
)
from eventstore.protocol.timer_requests import ChangeTimer, ConfirmClock, ListTimers, RecordTimers, SetTimer
from tests.records.parking_fields import parked
from tests.server.commands import echoes
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FILE: Final = Path(__file__).parents[1] / "fixtures" / "answers.json"
HEAD: Final = 2
EVENTS: Final = flat.encode([*NewEvent("Opened", {"cents": 1}), *NewEvent("Closed", {})])
Mask = Callable[[list[Scalar]], list[Scalar]]


def whole(values: list[Scalar]) -> list[Scalar]:
    return values


def without(*columns: int, width: int = 1_000) -> Mask:
    """Returns a mask of these values of each row."""
    hidden: Collection[int] = columns

    def masked(values: list[Scalar]) -> list[Scalar]:
        return [type(value).__name__ if place % width in hidden else value for place, value in enumerate(values)]

    return masked


def first(count: int) -> Mask:
    """Returns a mask of all but the first values."""
    return lambda values: values[:count]


def sizes(values: list[Scalar]) -> list[Scalar]:
    """A mask of records, which hold times and checksums."""
    return [f"{len(value)} bytes" if isinstance(value, bytes) else value for value in values]


class Answers:
    """The answers of one server, in hexadecimal, by the request and its place among those of its kind."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._decode = payload_decoder().decode
        self.found: dict[str, str] = {}
        self.last_id = 0

    def ask(
        self, request: Request, mask: Mask = whole, until: Callable[[list[Scalar]], object] = lambda _: True
    ) -> list[Scalar]:
        """Returns the values of the answer, which are noted. `until`: it is asked again before that is true of them."""
        asked = list[list[Scalar]]()

        def answered() -> object:
            self.last_id = self._client.send_request(request)
            asked.append(self._decode(self._client.payload()))
            return until(asked[-1][HEAD:])

        wait_until(answered, f"{request} is answered so")
        (_, code, *values) = asked[-1]
        name = DECLARATIONS[type(request)].name
        place = sum(each.partition(" ")[0] == name for each in self.found)
        self.found[f"{name} {place}"] = flat.encode([code, *mask(values)]).hex()
        return values


def ask_for_events(asked: Answers) -> None:
    asked.ask(Append([("acc-1", 0, "c-1", 1_700_000_000_000_000, EVENTS), ("acc-2", 7, "c-2", None, EVENTS)]), sizes)
    asked.ask(Append([("acc-1", 0, "c-1", 1_700_000_000_000_000, EVENTS)]))
    asked.ask(Read("acc-1"), sizes)
    asked.ask(ReadAll(), sizes)
    asked.ask(Version("acc-1"))
    asked.ask(Version("nobody"))
    asked.ask(FindCommand("acc-1", "c-1"))
    asked.ask(FindCommand("acc-1", "c-2"))
    asked.ask(FindCommands("acc-1", ("c-2", "c-1")))
    asked.ask(ListAggregates())
    asked.ask(Subscribe(), sizes)
    asked.ask(Unsubscribe(asked.last_id))
    asked.ask(Stats(), first(1))
    asked.ask(Ping())
    asked.ask(Map(), without(1))
    asked.ask(ListClients(), without(1, 3))


def ask_for_topics(asked: Answers, node: int) -> None:
    asked.ask(CreateTopic("orders", 2))
    asked.ask(CreateTopic("orders", 2, True))
    asked.ask(AddQueues("orders", 2))
    messages = [(b"body", "key", "paid", flat.encode(["n", "v"]), 1), (b"", None, None, None, 9)]
    position = asked.ask(SendMessages("orders", messages), sizes)[2]
    asked.ask(SendMessages("orders", [(b"body", None, None, None, 1)] * 3))
    asked.ask(Pull(wants=(("orders", 1, 0, None), ("orders", 0, 5, "paid"))), sizes)
    asked.ask(FindMessage(f"{node:04x}{position:016x}"), sizes)
    asked.ask(FindMessage("0" * 20))
    asked.ask(ReadMessage("orders", 1, 0), sizes)
    asked.ask(FindKey("orders", "key"), sizes)
    asked.ask(OffsetAt("orders", 1, 0))
    asked.ask(CloseQueue("orders", 3))
    asked.ask(ListTopics())
    asked.ask(ShowTopic("orders"), without(6, 7, 8, 9, width=10))
    asked.ask(ListChunks(), without(2, 4, 5, 6, 7, width=11))


def ask_for_groups(asked: Answers) -> None:
    asked.ask(SetRetries("billing", 2, None, (1_000,)))
    asked.ask(ShowRetries("billing"))
    generation = asked.ask(Join("billing", "m-1", False, (("orders", None),)))[0]
    assert isinstance(generation, int)
    asked.ask(Heartbeat("billing", "m-1", generation))
    asked.ask(Heartbeat("billing", "m-1", generation - 1))
    asked.ask(Pull(group="billing", member="m-1", wants=(("orders", 1, 0, None),)), sizes)
    asked.ask(ListInHand("billing"), without(5), until=bool)
    asked.ask(ListInHand(), without(5))
    asked.ask(CommitOffsets("billing", "m-1", generation, (("orders", 1, 1), ("orders", 0, 5))))
    asked.ask(FailInPlace("billing", "m-1", generation, "why", (("orders", 1, 1, 1), ("orders", 1, 2, 9))))
    asked.ask(FailMessages("billing", "m-1", generation, "why", (("orders", 1, 3),)))
    asked.ask(UnsetRetries("billing"))
    asked.ask(ShowRetries("billing"))
    asked.ask(ListGroups())
    asked.ask(ShowGroup("billing"))
    asked.ask(ShowGroup("billing", 2))
    asked.ask(ListMembers("billing"), without(1))
    asked.ask(ListDepartures("billing"))
    asked.ask(ReplayDead("billing", (0,)))
    asked.ask(ResetGroup("billing", "orders", None, "start"))
    asked.ask(ResetGroup("billing", "orders", 1, "offset", 99))
    asked.ask(Leave("billing", "m-1"))
    asked.ask(ForgetTopic("billing", "orders"))
    asked.ask(DeleteGroup("billing"))
    asked.ask(RemoveQueue("orders", 3))
    asked.ask(DeleteTopic("orders"))


def ask_for_reactions(asked: Answers) -> None:
    asked.ask(ListReactions(), without(3, 4, 5))
    echoes.failing["a"] = "a bug in a reaction"
    asked.ask(Send([("Call", "a", "c-1", b'{"caller":"a","number":1}', None), ("Unknown", "a", "c-2", b"{}", None)]), sizes)
    asked.ask(ListReactions(), without(3, 4, 5, 7), until=lambda values: values[6] == 1)
    asked.ask(ListParked("echo"), without(4, 6))
    asked.ask(RetryParked("echo", None, "ada", "try"))
    asked.ask(SkipParked("echo", "a", "ada", "lost"))
    echoes.failing.clear()
    asked.ask(ReplayReaction("echo", 1, "ada", "why"))
    asked.ask(RecordParking("$parked{acc-1}", "$Parked", parked()), without(1))
    asked.ask(CheckParking())
    payload = b'{"caller":"t","number":1}'
    asked.ask(SetTimer("t", "c-1", "Call", payload, 3_600_000_000, None, "late"), without(1))
    asked.ask(ListTimers(0, "t"), without(2))
    asked.ask(ChangeTimer("t", "late", "cancel", None, "ada", "no more"), without(1))
    asked.ask(RecordTimers((("$timers{t}", "c-2", "$TimerCancelled", b'{"timer":"late"}', None),)), without(0))
    asked.ask(ConfirmClock("ada", "set right"))
    asked.ask(NoteProjection("balances", 2, None, 3))
    asked.ask(ListProjections(), without(1, 6))
    asked.ask(ListAlarms(), first(3))
    asked.ask(SilenceAlarm("slow_syncs", 60, "ada", "known"))
    asked.ask(TestAlarms("ada"))


@contextmanager
def answers(folder: Path) -> Iterator[Answers]:
    """Returns what a server has answered."""
    echoes.failing.clear()
    with (
        ServerThread(folder / "data", domain="tests.server.commands.echoes:app") as server,
        RawClient(server.port, greet=False) as client,
    ):
        asked = Answers(client)
        *_, node = asked.ask(Hello(1, "raw"), without(1, 2, 5))
        assert isinstance(node, int)
        ask_for_events(asked)
        ask_for_topics(asked, node)
        ask_for_groups(asked)
        ask_for_reactions(asked)
        yield asked


def test_requests_are_answered_by_the_bytes_that_they_always_were(tmp_path: Path) -> None:
    with answers(tmp_path) as asked:
        assert asked.found == json.loads(FILE.read_text())


if __name__ == "__main__":
    with TemporaryDirectory() as scratch, answers(Path(scratch)) as written:
        FILE.write_text(json.dumps(written.found, indent=0) + "\n")
    sys.exit(0)
