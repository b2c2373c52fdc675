"""The wire protocol, sans-io: bytes in, messages out, and back. `docs/PROTOCOL.md` describes it byte by byte and is normative.

A request is declared once, in one of the modules named `…requests`; its code, its checks and the encodings of it and of its
answer follow from that.
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
from eventstore.protocol.request_codec import BadRequest, RequestDecoder, encode_answer, encode_append, encode_request

__all__ = [
    "AnswerDecoder",
    "BadRequest",
    "FrameReader",
    "RequestDecoder",
    "Welcome",
    "agreed_version",
    "encode_answer",
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
