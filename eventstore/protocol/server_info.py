"""What a server reports about its clients and alarms, as values."""

from __future__ import annotations

from typing import NamedTuple

from eventstore.protocol.answer_form import OfShard


class ClientInfo(NamedTuple):
    """A connection. `name`: what its client calls itself; may be empty. `address`: host and port it comes from. `identity`:
    None where identities are off. `since`: when it connected, µs since 1970. `last_request`: its kind.

    `does`: what it sends to, consumes and subscribes to, a line each. `unsent_bytes`: of answers that it has not read yet.
    `shard`: that it is connected to, in an answer about several.
    """

    name: str
    address: str
    identity: str | None
    since: int
    does: str
    last_request: str
    unsent_bytes: int
    shard: OfShard = None


class BackupCut(NamedTuple):
    """Up to where a store is readable, all at one moment. `folder`: the data folder, as a path on the machine of the server;
    `store`: the uuid of the store; `sequence`: of the last event; `message`: the number of the last message, 0 without a
    broker; `taken`: when, µs since 1970; `shard`: in an answer about several.
    """

    folder: str
    store: str
    sequence: int
    message: int
    taken: int
    shard: OfShard = None


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
