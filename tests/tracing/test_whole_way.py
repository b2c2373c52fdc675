"""One command, and all that follows from it, is one trace: across client, server, reaction, projection, broker and consumer."""

from __future__ import annotations

from pathlib import Path

import bank
import eventstore as es
import eventstore.domain as d
from tests.server_thread import ServerThread
from tests.tracing.kept_spans import KeptSpans, is_child, is_linked


async def test_what_follows_from_a_command_is_its_trace(tmp_path: Path, spans: KeptSpans) -> None:
    with ServerThread(tmp_path / "data", domain="bank:app", publish="events") as server:
        async with es.connect(server.address) as store:
            await store.send(bank.Open("a", "Ada"))
            await store.send(bank.Open("b", "Bob"))
            await store.send(bank.Deposit("a", 100))
            await store.send(bank.Transfer("a", "b", 40))
            reaction = spans.only("react pay_in")
            sent, handled = spans.named("send", 4)[-1], spans.only("handle Transfer")
            received = spans.only("handle Receive")
            assert is_child(handled, sent)
            assert is_child(reaction, handled)
            assert is_child(received, reaction)
            commits = [each for each in spans.named("commit", 5) if is_child(each, handled)]
            assert len(commits) == 1

            seen: list[str] = []
            async with store.consumer("readers", "events") as consumer:

                def take(message: es.Delivery) -> None:
                    seen.append(message.event().type)
                    if len(seen) == 5:
                        consumer.stop()

                await consumer.run(take)
            assert sorted(seen) == ["Deposited", "Opened", "Opened", "Received", "Sent"]
            published = [each for each in spans.named("publish events", 5) if is_child(each, handled)]
            assert len(published) == 1
            processed = [each for each in spans.named("process events", 5) if is_child(each, published[0])]
            assert len(processed) == 1
            pulled = spans.named("receive events")
            assert any(is_child(each, published[0]) or is_linked(each, published[0]) for each in pulled)

            target = d.SQLiteTarget(tmp_path / "tables.db")
            await d.project(store, bank.Balances(), target, until_caught_up=True)
            projected = spans.named("project balances")
            assert any(is_child(each, handled) or is_linked(each, handled) for each in projected)
