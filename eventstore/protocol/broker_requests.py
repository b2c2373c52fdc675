"""What a client may ask of the broker, as frozen values that check themselves, like those in `requests`.

Only what every broker refuses is checked here: types, ranges, counts. What a name or an expression of tags may look like, and
whether a topic, queue or group is there, the broker says. `SendMessages`, of which there are many, is checked by the broker
alone, message by message, so that a bad one refuses only itself. The classes are in `message_requests`, `group_requests`
and `topic_requests`.

The fields of a class, in this order, are its values on the wire. The last one of some is a tuple of rows, whose values follow
one another (`ROW_VALUES` in `request_codec` says how many each has).
"""

from __future__ import annotations

from typing import TypeAlias

from eventstore.protocol.broker_fields import OFFSET_MAX, QUEUE_MAX, TIME_MIN, WirePlace
from eventstore.protocol.group_requests import (
    REASON_BYTES_MAX,
    CommitOffsets,
    DeleteGroup,
    FailMessages,
    ForgetTopic,
    Heartbeat,
    Join,
    Leave,
    ListGroups,
    ListMembers,
    ReplayDead,
    ResetGroup,
    ShowGroup,
)
from eventstore.protocol.message_requests import (
    FindKey,
    FindMessage,
    OffsetAt,
    Pull,
    ReadMessage,
    SendMessages,
    WireMessage,
    WireWant,
)
from eventstore.protocol.topic_requests import (
    AddQueues,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    ListChunks,
    ListTopics,
    RemoveQueue,
    ShowTopic,
)

BrokerRequest: TypeAlias = (
    SendMessages | Pull | Join | Heartbeat | Leave | CommitOffsets | FailMessages | ReplayDead | ResetGroup | ListGroups
    | ShowGroup | ListMembers | DeleteGroup | ForgetTopic | CreateTopic | ListTopics | ShowTopic | DeleteTopic | AddQueues
    | CloseQueue | RemoveQueue | FindMessage | ReadMessage | FindKey | OffsetAt | ListChunks
)  # fmt: skip

__all__ = [
    "OFFSET_MAX",
    "QUEUE_MAX",
    "REASON_BYTES_MAX",
    "TIME_MIN",
    "AddQueues",
    "BrokerRequest",
    "CloseQueue",
    "CommitOffsets",
    "CreateTopic",
    "DeleteGroup",
    "DeleteTopic",
    "FailMessages",
    "FindKey",
    "FindMessage",
    "ForgetTopic",
    "Heartbeat",
    "Join",
    "Leave",
    "ListChunks",
    "ListGroups",
    "ListMembers",
    "ListTopics",
    "OffsetAt",
    "Pull",
    "ReadMessage",
    "RemoveQueue",
    "ReplayDead",
    "ResetGroup",
    "SendMessages",
    "ShowGroup",
    "ShowTopic",
    "WireMessage",
    "WirePlace",
    "WireWant",
]
