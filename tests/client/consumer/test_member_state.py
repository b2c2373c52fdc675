"""The state of a group member, sans-io: assigned queues, pulls, bounds, commits and failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from eventstore.chunks.record import MARK, THROUGH_CRC, TRAILER, TRAILER_MARK
from eventstore.client.consumer.commit_window import DeliveryTracker
from eventstore.client.consumer.delivery import Delivery, RawBatch
from eventstore.client.consumer.member_options import PULL_MESSAGES, PULL_WAIT_S, MemberOptions, Mode, tags_by_topic
from eventstore.client.consumer.member_state import (
    WAIT_MS_OTHERS,
    MemberState,
    PlannedPull,
)
from eventstore.errors import InvalidArgument, ProtocolError
from eventstore.flat import encode
from eventstore.protocol.group_requests import CommitOffsets
from eventstore.protocol.limits import PULL_QUEUES_MAX
from eventstore.protocol.message_answers import Messages, QueuePage
from eventstore.records.consumer_groups import FAILURES, ORIGIN, AssignedQueue
from eventstore.records.message import AFTER_CRC, FIXED_BYTES, HEADER_BYTES, Message


def record(topic: str, queue: int, offset: int, body: bytes = b"body", properties: dict[str, str] | None = None) -> bytes:
    """A record as the broker frames it; clients do not check its CRC."""
    raw = encode([each for pair in properties.items() for each in pair]) if properties else None
    values = encode(("tag", f"key-{offset}", topic, body, raw))
    length = FIXED_BYTES + len(values)
    rest = AFTER_CRC.pack(0, length, 0, 1, 1, 1, 1_700_000_000_000_000, offset, 4096 + offset, 1, queue, 9, 0, 0)
    return THROUGH_CRC.pack(MARK, HEADER_BYTES - 2, 0) + rest + values + TRAILER.struct.pack(TRAILER_MARK, length)


def new(mode: Mode = "parallel", **settings: int) -> MemberState:
    options = MemberOptions("billing", "m-1", {"orders": None}, mode, commit_interval_s=0.5, **settings)  # type: ignore[arg-type]
    return MemberState(options, DeliveryTracker())


def assign(member: MemberState, generation: int, *queues: tuple[int, int], topic: str = "orders") -> bool:
    return member.assigned(generation, [AssignedQueue(topic, queue, offset, None) for queue, offset in queues])


def answer(pull: PlannedPull, *offsets: Sequence[int], skipped: int = 0, properties: dict[str, str] | None = None) -> Messages:
    """Answers a pull with messages of these offsets in each queue. `skipped`: how many more a filter left out after them."""
    records, pages = b"", []
    for want, each in zip(pull.request.wants, offsets, strict=True):
        records += b"".join(record(want[0], want[1], offset, properties=properties) for offset in each)
        following = (each[-1] + 1 if each else want[2]) + skipped
        pages.append(QueuePage(following, 0, following, None, None, len(each)))
    return Messages(records, sum(map(len, offsets)), tuple(pages))


def next_pull(member: MemberState) -> PlannedPull:
    pull = member.next_pull()
    assert pull is not None
    return pull


def receive(member: MemberState, pull: PlannedPull, answer: Messages) -> None:
    member.received(pull, answer)
    member.decode()


def taken(member: MemberState, count: int = 1_000_000) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count and (item := member.ready.take()) is not None:
        assert isinstance(item, Delivery)
        found.append(item)
    return found


def committed(member: MemberState) -> dict[int, int]:
    """Returns the offsets that a commit would have now, by queue."""
    return {place[1]: place[2] for request, _ in member.commits() for place in request.offsets}


def test_messages_come_in_the_order_of_their_queue_with_all_fields() -> None:
    member = new()
    assign(member, 5, (0, 10))
    pull = next_pull(member)
    assert pull.request.wants == (("orders", 0, 10, None),)
    receive(member, pull, answer(pull, range(10, 13)))
    first, *others = taken(member)
    assert isinstance(first, Message)
    assert (first.topic, first.queue, first.queue_offset, first.key, first.tag) == ("orders", 0, 10, "key-10", "tag")
    assert (first.body, first.properties, first.times_failed) == (b"body", {}, 0)
    assert first.message_id == f"{9:04x}{4096 + 10:016x}"
    assert [each.queue_offset for each in others] == [11, 12]
    assert next_pull(member).request.wants == (("orders", 0, 13, None),)


def test_unfinished_messages_are_not_committed() -> None:
    member = new()
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(3), range(3)))
    assert committed(member) == {}
    for message in taken(member):
        if (message.queue, message.queue_offset) != (0, 1):
            message.done()
    assert committed(member) == {0: 1, 1: 3}


def test_a_commit_names_group_member_and_generation_and_comes_once() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(3)))
    for message in taken(member):
        message.done()
    ((request, moved),) = member.commits()
    assert request == CommitOffsets("billing", "m-1", 5, (("orders", 0, 3),))
    assert committed(member) == {0: 3}, "it stays due until it is answered"
    member.committed(moved)
    assert committed(member) == {}


def test_a_page_left_out_entirely_by_a_filter_advances_the_commit() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, (), skipped=16_384))
    assert committed(member) == {0: 16_384}


def test_undecoded_messages_are_not_committed_and_the_next_pull_continues_after_them() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    member.received(pull, answer(pull, range(3)))
    assert committed(member) == {}
    following = next_pull(member)
    assert following.request.wants == (("orders", 0, 3, None),)
    assert following.request.messages_max < 10_000
    member.received(following, answer(following, range(3, 5)))
    member.decode()
    first, *others = taken(member)
    first.done()
    assert committed(member) == {0: 1}
    for message in others:
        message.done()
    assert committed(member) == {0: 5}


def test_undecoded_messages_of_a_queue_that_moved_are_not_handed_out() -> None:
    member = new()
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    member.received(pull, answer(pull, range(3), range(3)))
    assign(member, 6, (1, 0))
    member.decode()
    assert [message.queue for message in taken(member)] == [1, 1, 1]


# ---- rebalances


def test_a_queue_that_stays_keeps_its_held_messages() -> None:
    member = new()
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(3), range(3)))
    first = taken(member, 1)[0]
    assert assign(member, 6, (0, 0), (1, 0)) is False
    first.done()
    assert committed(member) == {first.queue: 1}
    assert len(taken(member)) == 5


@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_messages_of_a_queue_that_moved_are_dropped_and_finishing_them_does_nothing(mode: Mode) -> None:
    member = new(mode)
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(3), range(3)))
    first = taken(member, 1)[0]
    kept = 1 - first.queue
    assert assign(member, 6, (kept, 0)) is True
    assert not first.is_mine
    first.done()
    first.retry("too late")
    assert committed(member) == {}
    assert member.failures() == []
    while rest := taken(member, 1):
        assert rest[0].queue == kept
        assert rest[0].is_mine
        rest[0].done()
    assert committed(member) == {kept: 3}


def test_the_answer_to_an_earlier_pull_delivers_nothing_of_a_queue_that_moved() -> None:
    member = new()
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    kept = pull.request.wants[1][1]
    assign(member, 6, (kept, 0))
    receive(member, pull, answer(pull, range(3), range(2)))
    assert [message.queue for message in taken(member)] == [kept, kept]


@pytest.mark.parametrize("offset", [0, 4, 9, 70])
def test_a_reset_restarts_the_queue(offset: int) -> None:
    """The group's offset is 5 and this member has finished up to 8: an offset outside of that range was set from elsewhere."""
    member = new()
    assign(member, 5, (0, 5))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(5, 12)))
    for message in taken(member, 3):
        message.done()
    assert assign(member, 6, (0, offset)) is True
    assert taken(member) == []
    assert next_pull(member).request.wants == (("orders", 0, offset, None),)
    assert committed(member) == {}


