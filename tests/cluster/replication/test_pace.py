"""The rate of copies is kept, whoever is sent how much at once: counted against the clock of the event loop."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import trio
import trio.testing

from eventstore_cluster.replication.logs.leader_log import PAYLOAD_BYTES
from eventstore_cluster.replication.pace import SendingRate

Sent = list[tuple[float, int]]


async def send(pace: SendingRate, sent: Sent, sizes: list[int], rate: int | None, asks_after_s: float = 0.0) -> None:
    """Sends one replica one piece after another, which it stores for some time before it asks for more."""
    for size in sizes:
        await pace.wait(size, rate)
        sent.append((trio.current_time(), size))
        await trio.sleep(asks_after_s)


def sizes_of(choice: random.Random, rate: int, count: int) -> list[int]:
    """Returns sizes of pieces: whole ones, and the ends of files."""
    whole = SendingRate.piece_bytes(rate)
    return [choice.choice((whole, whole, choice.randint(100, whole))) for _ in range(count)]


@pytest.mark.parametrize("rate", [1_000_000, 7_000_000, 50_000_000])
@pytest.mark.parametrize("replicas", [1, 3])
async def test_in_no_time_more_is_sent_than_the_rate_and_one_piece(
    autojump_clock: trio.testing.MockClock, rate: int, replicas: int
) -> None:
    pace, sent, choice, began = SendingRate(), Sent(), random.Random(rate + replicas), trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(replicas):
            nursery.start_soon(send, pace, sent, sizes_of(choice, rate, 60), rate, number * 0.01)
    total = sum(size for _, size in sent)
    for (first, (begin, _)), (last, (end, _)) in combinations(enumerate(sent), 2):
        within = sum(size for _, size in sent[first:last])  # what is sent at `end` has its time after that
        assert within <= rate * (end - begin) * (1 + 1e-9) + 1
    took = trio.current_time() - began
    assert total >= rate * took * 0.9  # and it is used: who asks for the next piece while one has its time does not wait twice


async def test_a_time_without_copies_is_not_made_up_for(autojump_clock: trio.testing.MockClock) -> None:
    pace, sent, rate = SendingRate(), Sent(), 1_000_000
    whole = SendingRate.piece_bytes(rate)
    await send(pace, sent, [whole] * 2, rate)
    await trio.sleep(600)
    sent.clear()
    await send(pace, sent, [whole] * 10, rate)
    assert [at - sent[0][0] for at, _ in sent] == pytest.approx([number * whole / rate for number in range(10)])


async def test_a_rate_that_is_changed_holds_from_the_next_piece_on(autojump_clock: trio.testing.MockClock) -> None:
    pace, sent = SendingRate(), Sent()
    await send(pace, sent, [500_000] * 3, 1_000_000)
    await send(pace, sent, [500_000] * 3, 5_000_000)
    began = sent[0][0]
    assert [at - began for at, _ in sent] == pytest.approx([0.0, 0.5, 1.0, 1.5, 1.6, 1.7])
    await send(pace, sent, [PAYLOAD_BYTES] * 2, None)
    assert sent[-1][0] == sent[-3][0]  # without a limit nothing waits


def test_a_piece_takes_less_time_than_a_follower_waits_for_its_leader() -> None:
    assert [SendingRate.piece_bytes(rate) for rate in (1_000_000, 4_000_000, 100_000_000, None)] == [
        500_000, 2_000_000, PAYLOAD_BYTES, PAYLOAD_BYTES,
    ]  # fmt: skip
