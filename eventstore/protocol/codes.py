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
    SEND_MESSAGES = 13
    PULL = 14
    JOIN = 15
    HEARTBEAT = 16
    LEAVE = 17
    COMMIT_OFFSETS = 18
    FAIL_MESSAGES = 19
    REPLAY_DEAD = 20
    RESET_GROUP = 21
    LIST_GROUPS = 22
    SHOW_GROUP = 23
    LIST_MEMBERS = 24
    DELETE_GROUP = 25
    FORGET_TOPIC = 26
    CREATE_TOPIC = 27
    LIST_TOPICS = 28
    SHOW_TOPIC = 29
    DELETE_TOPIC = 30
    ADD_QUEUES = 31
    CLOSE_QUEUE = 32
    REMOVE_QUEUE = 33
    FIND_MESSAGE = 34
    READ_MESSAGE = 35
    FIND_KEY = 36
    OFFSET_AT = 37
    LIST_CHUNKS = 38


class AnswerCode(enum.IntEnum):
    """What a server may send."""

    OK = 100
    ERROR = 101
    OUTCOMES = 102
    PAGE = 103
    GOODBYE = 104
    MESSAGES = 105


class OutcomeKind(enum.IntEnum):
    """What became of one commit of an APPEND, or of one command of a SEND."""

    COMMITTED = 0
    DUPLICATE = 1
    CONFLICT = 2
    REFUSED = 3
    UNCHANGED = 4