@pytest.mark.parametrize("offset", [5, 6, 8])
def test_a_commit_whose_answer_was_lost_does_not_look_like_a_reset(offset: int) -> None:
    member = new()
    assign(member, 5, (0, 5))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(5, 12)))
    for message in taken(member, 3):
        message.done()
    assert assign(member, 6, (0, offset)) is False
    assert len(taken(member)) == 4
    assert committed(member) == ({0: 8} if offset < 8 else {})


def test_an_expelled_member_pulls_nothing_until_it_has_joined_again() -> None:
    member = new()
    assign(member, 5, (0, 0))
    member.expelled()
    assert member.next_pull() is None
    assign(member, 9, (0, 0))
    assert member.next_pull() is not None


def test_a_queue_that_became_shorter_restarts_at_its_end() -> None:
    member = new()
    assign(member, 5, (0, 50))
    pull = next_pull(member)
    receive(member, pull, Messages(b"", 0, (QueuePage(40, 0, 40, 50, None, 0),)))
    assert next_pull(member).request.wants == (("orders", 0, 40, None),)


# ---- bounds


def test_a_pull_requests_no_more_than_may_be_held() -> None:
    member = new(hold_messages=100)
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    assert pull.request.messages_max == 100
    receive(member, pull, answer(pull, range(60)))
    assert next_pull(member).request.messages_max == 40
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(60, 100)))
    assert member.next_pull() is None
    held = taken(member)
    for message in held[:59]:
        message.done()
    assert member.next_pull() is None, "a page is held until all of it is finished"
    held[59].done()
    assert next_pull(member).request.messages_max == 60


