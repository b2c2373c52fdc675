"""Reactions in a server and in a worker: failures are retried, and after a kill each reaction still takes effect once."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import bank
import eventstore as es
import eventstore.domain as d
from bank import Account, Deposit, Open, Transfer
from eventstore.domain.runtime import DomainRuntime
from eventstore.server.mailbox_wiring import embedded_access, make_mailboxes
from eventstore.server.reaction_runner import Reactions
from eventstore_mailbox import Options
from tests.domain.runner import new_events
from tests.server.commands import echoes
from tests.server.commands.domain_hosts import KINDS, DomainHost
from tests.server.commands.worker_process import WorkerProcess
from tests.server.conftest import Launch
from tests.waiting import eventually, wait_until

ACCOUNTS = 6


@pytest.fixture(params=KINDS)
def echoing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DomainHost]:
    """Runs the domain of `tests.server.commands.echoes` with its reactions, in a server and in a worker."""
    echoes.failing.clear()
    checkpoint = tmp_path / "reactions.json" if request.param == "work" else None
    with ExitStack() as stack:
        domain = "tests.server.commands.echoes:app"
        yield stack.enter_context(DomainHost(request.param, tmp_path, domain, checkpoint=checkpoint, http="127.0.0.1:0"))


def health(running: DomainHost) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.http}/health", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_failing_reaction_is_reported_and_resumes_once_it_is_fixed(echoing: DomainHost) -> None:
    running = echoing
    with running.connect() as store:
        store.send(echoes.Call("a", 1))
        wait_until(lambda: len(running.events("echo-a")) == 1, "the first call is echoed")
        assert health(running)["reactions_failure"] is None
        echoes.failing["a"] = "a bug in a reaction"
        store.send(echoes.Call("a", 2))
        store.send(echoes.Call("b", 3))
        wait_until(lambda: health(running)["reactions_failure"], "the failure is reported")
        failure = health(running)["reactions_failure"]
        assert "reaction 'echo' failed at sequence" in failure
        assert "aggregate 'a', version 2" in failure
        assert "a bug in a reaction" in failure
        assert store.send(echoes.Call("c", 4)).version == 1  # type: ignore[union-attr] # commands are still handled
        running.restart()
        wait_until(lambda: health(running)["reactions_failure"], "it fails again")
        running.ask(echoes.failing.clear)
        running.restart()
        wait_until(lambda: len(running.events("echo-a")) == 2 and running.events("echo-c"), "the reactions continue")
        wait_until(lambda: health(running)["reactions_failure"] is None, "the failure is over")
    echoed = {name: [event.json()["number"] for event in running.events(f"echo-{name}")] for name in "abc"}
    assert echoed == {"a": [1, 2], "b": [3], "c": [4]}


async def test_a_failing_reaction_is_retried_without_a_restart(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Assembles the parts of a server on an embedded store."""
    app, tries, rows = d.Domain(), list[int](), new_events(bank.Opened("Ada"))

    @app.reacts(bank.Opened)
    async def note(event: bank.Opened, send: d.Send) -> None:
        tries.append(send.cause.sequence)
        if len(tries) < 4:
            raise ValueError("not yet")

    async with es.open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        access = embedded_access(store)
        mailboxes = make_mailboxes(DomainRuntime(app, access.read_events), access, Options(), lambda entries: None)
        await nursery.start(mailboxes.run)
        reactions = Reactions(store, tmp_path / "reactions.json", app, mailboxes, access)
        await store.append("a", rows, 0)

        async def has_failed() -> bool:
            return reactions.failure is not None

        async def is_through() -> bool:
            return len(tries) == 4 and reactions.failure is None

        nursery.start_soon(reactions.run)
        await eventually(has_failed, "it fails")
        assert "not yet" in str(reactions.failure)
        await eventually(is_through, "it gets through")
        nursery.cancel_scope.cancel()
    assert tries == [1, 1, 1, 1]
    assert d.FileCheckpoint(tmp_path / "reactions.json").load() == 1


async def test_an_unwritable_checkpoint_is_reported_and_does_not_end_the_server(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        access = embedded_access(store)
        mailboxes = make_mailboxes(DomainRuntime(bank.app, access.read_events), access, Options(), lambda entries: None)
        await nursery.start(mailboxes.run)
        await store.append("a", new_events(bank.Opened("Ada"), bank.Deposited(5), bank.Sent("nobody", 5)), 0)
        reactions = Reactions(store, tmp_path / "missing" / "reactions.json", bank.app, mailboxes, access)
        nursery.start_soon(reactions.run)

        async def has_failed() -> bool:
            return reactions.failure is not None

        await eventually(has_failed, "it fails")
        assert await store.version("nobody") == 1
        nursery.cancel_scope.cancel()
    assert "missing" in str(reactions.failure)


# -- killed ---------------------------------------------------------------------------------------------------------------


def balances(store: es.blocking.BlockingStore) -> dict[str, int]:
    names = [f"acc-{number}" for number in range(ACCOUNTS)]
    return {name: d.restore(Account, name, list(store.read(name))).balance for name in names}


def unanswered(store: es.blocking.BlockingStore) -> set[str]:
    """Returns the transfers not received or returned yet; asserts that none was received twice."""
    sent, ended = dict[str, int](), list[str]()
    for event in store.read_all():
        if event.type == "Sent":
            sent[f"{event.aggregate_id}/{event.version}"] = event.json()["cents"]
        elif event.type == "Received":
            ended.append(event.command_id.removeprefix("pay_in/").removesuffix("/0"))
        elif event.type == "TakenBack":
            origin = next(iter(store.read(event.json()["to"], int(event.command_id.split("/")[-2]))))
            ended.append(origin.command_id.removeprefix("pay_in/").removesuffix("/0"))
    assert len(ended) == len(set(ended)), "a transfer ended twice"
    assert set(ended) <= sent.keys()
    return sent.keys() - set(ended)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_transfers_are_made_once_although_the_process_running_reactions_is_killed(
    launch: Launch, examples: None, tmp_path: Path, kind: str
) -> None:
    chance = random.Random(kind)
    with ExitStack() as stack:
        server = launch(**({"domain": "bank:app"} if kind == "serve" else {}))
        run: Any
        if kind == "serve":
            victim: Any = server
            run = partial(launch, data=server.data, listen=server.address.removeprefix("tcp://"), domain="bank:app")
        else:
            run = partial(WorkerProcess, server.address, tmp_path, domain="bank:app", checkpoint=tmp_path / "reactions.json")
            victim = stack.enter_context(run())
            run = partial(run, listen=victim.address.removeprefix("tcp://"))
        with es.blocking.connect(victim.address) as sender, es.blocking.connect(server.address) as store:
            sender.send_many([Open(f"acc-{number}", "Ada") for number in range(ACCOUNTS)])
            sender.send_many([Deposit(f"acc-{number}", 1_000) for number in range(ACCOUNTS)])
            for _ in range(3):
                names = [f"acc-{chance.randrange(ACCOUNTS)}" for _ in range(60)]
                receivers = [f"acc-{chance.randrange(ACCOUNTS)}" if chance.random() < 0.8 else "nobody" for _ in names]
                sender.send_many([Transfer(name, to, 3) for name, to in zip(names, receivers, strict=True) if name != to])
                victim.kill()
                victim = stack.enter_context(run())
            wait_until(lambda: not unanswered(store), "all transfers arrive")
            assert sum(balances(store).values()) == ACCOUNTS * 1_000
            assert any(event.type == "TakenBack" for event in store.read_all())
        assert victim.terminate() == 0
