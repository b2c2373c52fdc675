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
from eventstore.server.own_commands import OwnCommands
from eventstore.server.reactions.reaction_runner import ReactionRunner
from eventstore.server.timers.timer_runner import TimerSettings
from eventstore_mailbox import Options
from tests.cli.processes import output
from tests.domain.runner import new_events
from tests.server.commands import echoes
from tests.server.commands.domain_hosts import ON_ONE_STORE, DomainHost
from tests.server.conftest import Launch
from tests.server.work.worker_process import WorkerProcess
from tests.waiting import eventually, wait_until

ACCOUNTS = 6


@pytest.fixture(params=ON_ONE_STORE)
def echoing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DomainHost]:
    """Runs the domain of `tests.server.commands.echoes` with its reactions, in a server and in a worker."""
    echoes.failing.clear()
    checkpoint = tmp_path / "reactions.json" if request.param == "work" else None
    with ExitStack() as stack:
        domain = "tests.server.commands.echoes:app"
        settings = {"http": "127.0.0.1:0", "alarm_quiet_s": 0.0}  # health is well as soon as nothing is parked
        yield stack.enter_context(DomainHost(request.param, tmp_path, domain, checkpoint, **settings))


def health(running: DomainHost) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.http}/health", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_what_fails_is_parked_and_reported_and_an_operator_has_it_handled(echoing: DomainHost) -> None:
    running = echoing
    with running.connect() as store:
        store.send(echoes.Call("a", 1))
        wait_until(lambda: len(running.events("echo-a")) == 1, "the first call is echoed")
        assert health(running)["attention"] is None
        echoes.failing["a"] = "a bug in a reaction"
        for number in (2, 4):
            store.send(echoes.Call("a", number))
        store.send(echoes.Call("b", 3))
        wait_until(lambda: health(running)["reactions_parked"] == 2, "both are parked")
        wait_until(lambda: running.events("echo-b"), "others go on")
        found = health(running)
        assert (found["healthy"], found["degraded"]) == (True, True)
        assert "reaction 'echo' has 2 events parked; `eventstore reactions show echo`" in found["reactions_failure"]
        running.restart()
        wait_until(lambda: health(running)["reactions_parked"] == 2, "it survives a restart")
    with running.connect() as store:
        parked = store.reactions.parked("echo")
        assert [(each.aggregate_id, each.version, each.attempts) for each in parked] == [("a", 2, 5), ("a", 3, 0)]
        assert "a bug in a reaction" in parked[0].why
        assert store.reactions.retry("echo", who="ada", why="try") == (0, 2)
        running.ask(echoes.failing.clear)
        assert store.reactions.retry("echo", who="ada", why="mended") == (2, 0)
        wait_until(lambda: health(running)["degraded"] is False, "nothing is left to do")
    records = [(each.type, each.json().get("who"), each.json()["why"]) for each in running.events("$parked{a}")]
    assert records[2:] == [("$Unparked", "ada", "mended")] * 2
    echoed = {name: [event.json()["number"] for event in running.events(f"echo-{name}")] for name in "ab"}
    assert echoed == {"a": [1, 2, 4], "b": [3]}


def test_an_operator_skips_what_cannot_be_mended_and_replays_a_reaction(echoing: DomainHost) -> None:
    running = echoing
    with running.connect() as store:
        echoes.failing["a"] = "a bug in a reaction"
        store.send(echoes.Call("a", 1))
        wait_until(lambda: health(running)["reactions_parked"] == 1, "it is parked")
        store.send(echoes.Call("a", 2))
        wait_until(lambda: health(running)["reactions_parked"] == 2, "the next one waits behind it")
        running.ask(echoes.failing.clear)
        assert store.reactions.skip("echo", "a", who="ada", why="sent by hand") == (2, 0)
        assert [event.json()["number"] for event in running.events("echo-a")] == [2]
        assert store.reactions.replay("echo", 1, who="ada", why="after all") == 0
        wait_until(lambda: len(running.events("echo-a")) == 2, "the skipped one is handled")
        with pytest.raises(es.InvalidArgument, match=r"there is no reaction 'other'.*; there are: echo"):
            store.reactions.replay("other", 1, who="ada", why="a typing error")
    assert [event.json()["number"] for event in running.events("echo-a")] == [2, 1]


def test_metrics_and_top_show_each_reaction(echoing: DomainHost) -> None:
    with echoing.connect() as store:
        echoes.failing["a"] = "a bug in a reaction"
        store.send(echoes.Call("a", 1))
        wait_until(lambda: health(echoing)["reactions_parked"] == 1, "it is parked")
        wait_until(lambda: store.reactions.progress()[0].lag_events == 0, "it is past the record of that")
        (shown,) = store.reactions.progress()
    with urllib.request.urlopen(f"{echoing.http}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    for figure, value in {"waiting": 0, "position": shown.position, "parked": 1, "lag_events": 0, "lag_seconds": 0}.items():
        assert f'eventstore_reaction_{figure}{{reaction="echo"}} {float(value)}' in metrics
    top = json.loads(output("top", "--once", "--interval", 0.1, "--json", store=echoing.address))
    assert top["reactions"] == [{name: value for name, value in shown._asdict().items() if name != "shard"}]
    drawn = output("top", "--once", "--interval", 0.1, store=echoing.address)
    assert "Reactions" in drawn
    assert "reaction 'echo' failed at sequence 1" in drawn
    assert (shown.name, shown.event, shown.state, shown.parked) == ("echo", "Called", "running", 1)
    assert "a bug in a reaction" in str(shown.error)


async def test_an_unwritable_checkpoint_is_reported_and_does_not_end_the_server(tmp_path: Path) -> None:
    async with es.open_store(tmp_path / "data") as store, trio.open_nursery() as nursery:
        access = embedded_access(store, nursery)
        mailboxes = make_mailboxes(DomainRuntime(bank.app, access.read_events), access, Options(), lambda entries: None)
        await nursery.start(mailboxes.run)
        await store.append("a", new_events(bank.Opened("Ada"), bank.Deposited(5), bank.Sent("nobody", 5)), 0)
        settings = TimerSettings(store, bank.app, None)
        send = OwnCommands(bank.app, mailboxes, access.find_commands, settings.set).send
        reactions = ReactionRunner(store, tmp_path / "missing" / "reactions.json", bank.app, send)
        nursery.start_soon(reactions.run)

        async def has_failed() -> bool:
            return reactions.attention is not None

        await eventually(has_failed, "it fails")

        async def has_reacted() -> bool:
            return await store.version("nobody") == 1

        await eventually(has_reacted, "its command took effect nevertheless")
        nursery.cancel_scope.cancel()
    assert "missing" in str(reactions.attention)


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
@pytest.mark.parametrize("kind", ON_ONE_STORE)
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
