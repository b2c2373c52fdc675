"""`eventstore project`: a projection's table from the command line, kept up to date."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from eventstore import blocking
from tests.alarms.receivers import http_receiver
from tests.cli.processes import DEADLINE_SECONDS, Server, environment, fork, line, output, refused, wait_for
from tests.domain import postgresql

ACCOUNTS = ("acc-0", "acc-1", "acc-2")
PROJECT = ("project", "--projection", "bank:Balances")

pytestmark = pytest.mark.usefixtures("examples")
Serve = Callable[..., Server]


def deposit(server: Server, cents: int = 1) -> None:
    """Deposits on each account, and opens those that do not exist."""
    lines = [line(account, f"open-{account}", "Opened", {"owner": account}) for account in ACCOUNTS]
    lines += [line(account, str(uuid.uuid4()), "Deposited", {"cents": cents}) for account in ACCOUNTS]
    output("import", "-", store=server.store, text="\n".join(lines))


def balances(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        return dict(connection.execute("SELECT key, cents FROM balances")) if "balances" in tables else {}


class Projector:
    """Runs `eventstore project`, following, until it is stopped."""

    def __init__(self, server: Server, folder: Path, *arguments: object, project: tuple[str, ...] = PROJECT) -> None:
        name = uuid.uuid4().hex
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = fork(*project, *arguments, "--store", server.store, stdout=out, stderr=err)

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def result(self) -> str:
        return self._out.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait_until_caught_up(self) -> None:
        wait_for(lambda: "caught up at sequence" in self.said or self.ended, "the projection catches up")
        assert not self.ended, self.said

    def stop(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_SECONDS)


@contextmanager
def projectors(
    server: Server, folder: Path, *arguments: object, count: int = 1, project: tuple[str, ...] = PROJECT
) -> Iterator[list[Projector]]:
    running = [Projector(server, folder, *arguments, project=project) for _ in range(count)]
    try:
        yield running
    finally:
        for each in running:
            if not each.ended:
                each.process.kill()
            each.process.wait(DEADLINE_SECONDS)


def test_a_table_is_brought_up_to_date_and_continued(serve: Serve, tmp_path: Path) -> None:
    server, path = serve(), tmp_path / "rows.db"
    project = (*PROJECT, "--to", f"sqlite:{path}", "--until-caught-up")
    deposit(server)
    said = output(*project, store=server.store)
    assert said.startswith("balances: 6 events (")
    assert said.endswith(" events/s), 3 rows written; complete up to sequence 6\n")
    assert balances(path) == dict.fromkeys(ACCOUNTS, 1)
    deposit(server, 10)
    assert output(*project, "--from-checkpoint", store=server.store).startswith("balances: 3 events (")
    assert balances(path) == dict.fromkeys(ACCOUNTS, 11)
    assert output(*project, store=server.store).startswith("balances: 0 events (")


def test_it_serves_its_figures_and_its_health_and_sends_its_alarms(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    deposit(server)
    with http_receiver() as posts:
        (tmp_path / "alarms.toml").write_text(f'alarm_webhook = "{posts.url}"\nalarm_rules = "six: projection_sequence > 5"\n')
        arguments = "--config", tmp_path / "alarms.toml", "--set", "alarm_interval_s=0.05", "--http", "127.0.0.1:0"
        with projectors(server, tmp_path, "--to", f"sqlite:{tmp_path / 'rows.db'}", *arguments) as [projector]:
            projector.wait_until_caught_up()
            found = re.search(r"balances: /metrics and /health at (http://\S+)\n", projector.said)
            assert found is not None, projector.said
            wait_for(lambda: posts.taken or projector.ended, "the alarm is posted")
            assert not projector.ended, projector.said
            with urllib.request.urlopen(f"{found[1]}/health", timeout=DEADLINE_SECONDS) as answer:
                health = json.load(answer)
            with urllib.request.urlopen(f"{found[1]}/metrics", timeout=DEADLINE_SECONDS) as answer:
                metrics = answer.read().decode()
            with blocking.connect(server.store) as store:
                wait_for(store.projections, "the projector tells its server how far it is")
                told = store.projections()
    assert {"healthy": True, "degraded": True, "projection": "balances", "projection_sequence": 6}.items() <= health.items()
    assert (health["projection_lag_events"], health["projection_events"], health["projection_rows"]) == (0, 6, 3)
    assert (health["alarms"], health["attention"]) == ("six", "alarm six: projection_sequence is 6, > 5")
    fields = "name", "position", "lag_events", "lag_microseconds", "parked", "has_left"
    assert [[getattr(each, name) for name in fields] for each in told] == [["balances", 6, 0, 0, 0, False]]
    assert "eventstore_projection_sequence 6.0" in metrics
    assert "eventstore_projection_lag_seconds 0.0" in metrics
    assert 'eventstore_alarm{name="six"} 1.0' in metrics
    posted = json.loads(posts.taken[0][1])
    assert posted["source"].startswith("projector balances on ")
    assert [(each["alarm"], each["state"]) for each in posted["changes"]] == [("six", "raised")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_follows_until_a_signal_ends_it_cleanly(serve: Serve, tmp_path: Path, number: int, code: int) -> None:
    server, path = serve(), tmp_path / "rows.db"
    deposit(server)
    with projectors(server, tmp_path, "--to", f"sqlite:{path}") as [projector]:
        projector.wait_until_caught_up()
        deposit(server)
        wait_for(lambda: balances(path) == dict.fromkeys(ACCOUNTS, 2), "the appended events become rows")
        assert projector.stop(number) == code
        assert projector.said == "balances: caught up at sequence 6; following (Ctrl-C ends)\n"
        assert projector.result == "balances: 9 events, 6 rows written; complete up to sequence 9\n"
    assert not path.with_name("rows.db-wal").exists(), "the target was not closed"


def test_from_checkpoint_is_refused_without_a_checkpoint(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    deposit(server)
    said = refused(*PROJECT, "--to", f"sqlite:{tmp_path / 'rows.db'}", "--from-checkpoint", store=server.store, code=2)
    assert said.startswith("projection 'balances' has no checkpoint; rebuild the table first")
    assert not (tmp_path / "rows.db").exists()


def test_a_table_of_another_store_is_refused(serve: Serve, tmp_path: Path) -> None:
    server, path = serve(), tmp_path / "rows.db"
    deposit(server)
    project = (*PROJECT, "--to", f"sqlite:{path}", "--until-caught-up")
    output(*project, store=server.store)
    said = refused(*project, store=serve(data=tmp_path / "other").store, code=2)
    assert re.match(
        r"table 'balances' was made from store \S+, but this is store \S+, whose sequences are those of other events; use ",
        said,
    )
    assert balances(path) == dict.fromkeys(ACCOUNTS, 1)


def test_of_two_projectors_one_is_fenced(serve: Serve, tmp_path: Path) -> None:
    server, path = serve(), tmp_path / "rows.db"
    with projectors(server, tmp_path, "--to", f"sqlite:{path}", count=2) as both:
        for each in both:
            each.wait_until_caught_up()
        deposit(server)
        wait_for(lambda: any(each.ended for each in both), "one of them ends")
        [fenced] = [each for each in both if each.ended]
        assert fenced.process.returncode == 1
        assert "error: the checkpoint of projection 'balances' is no longer 0" in fenced.said
        wait_for(lambda: balances(path) == dict.fromkeys(ACCOUNTS, 1), "the other continues")


def test_a_projection_that_raises_names_the_event(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    output("import", "-", store=server.store, text=line("acc-1", "c-1", "Deposited", {"cents": "much"}))
    said = refused(*PROJECT, "--to", f"sqlite:{tmp_path / 'rows.db'}", "--until-caught-up", store=server.store)
    assert "projection 'balances' failed at sequence 1, aggregate 'acc-1', version 1, type 'Deposited'" in said


PARKING = """
from bank import Balances

