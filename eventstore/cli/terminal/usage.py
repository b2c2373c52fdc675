"""Errors of usage in plain words, instead of the types of Python."""

from __future__ import annotations

import re
from typing import Final

_TYPING: Final = (
    (re.compile(r"Input should be a valid integer\b[^;]*"), "it must be a whole number"),
    (re.compile(r"Input should be a valid number\b[^;]*"), "it must be a number"),
    (re.compile(r"Input should be "), "it must be "),
)


def plain_usage(message: str) -> str:
    """Returns the message in plain words, without its full stop."""
    for pattern, words in _TYPING:
        message = pattern.sub(words, message)
    return message.rstrip(".")
