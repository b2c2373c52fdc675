"""Encodes requests and their answers to frames, and decodes payloads to requests, as their declarations say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, TypeVar, cast

from eventstore import flat
from eventstore.errors import EventStoreError, InvalidArgument, ProtocolError, UnknownOperation
from eventstore.flat import Malformed, Scalar
from eventstore.model import ANY, EXISTS, Expected
from eventstore.protocol import backup_requests as backup_requests
from eventstore.protocol import group_requests as group_requests  # these two declare theirs
from eventstore.protocol import reaction_requests as reaction_requests
from eventstore.protocol import subject_requests as subject_requests
from eventstore.protocol import timer_requests as timer_requests
from eventstore.protocol.answers import OK
from eventstore.protocol.broker_requests import SendMessages, WireMessage
from eventstore.protocol.frames import encode_frame
from eventstore.protocol.limits import COMMANDS_PER_FRAME_MAX, COMMITS_PER_FRAME_MAX, MAGIC, MESSAGES_PER_FRAME_MAX
from eventstore.protocol.payload import payload_decoder, request_id_of
from eventstore.protocol.request_declaration import DECLARATIONS, Answered, Declaration, Request, code_of
from eventstore.protocol.requests import Append, Credit, Hello, Send, WireCommand
from eventstore.records.raw_commit import ON_ALL, AfterCommand, AppendCondition, Guarded, OnAllReplicas, RawCommit

A = TypeVar("A")

_APPEND: Final = code_of(Append)
_CREDIT: Final = code_of(Credit)
_SEND: Final = code_of(Send)
_SEND_MESSAGES: Final = code_of(SendMessages)
_COMMIT_VALUES: Final = DECLARATIONS[Append].row_values
_COMMAND_VALUES: Final = DECLARATIONS[Send].row_values
_MESSAGE_VALUES: Final = DECLARATIONS[SendMessages].row_values
_LONE_VALUES: Final = 2 + _COMMIT_VALUES  # of an APPEND with one commit
_HELLO_VALUES: Final = 3
_NONE: Final = type(None)
_INTS: Final = {int}
_THREE_TEXTS: Final = [{str}] * 3
_BYTES: Final = {bytes}
_BYTES_OR_NIL: Final = {bytes, _NONE}
_VERSION: Final = re.compile("0|[1-9][0-9]{0,18}")
_EXPECTED: Final = {each.value: each for each in Expected}
_NO_VERSION: Final = -1  # no aggregate is at it: a commit with a malformed version is a conflict


def _values_of(declared: Declaration) -> Callable[[Request], tuple[Scalar, ...]]:
    """Returns the function that takes the values of a request; its rows are spread out."""
    names = declared.fields
    if declared.row_values:
        *single, last = names
        rows = attrgetter(last)
        spread = (lambda request: rows(request)) if declared.row_values == 1 else (lambda request: flat.chain(rows(request)))
        return lambda request: (*(getattr(request, name) for name in single), *spread(request))
    if len(names) > 1:
        return attrgetter(*names)
    return lambda request: tuple(getattr(request, name) for name in names)


_ANSWER_VALUES: Final = {kind: declared.form.encode for kind, declared in DECLARATIONS.items()}
_ENCODED: Final = {kind: (declared.code, _values_of(declared)) for kind, declared in DECLARATIONS.items()}


class BadRequest(Exception):
    """The payload is not a valid request: answer `error` to `request_id` (0: unknown). The connection stays usable."""

    def __init__(self, request_id: int, error: EventStoreError) -> None:
        super().__init__(str(error))
        self.request_id = request_id
        self.error = error


def encode_request(request_id: int, request: Request) -> bytes:
    """Returns the frame of a request."""
    if isinstance(request, Append):
        return encode_append(request_id, request.commits)
    code, values_of = _ENCODED[request.__class__]
    values = values_of(request)
    if request.__class__ is Hello:
        values = (MAGIC, *values)
        while len(values) > _HELLO_VALUES and not values[-1]:  # what says nothing is not sent
            values = values[:-1]
    return encode_frame(request_id, code, values)


def encode_answer(request_id: int, kind: type[Answered[A]], answer: A) -> bytes:
    """Returns the frame of the OK that answers a request of this kind."""
    return encode_frame(request_id, OK, _ANSWER_VALUES[kind](answer))


def encode_append(request_id: int, commits: Sequence[RawCommit]) -> bytes:
    """Encodes the frame of an APPEND."""
    if len(commits) == 1 and type(commits[0][1]) is int:  # most frames of a lone client: a microsecond less
        return encode_frame(request_id, _APPEND, commits[0])  # type: ignore[arg-type] # an int, as the others are
    values: list[Scalar | AppendCondition] = list(chain.from_iterable(commits))
    conditions = values[1::_COMMIT_VALUES]
    if set(map(type, conditions)) != _INTS:
        values[1::_COMMIT_VALUES] = map(_encode_condition, cast("list[AppendCondition]", conditions))
    return encode_frame(request_id, _APPEND, cast("list[Scalar]", values))


def _encode_condition(condition: AppendCondition) -> Scalar:
    if isinstance(condition, AfterCommand | OnAllReplicas):
        return str(condition)
    assert not isinstance(condition, Guarded), "it is made of a COMMIT_UNLESS, and does not travel"
    return None if condition is ANY else True if condition is EXISTS else condition


def _decode_condition(value: Scalar) -> AppendCondition:
    """Returns the condition of a commit. A text without a slash stays as it is: the store refuses that commit alone."""
    if value is None:
        return ANY
    if value is True:
        return EXISTS
    if not isinstance(value, str) or "/" not in value:
        return _on_all(value) if isinstance(value, str) and value.startswith(ON_ALL) else cast(AppendCondition, value)
    version, _, command_id = value.partition("/")
    return AfterCommand(int(version) if _VERSION.fullmatch(version) else _NO_VERSION, command_id)


def _on_all(text: str) -> AppendCondition:
    expected = text.removeprefix(ON_ALL)
    if expected in _EXPECTED:
        return OnAllReplicas(_EXPECTED[expected])
    return OnAllReplicas(int(expected)) if _VERSION.fullmatch(expected) else cast(AppendCondition, text)


def encode_send(request_id: int, values: Sequence[Scalar]) -> bytes:
    """Encodes the frame of a SEND; `values` are those of each command, five by five (see `WireCommand`)."""
    return encode_frame(request_id, _SEND, values)


def encode_send_messages(request_id: int, topic: str, values: Sequence[Scalar]) -> bytes:
    """Encodes the frame of a SEND_MESSAGES; `values` are those of each message, five by five (see `WireMessage`)."""
    return encode_frame(request_id, _SEND_MESSAGES, (topic, *values))


class RequestDecoder:
    """Decodes payloads to requests. Share one among all connections of an event loop; not thread-safe."""

    def __init__(self) -> None:
        self._decode = payload_decoder().decode

    def decode(self, payload: bytes) -> tuple[int, Request]:
        """Returns the request id and the request.

        Raises:
            BadRequest
        """
        try:
            values = self._decode(payload)
        except Malformed as error:
            problem = ProtocolError(f"the payload is malformed: {error}")
            raise BadRequest(request_id_of(payload), problem) from None
        if len(values) == _LONE_VALUES and values[1] == _APPEND:  # most frames; it is three times faster than what follows
            request_id, _, aggregate_id, condition, command_id, when, events = values
            if (
                aggregate_id.__class__ is str
                and (condition.__class__ is int or condition is None)
                and command_id.__class__ is str
                and (when is None or when.__class__ is int)
                and events.__class__ is bytes
                and request_id.__class__ is int
                and request_id > 0
            ):
                condition = ANY if condition is None else condition  # type: ignore[assignment]
                return request_id, Append([(aggregate_id, condition, command_id, when, events)])  # type: ignore[list-item]
        if len(values) < 2 or values[0].__class__ is not int or values[0] < 0:
            raise BadRequest(0, ProtocolError("a payload begins with request id (uint) and code (uint)"))
        request_id, code = values[0], values[1]
        try:
            if request_id == 0 and code != _CREDIT:
                raise ProtocolError("request id 0 is only for requests without an answer", value=0)
            if code == _APPEND:
                return request_id, _append(values)
            return request_id, _request(code, values[2:])
        except EventStoreError as error:
            raise BadRequest(request_id, error) from None


def _append(values: list[Scalar]) -> Append:
    count, odd = divmod(len(values) - 2, _COMMIT_VALUES)
    if odd or not count:
        raise ProtocolError(f"APPEND takes 5 values for each of its commits, got {len(values) - 2}", operation="APPEND")
    if count > COMMITS_PER_FRAME_MAX:
        raise _too_many("commits", count, COMMITS_PER_FRAME_MAX)
    ids, conditions, commands, times, events = (values[place::_COMMIT_VALUES] for place in range(2, 2 + _COMMIT_VALUES))
    condition_types = set(map(type, conditions))
    fine = (
        set(map(type, ids)) == set(map(type, commands)) == {str}
        and set(map(type, events)) == {bytes}
        and set(map(type, times)) <= {int, _NONE}
        and condition_types <= {int, _NONE, bool, str}
        and not (bool in condition_types and any(value is False for value in conditions))
    )
    decoded = conditions if condition_types == _INTS else map(_decode_condition, conditions)
    if not fine:
        raise ProtocolError(
            "a commit is aggregate id (str), expected version (nil, true, int or str), command id (str), timestamp (nil or "
            "int), events (bin)",
            operation="APPEND",
        )
    return Append(cast("list[RawCommit]", list(zip(ids, decoded, commands, times, events, strict=True))))


def _too_many(field: str, count: int, limit: int) -> InvalidArgument:
    return InvalidArgument(f"{count} {field} in one frame, the limit is {limit}", field=field, limit=limit, value=count)


def _send(values: list[Scalar]) -> Request:
    count, odd = divmod(len(values), _COMMAND_VALUES)
    if odd or not count:
        raise ProtocolError(
            f"SEND takes {_COMMAND_VALUES} values for each of its commands, got {len(values)}", operation="SEND"
        )
    if count > COMMANDS_PER_FRAME_MAX:
        raise _too_many("commands", count, COMMANDS_PER_FRAME_MAX)
    columns = [values[place::_COMMAND_VALUES] for place in range(_COMMAND_VALUES)]
    *texts, payloads, metadata = [set(map(type, column)) for column in columns]
    if texts != _THREE_TEXTS or payloads != _BYTES or not metadata <= _BYTES_OR_NIL:
        raise ProtocolError(
            "a command is type (str), aggregate id (str), command id (str), payload (bin), metadata (bin or nil)",
            operation="SEND",
        )
    return Send(cast("list[WireCommand]", list(zip(*columns, strict=True))))


def _send_messages(values: list[Scalar]) -> Request:
    count, odd = divmod(len(values) - 1, _MESSAGE_VALUES)
    if odd or count < 1 or values[0].__class__ is not str:
        raise ProtocolError(
            f"SEND_MESSAGES takes a topic (str) and {_MESSAGE_VALUES} values for each message, got {len(values)} in all",
            operation="SEND_MESSAGES",
        )
    if count > MESSAGES_PER_FRAME_MAX:
        raise _too_many("messages", count, MESSAGES_PER_FRAME_MAX)
    columns = [values[place::_MESSAGE_VALUES] for place in range(1, 1 + _MESSAGE_VALUES)]
    return SendMessages(values[0], cast("list[WireMessage]", list(zip(*columns, strict=True))))


def _hello(values: list[Scalar]) -> Request:
    if len(values) < _HELLO_VALUES or values[0] != MAGIC:
        raise ProtocolError(f"HELLO takes {MAGIC!r}, a version and a name", operation="HELLO")
    later = (*values[_HELLO_VALUES : _HELLO_VALUES + 4], None, None, None, None)  # those after them are of later versions
    in_parts, durability, token, places = later[:4]
    make = cast("Callable[..., Request]", Hello)
    return make(*values[1:_HELLO_VALUES], in_parts is True, durability is True, token, places is True)


def _plain(kind: type[Request], declared: Declaration) -> Callable[[list[Scalar]], Request]:
    """Returns the decoder of a request whose fields are its values, one by one; the rows take the rest."""
    make = cast("Callable[..., Request]", kind)
    name, width = declared.name, declared.row_values
    count = len(declared.fields) - bool(width)

    def decode(values: list[Scalar]) -> Request:
        if len(values) != count:
            raise ProtocolError(f"{name} takes {count} values, got {len(values)}", operation=name)
        return make(*values)

    def decode_rows(values: list[Scalar]) -> Request:
        if len(values) < count or (len(values) - count) % width:
            raise ProtocolError(f"{name} takes {count} values and rows of {width}, got {len(values)}", operation=name)
        rest = values[count:]
        rows = tuple(rest) if width == 1 else tuple(zip(*[iter(rest)] * width, strict=True))
        return make(*values[:count], rows)

    return decode_rows if width else decode


_DECODERS: Final = {
    **{declared.code: _plain(kind, declared) for kind, declared in DECLARATIONS.items()},
    code_of(Hello): _hello,
    _SEND: _send,
    _SEND_MESSAGES: _send_messages,
}


def _request(code: Scalar, values: list[Scalar]) -> Request:
    if code.__class__ is not int:
        raise ProtocolError("a payload begins with request id (uint) and code (uint)")
    decode = _DECODERS.get(code)
    if decode is None:
        raise UnknownOperation(f"this server does not know the operation {code}", operation=code)
    return decode(values)