class Parking(Balances):
    on_failure = "park"
"""


def test_a_projection_that_parks_says_so_and_retries(
    serve: Serve, tmp_path: Path, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "parking_bank.py").write_text(PARKING)
    monkeypatch.setenv("PYTHONPATH", f"{examples}:{tmp_path}")
    server = serve()
    deposit(server)
    output("import", "-", store=server.store, text=line("acc-1", "c-1", "Deposited", {"cents": "much"}))
    project = ("project", "--projection", "parking_bank:Parking", "--to", f"sqlite:{tmp_path / 'rows.db'}", "--until-caught-up")
    said = output(*project, store=server.store)
    assert said.endswith(" rows written, 1 key parked (--retry-parked); complete up to sequence 7\n")
    again = output(*project, "--retry-parked", store=server.store)
    assert again.endswith("0 rows written, 1 key parked (--retry-parked); complete up to sequence 7\n")
    assert balances(tmp_path / "rows.db") == dict.fromkeys(ACCOUNTS, 1)


def test_a_table_with_other_columns_is_refused(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "rows.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE balances (key TEXT PRIMARY KEY NOT NULL, total INTEGER)")
    assert "table 'balances' has the columns" in refused(*PROJECT, "--to", f"sqlite:{path}", store=serve().store, code=2)


@pytest.mark.parametrize(
    ("projection", "to", "words"),
    [
        ("treasury:Balances", "sqlite:rows.db", "module 'treasury' was not found"),
        ("bank:Nothing", "sqlite:rows.db", "has no attribute 'Nothing'"),
        ("bank:Account", "sqlite:rows.db", "not an eventstore.domain.Projection"),
        ("bank", "sqlite:rows.db", "not of the form module:attribute"),
        ("bank:Balances", "rows.db", "target 'rows.db' must be sqlite:FILE or postgresql://USER@HOST/DATABASE"),
        ("bank:Balances", "parquet:out", "target 'parquet:out' must be sqlite:FILE"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(shared: Server, projection: str, to: str, words: str) -> None:
    assert words in refused("project", "--projection", projection, "--to", to, store=shared.store, code=2)


def test_a_file_that_cannot_be_created_is_named(shared: Server) -> None:
    said = refused(*PROJECT, "--to", "sqlite:missing/folder/rows.db", store=shared.store)
    assert "cannot use missing/folder/rows.db: unable to open" in said


def test_an_unreachable_server_is_named(tmp_path: Path) -> None:
    assert "127.0.0.1:1" in refused(
        *PROJECT, "--to", f"sqlite:{tmp_path / 'rows.db'}", "--wait", "0", store="tcp://127.0.0.1:1"
    )


def test_a_terminal_shows_the_progress(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    deposit(server)
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "eventstore", *PROJECT, "--to", f"sqlite:{tmp_path / 'rows.db'}"]
    process = subprocess.Popen(
        [*command, "--until-caught-up", "--store", server.store], stdout=subprocess.PIPE, stderr=end,
        env={**environment(), "TERM": "xterm", "COLUMNS": "120"},
    )  # fmt: skip
    os.close(end)
    shown = _everything(terminal)
    result, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, shown
    assert "balances" in shown
    assert "100%" in shown
    assert "3 rows written" in shown
    assert result.decode().endswith("; complete up to sequence 6\n")


def _everything(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 65_536):
            parts.append(part)
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    reason = postgresql.why_not()
    if reason is not None:
        pytest.skip(reason)
    with postgresql.running_server() as address:
        yield address


@pytest.mark.heavy
def test_a_table_in_postgresql_is_kept_up_to_date(serve: Serve, tmp_path: Path, database: str) -> None:
    import psycopg

    def rows() -> dict[str, int]:
        with psycopg.connect(database) as connection:
            return dict(connection.execute("SELECT key, cents FROM balances").fetchall())

    server = serve()
    deposit(server)
    output(*PROJECT, "--to", database, "--until-caught-up", store=server.store)
    assert rows() == dict.fromkeys(ACCOUNTS, 1)
    with projectors(server, tmp_path, "--to", database, "--from-checkpoint") as [projector]:
        projector.wait_until_caught_up()
        deposit(server)
        wait_for(lambda: rows() == dict.fromkeys(ACCOUNTS, 2), "the appended events become rows")
        assert projector.stop(signal.SIGTERM) == 0


def test_an_unreachable_database_is_named_without_its_password(shared: Server) -> None:
    pytest.importorskip("psycopg")
    said = refused(*PROJECT, "--to", "postgresql://me:secret@127.0.0.1:1/none", store=shared.store)
    assert "projection 'balances' cannot use PostgreSQL: connection failed" in said
    assert "secret" not in said


TABLES = """
import eventstore.domain as d
from bank import Balances, Deposited, Opened, Withdrawn


