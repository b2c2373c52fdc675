"""One noisy identity beside ten quiet ones: with its limits, few of its requests are taken before one of theirs.

The event loop stands still while all of them send. What it finds then, it takes in an order that the log of the store shows.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

import eventstore as es
from eventstore.protocol.answers import Ok
from eventstore.protocol.requests import Hello
from eventstore.server.serve import Server
from tests.security.access_file import give
from tests.server.raw import RawClient, append_frame, commit, outcomes_of
from tests.server_thread import ServerThread

CONNECTIONS, AT_ONCE, ROUNDS, QUIET, LIMIT = 8, 100, 5, 10, 4


@pytest.mark.parametrize("limited", [True, False])
def test_few_requests_of_a_noisy_identity_go_before_one_of_a_quiet_one(limited: bool, tmp_path: Path) -> None:
    data = tmp_path / "data"
    tokens = {f"quiet-{number}": give(data, f"quiet-{number}", "writer") for number in range(QUIET)}
    noisy = give(data, "noisy", "writer", limits={"requests": LIMIT} if limited else None)
    reader = give(data, "reader", "reader")
    with ServerThread(data) as server, ExitStack() as stack:

        def client(token: str) -> RawClient:
            made = stack.enter_context(RawClient(server.port, greet=False))
            assert isinstance(made.ask(Hello(1, "raw", token=token)), Ok)
            return made

        loud = [client(noisy) for _ in range(CONNECTIONS)]
        quiet = {name: client(token) for name, token in tokens.items()}
        begins = [_round(server, number, loud, quiet) for number in range(ROUNDS)]
        with es.blocking.connect(server.address, token=reader) as store:
            log = [event.aggregate_id for event in store.read_all()]
    waited = [log[begin : log.index(f"{name}-{number}")] for number, begin in enumerate(begins) for name in quiet]
    before = [sum(name == "noisy" for name in each) for each in waited]
    assert len(before) == ROUNDS * QUIET
    if limited:
        assert max(before) <= LIMIT + CONNECTIONS, before  # each connection may exceed it by one
    else:
        assert max(before) > 5 * (LIMIT + CONNECTIONS), before


def _round(server: ServerThread, number: int, loud: list[RawClient], quiet: dict[str, RawClient]) -> int:
    """Has the noisy one send much, and then each quiet one a little, before any of it is received; waits until the quiet ones
    are answered. Returns how many events there were.
    """
    stands, go = Event(), Event()
    begins: list[int] = []

    def stand_still(running: Server) -> None:
        begins.append(running.store.engine.barrier)
        stands.set()
        go.wait()

    holder = Thread(target=lambda: server.ask(stand_still))
    holder.start()
    stands.wait()
    try:
        for place, each in enumerate(loud):
            commands = (f"{number}-{place}-{request}" for request in range(AT_ONCE))
            each.send(b"".join(append_frame(10 + at, commit("noisy", command)) for at, command in enumerate(commands)))
        for name, one in quiet.items():
            one.send(append_frame(10 + number, commit(f"{name}-{number}", "c-1")))
    finally:
        go.set()
        holder.join()
    for one in quiet.values():
        assert outcomes_of(one.answer()[1])[0][0] == 0
    return begins[0]
