"""Sources in a real PostgreSQL: transactions that commit out of order, and tables as other systems make them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

import eventstore as es
from eventstore import blocking
from eventstore.cli.transfer.migration import table_source
from eventstore.cli.transfer.migration.open import open_source
from eventstore.cli.transfer.migration.source import SourceRefused
from tests.cli.processes import Server, output, refused, run

Serve = Callable[..., Server]
MESSAGE_DB = "@eventide/message-db@1.3.1"


def events(server: Server) -> list[es.Event]:
    with blocking.connect(server.store) as store:
        return [event for event in store.read_all() if not event.aggregate_id.startswith("migration-")]


# ---- numbers that appear out of their order

OWN = "CREATE TABLE events (position bigserial PRIMARY KEY, a text, t text, id text, data jsonb)"
INSERT = "INSERT INTO events (a, t, id, data) VALUES ('a', 'T', %s, '1')"
COLUMNS = {"position": "position", "aggregate_id": "a", "type": "t", "id": "id", "data": "data"}


def places(source: Any, head: int) -> list[int]:
    return [row.place for rows in source.rows(-1, head) for row in rows]


def test_a_smaller_number_that_commits_later_is_waited_for(
    database: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    database.execute(OWN)
    with psycopg.connect(address) as late, psycopg.connect(address) as early:
        late.execute(INSERT, ("first",))
        early.execute(INSERT, ("second",))
        early.commit()
        source = open_source(f"table:{address}", columns=COLUMNS)
        assert places(source, source.head(paused=True)) == [2]  # what a reader gets that does not wait
        waits: list[float] = []

        def commit_while_it_waits(seconds: float) -> None:
            waits.append(seconds)
            late.commit()

        monkeypatch.setattr(table_source.time, "sleep", commit_while_it_waits)
        head = source.head(paused=False)
        assert (head, len(waits) > 0) == (2, True)
        assert places(source, head) == [1, 2]
        late.execute(INSERT, ("third",))
        late.rollback()
        early.execute(INSERT, ("fourth",))
        early.commit()
        assert places(source, source.head(paused=False)) == [1, 2, 4]
        source.close()


def test_a_writer_that_does_not_end_and_numbers_that_are_drawn_ahead_are_named(
    database: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    database.execute(OWN)
    monkeypatch.setattr(table_source, "WRITERS_S", 0.2)
    with psycopg.connect(address) as writer:
        writer.execute(INSERT, ("first",))
        source = open_source(f"table:{address}", columns=COLUMNS)
        with pytest.raises(SourceRefused, match=f"process {writer.info.backend_pid}"):
            source.head(paused=False)
    database.execute("ALTER SEQUENCE events_position_seq CACHE 20")
    with pytest.raises(SourceRefused, match=r"cache of 20.*--paused"):
        source.head(paused=False)
    database.execute("ALTER SEQUENCE events_position_seq OWNED BY NONE")
    with pytest.raises(SourceRefused, match=r"no sequence of the table.*--paused"):
        source.head(paused=False)
    assert source.head(paused=True) == 1
    database.execute("DROP TABLE events")
    with pytest.raises(SourceRefused, match="does not exist"):
        source.head(paused=True)
    source.close()


@pytest.mark.heavy
def test_none_is_left_out_while_many_write(database: Any, address: str) -> None:
    database.execute(OWN)
    copied: list[int] = []
    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write_and_roll_back, address, seed) for seed in range(6)]
        source = open_source(f"table:{address}", columns=COLUMNS)
        place = -1
        while not all(writer.done() for writer in writers):
            place, new = copied_behind(source, place)
            copied += new
        for writer in writers:
            writer.result()
    copied += copied_behind(source, place)[1]
    source.close()
    assert copied == [row[0] for row in database.execute("SELECT position FROM events ORDER BY position").fetchall()]


def copied_behind(source: Any, place: int) -> tuple[int, list[int]]:
    head = source.head(paused=False)
    return max(head, place), [row.place for rows in source.rows(place, head) for row in rows]


def write_and_roll_back(address: str, seed: int) -> None:
    """Writes transactions of several rows, which others overtake; some are rolled back."""
    import psycopg

    chance = random.Random(seed)
    with psycopg.connect(address) as connection:
        for number in range(60):
            for row in range(chance.randrange(1, 4)):
                connection.execute(INSERT, (f"{seed}-{number}-{row}",))
                connection.execute("SELECT pg_sleep(%s)", (chance.random() * 0.01,))
            connection.rollback() if chance.random() < 0.2 else connection.commit()


def test_names_are_found_in_either_case(database: Any, address: str) -> None:
    database.execute('CREATE TABLE "Events" ("Position" bigserial PRIMARY KEY, "A" text, t text, id text, data jsonb)')
    database.execute("INSERT INTO \"Events\" (\"A\", t, id, data) VALUES ('a', 'T', 'one', '1')")
    source = open_source(f"table:{address}", columns=COLUMNS)
    assert places(source, source.head(paused=False)) == [1]
    source.close()


def test_times_may_be_microseconds_and_large_objects_are_refused(database: Any, address: str) -> None:
    database.execute(
        "CREATE TABLE events (position bigserial PRIMARY KEY, a text, t text, id text, at bigint, data jsonb, l oid)"
    )
    database.execute("INSERT INTO events (a, t, id, at, data) VALUES ('a', 'T', 'one', 1700000000000001, '1')")
    source = open_source(f"table:{address}", columns={**COLUMNS, "time": "at"})
    assert [row.parsed.time for rows in source.rows(-1, 1) for row in rows] == [1700000000000001]
    source.close()
    with pytest.raises(SourceRefused, match="the numbers of large objects"):
        open_source(f"table:{address}", columns={**COLUMNS, "data": "l"}, data="json")


# ---- message-db


@pytest.fixture
def message_db(database: Any, tmp_path: Path) -> Any:
    """The database that the package of message-db makes."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which has message-db")
    packed = subprocess.run([npm, "pack", MESSAGE_DB], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    if packed.returncode:
        pytest.skip(f"npm cannot get {MESSAGE_DB}")
    with tarfile.open(tmp_path / packed.stdout.split()[-1]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "package" / "database"
    for each in ("schema/message-store", "extensions/pgcrypto", "tables/messages", "types/message"):
        database.execute((folder / f"{each}.sql").read_bytes())
    database.execute("SET search_path TO message_store, public")
    first = "message-store-version hash-64 acquire-lock category is-category id cardinal-id stream-version write-message"
    for name in first.split():
        database.execute((folder / "functions" / f"{name}.sql").read_bytes())
    for path in (folder / "indexes").glob("*.sql"):
        database.execute(path.read_bytes())
    return database


@pytest.mark.heavy
def test_message_db_is_moved_in(serve: Serve, message_db: Any, address: str) -> None:
    server = serve()
    ids = [str(uuid4()) for _ in range(3)]
    write = "SELECT write_message(%s, %s, %s, %s::jsonb, %s::jsonb)"
    message_db.execute(write, (ids[0], "account-123", "Opened", '{"owner": "Ada"}', '{"correlationStreamName": "w-1"}'))
    message_db.execute(write, (ids[1], "account-124", "Opened", '{"owner": "Bob"}', None))
    message_db.execute(write, (ids[2], "account-123", "Deposited", '{"amount": 1.10}', None))
    arguments = ["migrate", f"message-db:{address}", server.store]
    output(*arguments)
    found = events(server)
    assert [(event.aggregate_id, event.version, event.type, event.command_id) for event in found] == [
        ("account-123", 1, "Opened", ids[0]),
        ("account-124", 1, "Opened", ids[1]),
        ("account-123", 2, "Deposited", ids[2]),
    ]
    assert found[0].metadata_json() == {"correlationStreamName": "w-1"}
    assert (found[2].data, found[2].is_json, found[2].metadata) == (b'{"amount": 1.10}', True, None)
    times = [row[0] for row in message_db.execute("SELECT time FROM messages ORDER BY global_position").fetchall()]
    assert [event.time.replace(tzinfo=None) for event in found] == times
    output(*arguments, "--verify")
    message_db.execute("UPDATE messages SET type = 'Changed' WHERE global_position = 3")
    assert "position 3 of the source, version 2 of aggregate 'account-123'" in run(*arguments, "--verify").stderr


# ---- eventsourcing


class Account(Aggregate):
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.balance = 0

    @event("Paid")
    def pay(self, amount: int) -> None:
        self.balance += amount


class Bank(Application[UUID]):
    pass


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_an_application_of_eventsourcing_goes_on_here(
    serve: Serve, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = serve()
    if kind == "sqlite":
        settings = {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(tmp_path / "bank.db")}
        source, table = f"eventsourcing:sqlite:{tmp_path / 'bank.db'}", "stored_events"
    else:
        pytest.importorskip("psycopg_pool", reason="psycopg_pool is not installed")
        info = request.getfixturevalue("database").info
        source, table = f"eventsourcing:{request.getfixturevalue('address')}", "bank_events"
        settings = {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": info.dbname,
            "POSTGRES_HOST": info.host,
            "POSTGRES_PORT": str(info.port),
            "POSTGRES_USER": info.user,
            "POSTGRES_PASSWORD": info.password,
        }
    with Bank(env=settings) as bank:
        ada, bob = Account("Ada"), Account("Bob")
        bank.save(ada, bob)
        for amount in (5, 7):
            ada.pay(amount)
        bank.save(ada)
        arguments = ["migrate", source, server.store, "--table", table, "--prefix", "{bank}-events-"]
        assert output(*arguments).startswith("4 events copied")
        bob.pay(3)
        bank.save(bob)
        assert output(*arguments, "--paused").startswith("1 event copied")
        output(*arguments, "--verify")
    found = events(server)
    assert [event.version for event in found if event.aggregate_id == f"{{bank}}-events-{ada.id}"] == [1, 2, 3]
    assert [event.time for event in found if event.aggregate_id.endswith(str(ada.id))][-1] == ada.modified_on
    here = {"PERSISTENCE_MODULE": "eventstore.adapters.eventsourcing", "EVENTSTORE_STORE": server.store}
    with Bank(env=here) as bank:
        again: Account = bank.repository.get(ada.id)
        assert (again.owner, again.balance) == ("Ada", 12)
        again.pay(1)
        bank.save(again)
        assert bank.repository.get(bob.id).balance == 3


# ---- tables as they are documented


def test_the_outbox_of_debezium_is_moved_in_by_the_column_that_orders_it(serve: Serve, database: Any, address: str) -> None:
    server = serve()
    database.execute(
        "CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, "
        "aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)"
    )
    arguments = ["migrate", f"debezium:{address}", server.store]
    assert "it is not said which column is position" in refused(*arguments, code=2)
    database.execute("ALTER TABLE outboxevent ADD COLUMN number bigserial")
    for number in (1, 2):
        values = (str(uuid4()), "order", "42", f"Step{number}", json.dumps({"n": number}))
        database.execute("INSERT INTO outboxevent VALUES (%s, %s, %s, %s, %s::jsonb)", values)
    output(*arguments, "--column", "position=number")
    assert [(event.aggregate_id, event.version, event.type, event.json()) for event in events(server)] == [
        ("order-42", 1, "Step1", {"n": 1}),
        ("order-42", 2, "Step2", {"n": 2}),
    ]
    output(*arguments, "--column", "position=number", "--verify")


def test_the_tables_of_axon_and_marten_are_moved_in_while_they_are_paused(serve: Serve, database: Any, address: str) -> None:
    server = serve()
    database.execute(
        "CREATE TABLE domain_event_entry (global_index bigint PRIMARY KEY, event_identifier varchar(255) NOT NULL UNIQUE, "
        "meta_data bytea, payload bytea NOT NULL, payload_revision varchar(255), payload_type varchar(255) NOT NULL, "
        "time_stamp varchar(255) NOT NULL, aggregate_identifier varchar(255) NOT NULL, sequence_number bigint NOT NULL, "
        "type varchar(255), UNIQUE (aggregate_identifier, sequence_number))"
    )
    for number in (0, 1):
        database.execute(
            'INSERT INTO domain_event_entry VALUES (%s, %s, \'{"user":"me","rate":1.10}\', \'{"n":1}\', \'2\', '
            "'org.shop.Placed', '2026-01-02T03:04:05.678Z', 'order-1', %s, 'Order')",
            (number + 1, f"e-{number}", number),
        )
    axon = ["migrate", f"axon:{address}", server.store, "--data", "json"]
    assert "programs draw positions ahead of their inserts" in refused(*axon)
    output(*axon, "--paused")
    first, second = events(server)
    assert (first.version, second.version, second.command_id) == (1, 2, "e-1")
    assert first.json() == {"n": 1}
    assert first.metadata == b'{"user":"me","rate":1.10,"aggregate_type":"Order","payload_revision":"2"}'
    assert first.time.isoformat() == "2026-01-02T03:04:05.678000+00:00"
    database.execute(
        "CREATE TABLE mt_events (seq_id bigint PRIMARY KEY, id uuid NOT NULL, stream_id uuid, version bigint NOT NULL, "
        "data jsonb NOT NULL, type varchar(500) NOT NULL, timestamp timestamptz NOT NULL DEFAULT now(), "
        "tenant_id varchar DEFAULT '*DEFAULT*', mt_dotnet_type varchar, is_archived boolean DEFAULT FALSE)"
    )
    stream, id_ = uuid4(), uuid4()
    database.execute(
        "INSERT INTO mt_events (seq_id, id, stream_id, version, data, type, mt_dotnet_type) "
        "VALUES (1, %s, %s, 1, '{\"N\": 1}', 'order_placed', 'Shop.OrderPlaced, Shop')",
        (id_, stream),
    )
    output("migrate", f"marten:{address}", server.store, "--paused")
    moved = events(server)[-1]
    assert (moved.aggregate_id, moved.version, moved.type, moved.command_id) == (str(stream), 1, "order_placed", str(id_))
    assert moved.metadata_json() == {"dotnet_type": "Shop.OrderPlaced, Shop", "tenant_id": "*DEFAULT*"}
    (written,) = database.execute("SELECT timestamp FROM mt_events").fetchone()
    assert moved.time == written
    for source in (axon, ["migrate", f"marten:{address}", server.store]):
        output(*source, "--verify")
