"""A member of a consumer group, sans-io: what it reads, what it asks for, what it holds, and what it commits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eventstore.broker.allocation import Share
from eventstore.broker.message import AFTER_CRC, FIXED_BYTES, HEADER_BYTES, THROUGH_CRC, Message
from eventstore.broker.retrying import FAILURES, ORIGIN
from eventstore.chunks.record import MARK, TRAILER, TRAILER_MARK
from eventstore.client.consumption import PULL_MESSAGES, WAIT_MS, WAIT_MS_OTHERS, Asked, Consumption
from eventstore.client.delivery import Delivery, Mode, RawBatch
from eventstore.client.reader import Reader, shares_of
from eventstore.client.reader import subscriptions as named
from eventstore.client.window import Ledger
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.flat import encode
from eventstore.protocol.broker_requests import CommitOffsets
from eventstore.protocol.limits import PULL_QUEUES_MAX
from eventstore.protocol.message_answers import Messages, QueuePage


def record(topic: str, queue: int, offset: int, body: bytes = b"body", properties: dict[str, str] | None = None) -> bytes:
    """A record as the broker frames it; its CRC is not looked at by clients."""
    raw = encode([each for pair in properties.items() for each in pair]) if properties else None
    values = encode(("tag", f"key-{offset}", topic, body, raw))
    length = FIXED_BYTES + len(values)
    rest = AFTER_CRC.pack(length, 0, 1, 1, 1, 1_700_000_000_000_000, offset, 4096 + offset, 1, queue, 9, 0, 0)
    return THROUGH_CRC.pack(MARK, HEADER_BYTES - 2, 0) + rest + values + TRAILER.pack(TRAILER_MARK, length)


def new(mode: Mode = "parallel", **settings: int) -> Consumption:
    reader = Reader("billing", "m-1", {"orders": None}, **settings)  # type: ignore[arg-type] # the two bounds
    return Consumption(reader, Ledger(), mode, 0.5)


def assign(consumption: Consumption, generation: int, *shares: tuple[int, int], topic: str = "orders") -> bool:
    return consumption.assigned(generation, [Share(topic, queue, offset, None) for queue, offset in shares])


def answer(asked: Asked, *offsets: Sequence[int], behind: int = 0, properties: dict[str, str] | None = None) -> Messages:
    """For each queue that was asked for messages with these offsets; `behind`: so many more were left out by a filter."""
    records, pages = b"", []
    for want, each in zip(asked.request.wants, offsets, strict=True):
        records += b"".join(record(want[0], want[1], offset, properties=properties) for offset in each)
        following = (each[-1] + 1 if each else want[2]) + behind
        pages.append(QueuePage(following, 0, following, None, None, len(each)))
    return Messages(records, sum(map(len, offsets)), tuple(pages))


def ask(consumption: Consumption) -> Asked:
    asked = consumption.ask()
    assert asked is not None
    return asked


def receive(consumption: Consumption, asked: Asked, answer: Messages) -> None:
    consumption.received(asked, answer)
    consumption.open()


def taken(consumption: Consumption, count: int = 1_000_000) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count and (item := consumption.turns.take()) is not None:
        assert isinstance(item, Delivery)
        found.append(item)
    return found


def committed(consumption: Consumption) -> dict[int, int]:
    """What a commit says now, by queue."""
    return {place[1]: place[2] for request, _ in consumption.commits() for place in request.offsets}


def test_messages_come_in_the_order_of_their_queue_with_all_they_have() -> None:
    consumption = new()
    assign(consumption, 5, (0, 10))
    asked = ask(consumption)
    assert asked.request.wants == (("orders", 0, 10, None),)
    receive(consumption, asked, answer(asked, range(10, 13)))
    first, *others = taken(consumption)
    assert isinstance(first, Message)
    assert (first.topic, first.queue, first.queue_offset, first.key, first.tag) == ("orders", 0, 10, "key-10", "tag")
    assert (first.body, first.properties, first.times_failed) == (b"body", {}, 0)
    assert first.message_id == f"{9:04x}{4096 + 10:016x}"
    assert [each.queue_offset for each in others] == [11, 12]
    assert ask(consumption).request.wants == (("orders", 0, 13, None),)


def test_what_is_not_finished_is_not_committed() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(3), range(3)))
    assert committed(consumption) == {}
    for message in taken(consumption):
        if (message.queue, message.queue_offset) != (0, 1):
            message.done()
    assert committed(consumption) == {0: 1, 1: 3}


def test_a_commit_names_group_member_and_generation_and_comes_once() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(3)))
    for message in taken(consumption):
        message.done()
    ((request, moved),) = consumption.commits()
    assert request == CommitOffsets("billing", "m-1", 5, (("orders", 0, 3),))
    assert committed(consumption) == {0: 3}, "until it is answered it is due"
    consumption.committed(moved)
    assert committed(consumption) == {}


def test_a_page_of_which_a_filter_left_out_everything_moves_the_commit_on() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, (), behind=16_384))
    assert committed(consumption) == {0: 16_384}


def test_what_was_not_decoded_yet_is_not_committed_and_the_next_pull_goes_on_behind_it() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    consumption.received(asked, answer(asked, range(3)))
    assert committed(consumption) == {}
    following = ask(consumption)
    assert following.request.wants == (("orders", 0, 3, None),)
    assert following.request.messages_max < 10_000
    consumption.received(following, answer(following, range(3, 5)))
    consumption.open()
    first, *others = taken(consumption)
    first.done()
    assert committed(consumption) == {0: 1}
    for message in others:
        message.done()
    assert committed(consumption) == {0: 5}


def test_what_was_not_decoded_yet_when_its_queue_went_is_not_handed_out() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    consumption.received(asked, answer(asked, range(3), range(3)))
    assign(consumption, 6, (1, 0))
    consumption.open()
    assert [message.queue for message in taken(consumption)] == [1, 1, 1]


# ---- rebalances


def test_a_queue_that_stays_keeps_what_is_held_of_it() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(3), range(3)))
    first = taken(consumption, 1)[0]
    assert assign(consumption, 6, (0, 0), (1, 0)) is False
    first.done()
    assert committed(consumption) == {first.queue: 1}
    assert len(taken(consumption)) == 5


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_a_queue_that_goes_takes_what_waits_of_it_along_and_finishing_it_does_nothing(mode: Mode) -> None:
    consumption = new(mode)
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(3), range(3)))
    first = taken(consumption, 1)[0]
    kept = 1 - first.queue
    assert assign(consumption, 6, (kept, 0)) is True
    assert not first.is_mine
    first.done()
    first.retry("too late")
    assert committed(consumption) == {}
    assert consumption.failures() == []
    while rest := taken(consumption, 1):
        assert rest[0].queue == kept
        assert rest[0].is_mine
        rest[0].done()
    assert committed(consumption) == {kept: 3}


def test_an_answer_to_a_pull_of_before_brings_nothing_of_a_queue_that_went() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    kept = asked.request.wants[1][1]
    assign(consumption, 6, (kept, 0))
    receive(consumption, asked, answer(asked, range(3), range(2)))
    assert [message.queue for message in taken(consumption)] == [kept, kept]


@pytest.mark.parametrize("offset", [0, 4, 9, 70])
def test_a_reset_begins_the_queue_anew(offset: int) -> None:
    """The group's offset is 5 and this member has finished up to 8: whatever lies outside of that was set by somebody."""
    consumption = new()
    assign(consumption, 5, (0, 5))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(5, 12)))
    for message in taken(consumption, 3):
        message.done()
    assert assign(consumption, 6, (0, offset)) is True
    assert taken(consumption) == []
    assert ask(consumption).request.wants == (("orders", 0, offset, None),)
    assert committed(consumption) == {}


