"""Consumer groups over the wire: assignment, committed offsets, failed messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from eventstore.errors import InvalidArgument, Rebalanced, Unconsumed, UnknownGroup
from eventstore.protocol.broker_requests import (
    AddQueues,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    ListChunks,
    ListTopics,
    RemoveQueue,
    ShowTopic,
)
from eventstore.protocol.group_requests import (
    CommitOffsets,
    DeleteGroup,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Leave,
    ListDepartures,
    ListGroups,
    ListMembers,
    ReplayDead,
    ResetGroup,
    ShowGroup,
)
from tests.server.broker.broker_raw import bodies, create, join, message, pull, refusal, rows_of, send, values_of
from tests.server.conftest import Serve
from tests.server.raw import RawClient
from tests.server_thread import ServerThread
from tests.waiting import wait_until


@pytest.fixture
def client(shared: ServerThread) -> Iterator[RawClient]:
    with RawClient(shared.port) as connected:
        yield connected


def test_members_share_the_queues_and_learn_of_a_change_by_their_heartbeat(client: RawClient) -> None:
    create(client, "shared-out", 4)
    first, all_queues = join(client, "g1", "a", "shared-out", tags="x | y")
    assert all_queues == [("shared-out", queue, 0, "x | y") for queue in range(4)]
    assert values_of(client, Heartbeat("g1", "a", first)) == ()
    second, others = join(client, "g1", "b", "shared-out", tags="y|x")
    news = values_of(client, Heartbeat("g1", "a", first))
    assert news[0] == second > first
    mine = [news[at : at + 4] for at in range(1, len(news), 6)]
    assert sorted(row[1] for row in [*mine, *others]) == [0, 1, 2, 3]  # type: ignore[type-var] # numbers of queues
    assert values_of(client, Leave("g1", "b")) == ()
    assert len(values_of(client, Heartbeat("g1", "a", second))) == 1 + 4 * 6


def test_only_the_member_a_queue_is_assigned_to_commits_its_offsets(client: RawClient) -> None:
    create(client, "committed", 2)
    send(client, "committed", [message(b"%d" % number, queue=number % 2) for number in range(6)])
    generation, _ = join(client, "g2", "a", "committed")
    commit = CommitOffsets("g2", "a", generation, (("committed", 0, 2), ("committed", 1, 9)))
    assert values_of(client, commit) == (2, False, 3, True)
    join(client, "g2", "b", "committed")
    error = refusal(client, CommitOffsets("g2", "a", generation, (("committed", 0, 3),)))
    assert isinstance(error, Rebalanced)
    assert isinstance(error.fields["generation"], int)
    assert error.fields["generation"] > generation
    assert isinstance(refusal(client, CommitOffsets("g2", "nobody", generation, (("committed", 0, 3),))), Rebalanced)
    rows = values_of(client, ShowGroup("g2"))
    assert [rows[2:8][:5], rows[8:14][:5]] == [("committed", 0, 2, 0, 3), ("committed", 1, 3, 0, 3)]


def test_a_silent_member_loses_its_queues_although_its_connection_is_open(serve: Serve) -> None:
    server = serve(broker_member_timeout_s=1.0)
    with RawClient(server.port) as client:
        create(client, "silent")
        generation, _ = join(client, "g", "a", "silent")
        wait_until(lambda: not values_of(client, ListMembers("g")), "the member expires")
        ((name, how, time_us),) = rows_of(client, ListDepartures("g"), 3)
        assert (name, how) == ("a", "expired")
        assert isinstance(time_us, int)
        assert isinstance(refusal(client, Heartbeat("g", "a", generation)), Rebalanced)
        assert isinstance(refusal(client, CommitOffsets("g", "a", generation, (("silent", 0, 0),))), Rebalanced)


def test_a_member_whose_connection_is_lost_stays_until_its_heartbeat_times_out(client: RawClient, shared: ServerThread) -> None:
    create(client, "lost")
    with RawClient(shared.port) as other:
        join(other, "g3", "a", "lost")
        other.cut()
    ((member, silent_ms, queues),) = rows_of(client, ListMembers("g3"), 3)
    assert (member, queues) == ("a", 1)
    assert isinstance(silent_ms, int)


def test_a_failed_message_is_delivered_again_and_a_dead_one_when_it_is_replayed(serve: Serve) -> None:
    server = serve(broker_retry_delays_s="0")
    with RawClient(server.port) as client:
        create(client, "failing")
        send(client, "failing", [message(b"bad", "k", "t")])
        generation, _ = join(client, "g", "a", "failing")
        assert values_of(client, FailMessages("g", "a", generation, "no luck", (("failing", 0, 0),))) == (False,)
        generation, assigned = join(client, "g", "a", "failing")
        assert ("retry:g", 0, 0, None) in assigned
        (again,), _ = pull(client, ("retry:g", 0, 0, None), wait_ms=60_000)
        assert (again.body, again.key, again.tag) == (b"bad", "k", "t")
        assert again.properties == {
            ":failures": "1", ":reason": "no luck", ":origin-topic": "failing", ":origin-queue": "0", ":origin-offset": "0",
            ":origin-id": again.properties[":origin-id"],
        }  # fmt: skip
        assert values_of(client, FailMessages("g", "a", generation, "", (("retry:g", 0, 0),))) == (True,)
        (dead,), _ = pull(client, ("dead:g", 0, 0, None))
        assert dead.body == b"bad"
        assert values_of(client, ReplayDead("g", (0,))) == (1,)
        assert bodies(pull(client, ("retry:g", 0, 1, None), wait_ms=60_000)[0]) == [b"bad"]
        assert isinstance(refusal(client, ReplayDead("g", (1,))), InvalidArgument)


def test_a_failure_whose_answer_was_lost_is_reported_again_and_stored_once(client: RawClient, shared: ServerThread) -> None:
    create(client, "unheard")
    send(client, "unheard", [message(b"bad"), message(b"worse")])
    generation, _ = join(client, "g8", "a", "unheard")
    values_of(client, FailMessages("g8", "a", generation, "", (("unheard", 0, 1),)))
    (generation,) = values_of(client, Heartbeat("g8", "a", generation))[:1]  # type: ignore[assignment] # an int
    report = FailMessages("g8", "a", generation, "", (("unheard", 0, 0), ("unheard", 0, 1)))
    with RawClient(shared.port) as other:
        other.send_request(report)
        wait_until(lambda: pull(client, ("retry:g8", 0, 0, None))[1][0].end == 2, "it is stored")
        other.cut()
    assert values_of(client, report) == (False, False)
    assert pull(client, ("retry:g8", 0, 0, None))[1][0].end == 2
    assert values_of(client, CommitOffsets("g8", "a", generation, (("unheard", 0, 2),))) == (2, False)


def test_a_pull_reports_when_the_next_retry_is_due(client: RawClient) -> None:
    create(client, "later")
    send(client, "later", [message(b"x")])
    generation, _ = join(client, "g4", "a", "later")
    values_of(client, FailMessages("g4", "a", generation, "", (("later", 0, 0),)))
    found, (page,) = pull(client, ("retry:g4", 0, 0, None))
    assert found or 0 < (page.due_ms or 0) <= 1000


def test_a_group_is_reset_to_start_end_offset_and_time(client: RawClient) -> None:
    create(client, "reset", 2)
    send(client, "reset", [message(b"%d" % number, queue=number % 2) for number in range(6)])
    (third,), _ = pull(client, ("reset", 1, 1, None), messages_max=1)
    generation, _ = join(client, "g5", "a", "reset")
    assert values_of(client, ResetGroup("g5", "reset", None, "end")) == (0, 3, False, 1, 3, False)
    assert isinstance(refusal(client, CommitOffsets("g5", "a", generation, (("reset", 0, 1),))), Rebalanced)
    assert values_of(client, ResetGroup("g5", "reset", 1, "start")) == (1, 0, False)
    assert values_of(client, ResetGroup("g5", "reset", 1, "offset", 99)) == (1, 3, True)
    assert values_of(client, ResetGroup("g5", "reset", 1, "time", third.timestamp - 10**9)) == (1, 0, False)
    assert values_of(client, ResetGroup("g5", "reset", None, "time", 2**62)) == (0, 3, False, 1, 3, False)


def test_groups_are_listed_shown_page_by_page_and_deleted(client: RawClient) -> None:
    create(client, "listed", 3)
    generation, _ = join(client, "g6", "a", "listed", from_end=True)
    assert ("g6", generation, 1) in rows_of(client, ListGroups(), 3)
    values = values_of(client, ShowGroup("g6"))
    assert values == (generation, 3, *(value for queue in range(3) for value in ("listed", queue, 0, 0, 0, "a")))
    assert values_of(client, ShowGroup("g6", 2)) == (generation, 3, "listed", 2, 0, 0, 0, "a")
    assert isinstance(refusal(client, DeleteGroup("g6")), InvalidArgument)
    assert isinstance(refusal(client, ForgetTopic("g6", "listed")), InvalidArgument)
    values_of(client, Leave("g6", "a"))
    assert values_of(client, ForgetTopic("g6", "listed")) == ()
    assert values_of(client, ShowGroup("g6"))[1:] == (0,)
    assert values_of(client, DeleteGroup("g6")) == ()
    assert isinstance(refusal(client, ShowGroup("g6")), UnknownGroup)


def test_topics_are_created_listed_shown_and_deleted(client: RawClient) -> None:
    create(client, "made", 2)
    assert values_of(client, CreateTopic("made", 9, if_missing=True)) == (False,)
    assert isinstance(refusal(client, CreateTopic("made")), InvalidArgument)
    assert ("made", 2, 2) in rows_of(client, ListTopics(), 3)
    send(client, "made", [message(b"x", queue=1)])
    assert [row[:4] for row in rows_of(client, ShowTopic("made"), 10)] == [(0, "open", 0, 0), (1, "open", 0, 1)]
    assert values_of(client, DeleteTopic("made")) == ()
    assert "made" not in {row[0] for row in rows_of(client, ListTopics(), 3)}


def test_queues_are_added_and_removed_only_once_they_are_consumed(client: RawClient) -> None:
    create(client, "drained", 2)
    send(client, "drained", [message(b"x", queue=1)])
    join(client, "g7", "a", "drained")
    assert values_of(client, AddQueues("drained", 2)) == (2, 3)
    assert isinstance(refusal(client, RemoveQueue("drained", 1)), InvalidArgument)
    assert values_of(client, CloseQueue("drained", 1)) == ()
    error = refusal(client, RemoveQueue("drained", 1))
    assert isinstance(error, Unconsumed)
    assert error.fields == {"topic": "drained", "queue": 1, "group": "g7"}
    assert isinstance(refusal(client, DeleteTopic("drained")), Unconsumed)
    generation, _ = join(client, "g7", "a", "drained")
    assert values_of(client, CommitOffsets("g7", "a", generation, (("drained", 1, 1),))) == (1, False)
    assert values_of(client, RemoveQueue("drained", 1)) == ()
    assert [row[0] for row in rows_of(client, ShowTopic("drained"), 10)] == [0, 2, 3]
    assert values_of(client, DeleteTopic("drained", ignore_unconsumed=True)) == ()


def test_chunks_are_listed(serve: Serve) -> None:
    server = serve(broker_chunk_size_bytes=16 * 1024, broker_preallocate_bytes=4 * 1024)
    with RawClient(server.port) as client:
        create(client, "chunked")
        for _ in range(4):
            send(client, "chunked", [message(bytes(10_000))])
        rows = rows_of(client, ListChunks(), 11)
        assert [row[:2] for row in rows] == [(1, "completed"), (2, "completed"), (3, "completed"), (4, "ongoing")]
        assert [row[0] for row in rows_of(client, ListChunks(3), 11)] == [4]
