"""Answers made on the event loop are bounded over all connections, not only for each."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from eventstore.protocol.frames import LENGTH
from eventstore.server.net.budgets import NoBacklog
from eventstore.server.net.connection import ServerConnection
from eventstore.server.net.gate import Gate
from tests.invariants import checked
from tests.server.net.test_gate import LIMITS

KIB, MIB = 1 << 10, 1 << 20
CLIENTS, REQUESTS = 8, 200
ANSWER = bytes(128 * KIB)
LATER = b"later"


@asynccontextmanager
async def answering() -> AsyncIterator[tuple[Gate, list[ServerConnection], int]]:
    """A gate that answers each request by `ANSWER`, but those that want it later; yields the connections these are of."""
    listener, owed = socket.create_server(("127.0.0.1", 0)), list[ServerConnection]()

    def handle(connection: ServerConnection, payload: bytes) -> None:
        connection.greeted = True
        if payload == LATER:
            gate.owe(connection)
            owed.append(connection)
        else:
            gate.send(connection, ANSWER)

    gate = Gate(listener, replace(LIMITS, connections_max=CLIENTS + 1, requests_max=REQUESTS, outgoing_bytes_max=4 * MIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.run, handle, lambda: None, NoBacklog())
        with checked(lambda: check_owed(gate, owed)):
            yield gate, owed, listener.getsockname()[1]
        nursery.cancel_scope.cancel()


def check_owed(gate: Gate, owed: list[ServerConnection]) -> None:
    """Each request that is to be answered later is counted once."""
    for each in gate.connections:
        assert each.owed == owed.count(each), f"{each.title}: {each.owed} requests are counted, {owed.count(each)} are owed"


def frame(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


async def clients_of(port: int) -> list[trio.SocketStream]:
    return [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CLIENTS)]


@pytest.mark.parametrize("later", [False, True])
async def test_clients_that_take_no_answers_are_not_given_more_than_all_may_hold(later: bool) -> None:
    async with answering() as (gate, owed, port):
        silent = await clients_of(port)
        for _ in range(REQUESTS):  # one by one: what waits behind others waits for the socket to take their answers
            for client in silent:
                await client.send_all(frame(b"now"))
            await trio.testing.wait_all_tasks_blocked()
        share = gate.outbound.share
        assert gate.outbound.bytes <= 4 * MIB + CLIENTS * (len(ANSWER) + share)
        reader = await trio.open_tcp_stream("127.0.0.1", port)
        await reader.send_all(frame(LATER if later else b"now") * REQUESTS)
        wanted = received = REQUESTS * len(ANSWER)
        answered = 0
        while received:
            while later and not owed and wanted - received == answered:  # all have come: the next is being asked for
                await trio.lowlevel.checkpoint()
            assert len(owed) <= 1, "what is answered later waits for room, too"
            if owed:
                gate.answer(owed.pop(), ANSWER)
                gate.flush()
                answered += len(ANSWER)
            received -= len(await reader.receive_some())
        for client in silent:
            left = wanted
            while left:
                left -= len(await client.receive_some())
        for client in (*silent, reader):
            await client.aclose()
