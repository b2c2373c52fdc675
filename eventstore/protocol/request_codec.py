"""Requests to frames, and payloads to requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Final, cast

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, UnknownOperation
from eventstore.flat import Malformed, Scalar
from eventstore.protocol import broker_requests, requests
from eventstore.protocol.broker_requests import SendMessages, WireMessage
from eventstore.protocol.codes import RequestCode
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.limits import COMMANDS_PER_FRAME_MAX, COMMITS_PER_FRAME_MAX, MAGIC, MESSAGES_PER_FRAME_MAX
from eventstore.protocol.payload import payload_decoder, request_id_of
from eventstore.protocol.requests import Append, Hello, Request, Send, WireCommand, WireCommit

COMMIT_VALUES: Final = 5
COMMAND_VALUES: Final = 4
MESSAGE_VALUES: Final = 5
ROW_VALUES: Final[dict[type[Request], int]] = {
    requests.ReadAll: 1,
    requests.Subscribe: 1,
    broker_requests.Pull: 4,
    broker_requests.Join: 2,
    broker_requests.CommitOffsets: 3,
    broker_requests.FailMessages: 3,
    broker_requests.ReplayDead: 1,
}
_APPEND: Final = int(RequestCode.APPEND)
_SEND: Final = int(RequestCode.SEND)
_SEND_MESSAGES: Final = int(RequestCode.SEND_MESSAGES)
_HELLO_VALUES: Final = 3
_NONE: Final = type(None)
_CODES: Final[dict[type[Request], RequestCode]] = {
    Append: RequestCode.APPEND,
    Hello: RequestCode.HELLO,
    requests.Read: RequestCode.READ,
    requests.ReadAll: RequestCode.READ_ALL,
    requests.Version: RequestCode.VERSION,
    requests.FindCommand: RequestCode.FIND_COMMAND,
    requests.Subscribe: RequestCode.SUBSCRIBE,
    requests.Credit: RequestCode.CREDIT,
    requests.Unsubscribe: RequestCode.UNSUBSCRIBE,
    requests.Stats: RequestCode.STATS,
    requests.Ping: RequestCode.PING,
    Send: RequestCode.SEND,
    SendMessages: RequestCode.SEND_MESSAGES,
    broker_requests.Pull: RequestCode.PULL,
    broker_requests.Join: RequestCode.JOIN,
    broker_requests.Heartbeat: RequestCode.HEARTBEAT,
    broker_requests.Leave: RequestCode.LEAVE,
    broker_requests.CommitOffsets: RequestCode.COMMIT_OFFSETS,
    broker_requests.FailMessages: RequestCode.FAIL_MESSAGES,
    broker_requests.ReplayDead: RequestCode.REPLAY_DEAD,
    broker_requests.ResetGroup: RequestCode.RESET_GROUP,
    broker_requests.ListGroups: RequestCode.LIST_GROUPS,
    broker_requests.ShowGroup: RequestCode.SHOW_GROUP,
    broker_requests.ListMembers: RequestCode.LIST_MEMBERS,
    broker_requests.DeleteGroup: RequestCode.DELETE_GROUP,
    broker_requests.ForgetTopic: RequestCode.FORGET_TOPIC,
    broker_requests.CreateTopic: RequestCode.CREATE_TOPIC,
    broker_requests.ListTopics: RequestCode.LIST_TOPICS,
    broker_requests.ShowTopic: RequestCode.SHOW_TOPIC,
    broker_requests.DeleteTopic: RequestCode.DELETE_TOPIC,
    broker_requests.AddQueues: RequestCode.ADD_QUEUES,
    broker_requests.CloseQueue: RequestCode.CLOSE_QUEUE,
    broker_requests.RemoveQueue: RequestCode.REMOVE_QUEUE,
    broker_requests.FindMessage: RequestCode.FIND_MESSAGE,
    broker_requests.ReadMessage: RequestCode.READ_MESSAGE,
    broker_requests.FindKey: RequestCode.FIND_KEY,
    broker_requests.OffsetAt: RequestCode.OFFSET_AT,
    broker_requests.ListChunks: RequestCode.LIST_CHUNKS,
}
_LISTS: Final = (Append, Send, SendMessages)


def _values_of(kind: type[Request]) -> Callable[[Request], tuple[Scalar, ...]]:
    """What takes the values of a request of this kind; its rows are spread out."""
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type] # all but those in _LISTS are dataclasses
    width = ROW_VALUES.get(kind)
    if width is not None:
        rows = attrgetter(names.pop())
        spread = (lambda request: rows(request)) if width == 1 else (lambda request: flat.chain(rows(request)))
        return lambda request: (*(getattr(request, name) for name in names), *spread(request))
    if len(names) > 1:
        return attrgetter(*names)
    return lambda request: tuple(getattr(request, name) for name in names)


_VALUES: Final = {kind: _values_of(kind) for kind in _CODES if kind not in _LISTS}


class BadRequest(Exception):
    """A payload that is no valid request: answer `error` to `request_id` (0: unknown); the connection stays usable."""

    def __init__(self, request_id: int, error: EventStoreError) -> None:
        super().__init__(str(error))
        self.request_id = request_id
        self.error = error


def encode_request(request_id: int, request: Request) -> bytes:
    """The frame of a request."""
    if isinstance(request, Append):
        return encode_append(request_id, [value for commit in request.commits for value in commit])
    if isinstance(request, Send):
        return encode_send(request_id, [value for command in request.commands for value in command])
    if isinstance(request, SendMessages):
        return encode_send_messages(request_id, request.topic, flat.chain(request.messages))
    values = _VALUES[request.__class__](request)
    if isinstance(request, Hello):
        values = (MAGIC, *values)
    return encode_frame(request_id, int(_CODES[request.__class__]), values)


def encode_append(request_id: int, values: Sequence[Scalar]) -> bytes:
    """The frame of an APPEND; `values` are those of each commit, five by five (see `WireCommit`)."""
    return encode_frame(request_id, _APPEND, values)


def encode_send(request_id: int, values: Sequence[Scalar]) -> bytes:
    """The frame of a SEND; `values` are those of each command, four by four (see `WireCommand`)."""
    return encode_frame(request_id, _SEND, values)


def encode_send_messages(request_id: int, topic: str, values: Sequence[Scalar]) -> bytes:
    """The frame of a SEND_MESSAGES; `values` are those of each message, five by five (see `WireMessage`)."""
    return encode_frame(request_id, _SEND_MESSAGES, (topic, *values))


class RequestDecoder:
    """Payloads in, requests out. Share one among all connections of an event loop; not thread-safe."""

    def __init__(self) -> None:
        self._decode = payload_decoder().decode

    def decode(self, payload: bytes) -> tuple[int, Request]:
        """The request id and the request.

        Raises:
            BadRequest
        """
        try:
            values = self._decode(payload)
        except Malformed as error:
            problem = ProtocolError(f"the payload is malformed: {error}")
            raise BadRequest(request_id_of(payload), problem) from None
        if len(values) < 2 or values[0].__class__ is not int or values[0] < 0:
            raise BadRequest(0, ProtocolError("a payload begins with request id (uint) and code (uint)"))
        request_id, code = values[0], values[1]
        try:
            if request_id == 0 and code != RequestCode.CREDIT:
                raise ProtocolError("request id 0 is for what has no answer", value=0)
            if code == _APPEND:
                return request_id, _append(values)
            return request_id, _request(code, values[2:])
        except EventStoreError as error:
            raise BadRequest(request_id, error) from None


def _append(values: list[Scalar]) -> Append:
    count, odd = divmod(len(values) - 2, COMMIT_VALUES)
    if odd or not count:
        raise ProtocolError(f"APPEND takes 5 values for each of its commits, got {len(values) - 2}", operation="APPEND")
    if count > COMMITS_PER_FRAME_MAX:
        raise _too_many("commits", count, COMMITS_PER_FRAME_MAX)
    if count == 1:  # three times faster than the sets below
        commit = tuple(values[2:])
        fine = _is_commit(*commit)
        return Append([_checked(commit, fine)])
    ids, expected, commands, times, events = (values[place::COMMIT_VALUES] for place in range(2, 2 + COMMIT_VALUES))
    expected_types = set(map(type, expected))
    fine = (
        set(map(type, ids)) == set(map(type, commands)) == {str}
        and set(map(type, events)) == {bytes}
        and set(map(type, times)) <= {int, _NONE}
        and expected_types <= {int, _NONE, bool, str}
        and not (bool in expected_types and any(value is False for value in expected))
    )
    commits = list(zip(ids, expected, commands, times, events, strict=True))
    _checked(commits[0], fine)
    return Append(cast("list[WireCommit]", commits))


def _is_commit(aggregate_id: Scalar, expected: Scalar, command_id: Scalar, time: Scalar, events: Scalar) -> bool:
    return (
        aggregate_id.__class__ is str
        and (expected.__class__ is int or expected is None or expected is True or expected.__class__ is str)
        and command_id.__class__ is str
        and (time is None or time.__class__ is int)
        and events.__class__ is bytes
    )


def _checked(commit: tuple[Scalar, ...], fine: bool) -> WireCommit:
    if not fine:
        raise ProtocolError(
            "a commit is aggregate id (str), expected version (nil, true, int or str), command id (str), timestamp (nil or "
            "int), events (bin)",
            operation="APPEND",
        )
    return cast(WireCommit, commit)


def _too_many(field: str, count: int, limit: int) -> InvalidArgument:
    return InvalidArgument(f"{count} {field} in one frame, the limit is {limit}", field=field, limit=limit, value=count)


def _send(values: list[Scalar]) -> Request:
    count, odd = divmod(len(values), COMMAND_VALUES)
    if odd or not count:
        raise ProtocolError(f"SEND takes 4 values for each of its commands, got {len(values)}", operation="SEND")
    if count > COMMANDS_PER_FRAME_MAX:
        raise _too_many("commands", count, COMMANDS_PER_FRAME_MAX)
    columns = [values[place::COMMAND_VALUES] for place in range(COMMAND_VALUES)]
    if [set(map(type, column)) for column in columns] != [{str}, {str}, {str}, {bytes}]:
        raise ProtocolError("a command is type (str), aggregate id (str), command id (str), payload (bin)", operation="SEND")
    return Send(cast("list[WireCommand]", list(zip(*columns, strict=True))))


def _send_messages(values: list[Scalar]) -> Request:
    count, odd = divmod(len(values) - 1, MESSAGE_VALUES)
    if odd or count < 1 or values[0].__class__ is not str:
        raise ProtocolError(
            f"SEND_MESSAGES takes a topic (str) and {MESSAGE_VALUES} values for each message, got {len(values)} in all",
            operation="SEND_MESSAGES",
        )
    if count > MESSAGES_PER_FRAME_MAX:
        raise _too_many("messages", count, MESSAGES_PER_FRAME_MAX)
    columns = [values[place::MESSAGE_VALUES] for place in range(1, 1 + MESSAGE_VALUES)]
    return SendMessages(values[0], cast("list[WireMessage]", list(zip(*columns, strict=True))))


def _hello(values: list[Scalar]) -> Request:
    if len(values) < _HELLO_VALUES or values[0] != MAGIC:
        raise ProtocolError(f"HELLO takes {MAGIC!r}, a version and a name", operation="HELLO")
    return cast("Callable[..., Request]", Hello)(*values[1:_HELLO_VALUES])  # a later version may say more


def _plain(kind: type[Request]) -> Callable[[list[Scalar]], Request]:
    """A decoder for a request whose fields are its values, one by one; the rows take what is left."""
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type] # all but those in _LISTS are dataclasses
    make = cast("Callable[..., Request]", kind)
    name = _CODES[kind].name
    width = ROW_VALUES.get(kind)
    count = len(names) - (width is not None)

    def decode(values: list[Scalar]) -> Request:
        if width is not None and len(values) >= count and (len(values) - count) % width == 0:
            rest = values[count:]
            rows = tuple(rest) if width == 1 else tuple(zip(*(rest[place::width] for place in range(width)), strict=True))
            return make(*values[:count], rows)
        if width is not None or len(values) != count:
            more = "" if width is None else f" and rows of {width}"
            raise ProtocolError(f"{name} takes {count} values{more}, got {len(values)}", operation=name)
        return make(*values)

    return decode


_DECODERS: Final = {int(code): _plain(kind) for kind, code in _CODES.items() if kind not in (*_LISTS, Hello)}
_DECODERS[int(RequestCode.HELLO)] = _hello
_DECODERS[int(RequestCode.SEND)] = _send
_DECODERS[int(RequestCode.SEND_MESSAGES)] = _send_messages


def _request(code: Scalar, values: list[Scalar]) -> Request:
    if code.__class__ is not int:
        raise ProtocolError("a payload begins with request id (uint) and code (uint)")
    decode = _DECODERS.get(code)
    if decode is None:
        raise UnknownOperation(f"the operation {code} is not known here", operation=code)
    return decode(values)