def test_bytes_are_bounded_as_well() -> None:
    member = new(hold_bytes=1000)
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    assert pull.request.bytes_max == 1000
    receive(member, pull, answer(pull, range(20)))
    assert member.next_pull() is None
    for message in taken(member):
        message.done()
    assert next_pull(member).request.bytes_max == 1000


def test_one_queue_does_not_take_the_room_of_the_others() -> None:
    member = new(hold_messages=1000)
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    stuck = pull.request.wants[0][1]
    receive(member, pull, answer(pull, range(600), ()))
    pull = next_pull(member)
    assert [want[1] for want in pull.request.wants] == [1 - stuck]
    assert pull.request.wait_ms == WAIT_MS_OTHERS
    for message in taken(member):
        message.done()
    pull = next_pull(member)
    assert len(pull.request.wants) == 2
    assert (pull.request.wait_ms, pull.request.messages_max) == (PULL_WAIT_S * 1000, min(1000, PULL_MESSAGES))


def test_one_queue_of_hundreds_may_hold_two_pages_while_half_of_the_room_is_free() -> None:
    member = new()
    assign(member, 5, *((queue, 0) for queue in range(255)))
    for start in range(0, 2 * PULL_MESSAGES, PULL_MESSAGES):
        pull = next_pull(member)
        assert ("orders", 7, start, None) in pull.request.wants
        page = range(start, start + PULL_MESSAGES)
        receive(member, pull, answer(pull, *(page if want[1] == 7 else () for want in pull.request.wants)))
    pull = next_pull(member)
    assert len(pull.request.wants) == 254
    assert not member.has_room_again(pull)
    for message in taken(member, PULL_MESSAGES):
        message.done()
    assert member.has_room_again(pull)
    assert ("orders", 7, 2 * PULL_MESSAGES, None) in next_pull(member).request.wants


def test_stalled_queues_leave_half_of_the_room_to_the_others() -> None:
    member = new(hold_messages=4000, hold_bytes=1_000_000_000)
    assign(member, 5, *((queue, 0) for queue in range(100)))
    for _ in range(10):
        pull = next_pull(member)
        stuck = next((want[1] for want in pull.request.wants if want[1] < 2), None)
        pages = (range(want[2], want[2] + 500) if want[1] == stuck else () for want in pull.request.wants)
        receive(member, pull, answer(pull, *pages))
    assert 2000 < sum(window.messages for window in member.windows) <= 2500
    assert {want[1] for want in next_pull(member).request.wants} == set(range(2, 100))


def test_a_pull_begins_after_the_last_queue_that_had_messages() -> None:
    member = new()
    assign(member, 5, *((queue, 0) for queue in range(4)))
    order = []
    for _ in range(4):
        pull = next_pull(member)
        order.append([want[1] for want in pull.request.wants])
        receive(member, pull, answer(pull, range(1), range(1), (), ()))
    assert order == [[0, 1, 2, 3], [2, 3, 0, 1], [0, 1, 2, 3], [2, 3, 0, 1]]