@pytest.mark.parametrize("offset", [5, 6, 8])
def test_a_commit_whose_answer_was_lost_is_no_reset(offset: int) -> None:
    consumption = new()
    assign(consumption, 5, (0, 5))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(5, 12)))
    for message in taken(consumption, 3):
        message.done()
    assert assign(consumption, 6, (0, offset)) is False
    assert len(taken(consumption)) == 4
    assert committed(consumption) == ({0: 8} if offset < 8 else {})


def test_a_member_that_was_expelled_pulls_nothing_until_it_has_joined_again() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    consumption.expelled()
    assert consumption.ask() is None
    assign(consumption, 9, (0, 0))
    assert consumption.ask() is not None


def test_a_queue_that_is_shorter_than_it_was_is_begun_anew_at_its_end() -> None:
    consumption = new()
    assign(consumption, 5, (0, 50))
    asked = ask(consumption)
    receive(consumption, asked, Messages(b"", 0, (QueuePage(40, 0, 40, 50, None, 0),)))
    assert ask(consumption).request.wants == (("orders", 0, 40, None),)


# ---- bounds


def test_no_more_is_asked_for_than_may_be_held() -> None:
    consumption = new(hold_messages=100)
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    assert asked.request.messages_max == 100
    receive(consumption, asked, answer(asked, range(60)))
    assert ask(consumption).request.messages_max == 40
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(60, 100)))
    assert consumption.ask() is None
    held = taken(consumption)
    for message in held[:59]:
        message.done()
    assert consumption.ask() is None, "a page is held until all of it is finished"
    held[59].done()
    assert ask(consumption).request.messages_max == 60


