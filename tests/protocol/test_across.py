"""How the answers of several shards become one."""

from __future__ import annotations

from operator import add
from typing import Any

import pytest

from eventstore.protocol import group_requests as groups
from eventstore.protocol.across import ANY, Across, largest_of_each_name, nothing, rows_by_name, rows_of_each
from eventstore.protocol.broker_info import ChunkInfo, GroupInfo, MemberInfo, MessageInHand, TopicInfo
from eventstore.protocol.broker_requests import AddQueues, BrokerRequest, FindKey, ListChunks, OffsetAt, SendMessages
from eventstore.protocol.request_declaration import DECLARATIONS


def held(group: str, milliseconds: int) -> MessageInHand:
    return MessageInHand(group, "m", "t", 0, 0, milliseconds)


CHUNK = ChunkInfo(1, "ongoing", 9, False, *[0] * 7)


@pytest.mark.parametrize(
    ("across", "answers", "merged"),
    [
        (nothing(), [None, None], None),
        (ANY, [False, True], True),
        (ANY, [False, False], False),
        (rows_of_each(), [[CHUNK], [], [CHUNK]], [CHUNK._replace(shard=0), CHUNK._replace(shard=2)]),
        (
            rows_by_name(queues=add, open_queues=add),
            [[TopicInfo("a", 2, 1)], [TopicInfo("b", 1, 1), TopicInfo("a", 3, 3)]],
            [TopicInfo("a", 5, 4), TopicInfo("b", 1, 1)],
        ),
        (rows_by_name(generation=max, members=max), [[GroupInfo("g", 7, 1)], [GroupInfo("g", 5, 2)]], [GroupInfo("g", 7, 2)]),
        (rows_by_name(silent_ms=min, queues=add), [[MemberInfo("m", 9, 1)], [MemberInfo("m", 5, 2)]], [MemberInfo("m", 5, 3)]),
        (
            largest_of_each_name("held_ms"),
            [
                [MessageInHand("g", "m", "t", 0, 0, 5)],
                [MessageInHand("h", "m", "t", 0, 0, 7), MessageInHand("g", "m", "t", 1, 0, 6)],
            ],
            [MessageInHand("h", "m", "t", 0, 0, 7, 1), MessageInHand("g", "m", "t", 1, 0, 6, 1)],
        ),
    ],
)
def test_answers_are_merged(across: Across, answers: list[Any], merged: Any) -> None:
    assert across.merge(dict(enumerate(answers))) == merged


def test_each_request_to_a_broker_says_what_it_is_over_several_shards() -> None:
    """Those of members and senders are for one shard; a call makes several of the others."""
    of_one = {groups.Join, groups.Heartbeat, groups.Leave, groups.CommitOffsets, groups.FailMessages, groups.FailInPlace}
    others = {kind for kind, each in DECLARATIONS.items() if issubclass(kind, BrokerRequest) and each.across is None}
    assert others == {*of_one, SendMessages, AddQueues, FindKey, groups.ShowGroup}


def test_what_means_something_on_one_shard_only_is_named_with_the_method_to_call_there() -> None:
    for request, method in (
        (OffsetAt("orders", 0, 0), "offset_at"),
        (ListChunks(3), "chunks"),
        (ListChunks(), None),
        (groups.ResetGroup("g", "t", None, "offset", 0), "reset"),
        (groups.ResetGroup("g", "t", 1, "start"), "reset"),
        (groups.ResetGroup("g", "t", None, "time", 0), None),
    ):
        across = DECLARATIONS[type(request)].across
        assert across is not None
        about_one = across.about_one(request)
        assert (about_one and about_one[1]) == method
