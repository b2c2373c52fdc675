"""Commands sent from the command line, to a server and to a worker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.cli.processes import Server, output, refused

BANK = ("--domain", "bank:app")


def fields(account: str, **others: object) -> str:
    return json.dumps({"account": account, **others})


@pytest.fixture
def account(bank: Server) -> str:
    """Opens an account."""
    name = f"acc-{uuid.uuid4()}"
    said = output("send", *BANK, "Open", fields(name, owner="Ada"), store=bank.store)
    assert said.startswith(f"{name} is at version 1 (sequence ")
    return name


def test_a_command_is_handled_and_its_event_is_stored(bank: Server, account: str) -> None:
    said = output("send", *BANK, "Deposit", fields(account, cents=100), store=bank.store)
    assert said.startswith(f"{account} is at version 2 (sequence ")
    assert output("read", account, "--raw", store=bank.store).splitlines() == ['{"owner":"Ada"}', '{"cents":100}']


def test_metadata_are_stored_with_the_event(bank: Server, account: str) -> None:
    send = ("send", *BANK, "Deposit", fields(account, cents=100), "--metadata")
    assert "JSON" in refused(*send, "{", store=bank.store, code=2)
    assert "object" in refused(*send, "[]", store=bank.store, code=2)
    output(*send, '{"user":"Ada"}', store=bank.store)
    said = json.loads(output("read", account, "--json", "--from-version", 2, store=bank.store))
    assert said["metadata"] == {"user": "Ada"}


def test_fields_come_from_standard_input(bank: Server, account: str) -> None:
    output("send", *BANK, "Deposit", "-", store=bank.store, text=f" {fields(account, cents=7)}\n")
    assert output("read", account, "--raw", "--from-version", 2, store=bank.store) == '{"cents":7}\n'


def test_without_a_domain_the_aggregate_must_be_named(bank: Server, account: str) -> None:
    deposit = ("send", "Deposit", fields(account, cents=5))
    assert "--aggregate ID, or --domain" in refused(*deposit, store=bank.store, code=2)
    output(*deposit, "--aggregate", account, store=bank.store)
    assert output("read", account, "--raw", "--from-version", 2, store=bank.store) == '{"cents":5}\n'


@pytest.mark.parametrize("domain", [BANK, ()])
def test_a_command_sent_again_takes_effect_once(bank: Server, account: str, domain: tuple[str, ...]) -> None:
    send = ("send", *domain, "Deposit", fields(account, cents=100), "--aggregate", account, "--command-id", "c-1")
    first = json.loads(output(*send, "--json", store=bank.store))
    assert first == {
        "status": "committed", "aggregate_id": account, "version": 2, "sequence": first["sequence"], "duplicate": False,
        "durability": 1,
    }  # fmt: skip
    assert json.loads(output(*send, "--json", store=bank.store)) == first | {"duplicate": True}
    assert output(*send, store=bank.store) == (
        f"{account}: this command was handled before, up to version 2; nothing was written\n"
    )


def test_a_rejection_is_one_line_with_its_reason(bank: Server, account: str) -> None:
    said = refused("send", *BANK, "Withdraw", fields(account, cents=1), store=bank.store)
    assert said == f"rejected (not_covered): account {account} has 0"
    assert len(output("read", account, store=bank.store).splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ([*BANK, "Deposit", '{"account": "a", "cents": "1"}'], "field cents is '1', expected a whole number", 1),
        ([*BANK, "Deposit", '{"account": "a"}'], "field cents is missing", 1),
        ([*BANK, "Deposit", '{"account": "", "cents": 1}'], "field account is the aggregate's id", 2),
        ([*BANK, "Deposit", '{"account": "a", "cents": 1}', "--aggregate", "b"], "was sent to aggregate 'b'", 2),
        ([*BANK, "Deposit", "{account: a}"], "is not JSON", 1),
        ([*BANK, "Conquer", "{}"], "no handler for commands of type 'Conquer'; there are handlers for: Deposit, Open", 1),
        (["--domain", "bank", "Deposit", "{}"], "not of the form module:attribute", 2),
        (["--domain", "treasury:app", "Deposit", "{}"], "module 'treasury' was not found", 2),
        (["Deposit", "{account: a}", "--aggregate", "a"], "quote it for the shell", 2),
        (["Deposit", '{"account": "a", "cents": "1"}', "--aggregate", "a"], "field cents is '1'", 1),
        (["Conquer", "{}", "--aggregate", "a"], "no handler for commands of type 'Conquer'", 1),
        ([*BANK, "Deposit", '{"account": "a", "cents": 1}', "--command-id", ""], "command_id", 2),
    ],
)
def test_a_wrong_command_is_reported_in_one_line(bank: Server, arguments: list[str], words: str, code: int) -> None:
    assert words in refused("send", *arguments, store=bank.store, code=code)


def test_a_server_without_a_domain_says_so(examples: Path, shared: Server) -> None:
    said = refused("send", *BANK, "Deposit", fields("a", cents=1), store=shared.store)
    assert "start it with --domain MODULE:NAME" in said


def test_an_unreachable_server_is_named(examples: Path) -> None:
    assert "127.0.0.1:1" in refused("send", *BANK, "Deposit", fields("a", cents=1), store="tcp://127.0.0.1:1")
