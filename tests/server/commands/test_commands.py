"""Outcomes of commands over TCP: the same from a server with a domain and from a worker."""

from __future__ import annotations

import pytest
import trio

import eventstore as es
from eventstore.model import ID_BYTES_MAX, Unchanged
from eventstore.protocol.limits import PAYLOAD_BYTES_MAX
from eventstore.protocol.requests import Send
from tests.server.commands.tallies import Add, AddBelow, AddOften, Break, BreakLate, Raise, Rename, Write
from tests.server.conftest import Begin, Serve
from tests.server.raw import RawClient, outcomes_of


def amounts(events: list[es.Event]) -> list[int]:
    """Returns the amounts added; asserts that each was decided on the state that the previous one left."""
    found = [event.json() for event in events]
    assert [each["before"] for each in found] == [sum(each["amount"] for each in found[:place]) for place in range(len(found))]
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    return [each["amount"] for each in found]


# -- outcomes -------------------------------------------------------------------------------------------------------------


def test_a_command_is_committed_and_its_events_are_stored(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        first = store.send(Add("a", 5), "c-1")
        several = store.send(AddOften("a", 3), "c-2")
    assert first == es.Committed("a", 1, 1)
    assert several == es.Committed("a", 4, 4)
    assert amounts(running.events("a")) == [5, 1, 1, 1]
    assert [event.command_id for event in running.events("a")] == ["c-1", "c-2", "c-2", "c-2"]


def test_a_handler_without_events_has_changed_nothing(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        assert store.send(Raise("a", 0)) == Unchanged("a")
        store.send(Add("a", 5))
        assert store.send(Raise("a", 5)) == Unchanged("a")
    assert amounts(running.events("a")) == [5]


def test_a_repeated_command_has_its_first_outcome_even_if_its_handler_acts_differently(host: Begin) -> None:
    commands = [Rename("a", "x"), Add("a", 5), AddBelow("a", 5, 10), Raise("a", 12)]
    running = host()
    with running.connect() as store:
        first = store.send_many([(command, f"c-{number}") for number, command in enumerate(commands)])
        assert all(type(outcome) is es.Committed and not outcome.duplicate for outcome in first)
        again = [outcome._replace(duplicate=True) for outcome in first if isinstance(outcome, es.Committed)]
        for _ in range(2):
            for number, command in enumerate(commands):  # the same events, others, a refusal, none
                assert store.send(command, f"c-{number}") == again[number]
            assert store.send_many([(command, f"c-{number}") for number, command in enumerate(commands)]) == again
            running.restart()
        assert store.send(Add("a", 1), "c-9").version == len(commands) + 1  # type: ignore[union-attr] # it is committed
    assert len(running.events("a")) == len(commands) + 1


def test_a_command_sent_twice_at_once_is_handled_once(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        outcomes = store.send_many([(Add("a", 5), "c-1")] * 50)
    assert {outcome[:3] for outcome in outcomes if isinstance(outcome, es.Committed)} == {("a", 1, 1)}
    assert amounts(running.events("a")) == [5]


def test_a_rejection_has_its_code_text_and_fields_and_leaves_no_trace(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a", 8))
        with pytest.raises(es.Rejected, match="a is at 8") as caught:
            store.send(AddBelow("a", 5, 10), "c-1")
        assert caught.value.code == 20
        assert caught.value.fields == {"reason": "limit", "missing": 2}
        store.send(AddBelow("a", 2, 10))
    assert amounts(running.events("a")) == [8, 2]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("bug", "tests.server.commands.tallies.break_off raised ValueError: a bug"),
        ("exit", "SystemExit"),
        ("cancelled by asyncio", "CancelledError"),
        ("closed", "GeneratorExit"),
        ("no text", "NoText: its text raised AttributeError"),
        ("a word of the server's own", "not for a handler to say"),
    ],
)
def test_a_handler_that_raises_fails_its_command_and_leaves_no_trace(host: Begin, how: str, said: str) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a", 8))
        for _ in range(2):
            with pytest.raises(es.HandlerFailed, match=said) as caught:
                store.send(Break("a", how))
            assert caught.value.code == 21
            assert store.send(Raise("a", 8)) == Unchanged("a")
        store.send(Add("a", 2))
    assert amounts(running.events("a")) == [8, 2]


@pytest.mark.parametrize("how", ["alone", "in a group"])
def test_a_handler_that_ends_by_a_cancellation_of_its_own_fails_its_command_and_leaves_no_trace(host: Begin, how: str) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a", 8))
        for _ in range(2):
            with pytest.raises(es.HandlerFailed, match=r"break_late raised (Cancelled|BaseExceptionGroup)"):
                store.send(BreakLate("a", how))
        store.send(Add("a", 2))
        store.send(Add("b", 1))
    assert amounts(running.events("a")) == [8, 2]


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["text that is none", "code that is none", "too many fields"])
def test_an_error_too_large_to_send_blocks_neither_its_sender_nor_others(host: Begin, how: str) -> None:
    running = host()
    with running.connect() as store:
        outcomes = store.send_many([Add("a"), Break("b", how), Add("c"), Break("b", how), Add("b")])
        assert [type(outcome) is es.Committed for outcome in outcomes] == [True, False, True, False, True]
        assert all(type(outcome) in (es.Rejected, es.HandlerFailed) for outcome in outcomes[1:4:2])
        many = store.send_many([Break("b", how)] * 1_100)  # so many that each text of an answer is bounded more tightly
        assert {type(outcome) for outcome in many} <= {es.Rejected, es.HandlerFailed}
    assert amounts(running.events("b")) == [1]


def test_unknown_or_invalid_commands_are_refused_by_name(host: Begin) -> None:
    running = host()
    raw = es.RawCommand
    with running.connect() as store:
        with pytest.raises(es.UnknownCommand, match="Subtract") as unknown:
            store.send(raw("Subtract", "a", b"{}"))
        assert unknown.value.fields["type"] == "Subtract"
        for payload in (
            b"",
            b"[]",
            b"{}",
            b'{"tally":"a","amount":"1"}',
            b'{"tally":"a","amount":1,"more":1}',
            b"\xff",
            b"[" * 9999,
        ):
            with pytest.raises(es.PayloadInvalid, match="Add"):
                store.send(raw("Add", "a", payload))
        with pytest.raises(es.InvalidArgument, match="sent to aggregate 'b', but its field tally is 'a'"):
            store.send(raw("Add", "b", b'{"tally":"a"}'))
        assert store.send(raw("Add", "a", b'{"tally":"a"}')) == es.Committed("a", 1, 1)


def test_bad_ids_and_too_large_payloads_refuse_only_their_command(host: Begin) -> None:
    running = host()
    long = "x" * (ID_BYTES_MAX + 1)
    rows = [
        ("Add", "", "c-1", b'{"tally":""}', None),
        ("Add", long, "c-1", b"{}", None),
        ("Add", "a", "", b'{"tally":"a"}', None),
        ("Add", "a", long, b'{"tally":"a"}', None),
        ("Add", "a", "é" * 128, b'{"tally":"a"}', None),
        ("Add", "a", "c-1", b" " * PAYLOAD_BYTES_MAX + b'{"tally":"a"}', None),
        ("Add", "a", "c-1", b'{"tally":"a"}', b"[]"),
        ("", "a", "c-1", b'{"tally":"a"}', None),
        ("Add", "a", "c-1", b'{"tally":"a"}', None),
    ]
    with RawClient(running.port) as client:
        outcomes = outcomes_of(client.ask(Send(rows)))
    assert [outcome[0] for outcome in outcomes] == [3] * 8 + [0]
    assert [outcome[1] for outcome in outcomes[:7]] == [es.InvalidArgument.code] * 7
    assert amounts(running.events("a")) == [1]


def test_the_client_refuses_commands_over_a_limit_before_sending(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        good, *bad = store.send_many(
            [
                Add("a"),
                Add("x" * 256),
                (Add("a"), ""),
                (Add("a"), "x" * 256),
                Add(""),
                object(),
                Rename("a", "x" * (PAYLOAD_BYTES_MAX + 1)),
            ]
        )
        assert isinstance(good, es.Committed)
        assert all(isinstance(outcome, es.EventStoreError) for outcome in bad)
        assert store.send(Add("a")) == es.Committed("a", 2, 2)


def test_too_large_events_are_refused_and_the_aggregate_stays_usable(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        store.send(Add("a"))
        with pytest.raises(es.EventStoreError, match="bytes"):
            store.send(Write("a", 20 * 1024 * 1024))
        done = store.send(Write("a", 3 * 1024 * 1024))
        assert done == es.Committed("a", 2, 2)
    assert len(running.events("a")[1].data) > 3 * 1024 * 1024


def test_without_a_domain_every_command_is_unknown(serve: Serve) -> None:
    with es.blocking.connect(serve().address) as store:
        with pytest.raises(es.UnknownCommand, match="--domain"):
            store.send(Add("a"))
        assert store.append("a", [es.NewEvent("T", b"")], 0).version == 1


# -- order ----------------------------------------------------------------------------------------------------------------


def test_commands_of_one_aggregate_take_effect_in_the_order_they_were_sent(host: Begin) -> None:
    running = host(mailboxes=3)
    with running.connect() as store:
        outcomes = store.send_many([Add(f"a-{number % 7}", number + 1) for number in range(7_000)])
        assert all(isinstance(outcome, es.Committed) for outcome in outcomes)
    for name in range(7):
        assert amounts(running.events(f"a-{name}")) == [number + 1 for number in range(7_000) if number % 7 == name]


def test_commands_of_many_tasks_keep_the_order_of_each(host: Begin) -> None:
    running = host()

    async def send(store: es.client.store.NetworkStore, task: int) -> None:
        for number in range(40):
            await store.send(Add("hot", task * 1_000 + number))

    async def main() -> None:
        with trio.fail_after(30):
            async with es.connect(running.address) as store, es.connect(running.address) as other:
                async with trio.open_nursery() as nursery:
                    for task in range(10):
                        nursery.start_soon(send, (store, other)[task % 2], task)

    trio.run(main)
    found = amounts(running.events("hot"))
    assert len(found) == 400
    for task in range(10):
        assert [amount % 1_000 for amount in found if amount // 1_000 == task] == list(range(40))


def test_the_second_of_two_commands_that_create_the_same_aggregate_sees_the_first(host: Begin) -> None:
    running = host()
    with running.connect() as store:
        outcomes = store.send_many([AddBelow("new", 6, 10), AddBelow("new", 6, 10)])
    assert isinstance(outcomes[0], es.Committed)
    assert isinstance(outcomes[1], es.Rejected)
    assert amounts(running.events("new")) == [6]