class Total(d.Projection):
    columns = {"cents": int}

    def key(self, event):
        return "all"

    def initial(self):
        return 0

    def row(self, key, state):
        return {"cents": state}


class Deposits(Total):
    name = "deposits"

    @d.folds(Deposited)
    def _(self, state, event):
        return state + event.cents


class Owners(Total):
    name = "owners"

    @d.folds(Opened)
    def _(self, state, event):
        return state + 1


class Picky(Total):
    name = "picky"

    @d.folds(Deposited)
    def _(self, state, event):
        if event.cents > 100:
            raise ValueError("too much")
        return state + event.cents


class Withdrawals(Total):
    name = "withdrawals"

    @d.folds(Withdrawn)
    def _(self, state, event):
        return state + event.cents


LISTED = [Balances, Owners()]
"""
ALL = ("deposits", "owners", "picky", "withdrawals")


@pytest.fixture
def tables(tmp_path: Path, examples: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "bank_tables.py").write_text(TABLES)
    monkeypatch.setenv("PYTHONPATH", f"{examples}:{tmp_path}")
    return "bank_tables"


def total(path: Path, name: str) -> int | None:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(f"SELECT cents FROM {name}").fetchall()
    return found[0][0] if found else None


def test_all_projections_of_a_module_run_in_one_process(serve: Serve, tmp_path: Path, tables: str) -> None:
    server, path = serve(), tmp_path / "rows.db"
    deposit(server)
    project = ("project", "--all", tables, "--to", f"sqlite:{path}", "--until-caught-up")
    lines = output(*project, store=server.store).splitlines()
    assert [each.partition(":")[0] for each in lines] == list(ALL)
    assert lines[0].endswith(", 1 row written; complete up to sequence 6")
    assert [total(path, name) for name in ALL] == [3, 3, 3, None]
    deposit(server, 10)
    lines = output("project", "--projection", f"{tables}:Deposits", "--projection", f"{tables}:Owners", *project[3:],
                   store=server.store).splitlines()  # fmt: skip
    assert [re.sub(r" \(.*\)", "", each) for each in lines] == [
        "deposits: 3 events, 1 row written; complete up to sequence 9",
        "owners: 0 events, 0 rows written; complete up to sequence 9",
    ]
    lines = output("project", "--all", f"{tables}:LISTED", *project[3:], store=server.store).splitlines()
    assert [each.partition(" (")[0] for each in lines] == ["balances: 9 events", "owners: 0 events"]


def test_one_of_several_that_fails_is_shown_and_the_others_continue(serve: Serve, tmp_path: Path, tables: str) -> None:
    server, path = serve(), tmp_path / "rows.db"
    deposit(server)
    options = "--http", "127.0.0.1:0", "--set", "alarm_interval_s=0.05"
    with projectors(server, tmp_path, "--all", tables, "--to", f"sqlite:{path}", *options, project=("project",)) as [running]:
        wait_for(lambda: running.said.count("caught up at sequence 6") == 4 or running.ended, "all catch up")
        assert not running.ended, running.said
        deposit(server, 200)
        wait_for(lambda: total(path, "deposits") == 603 and "it is begun again" in running.said, "one fails, another goes on")
        assert total(path, "picky") == 3
        found = re.search(r"deposits, owners, picky, withdrawals: /metrics and /health at (http://\S+)\n", running.said)
        assert found is not None, running.said
        with urllib.request.urlopen(f"{found[1]}/health", timeout=DEADLINE_SECONDS) as answer:
            health = json.load(answer)
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=DEADLINE_SECONDS) as answer:
            metrics = answer.read().decode()
        with blocking.connect(server.store) as store:
            wait_for(lambda: len(store.projections()) == 4, "each is told of")
        assert running.stop(signal.SIGTERM) == 0
    assert health["attention"].startswith("picky: projection 'picky' failed at sequence 7")
    assert 'eventstore_projection_waiting{projection="picky"} 1.0' in metrics
    assert 'eventstore_projection_waiting{projection="deposits"} 0.0' in metrics
    assert 'eventstore_projection_events_total{projection="deposits"}' in metrics
    assert running.result.splitlines() == [
        "deposits: 6 events, 2 rows written; complete up to sequence 9",
        "owners: 3 events, 1 row written; complete up to sequence 6",
        "picky: 3 events, 1 row written; complete up to sequence 6",
        "withdrawals: 0 events, 0 rows written; complete up to sequence 6",
    ]
    assert not path.with_name("rows.db-wal").exists(), "a target was not closed"


def test_of_several_the_one_that_runs_elsewhere_ends_and_the_exit_code_says_so(
    serve: Serve, tmp_path: Path, tables: str
) -> None:  # fmt: skip
    server, path = serve(), tmp_path / "rows.db"
    both = projectors(server, tmp_path, "--all", tables, "--to", f"sqlite:{path}", project=("project",))
    alone = projectors(server, tmp_path, "--projection", f"{tables}:Owners", "--to", f"sqlite:{path}", project=("project",))
    with both as [several], alone as [one]:
        wait_for(lambda: "caught up" in one.said and several.said.count("caught up") == 4, "all catch up")
        deposit(server)
        wait_for(lambda: total(path, "owners") == total(path, "deposits") == 3, "all go on")
        wait_for(lambda: one.ended or "it has ended" in several.said, "one of the two is refused")
        if one.ended:
            assert one.process.returncode == 1
            assert several.stop(signal.SIGTERM) == 0
        else:
            assert "owners: the checkpoint of projection 'owners' is no longer 0" in several.said
            assert several.stop(signal.SIGTERM) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "no projection is named: give --projection MODULE:NAME, or --all MODULE"),
        (("--all", "json"), "has none: no instance, and no class that it defines"),
        (("--all", "bank:app"), "is a value of type 'Domain', not a list of projections"),
        (("--all", "a-b"), "is not of the form module, or module:attribute"),
        (("--all", "treasury"), "module 'treasury' was not found"),
        (("--all", "bank", "--projection", "bank:Balances"), "two projections have the name 'balances'"),
    ],
)
def test_a_wrong_choice_of_projections_is_reported_in_one_line(shared: Server, options: tuple[str, ...], words: str) -> None:
    assert words in refused("project", *options, "--to", "sqlite:rows.db", store=shared.store, code=2)
