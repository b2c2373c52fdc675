"""A server of KurrentDB is moved in. None is installed for these tests: name one in EVENTSTORE_TESTS_KURRENTDB."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import uuid4

import pytest

from eventstore import blocking
from tests.cli.processes import Server, output

ADDRESS = os.environ.get("EVENTSTORE_TESTS_KURRENTDB", "")
pytestmark = pytest.mark.skipif(not ADDRESS, reason="there is no server of KurrentDB: EVENTSTORE_TESTS_KURRENTDB names none")
Serve = Callable[..., Server]


def test_streams_are_moved_in_and_a_further_run_takes_what_is_new(serve: Serve) -> None:
    client_of = pytest.importorskip("kurrentdbclient", reason="kurrentdbclient is not installed")
    server, client = serve(), client_of.KurrentDBClient(uri=ADDRESS)
    stream = f"order-{uuid4()}"
    new = [
        client_of.NewEvent(type="Result" if number else "Step", data=b'{"n": 1}', metadata=b'{"by": "me"}')
        for number in range(3)
    ]
    client.append_to_stream(stream, current_version=client_of.StreamState.NO_STREAM, events=new[:2])
    arguments = ["migrate", f"kurrentdb:{ADDRESS}", server.store, "--version-gaps", "close"]
    output(*arguments)
    client.append_to_stream(stream, current_version=1, events=new[2:])
    output(*arguments)
    output(*arguments, "--verify")
    with blocking.connect(server.store) as store:
        found = list(store.read(stream))
    assert [(event.version, event.type, event.command_id) for event in found] == [
        (number, each.type, str(each.id)) for number, each in enumerate(new, 1)
    ]
    assert (found[0].json(), found[0].metadata_json()) == ({"n": 1}, {"by": "me"})