def test_a_pull_asks_for_the_page_and_the_wait_of_the_options() -> None:
    member = new(pull_messages=7, pull_bytes=70, pull_wait_s=3)
    assign(member, 5, (0, 0))
    request = next_pull(member).request
    assert (request.messages_max, request.bytes_max, request.wait_ms) == (7, 70, 3_000)
    for wrong in ({"pull_messages": 0}, {"pull_bytes": 1 << 30}, {"pull_wait_s": 0}, {"pull_wait_s": 61}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong)).removesuffix("_s")):
            new(**wrong)


def test_a_pull_with_a_filter_waits_at_most_a_commit_interval() -> None:
    member = new()
    member.assigned(5, [AssignedQueue("orders", 0, 0, "*"), AssignedQueue("other", 0, 0, None)])
    assert next_pull(member).request.wait_ms == PULL_WAIT_S * 1000
    member.assigned(6, [AssignedQueue("orders", 0, 0, "paid"), AssignedQueue("other", 0, 0, None)])
    assert next_pull(member).request.wait_ms == 500


@pytest.mark.parametrize("hot", [range(3000), range(1200, 1203), range(0)])
def test_more_queues_than_fit_into_a_pull_are_all_pulled_in_turn(hot: range) -> None:
    """The server answers with one message of each of the first 300 queues that have any."""
    member = new()
    member.raw = True
    assign(member, 5, *((queue, 0) for queue in range(3000)))
    looked, brought = set[int](), dict.fromkeys(hot, 0)
    for _ in range(25):
        pull = next_pull(member)
        wants = pull.request.wants
        assert len(wants) == PULL_QUEUES_MAX
        found = [want for want in wants if want[1] in brought][:300]
        looked.update(want[1] for want in (wants[: wants.index(found[-1]) + 1] if len(found) == 300 else wants))
        of_each = dict.fromkeys(found, 1)
        pages = [QueuePage(want[2] + of_each.get(want, 0), 0, 9, None, None, of_each.get(want, 0)) for want in wants]
        records = b"".join(record(*want[:3]) for want in found)
        receive(member, pull, Messages(records, len(found), tuple(pages)))
        for want in found:
            brought[want[1]] += 1
        while (item := member.ready.take()) is not None:
            item.done()
    assert len(looked) == 3000
    if brought:
        assert max(brought.values()) - min(brought.values()) <= 1


def test_a_pull_that_cannot_name_all_queues_waits_only_while_the_others_are_empty() -> None:
    member = new()
    assign(member, 5, *((queue, 0) for queue in range(1500)))
    pull = next_pull(member)
    assert pull.request.wait_ms == WAIT_MS_OTHERS
    receive(member, pull, _with_more(pull, 3))
    pull = next_pull(member)
    assert [pull.request.wants[0][1], pull.request.wants[-1][1]] == [4, 1003]
    assert pull.request.wait_ms == 0, "queue 3 has more"
    receive(member, pull, _with_more(pull, None))
    pull = next_pull(member)
    assert ("orders", 3, 1, None) in pull.request.wants
    assert pull.request.wait_ms == WAIT_MS_OTHERS


def _with_more(pull: PlannedPull, hot: int | None) -> Messages:
    """Answers with one message of a queue that has more; the others are empty."""
    pages = [
        QueuePage(want[2] + (want[1] == hot), 0, 50 * (want[1] == hot), None, None, int(want[1] == hot))
        for want in pull.request.wants
    ]
    return Messages(b"" if hot is None else record("orders", hot, 0), int(hot is not None), tuple(pages))


# ---- sequential


def test_sequential_hands_out_one_unfinished_message_of_a_queue_at_a_time() -> None:
    member = new("sequential")
    assign(member, 5, (0, 0), (1, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, (0, 3, 4), (7,)))
    first, second = taken(member)
    assert {first.queue, second.queue} == {0, 1}
    longer = first if first.queue == pull.request.wants[0][1] else second
    longer.done()
    (following,) = taken(member)
    assert (following.queue, following.queue_offset) == (longer.queue, 3)
    assert taken(member) == []


