"""Hostile clients that send commands."""

from __future__ import annotations

import json
from itertools import count
from typing import Final

import eventstore as es
from benchmarks.hostile.connections import Client, Kinds, requests
from eventstore.protocol.request_codec import encode_send


def _large_commands(address: str) -> None:
    """Commands of 4 MiB behind one that never ends."""
    payload = json.dumps({"name": "stuck", "text": "x" * (4 * 1024 * 1024 - 1_000)}).encode()
    client = Client(address)
    for turn in count(2):
        client.socket.sendall(encode_send(turn, ("Hold", "stuck", f"{turn}", payload, None)))


def _unknown_history(address: str) -> None:
    """Commands to an aggregate whose 10 MiB of events the domain does not know."""
    with es.blocking.connect(address) as store:
        store.append_many([es.Commit("foreign", [es.NewEvent("Foreign", bytes(1 << 20))], number) for number in range(10)])
    payload = json.dumps({"name": "foreign", "text": ""}).encode()
    Client(address).repeat(requests(lambda number: encode_send(number, ("Hold", "foreign", f"{number}", payload, None))))


KINDS: Final[Kinds] = {
    "large commands that wait": _large_commands,
    "commands to unknown events": _unknown_history,
}