def test_bytes_are_bounded_as_well() -> None:
    consumption = new(hold_bytes=1000)
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    assert asked.request.bytes_max == 1000
    receive(consumption, asked, answer(asked, range(20)))
    assert consumption.ask() is None
    for message in taken(consumption):
        message.done()
    assert ask(consumption).request.bytes_max == 1000


def test_one_queue_does_not_take_the_room_of_the_others() -> None:
    consumption = new(hold_messages=1000)
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    stuck = asked.request.wants[0][1]
    receive(consumption, asked, answer(asked, range(600), ()))
    asked = ask(consumption)
    assert [want[1] for want in asked.request.wants] == [1 - stuck]
    assert asked.request.wait_ms == WAIT_MS_OTHERS
    for message in taken(consumption):
        message.done()
    asked = ask(consumption)
    assert len(asked.request.wants) == 2
    assert (asked.request.wait_ms, asked.request.messages_max) == (WAIT_MS, min(1000, PULL_MESSAGES))


def test_a_queue_beside_hundreds_may_hold_two_pages_while_half_of_the_room_is_free() -> None:
    consumption = new()
    assign(consumption, 5, *((queue, 0) for queue in range(255)))
    for start in range(0, 2 * PULL_MESSAGES, PULL_MESSAGES):
        asked = ask(consumption)
        assert ("orders", 7, start, None) in asked.request.wants
        page = range(start, start + PULL_MESSAGES)
        receive(consumption, asked, answer(asked, *(page if want[1] == 7 else () for want in asked.request.wants)))
    asked = ask(consumption)
    assert len(asked.request.wants) == 254
    assert not consumption.has_room_again(asked)
    for message in taken(consumption, PULL_MESSAGES):
        message.done()
    assert consumption.has_room_again(asked)
    assert ("orders", 7, 2 * PULL_MESSAGES, None) in ask(consumption).request.wants


def test_queues_that_stand_still_leave_half_of_the_room_to_the_others() -> None:
    consumption = new(hold_messages=4000, hold_bytes=1_000_000_000)
    assign(consumption, 5, *((queue, 0) for queue in range(100)))
    for _ in range(10):
        asked = ask(consumption)
        stuck = next((want[1] for want in asked.request.wants if want[1] < 2), None)
        pages = (range(want[2], want[2] + 500) if want[1] == stuck else () for want in asked.request.wants)
        receive(consumption, asked, answer(asked, *pages))
    assert 2000 < sum(window.messages for window in consumption.windows) <= 2500
    assert {want[1] for want in ask(consumption).request.wants} == set(range(2, 100))


def test_a_pull_begins_behind_the_last_queue_that_brought_something() -> None:
    consumption = new()
    assign(consumption, 5, *((queue, 0) for queue in range(4)))
    order = []
    for _ in range(4):
        asked = ask(consumption)
        order.append([want[1] for want in asked.request.wants])
        receive(consumption, asked, answer(asked, range(1), range(1), (), ()))
    assert order == [[0, 1, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3], [2, 3, 0, 1]]


