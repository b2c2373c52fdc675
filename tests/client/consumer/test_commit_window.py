"""The commit window: how far a commit may go when messages are finished in any order."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from eventstore.client.consumer.commit_window import DeliveryTracker, Window


def new_window(offset: int = 0) -> tuple[Window, DeliveryTracker, list[int]]:
    woken: list[int] = []
    tracker = DeliveryTracker(lambda: woken.append(1))
    return Window(tracker, "orders", 0, None, offset), tracker, woken


def arrive(window: Window, offsets: Sequence[int], next_offset: int, messages: int, size_bytes: int) -> None:
    """Adds a page and opens it at once."""
    window.arrived(window.next_offset, next_offset, messages, size_bytes)
    if messages:
        window.open(offsets)


def test_a_new_window_is_where_the_group_is() -> None:
    window, _, _ = new_window(17)
    assert (window.position, window.next_offset, window.committed) == (17, 17, 17)


def test_the_first_unfinished_message_holds_back_those_after_it() -> None:
    window, _, _ = new_window(5)
    arrive(window, range(5, 10), 10, 5, 500)
    for offset in (6, 7, 9):
        window.finish(offset)
        assert window.position == 5
    window.finish(5)
    assert window.position == 8
    window.finish(8)
    assert window.position == 10


def test_a_page_without_a_matching_tag_advances_the_position() -> None:
    window, _, _ = new_window()
    arrive(window, (), 16_384, 0, 0)
    assert window.position == 16_384
    assert window.messages == 0


def test_offsets_left_out_by_a_filter_are_skipped() -> None:
    window, _, _ = new_window()
    arrive(window, (3, 8), 20, 2, 100)
    assert window.position == 3
    window.finish(3)
    assert window.position == 8
    arrive(window, (), 40, 0, 0)
    assert window.position == 8
    window.finish(8)
    assert window.position == 40


def test_a_page_that_was_not_opened_holds_back_the_position() -> None:
    window, _, _ = new_window(5)
    window.arrived(5, 10, 2, 100)
    window.arrived(10, 12, 2, 100)
    assert (window.position, window.next_offset) == (5, 12)
    window.open((7, 8))
    assert window.position == 7
    window.finish(7)
    window.finish(8)
    assert (window.position, window.messages) == (10, 2)
    window.open((10, 11))
    window.finish(10)
    assert window.position == 11


def test_finishing_twice_is_finishing_once() -> None:
    window, _, _ = new_window()
    arrive(window, range(3), 3, 3, 30)
    for _ in range(3):
        window.finish(1)
    window.finish(0)
    window.finish(0)
    window.finish(1)
    assert window.position == 2


def test_a_page_is_held_until_the_window_has_passed_it() -> None:
    window, _, _ = new_window()
    arrive(window, range(3), 3, 3, 300)
    arrive(window, range(3, 5), 5, 2, 20)
    for offset in (1, 2, 3, 4):
        window.finish(offset)
    assert (window.messages, window.size_bytes) == (5, 320)
    window.finish(0)
    assert (window.messages, window.size_bytes) == (0, 0)


def test_finishing_a_message_of_a_closed_window_does_nothing() -> None:
    window, tracker, woken = new_window()
    arrive(window, range(3), 3, 3, 300)
    tracker.room_awaited = tracker.turn_awaited = True
    window.close()
    window.finish(0)
    window.fail(1, "late")
    assert not woken
    assert not tracker.failures
    assert window.messages == 0


def test_a_waiter_for_room_is_woken_once_per_page() -> None:
    window, tracker, woken = new_window()
    arrive(window, range(100), 100, 100, 1)
    arrive(window, range(100, 200), 200, 100, 1)
    tracker.room_awaited = True
    for offset in range(200):
        window.finish(offset)
    assert len(woken) == 2


def test_a_waiter_for_a_turn_is_woken_by_each_message() -> None:
    window, tracker, woken = new_window()
    arrive(window, range(10), 10, 10, 1)
    tracker.turn_awaited = True
    window.finish(4)
    window.finish(0)
    assert len(woken) == 2


def test_a_failed_message_stays_unfinished_until_it_was_reported() -> None:
    window, tracker, woken = new_window()
    arrive(window, range(2), 2, 2, 1)
    window.fail(0, "no stock")
    window.fail(0, "again")
    assert tracker.failures == {(window, 0): "no stock"}
    assert woken
    assert window.position == 0


def test_a_finished_message_cannot_fail() -> None:
    window, tracker, _ = new_window()
    arrive(window, range(3), 3, 3, 1)
    window.finish(0)
    window.finish(2)
    window.fail(0, "late")
    window.fail(2, "late")
    assert not tracker.failures


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=30), st.randoms(use_true_random=False))
def test_the_position_is_the_first_offset_that_is_not_finished(pages: list[tuple[int, int]], chance: random.Random) -> None:
    window, _, _ = new_window()
    waiting: set[int] = set()
    end = 0
    for messages, left_out in pages:
        offsets = sorted(chance.sample(range(end, end + messages + left_out), messages))
        end += messages + left_out
        arrive(window, offsets, end, messages, 10 * messages)
        waiting.update(offsets)
        for offset in chance.sample(sorted(waiting), chance.randint(0, len(waiting))):
            window.finish(offset)
            waiting.discard(offset)
            assert window.position == min(waiting, default=end)
    assert window.messages >= len(waiting)
    assert (window.messages == 0) == (not waiting)


def test_messages_may_be_finished_on_many_threads_at_once() -> None:
    window, _, _ = new_window()
    count, threads = 40_000, 4
    arrive(window, range(count), count, count, count)

    def work(place: int) -> None:
        for offset in range(place, count, threads):
            window.finish(offset)

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert window.position == count
    assert window.messages == 0