def test_sequential_continues_after_a_failed_message_once_it_was_reported() -> None:
    member = new("sequential")
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(2)))
    taken(member)[0].retry("no stock")
    assert taken(member) == []
    ((reason, places),) = member.failures()
    assert member.failure_report(reason, places).places == (("orders", 0, 0, 1),)
    member.reported(places)
    assert [message.queue_offset for message in taken(member)] == [1]
    assert committed(member) == {0: 1}


# ---- failures


def test_failures_with_the_same_reason_travel_together() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, range(600)))
    for message in taken(member):
        message.retry("odd" if message.queue_offset % 2 else "even")
    reports = member.failures()
    assert [(reason, len(places)) for reason, places in reports] == [("even", 256), ("even", 44), ("odd", 256), ("odd", 44)]
    assert member.failures() == reports, "they stay due until they were reported"
    for _, places in reports:
        member.reported(places)
    assert member.failures() == []
    assert committed(member) == {0: 600}


def test_a_redelivered_message_looks_like_the_first_time() -> None:
    member = new()
    assign(member, 5, (1, 20), topic="retry:billing")
    pull = next_pull(member)
    was = dict(zip(ORIGIN, ("orders", "3", "77", f"{9:04x}{8192:016x}"), strict=True))
    receive(member, pull, answer(pull, (20,), properties={**was, FAILURES: "2", "mine": "x"}))
    (message,) = taken(member)
    assert (message.topic, message.queue, message.queue_offset, message.message_id) == ("orders", 3, 77, f"{9:04x}{8192:016x}")
    assert message.times_failed == 2
    assert message.properties["mine"] == "x"
    message.retry("again")
    ((reason, places),) = member.failures()
    assert member.failure_report(reason, places).places == (("retry:billing", 1, 20),)


def test_a_reason_that_is_too_long_is_refused() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    receive(member, pull, answer(pull, (0,)))
    with pytest.raises(InvalidArgument):
        taken(member)[0].retry("x" * 5000)


# ---- raw batches


def test_raw_batches_are_one_queue_each_and_finished_as_a_whole() -> None:
    member = new()
    member.raw = True
    assign(member, 5, (0, 0), (1, 0), (2, 5))
    pull = next_pull(member)
    offsets = {0: range(3), 1: (), 2: (6, 9)}
    receive(member, pull, answer(pull, *(offsets[want[1]] for want in pull.request.wants)))
    batches: list[RawBatch] = []
    while (item := member.ready.take()) is not None:
        assert isinstance(item, RawBatch)
        batches.append(item)
    assert {batch.queue: batch.count for batch in batches} == {0: 3, 2: 2}
    for batch in batches:
        assert [(message.queue, message.queue_offset) for message in batch.messages()] == [
            (batch.queue, offset) for offset in offsets[batch.queue]
        ]
    assert committed(member) == {}
    for batch in batches:
        batch.done()
    assert committed(member) == {0: 3, 2: 10}


# ---- malformed input


def test_an_answer_that_does_not_fit_its_pull_is_a_protocol_error() -> None:
    member = new()
    assign(member, 5, (0, 0))
    pull = next_pull(member)
    page = QueuePage(3, 0, 3, None, None, 3)
    for wrong in (
        Messages(b"", 0, ()),
        Messages(b"", 0, (page, page)),
        Messages(b"", 0, (page,)),
        Messages(b"xyz", 3, (page,)),
    ):
        with pytest.raises(ProtocolError):
            receive(member, pull, wrong)


def test_topics_are_a_name_names_or_tags_by_name() -> None:
    assert tags_by_topic("orders") == {"orders": None}
    assert tags_by_topic(["a", "b"]) == {"a": None, "b": None}
    assert tags_by_topic({"a": "paid", "b": None}) == {"a": "paid", "b": None}
    for wrong in ([], [1], {}):
        with pytest.raises(InvalidArgument):
            tags_by_topic(wrong)  # type: ignore[arg-type] # that is the test