def test_a_pull_with_a_filter_waits_for_a_commit_interval_at_most_to_learn_what_was_left_out() -> None:
    consumption = new()
    consumption.assigned(5, [Share("orders", 0, 0, "*"), Share("other", 0, 0, None)])
    assert ask(consumption).request.wait_ms == WAIT_MS
    consumption.assigned(6, [Share("orders", 0, 0, "paid"), Share("other", 0, 0, None)])
    assert ask(consumption).request.wait_ms == 500


@pytest.mark.parametrize("hot", [range(3000), range(1200, 1203), range(0)])
def test_more_queues_than_go_into_a_pull_are_all_pulled_in_turn(hot: range) -> None:
    """The server answers with one message of each of the first 300 queues that have any, there and then."""
    consumption = new()
    consumption.raw = True
    assign(consumption, 5, *((queue, 0) for queue in range(3000)))
    looked, brought = set[int](), dict.fromkeys(hot, 0)
    for _ in range(25):
        asked = ask(consumption)
        wants = asked.request.wants
        assert len(wants) == PULL_QUEUES_MAX
        found = [want for want in wants if want[1] in brought][:300]
        looked.update(want[1] for want in (wants[: wants.index(found[-1]) + 1] if len(found) == 300 else wants))
        of_each = dict.fromkeys(found, 1)
        pages = [QueuePage(want[2] + of_each.get(want, 0), 0, 9, None, None, of_each.get(want, 0)) for want in wants]
        records = b"".join(record(*want[:3]) for want in found)
        receive(consumption, asked, Messages(records, len(found), tuple(pages)))
        for want in found:
            brought[want[1]] += 1
        while (item := consumption.turns.take()) is not None:
            item.done()
    assert len(looked) == 3000
    if brought:
        assert max(brought.values()) - min(brought.values()) <= 1


def test_a_pull_that_cannot_name_all_queues_waits_only_while_nothing_is_in_the_others() -> None:
    consumption = new()
    assign(consumption, 5, *((queue, 0) for queue in range(1500)))
    asked = ask(consumption)
    assert asked.request.wait_ms == WAIT_MS_OTHERS
    receive(consumption, asked, _with_more(asked, 3))
    asked = ask(consumption)
    assert [asked.request.wants[0][1], asked.request.wants[-1][1]] == [4, 1003]
    assert asked.request.wait_ms == 0, "queue 3 has more"
    receive(consumption, asked, _with_more(asked, None))
    asked = ask(consumption)
    assert ("orders", 3, 1, None) in asked.request.wants
    assert asked.request.wait_ms == WAIT_MS_OTHERS


def _with_more(asked: Asked, hot: int | None) -> Messages:
    """One message of a queue that has more; nothing is in the others."""
    pages = [
        QueuePage(want[2] + (want[1] == hot), 0, 50 * (want[1] == hot), None, None, int(want[1] == hot))
        for want in asked.request.wants
    ]
    return Messages(b"" if hot is None else record("orders", hot, 0), int(hot is not None), tuple(pages))


# ---- sequential


def test_sequential_hands_out_one_unfinished_message_of_a_queue_at_a_time() -> None:
    consumption = new("sequential")
    assign(consumption, 5, (0, 0), (1, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, (0, 3, 4), (7,)))
    first, second = taken(consumption)
    assert {first.queue, second.queue} == {0, 1}
    longer = first if first.queue == asked.request.wants[0][1] else second
    longer.done()
    (following,) = taken(consumption)
    assert (following.queue, following.queue_offset) == (longer.queue, 3)
    assert taken(consumption) == []


def test_sequential_goes_on_behind_a_failed_message_once_that_was_reported() -> None:
    consumption = new("sequential")
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(2)))
    taken(consumption)[0].retry("no stock")
    assert taken(consumption) == []
    ((reason, places),) = consumption.failures()
    assert consumption.failure(reason, places).places == (("orders", 0, 0),)
    consumption.reported(places)
    assert [message.queue_offset for message in taken(consumption)] == [1]
    assert committed(consumption) == {0: 1}


