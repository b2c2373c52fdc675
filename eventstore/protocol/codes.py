"""The numbers of the wire protocol. A number is never reused for another meaning."""

from __future__ import annotations

import enum


class RequestCode(enum.IntEnum):
    """What a client may ask."""

    HELLO = 1
    APPEND = 2
    READ = 3
    READ_ALL = 4
    VERSION = 5
    FIND_COMMAND = 6
    SUBSCRIBE = 7
    CREDIT = 8
    UNSUBSCRIBE = 9
    STATS = 10
    PING = 11
    SEND = 12


class AnswerCode(enum.IntEnum):
    """What a server may send."""

    OK = 100
    ERROR = 101
    OUTCOMES = 102
    PAGE = 103
    GOODBYE = 104


class OutcomeKind(enum.IntEnum):
    """What became of one commit of an APPEND, or of one command of a SEND."""

    COMMITTED = 0
    DUPLICATE = 1
    CONFLICT = 2
    REFUSED = 3
    UNCHANGED = 4
