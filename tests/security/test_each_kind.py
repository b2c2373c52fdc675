"""Each kind of request on a real server: what it needs on which object, what is charged, and what a refusal may reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import eventstore as es
from eventstore.errors import EventStoreError, PermissionDenied
from eventstore.protocol.answers import Failure, Ok, Outcomes, decode_outcome
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
    Credit,
    FindCommand,
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
from eventstore.records.parking_record import reserved_id
from eventstore.security.access_list import UNLIMITED, AccessList, Identity, IdentityLimits, editing, write_access
from eventstore.security.audit import AUDIT
from eventstore.security.permissions import ANYONE, Permission
from eventstore.security.tokens import new_token
from eventstore.store.data_folder import ACCESS
from tests.records.parking_fields import parked
from tests.server.raw import RawClient, commit, outcomes_of
from tests.server_thread import ServerThread
from tests.waiting import wait_until

FRAME: Final = "its frame, when it is read"
FIRST_FRAME: Final = "its frame, once it is known whose it is"
NOTHING: Final = "nothing"
ONE_ANSWER: Final = "nothing: all wrong credentials get one answer"
SENDABLE: Final = "whether a topic exists, to those who may send to it"
DOMAIN: Final = "tests.server.commands.echoes:app"
THERE, MISSING, OTHER = "1", "2", "3"


@dataclass(frozen=True)
class Row:
    """`make`: the request about the objects of a number; those of `THERE` exist. `needs`: "PERMISSION NAME", where # is the
    number, no name is everything, and * is any name. `charged`: to the limits of the identity. `reveals`: what a refusal
    does. `recorded`: in the audit trail, before it is carried out.
    """

    make: Callable[[str], Request]
    needs: tuple[str, ...] = ()
    charged: str = FRAME
    reveals: str = NOTHING
    recorded: bool = False

    @property
    def kind(self) -> str:
        return DECLARATIONS[type(self.make(OTHER))].name

    def wanted(self, number: str) -> list[tuple[str, str]]:
        found = (each.partition(" ") for each in self.needs)
        return [(permission, named(name, number)) for permission, _, name in found]


LONG: Final = "a" * 240


def named(name: str, number: str) -> str:
    """Returns the name of an object: of what is always there, the one that the server has."""
    if number == THERE and name in ("reaction#", "alarm#", "type#"):
        return {"reaction#": "echo", "alarm#": "slow_syncs", "type#": "Call"}[name]
    return name.replace("#", number)


def by(name: str, make: Callable[[str], Request]) -> Callable[[str], Request]:
    return lambda number: make(named(name, number))


ACC, TOPIC, GROUP = "acc-#", "orders-#", "billing-#"
ROWS: Final = [
    Row(lambda _: Hello(1, "raw"), (), FIRST_FRAME, ONE_ANSWER),
    *(Row(lambda _, made=made: made) for made in (Ping(), Map(), Unsubscribe(7), Credit(7, 1))),
    # ---- events
    Row(by(ACC, lambda name: Append([commit(name, "c-1")])), (f"append {ACC}",)),
    Row(by(ACC, lambda name: Read(name)), (f"read {ACC}",)),
    Row(by(ACC, lambda name: Version(name)), (f"read {ACC}",)),
    Row(by(ACC, lambda name: FindCommand(name, "c-1")), (f"read {ACC}",)),
    Row(lambda _: ReadAll(), ("read ",)),
    Row(by(ACC, lambda name: ReadAll(aggregate_prefix=name)), (f"read {ACC}",)),
    Row(by(ACC, lambda name: ReadAll(aggregate_id=name)), (f"read {ACC}",)),
    Row(lambda _: Subscribe(), ("subscribe ",)),
    Row(by(ACC, lambda name: Subscribe(aggregate_prefix=name)), (f"subscribe {ACC}",)),
    Row(by(ACC, lambda name: Subscribe(aggregate_id=name)), (f"subscribe {ACC}",)),
    Row(lambda _: ListAggregates(), ("read ",)),
    Row(by(ACC, lambda name: ListAggregates(name)), (f"read {ACC}",)),
    Row(by("type#", lambda name: Send([(name, "acc-9", "c-1", b"{}", None)])), ("command type#",)),
    # ---- messages
    Row(by(TOPIC, lambda name: SendMessages(name, [(b"m", None, None, None, None)])), (f"send {TOPIC}",)),
    Row(by(TOPIC, lambda name: Pull(wants=((name, 0, 0, None),))), (f"consume {TOPIC}",)),
    Row(by(GROUP, lambda name: Pull(wants=((f"retry:{name}", 0, 0, None),))), (f"join {GROUP}",)),
    Row(by(GROUP, lambda name: Pull(wants=((f"dead:{name}", 0, 0, None),))), (f"join {GROUP}",)),
    Row(
        lambda n: Pull(group=f"billing-{n}", member="m", wants=((f"orders-{n}", 0, 0, None),)),
        (f"join {GROUP}", f"consume {TOPIC}"),
    ),
    Row(lambda _: FindMessage("0" * 32), ("consume ",)),
    Row(by(TOPIC, lambda name: ReadMessage(name, 0, 0)), (f"consume {TOPIC}",)),
    Row(by(GROUP, lambda name: ReadMessage(f"dead:{name}", 0, 0)), (f"join {GROUP}",)),
    Row(by(TOPIC, lambda name: FindKey(name, "k")), (f"consume {TOPIC}",)),
    Row(by(GROUP, lambda name: FindKey(f"dead:{name}", "k")), (f"join {GROUP}",)),
    Row(by(TOPIC, lambda name: OffsetAt(name, 0, 0)), (f"consume {TOPIC}",)),
    Row(by(GROUP, lambda name: OffsetAt(f"retry:{name}", 0, 0)), (f"join {GROUP}",)),
    # ---- topics
    Row(by(TOPIC, lambda name: CreateTopic(name)), (f"topics {TOPIC}",), recorded=True),
    Row(by(TOPIC, lambda name: DeleteTopic(name)), (f"topics {TOPIC}",), recorded=True),
    Row(by(TOPIC, lambda name: AddQueues(name, 1)), (f"topics {TOPIC}",), recorded=True),
    Row(by(TOPIC, lambda name: CloseQueue(name, 0)), (f"topics {TOPIC}",), recorded=True),
    Row(by(TOPIC, lambda name: RemoveQueue(name, 0)), (f"topics {TOPIC}",), recorded=True),
    # ---- groups
    Row(
        lambda n: Join(f"billing-{n}", "m", topics=((f"orders-{n}", None),)), (f"join {GROUP}", f"consume {TOPIC}"),
    ),
    Row(by(GROUP, lambda name: Heartbeat(name, "m", 1)), (f"join {GROUP}",)),
    Row(by(GROUP, lambda name: Leave(name, "m")), (f"join {GROUP}",)),
    Row(lambda n: CommitOffsets(f"billing-{n}", "m", 1, ((f"orders-{n}", 0, 0),)), (f"join {GROUP}",)),
    Row(lambda n: FailMessages(f"billing-{n}", "m", 1, "", ((f"orders-{n}", 0, 0),)), (f"join {GROUP}",)),
    Row(lambda n: FailInPlace(f"billing-{n}", "m", 1, "", ((f"orders-{n}", 0, 0, 1),)), (f"join {GROUP}",)),
    Row(by(GROUP, lambda name: ReplayDead(name, (0,))), (f"groups {GROUP}",), recorded=True),
    Row(lambda n: ResetGroup(f"billing-{n}", f"orders-{n}", None, "start"), (f"groups {GROUP}",), recorded=True),
    Row(by(GROUP, lambda name: SetRetries(name, None, None, (1,))), (f"groups {GROUP}",), recorded=True),
    Row(
        lambda n: SetRetries(f"billing-{n}", None, f"orders-{n}", (1,)),
        (f"groups {GROUP}", f"send {TOPIC}", f"topics {TOPIC}"), reveals=SENDABLE, recorded=True,
    ),
    Row(by(GROUP, lambda name: UnsetRetries(name)), (f"groups {GROUP}",), recorded=True),
    Row(by(GROUP, lambda name: DeleteGroup(name)), (f"groups {GROUP}",), recorded=True),
    Row(lambda n: ForgetTopic(f"billing-{n}", f"orders-{n}"), (f"groups {GROUP}",), recorded=True),
    # ---- reactions and alarms
    Row(by(ACC, lambda name: RecordParking(reserved_id(name), "$Parked", parked())), (f"park {ACC}",)),
    Row(
        lambda n: RecordParking(reserved_id(f"acc-{n}{LONG}"), "$Parked", parked(aggregate_id=f"acc-{n}{LONG}")),
        (f"park {ACC}{LONG}",),
    ),
    Row(lambda _: CheckParking(), ("park *",)),
    Row(by("reaction#", lambda name: RetryParked(name, None, "me", "why")), ("reactions reaction#",), recorded=True),
    Row(by("reaction#", lambda name: SkipParked(name, "acc-1", "me", "why")), ("reactions reaction#",), recorded=True),
    Row(by("reaction#", lambda name: ReplayReaction(name, 1, "me", "why")), ("reactions reaction#",), recorded=True),
    Row(by("alarm#", lambda name: SilenceAlarm(name, 1, "me", "why")), ("alarms alarm#",), recorded=True),
    Row(lambda _: TestAlarms("me"), ("alarms ",), recorded=True),
    # ---- figures, and names of all that is there
    *(
        Row(lambda _, made=made: made, ("stats ",))
        for made in (
            Stats(), ListClients(), ListTopics(), ListChunks(), ListGroups(), ListInHand(), ListReactions(), ListProjections(),
            ListAlarms(), NoteProjection("balances", 1, None, 0),
        )
    ),
    Row(by(TOPIC, lambda name: ShowTopic(name)), ("stats ",)),
    Row(by(GROUP, lambda name: ShowGroup(name)), ("stats ",)),
    Row(by(GROUP, lambda name: ListMembers(name)), ("stats ",)),
    Row(by(GROUP, lambda name: ListInHand(name)), ("stats ",)),
    Row(by(GROUP, lambda name: ShowRetries(name)), ("stats ",)),
    Row(by("reaction#", lambda name: ListParked(name)), ("stats ",)),
]  # fmt: skip


class Known:
    """Identities, written at once. `tokens` by name."""

    def __init__(self) -> None:
        self._identities: dict[str, Identity] = {}
        self.tokens: dict[str, str] = {}

    def add(self, name: str, grants: Iterable[str], limits: IdentityLimits = UNLIMITED) -> str:
        token, key, stored = new_token(datetime.now(UTC), None)
        self._identities[name] = Identity(name, tuple(sorted(grants)), {key: stored}, limits=limits)
        self.tokens[name] = token
        return name

    def write(self, data: Path) -> None:
        with editing(data / ACCESS):
            write_access(data / ACCESS, AccessList(self._identities))


def asked(server: ServerThread, token: str, request: Request) -> EventStoreError | None:
    """Returns the error that a request is answered with; of rows, that of the first; None: it is carried out."""
    with RawClient(server.port, greet=False) as client:
        greeted = client.ask(Hello(1, "raw", token=token))
        assert isinstance(greeted, Ok), greeted
        client.send_request(request)
        if DECLARATIONS[type(request)].answer is None:
            client.send_request(Ping())
        answer = client.answer()[1]
        if isinstance(answer, Outcomes):
            outcome = decode_outcome("", 0, *outcomes_of(answer)[0])
            return outcome if isinstance(outcome, EventStoreError) else None
        return answer.error if isinstance(answer, Failure) else None


def told(error: EventStoreError | None) -> tuple[object, ...]:
    return (None,) if error is None else (type(error), error.message, error.fields)


def all_but(row: Row, lack: int) -> list[str]:
    """Returns grants of all that a row needs but one, which is granted on other objects."""
    found = []
    for number in (THERE, MISSING):
        for at, grant in enumerate(wants(row, number)):
            if at != lack:
                found.append(grant)
            elif grant not in ("stats:", "park:*"):  # one is about no names, one about whichever
                found.append(f"{grant}x")
    return found


def wants(row: Row, number: str) -> list[str]:
    return [f"{permission}:{name}" for permission, name in row.wanted(number)]


def test_each_kind_of_request_is_in_the_table_and_each_permission_is_needed_by_some() -> None:
    assert {row.kind for row in ROWS} == {each.name for each in DECLARATIONS.values()}
    free = {row.kind for row in ROWS if not row.needs}
    assert free == {"HELLO", "PING", "MAP", "CREDIT", "UNSUBSCRIBE"}
    assert free == {each.name for each in DECLARATIONS.values() if each.needs is ANYONE}
    assert {each.name for each in DECLARATIONS.values() if each.needs.permission is None} == free
    assert {each.name for each in DECLARATIONS.values() if each.needs.alone} == {"APPEND", "SEND"}
    used = {need.partition(" ")[0] for row in ROWS for need in row.needs}
    assert set(Permission) - used == {Permission.CLUSTER}  # between nodes


@contextmanager
def serving(data: Path, known: Known) -> Iterator[ServerThread]:
    """A server with these identities and the objects of `THERE`."""
    root = known.tokens[known.add("root", ["admin"])]
    known.write(data)
    with ServerThread(data, domain=DOMAIN) as server:
        with es.blocking.connect(server.address, token=root) as store:
            store.append(named(ACC, THERE), [es.NewEvent("Happened", {})], 0)
            store.broker.create_topic(named(TOPIC, THERE))
            store.broker.set_retries(named(GROUP, THERE), es.Retries((1.0,)))
        yield server


def test_each_kind_is_permitted_by_what_the_table_says_and_refused_if_any_of_it_is_about_another_object(tmp_path: Path) -> None:
    known, wrong = Known(), list[object]()
    exact = {place: known.add(f"exact-{place}", wants(row, OTHER)) for place, row in enumerate(ROWS)}
    lacking = {
        (place, lack): known.add(f"lacking-{place}-{lack}", all_but(row, lack))
        for place, row in enumerate(ROWS)
        for lack in range(len(row.needs))
    }
    with serving(tmp_path / "data", known) as server:
        for place, row in enumerate(ROWS):
            done = None if row.kind == "HELLO" else asked(server, known.tokens[exact[place]], row.make(OTHER))
            if isinstance(done, PermissionDenied):
                wrong.append((row.kind, row.needs, "are not enough", done.message))
        for (place, lack), name in lacking.items():
            row, permission = ROWS[place], ROWS[place].wanted(MISSING)[lack][0]
            there, missing = (asked(server, known.tokens[name], row.make(number)) for number in (THERE, MISSING))
            if not isinstance(missing, PermissionDenied) or missing.fields["permission"] != permission:
                wrong.append((row.kind, permission, "is not needed", told(missing)))
            if told(there) != told(missing) and (row.reveals, permission) != (SENDABLE, "topics"):
                wrong.append((row.kind, "a refusal reveals what exists", told(there), told(missing)))
        with es.blocking.connect(server.address, token=known.tokens["root"]) as store:
            recorded = {str(each.json()["who"]) for each in store.read(AUDIT)}
    wrong += [(row.kind, "recorded") for place, row in enumerate(ROWS) if (exact[place] in recorded) != row.recorded]
    assert not wrong


def test_a_refusal_without_any_grant_is_the_same_for_what_exists_and_what_does_not(tmp_path: Path) -> None:
    known = Known()
    token = known.tokens[known.add("nobody", [])]
    with serving(tmp_path / "data", known) as server:
        before = server.ask(lambda running: running.store.engine.visible_sequence)
        found = [(row, *(told(asked(server, token, row.make(number))) for number in (THERE, MISSING))) for row in ROWS[1:]]
        assert server.ask(lambda running: running.store.engine.visible_sequence) == before
    assert [row.kind for row, there, missing in found if there != missing] == []
    assert [row.kind for row, there, _ in found if (there[0] is PermissionDenied) != bool(row.needs)] == []


def test_each_kind_is_charged_to_its_identity_also_if_it_is_refused(tmp_path: Path) -> None:
    known = Known()
    token = known.tokens[known.add("limited", [], IdentityLimits(requests=1))]
    with serving(tmp_path / "data", known) as server:

        def held() -> int:
            return server.ask(lambda running: running.security._doorkeepers[0].budgets.held)

        for row in ROWS:
            with RawClient(server.port, greet=False) as client:
                before = held()
                assert isinstance(client.ask(Hello(1, "raw", token=token)), Ok)
                assert held() == before + 1, "HELLO is charged"
                if row.charged == FRAME:
                    client.send_request(row.make(MISSING))
                    wait_until(lambda before=before: held() == before + 2, f"{row.kind} is charged")