# ---- failures


def test_failures_travel_together_as_far_as_their_reason_is_the_same() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, range(600)))
    for message in taken(consumption):
        message.retry("odd" if message.queue_offset % 2 else "even")
    reports = consumption.failures()
    assert [(reason, len(places)) for reason, places in reports] == [("even", 256), ("even", 44), ("odd", 256), ("odd", 44)]
    assert consumption.failures() == reports, "until they were reported they are due"
    for _, places in reports:
        consumption.reported(places)
    assert consumption.failures() == []
    assert committed(consumption) == {0: 600}


def test_a_message_that_comes_again_is_as_it_was_sent_first() -> None:
    consumption = new()
    assign(consumption, 5, (1, 20), topic="retry:billing")
    asked = ask(consumption)
    was = dict(zip(ORIGIN, ("orders", "3", "77", f"{9:04x}{8192:016x}"), strict=True))
    receive(consumption, asked, answer(asked, (20,), properties={**was, FAILURES: "2", "mine": "x"}))
    (message,) = taken(consumption)
    assert (message.topic, message.queue, message.queue_offset, message.message_id) == ("orders", 3, 77, f"{9:04x}{8192:016x}")
    assert message.times_failed == 2
    assert message.properties["mine"] == "x"
    message.retry("again")
    ((reason, places),) = consumption.failures()
    assert consumption.failure(reason, places).places == (("retry:billing", 1, 20),)


def test_a_reason_that_is_too_long_is_refused() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    receive(consumption, asked, answer(asked, (0,)))
    with pytest.raises(InvalidArgument):
        taken(consumption)[0].retry("x" * 5000)


# ---- raw batches


def test_raw_batches_are_one_queue_each_and_finished_as_a_whole() -> None:
    consumption = new()
    consumption.raw = True
    assign(consumption, 5, (0, 0), (1, 0), (2, 5))
    asked = ask(consumption)
    offsets = {0: range(3), 1: (), 2: (6, 9)}
    receive(consumption, asked, answer(asked, *(offsets[want[1]] for want in asked.request.wants)))
    batches: list[RawBatch] = []
    while (item := consumption.turns.take()) is not None:
        assert isinstance(item, RawBatch)
        batches.append(item)
    assert {batch.queue: batch.count for batch in batches} == {0: 3, 2: 2}
    for batch in batches:
        assert [(message.queue, message.queue_offset) for message in batch.messages()] == [
            (batch.queue, offset) for offset in offsets[batch.queue]
        ]
    assert committed(consumption) == {}
    for batch in batches:
        batch.done()
    assert committed(consumption) == {0: 3, 2: 10}


# ---- what others say


@pytest.mark.parametrize("values", [(), ("g",), (1, "orders", 0, 5), (1, "orders", "0", 5, None), (1, 2, 0, 5, None)])
def test_a_share_that_is_none_is_a_protocol_error(values: tuple[str | int | None, ...]) -> None:
    with pytest.raises(ProtocolError):
        shares_of(values)


def test_an_answer_that_does_not_fit_its_pull_is_a_protocol_error() -> None:
    consumption = new()
    assign(consumption, 5, (0, 0))
    asked = ask(consumption)
    page = QueuePage(3, 0, 3, None, None, 3)
    for wrong in (
        Messages(b"", 0, ()),
        Messages(b"", 0, (page, page)),
        Messages(b"", 0, (page,)),
        Messages(b"xyz", 3, (page,)),
    ):
        with pytest.raises(ProtocolError):
            receive(consumption, asked, wrong)


def test_topics_are_a_name_names_or_tags_by_name() -> None:
    assert named("orders") == {"orders": None}
    assert named(["a", "b"]) == {"a": None, "b": None}
    assert named({"a": "paid", "b": None}) == {"a": "paid", "b": None}
    for wrong in ([], [1], {}):
        with pytest.raises(InvalidArgument):
            named(wrong)  # type: ignore[arg-type] # that is the test
