"""`eventstore replay`: commands that a server has kept are decided again, by other code, on the events of before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import eventstore as es
from eventstore.commands import RawCommand
from tests.cli.processes import Server, output, refused, run, wait_for

Serve = Callable[..., Server]
OLD = """
from dataclasses import dataclass

import eventstore.domain as d


@d.command(personal=("note",))
@dataclass(frozen=True)
class Deposit:
    account: str
    cents: int
    note: str = ""


@dataclass(frozen=True)
class Withdraw:
    account: str
    cents: int


@dataclass(frozen=True)
class Move:
    source: str
    target: str
    cents: int


@dataclass(frozen=True)
class Deposited:
    cents: int
    note: str = ""


@dataclass(frozen=True)
class Withdrawn:
    cents: int


class Account(d.Aggregate):
    def __init__(self) -> None:
        self.balance = 0
        self.notes: list[str] = []

    @d.applies(Deposited)
    def _(self, event: Deposited) -> None:
        self.balance += event.cents
        self.notes.append(event.note)

    @d.applies(Withdrawn)
    def _(self, event: Withdrawn) -> None:
        self.balance -= event.cents


app = d.Domain()


@app.handles(Deposit)
def deposit(command: Deposit, account: Account) -> None:
    if command.cents:
        account.apply(Deposited(command.cents, command.note))


@app.handles(Withdraw)
def withdraw(command: Withdraw, account: Account) -> None:
    if account.balance < command.cents:
        d.reject("not covered", code="not_covered")
    account.apply(Withdrawn(command.cents))


@app.handles(Move, aggregates=("source", "target"))
def move(command: Move, source: Account, target: Account) -> None:
    if source.balance < command.cents:
        d.reject("not covered", code="not_covered")
    source.apply(Withdrawn(command.cents))
    target.apply(Deposited(command.cents))
"""
STRICTER = OLD.replace(
    "    if account.balance < command.cents:", "    if account.balance - 50 < command.cents:"
).replace("source.apply(Withdrawn(command.cents))", "source.apply(Withdrawn(command.cents + 1))")  # fmt: skip
BROKEN = OLD.replace("    if command.cents:\n", "    if command.cents / (account.balance - 10):\n")


@pytest.fixture
def kept(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that has handled some commands, and kept them."""
    for name, code in (("shop_old", OLD), ("shop_stricter", STRICTER), ("shop_broken", BROKEN)):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = serve("--domain", "shop_old:app", "--keep-commands", "commands")
    sent = [
        ("Deposit", "a-1", {"account": "a-1", "cents": 100, "note": "for Ada Lovelace"}, "c-1"),
        ("Withdraw", "a-1", {"account": "a-1", "cents": 20}, "c-2"),
        ("Withdraw", "a-1", {"account": "a-1", "cents": 70}, "c-3"),
        ("Withdraw", "a-1", {"account": "a-1", "cents": 70}, "c-4"),
        ("Deposit", "a-1", {"account": "a-1", "cents": 0}, "c-5"),
        ("Deposit", "a-2", {"account": "a-2", "cents": 100}, "c-6"),
        ("Move", "a-2", {"source": "a-2", "target": "a-1", "cents": 30}, "c-7"),
        ("Deposit", "a-1", {"account": "a-1", "cents": 100, "note": "for Ada Lovelace"}, "c-1"),
    ]
    with es.blocking.connect(server.store) as store:
        for type, aggregate_id, fields, command_id in sent:
            command = RawCommand(type, aggregate_id, json.dumps(fields).encode())
            try:
                store.send(command, command_id)
            except es.Rejected:
                assert command_id == "c-4"
    wait_for(lambda: server.stats()["commands_kept"] == 7, "the commands are written")
    return server


def test_the_same_code_decides_the_same_and_personal_fields_are_not_kept(kept: Server) -> None:
    said = output("replay", "--domain", "shop_old:app", "--commands", "commands", store=kept.store)
    assert said == "7 commands replayed, 0 decided otherwise\n"
    stored = output("message", "tail", "commands", "--from-start", "--no-follow", store=kept.store)
    assert "Lovelace" not in stored
    assert stored.count("Deposit") == 3
    assert kept.stats()["commands_not_kept"] == 0


def test_other_outcomes_and_other_events_are_reported_command_by_command(kept: Server) -> None:
    before = kept.stats()["events"]
    done = run("replay", "--domain", "shop_stricter:app", "--commands", "commands", store=kept.store)
    assert done.returncode == 1
    assert "2 commands are decided otherwise" in done.stderr
    assert done.stdout.splitlines() == [
        "7 commands replayed, 2 decided otherwise",
        "Withdraw: Withdrawn → rejected (not_covered): 1 command",
        "  a-1  c-3: not covered",
        "Move: other values: Withdrawn.cents: 1 command",
        "  a-2  c-7",
    ]
    as_json = run("replay", "--domain", "shop_stricter:app", "--commands", "commands", "--json", store=kept.store)
    found = json.loads(as_json.stdout)
    assert (found["same"], found["different"], found["skipped"]) == (5, 2, {})
    (_, move) = found["samples"]
    assert [each["aggregate_id"] for each in move["before"]["events"]] == ["a-2", "a-1"]
    assert "fields" not in move["after"]["events"][0]
    with_values = ["--json", "--values"]
    as_json = run("replay", "--domain", "shop_stricter:app", "--commands", "commands", *with_values, store=kept.store)
    (_, move) = json.loads(as_json.stdout)["samples"]
    assert move["after"]["events"][0]["fields"] == {"cents": 31}
    markdown = run("replay", "--domain", "shop_stricter:app", "--commands", "commands", "--markdown", store=kept.store)
    assert "| `Withdraw` | Withdrawn → rejected (not_covered) | 1 | `a-1` |" in markdown.stdout
    assert kept.stats()["events"] == before


def test_a_handler_that_raises_now_is_reported_with_its_error(kept: Server) -> None:
    done = run("replay", "--domain", "shop_broken:app", "--commands", "commands", store=kept.store)
    assert done.returncode == 1
    assert "Deposit: unchanged → failed (ZeroDivisionError): 1 command\n  a-1  c-5: " in done.stdout
    late = output("replay", "--domain", "shop_broken:app", "--commands", "commands", "--from", "2100-01-01T00:00:00Z",
                  store=kept.store)  # fmt: skip
    assert late == "0 commands replayed, 0 decided otherwise\n"


def test_a_topic_of_other_messages_is_refused(kept: Server) -> None:
    output("topic", "create", "others", store=kept.store)
    output("message", "send", "others", "{}", store=kept.store)
    said = refused("replay", "--domain", "shop_old:app", "--commands", "others", store=kept.store, code=2)
    assert "a message is no kept command" in said


def test_commands_cannot_be_kept_without_a_broker(tmp_path: Path) -> None:
    said = refused("serve", "--data", tmp_path / "data", "--keep-commands", "commands", "--no-broker", code=2)
    assert "keep_commands is 'commands', but broker is false" in said
