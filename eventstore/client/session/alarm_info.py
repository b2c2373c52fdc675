"""What a server reports about its alarms, as values."""

from __future__ import annotations

from typing import NamedTuple


class AlarmInfo(NamedTuple):
    """An alarm. `subject`: what it is about, such as `group=billing`; empty: the server, or, of one that is quiet, everything.

    `state`: quiet, pending (its rule holds, not for long enough yet) or raised. `since`: µs since 1970; 0: from the start on.
    `text`: what is wrong; None: nothing. `silenced_until`: µs since 1970; None: it is not silenced.
    """

    name: str
    subject: str
    state: str
    since: int
    rule: str
    text: str | None
    silenced_until: int | None
    silenced_by: str | None
    silenced_because: str | None
