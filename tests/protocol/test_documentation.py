"""docs/PROTOCOL.md and the code say the same: every example, every code, every limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventstore import errors, flat, model
from eventstore.errors import (
    Elsewhere,
    EventStoreError,
    InvalidArgument,
    Rebalanced,
    UnknownOperation,
    UnknownQueue,
    VersionConflict,
)
from eventstore.event_identity import LogPosition
from eventstore.model import Committed, NewEvent
from eventstore.protocol import limits
from eventstore.protocol.answers import (
    encode_error,
    encode_goodbye,
    encode_ok,
    encode_outcomes,
    encode_page,
    encode_scan_page,
    encode_some_outcomes,
    outcome_values,
)
from eventstore.protocol.broker_requests import CreateTopic, FindKey, OffsetAt, Pull, SendMessages
from eventstore.protocol.codes import AnswerCode
from eventstore.protocol.group_requests import (
    CommitOffsets,
    FailMessages,
    Heartbeat,
    Join,
    Leave,
    ReplayDead,
    ResetGroup,
    ShowGroup,
)
from eventstore.protocol.handshake import Welcome
from eventstore.protocol.message_answers import QueuePage, encode_messages, sent_values
from eventstore.protocol.reaction_requests import (
    AskWaits,
    CheckParking,
    EndProjection,
    FollowReactions,
    ForgetProjection,
    ListAlarms,
    ListParked,
    ListProjections,
    ListReactions,
    NoteProjection,
    RecordParking,
    ReplayReaction,
    RetryParked,
    SilenceAlarm,
    SkipParked,
    TellPlace,
    TestAlarms,
    WaitProjection,
)
from eventstore.protocol.request_codec import encode_request
from eventstore.protocol.requests import (
    Append,
    Credit,
    FindCommand,
    FindCommands,
    Hello,
    ListAggregates,
    ListClients,
    Map,
    Ping,
    Read,
    ReadAll,
    ReadAllBackwards,
    ReadMany,
    Send,
    Stats,
    Subscribe,
    Unsubscribe,
    Version,
)
from eventstore.records import message
from eventstore.records.cluster_map import ALL_SLOTS, ClusterMap, Shard
from eventstore.records.event_page import decode_page
from eventstore.records.raw_commit import OnAllReplicas
from tests.protocol.records import make_message, make_record

TEXT = (Path(__file__).parents[2] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")
EVENT = NewEvent("OrderPlaced", {"total": 12})
RECORD = make_record("order-42", "c-1", [EVENT])
PLACE = str(LogPosition.at(decode_page(RECORD)[0]))
MESSAGE = make_message("orders", b"{}", key="order-42", tag="paid", queue=2)
MIXED = (
    Committed("order-42", 1, 1, duplicate=True),
    VersionConflict("order-42", 1, 5),
    InvalidArgument("too long", field="type", limit=255),
)
_UNPARKED = b'{"reaction":"note","version":2,"how":"done","who":"ada","why":"mended"}'
MAP = ClusterMap(bytes(16), 7, 1, (Shard(0, bytes(range(16)), ALL_SLOTS, "127.0.0.1:7711"),))
EXAMPLES = {
    "hello": encode_request(1, Hello(1, "demo")),
    "hello-asking": encode_request(1, Hello(1, "demo", in_parts=True, durability=True)),
    "hello-answer": encode_ok(1, *Welcome(1, "es", bytes(range(16)), node=1).values()),
    "hello-answer-of-a-shard": encode_ok(
        1, *Welcome(1, "es", bytes(range(16)), node=1, cluster=bytes(16), map_version=7, shard=0).values()
    ),
    "map": encode_request(2, Map(6)),
    "map-answer": encode_ok(2, 7, MAP.encode()),
    "append": encode_request(2, Append([("order-42", 0, "c-1", None, flat.encode(EVENT))])),
    "outcomes": encode_outcomes(2, outcome_values(Committed("order-42", 1, 1))),
    "outcomes-mixed": encode_outcomes(3, [value for outcome in MIXED for value in outcome_values(outcome)]),
    "outcomes-durability": encode_outcomes(2, [*outcome_values(Committed("order-42", 1, 1, duplicate=True)), 3]),
    "append-all": encode_request(2, Append([("order-42", OnAllReplicas(0), "c-1", None, flat.encode(EVENT))])),
    "some-outcomes": encode_some_outcomes(13, [1, 0, 8, 21]),
    "read": encode_request(4, Read("order-42")),
    "read-many": encode_request(4, ReadMany(None, limits.PAGE_BYTES_DEFAULT, (("order-42", 1), ("order-43", 3)))),
    "record": RECORD,
    "page": encode_page(4, None, RECORD),
    "read-all": encode_request(5, ReadAll(0, 100, 524_288, "order-", None, None, None, ("OrderPlaced",))),
    "read-all-backwards": encode_request(5, ReadAllBackwards(104, 20)),
    "read-all-from-a-place": encode_request(5, ReadAll(PLACE, 100)),
    "scan-page": encode_scan_page(5, 1, True, b""),
    "scan-page-place": encode_scan_page(5, 7, True, b"", "0123abcd"),
    "version": encode_request(6, Version("order-42")),
    "version-answer": encode_ok(6, 1),
    "find-command": encode_request(7, FindCommand("order-42", "c-1")),
    "find-command-answer": encode_ok(7, 1, 1),
    "find-commands": encode_request(8, FindCommands("order-42", ("c-0", "c-1"))),
    "find-commands-answer": encode_ok(8, 1, 1, 1, bytes(6)),
    "list-reactions": encode_request(33, ListReactions()),
    "list-reactions-answer": encode_ok(33, "notify", "Deposited", "running", 7, 0, 0, 1, None),
    "list-parked": encode_request(34, ListParked("notify")),
    "list-parked-answer": encode_ok(34, "acc-1", 3, 7, "Deposited", "no", 1, 1_700_000_000_000_000, 8),
    "retry-parked": encode_request(35, RetryParked("notify", None, "ada", "mended")),
    "skip-parked": encode_request(36, SkipParked("notify", "acc-1", "ada", "lost")),
    "handled-answer": encode_ok(36, 1, 0),
    "replay-reaction": encode_request(37, ReplayReaction("notify", 5, "ada", "copy")),
    "replay-reaction-answer": encode_ok(37, 4),
    "note-projection": encode_request(39, NoteProjection("balances", 7, 1_700_000_000_000_000, 1)),
    "note-projection-answer": encode_ok(39),
    "list-projections": encode_request(40, ListProjections()),
    "list-projections-answer": encode_ok(40, "balances", "10.0.0.9:4711", 7, 2, 3_000_000, 1, 5, True),
    "forget-projection": encode_request(41, ForgetProjection("balances")),
    "end-projection": encode_request(42, EndProjection("balances")),
    "end-projection-answer": encode_ok(42),
    "wait-projection": encode_request(43, WaitProjection("balances", "acc-1", 8)),
    "wait-projection-answer": encode_ok(43),
    "ask-waits": encode_request(44, AskWaits("balances", 5, 0)),
    "ask-waits-answer": encode_ok(44, 7, 8),
    "tell-place": encode_request(45, TellPlace("balances", 5, 7, 9)),
    "tell-place-answer": encode_ok(45),
    "follow-reactions": encode_request(46, FollowReactions("order-1", 8)),
    "follow-reactions-answer": encode_ok(46, "c-1", True, "stock-tea", 9),
    "forget-projection-answer": encode_ok(41),
    "list-alarms": encode_request(40, ListAlarms()),
    "list-alarms-answer": encode_ok(40, "slow_syncs", "", "quiet", 0, "write_seconds / batches > 0.1", None, None, None, None),
    "silence-alarm": encode_request(41, SilenceAlarm("slow_syncs", 3_600, "ada", "known")),
    "silence-alarm-answer": encode_ok(41),
    "test-alarms": encode_request(42, TestAlarms("ada")),
    "test-alarms-answer": encode_ok(42, "mail"),
    "record-parking": encode_request(38, RecordParking("$parked{a}", "$Unparked", _UNPARKED)),
    "record-parking-answer": encode_ok(38, 2, 9),
    "check-parking": encode_request(38, CheckParking()),
    "check-parking-answer": encode_ok(38),
    "list-aggregates": encode_request(12, ListAggregates("order-")),
    "list-aggregates-answer": encode_ok(12, "order-42", 1),
    "subscribe": encode_request(8, Subscribe(1, 1_048_576)),
    "credit": encode_request(0, Credit(8, 524_288)),
    "unsubscribe": encode_request(9, Unsubscribe(8)),
    "stats": encode_request(10, Stats()),
    "stats-answer": encode_ok(10, "events", 1),
    "ping": encode_request(11, Ping()),
    "list-clients": encode_request(12, ListClients(0, 100)),
    "list-clients-answer": encode_ok(12, "shop", "10.0.0.9:4711", None, 1, "sends to bills", "SendMessages", 0),
    "send": encode_request(13, Send([("Deposit", "acc-1", "c-9", b'{"cents":100}', None)])),
    "send-messages": encode_request(14, SendMessages("orders", [(b"{}", "order-42", "paid", None, None)])),
    "sent": encode_outcomes(14, sent_values((2, 0, 4_294_971_392))),
    "sent-refused": encode_outcomes(15, sent_values(UnknownQueue("no queue", topic="orders", queue=9))),
    "pull": encode_request(
        16, Pull(64, 524_288, 30_000, "billing", "m-1", (("orders", 2, 0, "paid | cancelled"), ("orders", 3, 0, None)))
    ),
    "message-record": MESSAGE,
    "messages": b"".join(
        encode_messages(16, [MESSAGE, b""], 1, [QueuePage(1, 0, 1, None, None, 1), QueuePage(0, 0, 0, None, None, 0)])
    ),
    "join": encode_request(17, Join("billing", "m-1", False, (("orders", "paid | cancelled"),))),
    "join-answer": encode_ok(17, 1_048_577, "orders", 2, 0, "paid | cancelled", 0, None),
    "heartbeat": encode_request(18, Heartbeat("billing", "m-1", 1_048_577)),
    "heartbeat-answer": encode_ok(18),
    "leave": encode_request(19, Leave("billing", "m-1")),
    "commit-offsets": encode_request(20, CommitOffsets("billing", "m-1", 1_048_577, (("orders", 2, 1),))),
    "commit-offsets-answer": encode_ok(20, 1, False),
    "rebalanced": encode_error(20, Rebalanced("join again", group="billing", member="m-1", generation=1_048_578)),
    "fail-messages": encode_request(21, FailMessages("billing", "m-1", 1_048_577, "timeout", (("orders", 2, 0),))),
    "fail-messages-answer": encode_ok(21, False),
    "replay-dead": encode_request(22, ReplayDead("billing", (0, 1))),
    "reset-group": encode_request(23, ResetGroup("billing", "orders", None, "time", 1_700_000_000_000_000)),
    "reset-group-answer": encode_ok(23, 2, 0, False),
    "list-groups-answer": encode_ok(24, "billing", 1_048_578, 1),
    "show-group": encode_request(25, ShowGroup("billing")),
    "show-group-answer": encode_ok(25, 1_048_578, 1, "orders", 2, 0, 0, 1, "m-1"),
    "list-members-answer": encode_ok(26, "m-1", 250, 1),
    "list-departures-answer": encode_ok(26, "m-1", "left", 1_700_000_000_000_000),
    "list-in-hand-answer": encode_ok(26, "billing", "m-1", "orders", 2, 0, 250),
    "create-topic": encode_request(27, CreateTopic("orders", 4, True)),
    "show-topic-answer": encode_ok(28, 2, "open", 0, 1, 0, 0, 0, 0),
    "find-key": encode_request(29, FindKey("orders", "order-42", 10, 524_288)),
    "found": b"".join(encode_messages(29, [MESSAGE], 1, next_before=0)),
    "offset-at": encode_request(30, OffsetAt("orders", 2, 1_700_000_000_000_000)),
    "error": encode_error(12, UnknownOperation("unknown", operation=99)),
    "elsewhere": encode_error(13, Elsewhere(3_718, 7)),
    "goodbye": encode_goodbye(),
}


def documented_examples() -> dict[str, bytes]:
    """Returns the examples, but those of what replicas say to each other: tests/cluster/replication compares these."""
    blocks = re.findall(r"^```hex (?!peer-)(\S+)\n(.*?)^```", TEXT, flags=re.M | re.S)
    return {name: bytes.fromhex("".join(line.split("  ")[0] for line in block.splitlines())) for name, block in blocks}


def documented_codes(heading: str) -> dict[int, str]:
    table = TEXT.split(heading)[1].split("\n\n")[0]
    return {int(code): name for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", table, flags=re.M)}


def test_every_example_has_code() -> None:
    assert documented_examples().keys() == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_what_the_code_sends(name: str) -> None:
    assert documented_examples()[name].hex(" ") == EXAMPLES[name].hex(" ")


def test_every_answer_code_is_documented() -> None:
    assert documented_codes("| code | answer |") == {code.value: code.name for code in AnswerCode}


def test_every_error_code_is_documented() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, EventStoreError)]
    known = {cls.code: cls.__name__ for cls in classes}
    assert documented_codes("| code | error |") == known


@pytest.mark.parametrize(
    "limit",
    [
        limits.FRAME_BYTES_MAX,
        limits.VALUES_PER_FRAME_MAX,
        limits.COMMITS_PER_FRAME_MAX,
        limits.PAGE_BYTES_MAX,
        limits.TYPES_MAX,
        limits.CREDIT_BYTES_MAX,
        limits.NAME_BYTES_MAX,
        limits.MESSAGES_PER_FRAME_MAX,
        limits.FAILED_PER_FRAME_MAX,
        limits.PULL_MESSAGES_MAX,
        limits.PULL_QUEUES_MAX,
        limits.PULL_WAIT_MS_MAX,
        limits.SUBSCRIPTIONS_MAX,
        limits.ASSIGNED_QUEUES_MAX,
        limits.QUEUES_MAX,
        message.BODY_BYTES_MAX,
        message.PROPERTIES_BYTES_MAX,
        model.COMMIT_EVENTS_MAX,
        model.COMMIT_BYTES_MAX,
        model.EVENT_BYTES_MAX,
        model.ID_BYTES_MAX,
        model.TYPE_BYTES_MAX,
    ],
)
def test_every_limit_is_documented(limit: int) -> None:
    table = TEXT.split("## Limits")[1].split("\n## ")[0]
    assert re.search(rf"(?<![\d,]){limit:,}(?![\d,])", table)
