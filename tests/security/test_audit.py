"""The audit trail: what is in it, that it is written before what it names is done, and that a change of it is seen."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
import trio

import eventstore as es
from eventstore.cli.terminal.etcd_options import claimed
from eventstore.client.blocking.store import BlockingStore
from eventstore.errors import (
    Closed,
    ConnectionLost,
    InvalidArgument,
    Unauthenticated,
    UnknownGroup,
    UnknownTopic,
)
from eventstore.protocol.broker_requests import CreateTopic, ListTopics
from eventstore.protocol.requests import Hello
from eventstore.security.access_changes import author
from eventstore.security.access_list import AccessList, Edit, Identity, read_access
from eventstore.security.audit import AUDIT, FIRST, AuditRecord, BrokenChain, Head, digest, verified
from eventstore.server.access import auditor
from eventstore.store.data_folder import ACCESS
from tests.cli.processes import Server, output, run
from tests.security.access_file import give, replaced, take_away
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until


@contextmanager
def trail(data: Path) -> Iterator[tuple[ServerThread, BlockingStore]]:
    token = give(data, "ops", "admin")
    with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
        yield server, store


def records(store: BlockingStore) -> list[dict[str, object]]:
    return [dict(values) for _, values in verified((each.version, each.data) for each in store.read(AUDIT))]


def test_what_matters_is_recorded_and_what_does_not_is_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with trail(data) as (server, store):
        store.append("a", [es.NewEvent("Happened", b"{}")], expected_version=es.ANY, command_id="c-1")
        store.broker.create_topic("orders", queues=2)
        store.broker.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            store.broker.delete_topic("orders")
        store.broker.topics()
        with pytest.raises(Unauthenticated):
            es.blocking.connect(server.address, token="wrong").__enter__()
        give(data, "billing", "writer:order-")
        take_away(data, "billing")
        shipping = give(data, "shipping", "reader").split("_")[1]
        server.ask(lambda running: running.security.look())
        wait_until(lambda: len(records(store)) == 5, "all are written")
        found = records(store)
        assert [each["what"] for each in found] == [
            "CREATE_TOPIC", "DELETE_TOPIC", "DELETE_TOPIC", "LOGIN_REFUSED", "ACCESS_CHANGED",
        ]  # fmt: skip
        assert [each["who"] for each in found] == ["ops", "ops", "ops", "", ""]
        assert found[0]["details"] == {"topic": "orders", "queues": 2, "if_missing": False}
        assert found[3]["details"] == {"why": "an unknown token"}
        assert found[4]["details"] == {"name": "shipping", "change": f"added: reader; token {shipping} added"}
        assert "wrong" not in json.dumps(found)


def test_resets_of_offsets_and_replays_of_dead_letters_are_recorded(tmp_path: Path) -> None:
    with trail(tmp_path / "data") as (_, store):
        store.broker.create_topic("orders", 1)
        store.topic("orders").send(b"bad", key="k")
        with store.consumer("billing", "orders", retries=es.Retries((), attempts=1)) as consumer:
            next(iter(consumer)).retry("it is bad")
            wait_until(lambda: store.broker.dead_letters("billing"), "it is a dead letter")
        assert store.broker.replay("billing", [0]) == 1
        store.broker.reset("billing", "orders", "start")
        with pytest.raises(UnknownGroup):
            store.broker.reset("nobody", "orders", 0)
        found = [(each["what"], each["who"], each["details"]) for each in records(store) if each["what"] != "CREATE_TOPIC"]
    assert [what for what, _, _ in found] == ["SET_RETRIES", "REPLAY_DEAD", "RESET_GROUP", "RESET_GROUP"]
    assert {who for _, who, _ in found} == {"ops"}


def test_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for number in range(3):
        with trail(data) as (_, store):  # which gives one more token before
            store.broker.create_topic(f"t-{number}")
            assert len(records(store)) == 2 * number + 1


def test_a_change_of_access_while_the_server_was_stopped_is_recorded_at_its_start_and_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "ops", "admin")

    def lived(number: int) -> list[tuple[object, object]]:
        with ServerThread(data) as server, es.blocking.connect(server.address, token=token) as store:
            store.broker.create_topic(f"t-{number}")
            return [(each["what"], each["details"]) for each in records(store)[-2:]]

    lived(1)
    assert [what for what, _ in lived(2)] == ["CREATE_TOPIC", "CREATE_TOPIC"]
    give(data, "billing", "admin")
    (unseen, told), (after, _) = lived(3)
    assert (unseen, after) == ("ACCESS_CHANGED", "CREATE_TOPIC")
    assert told == {"change": auditor._UNSEEN}
    assert [what for what, _ in lived(4)] == ["CREATE_TOPIC", "CREATE_TOPIC"]


def test_a_change_of_access_that_a_kill_leaves_recorded_in_part_is_told_at_the_next_start(tmp_path: Path) -> None:
    before, now = AccessList({}), AccessList({name: Identity(name) for name in "abc"})
    found: list[str] = []

    async def lives() -> None:
        async with es.open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
            first = auditor.Auditor(store, before)
            first.note(AuditRecord("X", "", "", {}))
            first.note_changes(before, now)
            for record, time_us, access, _ in [*first._waiting][:-1]:  # the kill comes before the last
                await store.append_reserved(AUDIT, es.NewEvent("$Audited", record.encode(FIRST, time_us, access)))
            again = auditor.Auditor(store, now)
            nursery.start_soon(again.run)
            done = trio.Event()
            again.note(AuditRecord("Y", "", "", {}), lambda _: done.set())
            await done.wait()
            found.extend([json.loads(each.data)["what"] async for each in store.read(AUDIT)])
            nursery.cancel_scope.cancel()

    trio.run(lives)
    assert found == ["X", "ACCESS_CHANGED", "ACCESS_CHANGED", "ACCESS_CHANGED", "Y"]


def test_a_request_is_refused_while_the_trail_cannot_be_read_at_the_start(tmp_path: Path) -> None:
    answered: list[BaseException | None] = []

    async def lives() -> None:
        async with es.open_store(tmp_path / "data") as store:
            pass
        done = trio.Event()
        asked = auditor.Auditor(store, AccessList({}))
        asked.note(AuditRecord("X", "", "", {}), lambda error: (answered.append(error), done.set()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asked.run)
            await done.wait()
            nursery.cancel_scope.cancel()

    trio.run(lives)
    assert isinstance(answered[0], Closed), "it waited for a trail that nobody may read for days"


@pytest.mark.heavy
def test_after_a_kill_the_chain_is_whole_and_has_all_that_was_carried_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "ops", "admin")
    done: list[str] = []
    for life in range(3):
        server = Server(data)

        def work(worker: int, life: int = life, address: str = server.store) -> None:
            with suppress(ConnectionLost), es.blocking.connect(address, token=token, reconnect_timeout=0) as mine:
                for number in count():
                    mine.broker.create_topic(f"t-{life}-{worker}-{number}", 1)
                    done.append(f"t-{life}-{worker}-{number}")

        def knock(address: str = server.store) -> None:
            with suppress(ConnectionLost):
                while True:
                    with suppress(Unauthenticated):
                        es.blocking.connect(address, token="wrong", reconnect_timeout=0).__enter__()

        with closing(server), es.blocking.connect(server.store, token=token) as store:
            recorded = {each["details"]["topic"] for each in records(store) if each["what"] == "CREATE_TOPIC"}  # type: ignore[index] # it is one
            assert recorded.issuperset(done)
            assert recorded.issuperset(each.name for each in store.broker.topics())
            began = len(done)
            workers = [Thread(target=knock), *(Thread(target=work, args=(worker,)) for worker in range(3))]
            for each in workers:
                each.start()
            wait_until(lambda began=began: len(done) >= began + 5, "some are carried out")  # type: ignore[misc] # its type is that of `began`
            server.stop(signal.SIGKILL)
            for each in workers:
                each.join()


def test_what_follows_an_audited_request_on_its_connection_waits_for_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "ops", "admin")
    with ServerThread(data) as server, RawClient(server.port, greet=False) as client:
        client.ask(Hello(1, "raw", token=token))
        for number in range(20):
            client.send_request(CreateTopic(f"t-{number}"))
            client.send_request(ListTopics())
        answers = [client.answer()[0] for _ in range(40)]
        assert answers == sorted(answers)


def test_nobody_can_write_into_the_trail(tmp_path: Path) -> None:
    with trail(tmp_path / "data") as (_, store):
        for name in (AUDIT, "$other"):
            with pytest.raises(InvalidArgument, match="are the server's own"):
                store.append(name, [es.NewEvent("$Audited", b"{}")], expected_version=es.ANY, command_id="c-1")


def test_who_may_read_everything_may_read_the_trail_and_who_may_read_some_ids_may_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    everything, some = give(data, "billing", "reader"), give(data, "orders", "reader:order-", "topics")
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=some) as store:
            store.broker.create_topic("orders")
            for refused in (lambda: store.read(AUDIT), store.read_all, lambda: store.subscribe(0, aggregate_id=AUDIT)):
                with pytest.raises(es.PermissionDenied):
                    next(iter(refused()))
        with es.blocking.connect(server.address, token=everything) as store:
            assert [each["what"] for each in records(store)] == ["CREATE_TOPIC"]
            assert [event.aggregate_id for event in store.read_all()] == [AUDIT]


def chain(count: int, who: str = "ops") -> list[tuple[int, bytes]]:
    previous, made = FIRST, []
    for number in range(1, count + 1):
        data = AuditRecord("DELETE_TOPIC", who, "cli, 127.0.0.1:1", {"topic": f"t-{number}"}).encode(previous, number)
        made.append((number, data))
        previous = digest(data)
    return made


def heads(made: list[tuple[int, bytes]], known: Head | None = None) -> list[Head]:
    return [head for head, _ in verified(made, known)]


def test_every_change_of_a_record_is_seen() -> None:
    made = chain(6)
    assert heads(made)[-1].version == 6
    for place in range(5):  # the last one is known by its hash only
        for bit in range(0, 8 * len(made[place][1]), 7):
            changed = bytearray(made[place][1])
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BrokenChain):
                heads([*made[:place], (place + 1, bytes(changed)), *made[place + 1 :]])
        with pytest.raises(BrokenChain):
            heads([*made[:place], *made[place + 1 :]])
        with pytest.raises(BrokenChain):
            heads([*made[:place], *((number - 1, data) for number, data in made[place + 1 :])])


def test_records_in_another_order_or_of_another_store_or_time_are_seen() -> None:
    made, other = chain(6), chain(6, "another")
    swapped = [made[0], (2, made[2][1]), (3, made[1][1]), *made[3:]]
    later = json.dumps(json.loads(made[3][1]) | {"time": 9}, sort_keys=True, separators=(",", ":")).encode()
    for forged in (swapped, [*made[:3], *other[3:]], [*other[:3], *made[3:]], [*made[:3], (4, later), *made[4:]]):
        with pytest.raises(BrokenChain, match=r"record \d of the audit trail: the chain is broken"):
            heads(forged)
    with pytest.raises(BrokenChain, match="it is none of the server's"):
        heads([*made, (7, b"[]")])
    noted = heads(made)[-1]
    with pytest.raises(BrokenChain, match="the chain is another one"):
        heads(other, noted)


def test_a_head_that_was_noted_shows_a_chain_that_was_made_anew_or_cut_off() -> None:
    made = chain(6)
    noted = heads(made)[3]
    assert heads(chain(9), noted)[-1].version == 9
    other = chain(2)
    for number in range(3, 8):
        other.append((number, AuditRecord("X", "", "", {}).encode(digest(other[-1][1]), number)))
    assert heads(other)[-1].version == 7
    for forged in (other, made[:3], []):
        with pytest.raises(BrokenChain):
            heads(forged, noted)
    for text in ("1:xyz", f"0:{FIRST}", f"x:{FIRST}", FIRST):
        with pytest.raises(InvalidArgument):
            Head.parse(text)
    assert Head.parse(str(noted)) == noted


def test_many_refused_logins_are_counted_and_do_not_fill_the_disk(tmp_path: Path) -> None:
    with trail(tmp_path / "data") as (server, store):
        auditor = server.ask(lambda running: running.security._doorkeepers[0]._audit)

        def try_many(_: object) -> None:
            for number in range(5_000):
                auditor.note_refused_login(f"billing, 192.0.2.1:{number}", "an unknown token")

        server.ask(try_many)
        wait_until(lambda: len(records(store)) == 60, "those of a minute are written")
        assert auditor.uncounted >= 4_900


def test_more_changes_of_access_than_requests_may_wait_for_the_trail_are_all_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditor, "_WAITING_MAX", 5)
    data = tmp_path / "data"
    with trail(data) as (server, store):
        replaced(data, AccessList(read_access(data / ACCESS).identities | {name: Identity(name) for name in "abcdefghij"}))
        server.ask(lambda running: running.security.look())
        wait_until(lambda: len(records(store)) == 10, "all are written")
        assert {each["details"]["name"] for each in records(store)} == set("abcdefghij")  # type: ignore[index] # it is one


def test_the_command_shows_and_checks_the_trail(tmp_path: Path) -> None:
    data = tmp_path / "data"
    token = give(data, "auditor", "read:$audit", "topics")
    file = tmp_path / "token"
    file.write_text(token)
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=token) as store:
            store.broker.create_topic("orders")
        shown = run("audit", "--store", server.address, "--token-file", file)
        assert re.fullmatch(
            r"1  20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ  CREATE_TOPIC  auditor  \(.+\)  if_missing=False, topic=orders\n",
            shown.stdout,
        )
        read = run("read", AUDIT, "--store", server.address, "--token-file", file)
        assert re.search(r'  \$Audited  \{"access":"[0-9a-f]{64}",.*"what":"CREATE_TOPIC",.*\}\n$', read.stdout)
        other = run("audit", "--shard", "1", "--store", server.address, "--token-file", file)
        assert (other.returncode, "there is no shard 1; the only one is 0" in other.stderr) == (2, True)
        head = run("audit", "--verify", "--store", server.address, "--token-file", file).stdout.strip()
        assert head.startswith("1:")
        assert run("audit", "--verify", "--head", head, "--store", server.address, "--token-file", file).returncode == 0
        wrong = run("audit", "--verify", "--head", "1:" + "0" * 64, "--store", server.address, "--token-file", file)
        assert wrong.returncode == 1
        why = "record 1 of the audit trail: the chain is another one: it had another hash when that was noted"
        assert wrong.stderr == f"error: {why}\n"
        cut = run("audit", "--verify", "--head", "3:" + "0" * 64, "--store", server.address, "--token-file", file)
        assert cut.returncode == 1
        assert cut.stderr == "error: record 2 of the audit trail: it is missing: there are 1, and were 3 when that was noted\n"
        run("access", "add", "shipping", "--grant", "reader", "--certificate", "CN=old", "--data", data)
        server.ask(lambda running: running.security.look())
        with es.blocking.connect(server.address, token=token) as store:
            wait_until(lambda: len(records(store)) == 2, "the change is recorded")
        changed = run("audit", "--store", server.address, "--token-file", file)
        assert changed.stdout.splitlines()[1].endswith(
            f"Z  ACCESS_CHANGED  {claimed(None)}  change=added: reader; certificate CN=old added, name=shipping"
        )


def test_a_change_of_access_is_recorded_with_what_was_added_or_taken_and_who_says_to_have_done_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with trail(data) as (server, store):

        def recorded(*command: str | int) -> tuple[object, ...]:
            before = len(records(store))
            if command:
                output("access", *command, "--data", data)
            server.ask(lambda running: running.security.look())
            wait_until(lambda: len(records(store)) == before + 1, "it is recorded")
            last = records(store)[-1]
            assert (last["what"], cast(dict[str, str], last["details"])["name"]) == ("ACCESS_CHANGED", "billing")
            return last["who"], cast(dict[str, str], last["details"])["change"]

        me = claimed(None)
        assert recorded("add", "billing", "--certificate", "CN=a", "--grant", "reader") == (
            me, "added: reader; certificate CN=a added",
        )  # fmt: skip
        assert recorded("add", "billing", "--certificate", "CN=b") == (me, "certificate CN=b added")
        assert recorded("revoke", "billing", "--certificate", "CN=a") == (me, "certificate CN=a removed")
        who, added = recorded("add", "billing", "--token", "--limit", "connections=3")
        (token,) = read_access(data / "access.json").identities["billing"].tokens
        assert (who, added) == (me, f"token {token} added; limits: connections=3")
        assert recorded("revoke", "billing", "--token", token) == (me, f"token {token} removed")
        file = data / "access.json"  # by hand: nothing says who that was
        file.write_text(file.read_text().replace('"reader"', '"writer"'))
        assert recorded() == ("", "grants: writer")
        assert recorded("revoke", "billing") == (me, "removed")


def test_who_made_the_last_of_several_edits_is_not_said_to_have_made_all_of_them() -> None:
    none, one = AccessList({}), AccessList({"a": Identity("a")})
    both = one.with_(Identity("b"))
    edited = AccessList(both.identities, Edit("ann", one.digest, both.digest))
    assert [author(each, edited) for each in (one, none)] == ["ann", ""]


def test_a_trail_that_began_before_records_had_a_time_is_shown_and_goes_on(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "token"
    earlier = json.loads(AuditRecord("CREATE_TOPIC", "ops", "", {}).encode(FIRST, 1))
    del earlier["time"]

    async def write() -> None:
        async with es.open_store(data) as store:
            await store.append_reserved(AUDIT, es.NewEvent("$Audited", json.dumps(earlier).encode()))

    trio.run(write)
    token = give(data, "ops", "admin")
    file.write_text(token)
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=token) as store:
            store.broker.create_topic("second")
        shown = run("audit", "--store", server.address, "--token-file", file)
    first, second = shown.stdout.splitlines()
    assert first == "1  CREATE_TOPIC  ops"
    assert re.match(r"2  20\d\d-\d\d-\d\dT.*Z  CREATE_TOPIC  ops", second)


def test_a_last_record_that_is_none_stops_no_server_and_is_where_the_chain_breaks(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "token"

    async def write() -> None:
        async with es.open_store(data) as store:
            await store.append_reserved(AUDIT, es.NewEvent("$Audited", b"[" * 100_000))

    trio.run(write)
    token = give(data, "ops", "admin")
    file.write_text(token)
    with ServerThread(data) as server:
        with es.blocking.connect(server.address, token=token) as store:
            store.broker.create_topic("second")
        shown = run("audit", "--store", server.address, "--token-file", file)
    assert "record 1 of the audit trail: it is none of the server's" in shown.stderr
