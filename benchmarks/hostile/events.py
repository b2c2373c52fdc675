"""Hostile clients that append and read events."""

from __future__ import annotations

import time
import uuid
from itertools import count
from typing import Final

import trio

import eventstore as es
from benchmarks.hostile.connections import Client, Kinds, requests, say_ready, wait
from benchmarks.hostile.wide_store import WIDE
from eventstore import flat
from eventstore.model import COMMIT_EVENTS_MAX, NewEvent
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX
from eventstore.protocol.request_codec import encode_append, encode_request
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Read, ReadAll, Subscribe
from eventstore.server.net.connection import BOUND_MAX
from tests.collisions import colliding
from tests.server.raw import Failure, RawClient

_SMALL: Final = NewEvent("E", b"x")


def _reads(address: str) -> None:
    """Pages of everything, of types that no event has."""
    Client(address).repeat(requests(lambda number: encode_request(number, ReadAll(types=("nobody",)))))


def _many_commits(address: str) -> None:
    """Frames with as many commits as are allowed."""
    client = Client(address)
    for turn in count(2):
        name = uuid.uuid4().hex[:8]
        event = flat.encode(_SMALL)
        commits = [(f"h-{name}-{place}", 0, "c", None, event) for place in range(COMMITS_PER_FRAME_MAX)]
        client.socket.sendall(encode_append(turn, commits))


def _large_commits(address: str) -> None:
    """Commits with as many events as are allowed."""
    client, events = Client(address), flat.encode(_SMALL) * COMMIT_EVENTS_MAX
    for turn in count(2):
        client.socket.sendall(encode_append(turn, [(uuid.uuid4().hex, 0, "c", None, events)]))


def _subscriptions(address: str) -> None:
    """Subscriptions to new events that match nothing, on sixteen connections. Ready once each has its first answer."""
    clients = [Client(address, reads=False, ready=False).socket for _ in range(16)]
    for number in range(2, 2 + BOUND_MAX):
        for client in clients:
            client.sendall(encode_request(number, Subscribe(after=None, types=(f"nobody-{number}",))))
    for client in clients:
        answers, reader = 0, FrameReader()
        while answers <= BOUND_MAX:  # and that to the hello
            answers += len(reader.feed(client.recv(1 << 16)))
    say_ready()
    wait()


def _tricklers(address: str) -> None:
    """A hundred readers of everything that take next to nothing of it."""
    clients = [Client(address, reads=False) for _ in range(100)]
    frames = b"".join(encode_request(number, ReadAll(bytes_max=8 << 20)) for number in range(2, 34))
    for client in clients:
        client.socket.sendall(frames)
    while True:
        for client in clients:
            client.socket.recv(1)
        time.sleep(0.1)


def _colliding_commands(address: str) -> None:
    """Repetitions of commands whose ids share their CRCs."""
    ids, event = colliding(2_000), flat.encode(_SMALL)
    with es.blocking.connect(address) as store:
        store.append_many([es.Commit("collided", [_SMALL], es.ANY, each) for each in ids])
    Client(address).repeat(encode_append(2, [("collided", es.ANY, each, None, event) for each in ids[:64]]))


def _wide_reads(address: str) -> None:
    """Reads of an aggregate in more files than may be open."""
    Client(address).repeat(requests(lambda number: encode_request(number, Read(WIDE))))


def _positions(address: str) -> None:
    """Reads and subscriptions after events that the store does not have: of another store, after its end, after a split that
    it has not had. All are refused: as Diverged, as arguments, or as of another layout."""
    places = ("2-00000000", f"{10**15}-00000000", f"2-00000000@{10**9}")
    wanted: list[Request] = [kind(after=place) for place in places for kind in (ReadAll, Subscribe)]
    wanted.append(Subscribe(after=10**15))
    with RawClient(int(address.rpartition(":")[2])) as client:
        for request in wanted:
            answer = client.ask(request)
            if not isinstance(answer, Failure) or not isinstance(answer.error, es.Diverged | es.Elsewhere | es.InvalidArgument):
                raise ValueError(f"{request} is not refused: {answer}")
    Client(address).repeat(requests(lambda number: encode_request(number, wanted[number % len(wanted)])))


def _hot_tag(address: str) -> None:
    """Decisions that all depend on one tag, beside writers of events with it: most conflict, and go first after a while."""
    scope, tags = "{hot}", ["hot"]
    query, event = es.Query(tags=tags), NewEvent("E", b"x", tags=tags)

    async def decide(store: es.NetworkStore, number: int) -> None:
        _, after = await store.query(query)
        for turn in count():
            write, conflicts = es.Write(f"d-{scope}-{number}", [event], es.ANY), True
            while conflicts:
                try:
                    await store.commit([write], unless=query, after=after, command_id=f"c-{turn}")
                    conflicts = False
                except es.ConditionFailed:
                    _, after = await store.query(query, after)

    async def append(store: es.NetworkStore, number: int) -> None:
        while True:
            await store.append(f"a-{scope}-{number}", [event], es.ANY)

    async def run() -> None:
        async with es.connect(address) as one, es.connect(address) as other, trio.open_nursery() as nursery:
            for number in range(16):
                nursery.start_soon(decide, one, number)
                nursery.start_soon(append, other, number)
            say_ready()

    trio.run(run)


KINDS: Final[Kinds] = {
    "reads of a type nobody has": _reads,
    "frames of many commits": _many_commits,
    "commits of many events": _large_commits,
    "idle subscriptions": _subscriptions,
    "readers that trickle": _tricklers,
    "command ids with one CRC": _colliding_commands,
    "reads of many files": _wide_reads,
    "positions that do not exist": _positions,
    "a hot tag": _hot_tag,
}
