"""Each kind of request on a real server: what it needs on which object, what is charged, and what a refusal may reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Final

import eventstore as es
from eventstore.errors import EventStoreError, PermissionDenied
from eventstore.protocol.answers import Failure, Ok, Outcomes, decode_outcome
from eventstore.protocol.broker_requests import (
    FindKey,
    OffsetAt,
    Pull,
    ReadMessage,
    SendMessages,
)
from eventstore.protocol.group_requests import (
    Join,
    ListInHand,
    SetRetries,
)
from eventstore.protocol.reaction_requests import (
    CheckParking,
    ForgetProjection,
    ListParked,
    RecordParking,
)
from eventstore.protocol.request_declaration import DECLARATIONS, Argument, Request
from eventstore.protocol.requests import (
    Append,
    CommitJointly,
    CommitUnless,
    Hello,
    ListAggregates,
    Map,
    Ping,
    ReadAll,
    ReadAllBackwards,
    ReadMany,
    ReadMatching,
    ReadMatchingBackwards,
    Send,
    Subscribe,
    SubscribeMatching,
)
from eventstore.protocol.subject_requests import EraseSubject, LeaseKeys
from eventstore.protocol.timer_requests import ChangeTimer, RecordTimers, SetTimer
from eventstore.query import Query
from eventstore.records.parking_record import reserved_id
from eventstore.records.timer_record import json_bytes, packed, timers_id
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
SETTING: Final = {"after_us": 10**12, "type": "m", "aggregate_id": "acc-9", "payload": {}}
TAGGED: Final = Query(tags=["t"]).packed()


def named(name: str, number: str) -> str:
    """Returns the name of an object: of what is always there, the one that the server has."""
    if number == THERE and name in ("reaction#", "alarm#", "type#"):
        return {"reaction#": "echo", "alarm#": "slow_syncs", "type#": "Call"}[name]
    return name.replace("#", number)


def by(name: str, make: Callable[[str], Request]) -> Callable[[str], Request]:
    return lambda number: make(named(name, number))


ACC, TOPIC, GROUP = "acc-#", "orders-#", "billing-#"
EXAMPLES: Final[dict[str, object]] = {
    "aggregate_id": ACC,
    "prefix": ACC,
    "topic": TOPIC,
    "group": GROUP,
    "reaction": "reaction#",
    "alarm": "alarm#",
    "message_id": "0" * 32,
    "to": "start",
}
"""Values of requests by their names; others are as small as they may be."""


def example(kind: type[Request], number: str, **given: str) -> Request:
    """Returns a request of this kind about the objects of a number. `given`: values of it, instead of those of `EXAMPLES`."""

    def value(argument: Argument) -> object:
        found = given.get(argument.name, EXAMPLES.get(argument.name))
        if isinstance(found, str) and (argument.name in given or NoneType not in argument.types):
            return named(found, number)
        if argument.rows:
            row = tuple(map(value, argument.rows))
            return ((row[0] if len(row) == 1 else row),) if argument.low else ()
        empty: dict[type, object] = {NoneType: None, bool: False, int: 1 if argument.low is None else argument.low, str: "m"}
        return next(made for each, made in empty.items() if each in argument.types)

    made: Callable[..., Request] = kind
    return made(*map(value, DECLARATIONS[kind].arguments))


def derived(kind: type[Request], needs: str | None = None, **given: str) -> Row:
    """Returns the row that follows from the declaration. `needs`: of one that is about more than a field."""
    declared = DECLARATIONS[kind].needs
    if needs is None and declared.permission is not None:
        needs = f"{declared.permission} {given.get(declared.of, EXAMPLES.get(declared.of, declared.of))}"
    return Row(lambda number: example(kind, number, **given), () if needs is None else (needs,), recorded=declared.recorded)


BY_HAND: Final = [
    Row(lambda _: Hello(1, "raw"), (), FIRST_FRAME, ONE_ANSWER),
    Row(by("table-#", ForgetProjection), ("reactions table-#",), recorded=True),
    # ---- events
    Row(by(ACC, lambda name: Append([commit(name, "c-1")])), (f"append {ACC}",)),
    Row(by(ACC, lambda name: CommitJointly("c-2", None, ((name, None, b"\x00\xa1T\xc4\x00\xc0"),))), (f"append {ACC}",)),
    Row(
        lambda n: CommitJointly("c-3", None, ((f"acc-{n}", None, b"\x00\xa1T\xc4\x00\xc0"), (f"acc-{n}{LONG}", None, None))),
        (f"append {ACC}", f"read {ACC}{LONG}"),
    ),
    Row(
        by(ACC, lambda name: CommitUnless("c-4", None, TAGGED, 0, name, ((name, None, b"\x00\xa1T\xc4\x00\xc0"),))),
        (f"append {ACC}", "read "),
    ),
    Row(lambda n: ReadMany(None, 1, ((f"acc-{n}", 1), (f"other-{n}", 1))), (f"read {ACC}", "read other-#")),
    Row(lambda _: ReadMatching(0, None, 1, None, None, None, None, TAGGED), ("read ",)),
    Row(by(ACC, lambda name: ReadMatching(0, None, 1, name, None, None, None, TAGGED)), (f"read {ACC}",)),
    Row(by(ACC, lambda name: ReadMatchingBackwards(0, None, 1, None, name, None, None, TAGGED)), (f"read {ACC}",)),
    Row(lambda _: SubscribeMatching(0, 1, None, None, None, None, TAGGED), ("subscribe ",)),
    Row(by(ACC, lambda name: SubscribeMatching(0, 1, name, None, None, None, TAGGED)), (f"subscribe {ACC}",)),
    Row(lambda _: ReadAll(), ("read ",)),
    Row(lambda _: ReadAllBackwards(), ("read ",)),
    Row(by(ACC, lambda name: ReadAllBackwards(aggregate_prefix=name)), (f"read {ACC}",)),
    Row(by(ACC, lambda name: ReadAllBackwards(aggregate_id=name)), (f"read {ACC}",)),
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
    derived(ReadMessage, f"join {GROUP}", topic=f"dead:{GROUP}"),
    derived(FindKey, f"join {GROUP}", topic=f"dead:{GROUP}"),
    derived(OffsetAt, f"join {GROUP}", topic=f"retry:{GROUP}"),
    # ---- groups
    Row(lambda n: Join(f"billing-{n}", "m", topics=((f"orders-{n}", None),)), (f"join {GROUP}", f"consume {TOPIC}")),
    derived(SetRetries),
    Row(
        lambda n: SetRetries(f"billing-{n}", None, f"orders-{n}", (1,)),
        (f"groups {GROUP}", f"send {TOPIC}", f"topics {TOPIC}"),
        reveals=SENDABLE,
        recorded=True,
    ),
    # ---- subjects
    Row(by("customer-#", lambda name: LeaseKeys(True, (name,))), ("subjects customer-#",)),
    Row(by("customer-#", lambda name: EraseSubject(name, "asked")), ("erase customer-#",), recorded=True),
    # ---- reactions
    Row(by(ACC, lambda name: RecordParking(reserved_id(name), "$Parked", parked())), (f"park {ACC}",)),
    Row(
        lambda n: RecordParking(reserved_id(f"acc-{n}{LONG}"), "$Parked", parked(aggregate_id=f"acc-{n}{LONG}")),
        (f"park {ACC}{LONG}",),
    ),
    Row(lambda _: CheckParking(), ("park *",)),
    # ---- timers
    Row(by("type#", lambda name: SetTimer("acc-9", "c-1", name, b'{"a":"acc-9"}', 0)), ("command type#",)),
    Row(
        by(ACC, lambda name: RecordTimers(((timers_id(name), "c-9", "$TimerCancelled", b'{"timer":"t"}', None),))),
        (f"park {ACC}",),
    ),
    Row(
        lambda n: RecordTimers(
            ((timers_id(f"acc-{n}"), "c-8", "$TimerSet", json_bytes({**SETTING, "type": named("type#", n)}), None),)
        ),
        (f"park {ACC}", "command type#"),
    ),
    Row(by(ACC, lambda name: ChangeTimer(name, "t", "run", None, "ada", "x")), (f"timers {ACC}",), recorded=True),
    Row(
        lambda n: Append([(f"acc-{n}", None, "c-7", None, packed("$TimerSet", {**SETTING, "type": named("type#", n)}, None))]),
        (f"append {ACC}", "command type#"),
    ),
    derived(ListInHand, group=GROUP),
    Row(by("reaction#", lambda name: ListParked(name)), ("stats ", "reactions reaction#")),
]
"""Of requests that are about more than a name in a field, or about one in several ways."""
ROWS: Final = [
    *BY_HAND,
    *(derived(kind) for kind in DECLARATIONS if kind not in {type(row.make(OTHER)) for row in BY_HAND} | {Map}),
    *(derived(kind) for kind in (ReadMessage, FindKey, OffsetAt, ListInHand)),
    Row(lambda _: Map()),
]


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
        declared = DECLARATIONS[type(request)]
        if declared.answer is None or declared.waits:
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
            elif grant not in ("stats:", "backup:", "park:*"):  # one is about no names, one about whichever
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


VERBS: Final = {
    "ADD CLOSE CREATE REMOVE": {Permission.TOPICS},
    "FORGET": {Permission.GROUPS, Permission.REACTIONS},
    "RESET SET UNSET": {Permission.GROUPS},
    "DELETE": {Permission.TOPICS, Permission.GROUPS},
    "REPLAY": {Permission.GROUPS, Permission.REACTIONS},
    "RETRY SKIP": {Permission.REACTIONS},
    "SILENCE TEST": {Permission.ALARMS},
    "COMMIT FAIL HEARTBEAT LEAVE": {Permission.JOIN},
    "FIND": {Permission.READ, Permission.CONSUME},
    "READ": {Permission.READ, Permission.CONSUME},
    "SHOW STATS": {Permission.STATS},
    "LIST": {Permission.STATS, Permission.READ},
    "VERSION": {Permission.READ},
    "NOTE END": {Permission.STATS, Permission.BACKUP},
    "BEGIN": {Permission.BACKUP},
    "CONFIRM": {Permission.TIMERS},
    "WAIT ASK TELL FOLLOW": {Permission.STATS},
    "OFFSET": {Permission.CONSUME},
    "CREDIT HELLO MAP PING UNSUBSCRIBE": {None},
}
"""What a request whose name begins so may need: most rows of the table follow from the declarations that they check."""
FIELDS: Final = {
    Permission.TOPICS: "topic",
    Permission.GROUPS: "group",
    Permission.JOIN: "group",
    Permission.REACTIONS: "reaction",
    Permission.SEND: "topic",
    Permission.CONSUME: "topic",
    Permission.READ: "aggregate_id",
    Permission.ALARMS: "alarm",
    Permission.TIMERS: "",
    Permission.STATS: "",
    Permission.BACKUP: "",
    None: "",
}
"""The field whose name a permission is about, unless a row by hand says otherwise."""
OF_NO_NAME: Final = {"FIND_MESSAGE", "TEST_ALARMS"}
"""Requests that are about no name, although their permissions are about names elsewhere."""


def test_what_a_request_needs_fits_its_name_and_what_would_change_something_again_is_recorded() -> None:
    permitted = {verb: permissions for verbs, permissions in VERBS.items() for verb in verbs.split()}
    needed = {each.name: each.needs.permission for each in DECLARATIONS.values()}
    verbs = {name: name.partition("_")[0] for name in needed}
    by_hand = {row.kind for row in BY_HAND}
    assert {name for name, verb in verbs.items() if needed[name] not in permitted.get(verb, set())} <= by_hand
    about = {each.name: each.needs.of for each in DECLARATIONS.values()}
    assert {name for name in about.keys() - OF_NO_NAME if about[name] != FIELDS.get(needed[name])} <= by_hand
    assert {name for name in OF_NO_NAME if about[name]} == set()
    assert {each.name for each in DECLARATIONS.values() if not each.resend and not each.needs.recorded} == set()


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
