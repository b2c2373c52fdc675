"""The codes of answers and outcomes. A number is never reused for another meaning.

Codes of requests, which are in their declarations, are below 100; codes of answers begin at 100.
"""

from __future__ import annotations

import enum


class AnswerCode(enum.IntEnum):
    """The kind of an answer."""

    OK = 100
    ERROR = 101
    OUTCOMES = 102
    PAGE = 103
    GOODBYE = 104
    MESSAGES = 105
    SOME_OUTCOMES = 106


class OutcomeKind(enum.IntEnum):
    """The outcome of one commit of an APPEND, or of one command of a SEND."""

    COMMITTED = 0
    DUPLICATE = 1
    CONFLICT = 2
    REFUSED = 3
    UNCHANGED = 4
