"""The wire protocol, sans-io: bytes in, messages out; bytes for messages. No socket, no clock, no event loop.

    frames         FrameReader, encode_frame: the length before every message
    payload        what a frame holds: flat msgpack, decoded within bounds
    requests       what a client may ask; broker_requests of the broker; request_codec turns them into frames and back
    answers        what a server may send, and its frames; message_answers those of the broker; error_values
    handshake      the hello
    codes, limits

`docs/PROTOCOL.md` describes it byte by byte and is normative.
"""

from eventstore.protocol.answers import (
    AnswerDecoder,
    encode_error,
    encode_goodbye,
    encode_ok,
    encode_outcomes,
    encode_page,
    encode_scan_page,
    outcome_values,
)
from eventstore.protocol.frames import FrameReader, encode_frame
from eventstore.protocol.handshake import Welcome, agreed_version
from eventstore.protocol.message_answers import encode_messages, sent_values
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_append, encode_request

__all__ = [
    "AnswerDecoder",
    "BadRequest",
    "FrameReader",
    "RequestDecoder",
    "Welcome",
    "agreed_version",
    "encode_append",
    "encode_error",
    "encode_frame",
    "encode_goodbye",
    "encode_messages",
    "encode_ok",
    "encode_outcomes",
    "encode_page",
    "encode_request",
    "encode_scan_page",
    "outcome_values",
    "sent_values",
]
