"""`eventstore clients`, and what the clients return that it prints."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

import eventstore as es
from eventstore import blocking
from eventstore.server.requests.subscriptions import ServedSubscription
from tests.cli.processes import output
from tests.server_thread import ServerThread


def test_the_clients_of_a_server_are_listed_with_what_they_do(tmp_path: Path) -> None:
    with ServerThread(tmp_path / "data") as server, blocking.connect(server.address, name="shop") as store:
        assert output("clients", store=server.address).split()[:2] == ["client", "identity"]
        store.broker.create_topic("bills", 1)
        store.topic("bills").send(b"one")
        events = iter(store.subscribe(es.END, aggregate_prefix="order-"))
        next(events)
        listed = json.loads(output("clients", "--json", store=server.address))
        sends, reads = (next(each for each in listed if each["does"].startswith(does)) for does in ("sends", "subscribes"))
        assert (sends["name"], sends["identity"], sends["last_request"], sends["unsent_bytes"]) == (
            "shop",
            None,
            "SendMessages",
            0,
        )
        assert (sends["does"], reads["does"]) == ("sends to bills", "subscribes to events of order-…, at 0")
        assert (listed[-1]["name"], listed[-1]["last_request"]) == ("eventstore clients", "ListClients")
        assert [each["since"] for each in listed] == sorted(each["since"] for each in listed)
        assert "shard" not in listed[0]
        assert "sends to bills" in output("clients", store=server.address)
        everyone = [each.address for each in store.clients()]
        assert [each.address for each in store.clients(1, 1)] == everyone[1:2]
        assert [each.address for each in store.clients(1)] == everyone[1:]
        assert store.clients(2**63 - 1) == []


async def test_a_client_that_does_much_is_shown_with_the_first_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ServerThread(tmp_path / "data") as server:
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(es.connect(server.address, name="busy"))
            for number in range(30):
                events = aiter(store.subscribe(es.END, aggregate_prefix=f"a{number}-"))
                await anext(await stack.enter_async_context(aclosing(events)))
            asked = list[str]()
            use = vars(ServedSubscription)["use"]

            def counted(subscription: ServedSubscription) -> str:
                asked.append(use.__get__(subscription))
                return asked[-1]

            monkeypatch.setattr(ServedSubscription, "use", property(counted))
            (busy,) = await store.clients()
            assert len(asked) == 20, "what is not shown is not made: there may be 64,000 of them"
            assert len(busy.does.splitlines()) == 21
            assert busy.does.splitlines()[-1] == "and 10 more"
