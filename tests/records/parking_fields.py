"""The data of records of what is parked, as tests send them."""

from __future__ import annotations

import json
from typing import Any, Final

PARKED: Final = {"reaction": "note", "version": 1, "sequence": 1, "type": "Opened", "why": "no", "attempts": 1}
UNPARKED: Final = {"reaction": "note", "version": 1, "how": "skipped", "who": "ada", "why": "no"}


def parked(**more: Any) -> bytes:
    """Returns the data of a record that adds an event."""
    return json.dumps({**PARKED, **more}).encode()


def unparked(**more: Any) -> bytes:
    """Returns the data of a record that takes one off."""
    return json.dumps({**UNPARKED, **more}).encode()
