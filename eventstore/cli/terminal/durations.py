"""Times as they are written on the command line: `90s`, `30m`, `12h`, `7d`."""

from __future__ import annotations

import re
from typing import Final

from eventstore.errors import InvalidArgument

_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FORM: Final = re.compile(r"([0-9]{1,9})([smhd])")


def seconds_of(option: str, text: str) -> int:
    """Returns the seconds. Raises InvalidArgument."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"--{option} is {text!r}, but must be a time such as 90s, 30m, 12h or 7d", field=option, value=text
        )
    return int(found[1]) * _SECONDS[found[2]]
