"""Hostile clients, each a process: `python -m benchmarks.hostile.clients KIND ADDRESS`. It runs until it is killed.

It has an address of its own, because the connections of one address share what that gets. It gives way to the others on the
processor (nice 19), as one on a machine of its own would: what is measured is what it takes from the server. What it gets back
is read and thrown away.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.connection
import os
import selectors
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

import eventstore as es
from benchmarks.hostile import floods
from benchmarks.hostile.floods import FLOODS, Flood
from benchmarks.hostile.wide_store import WIDE
from eventstore import flat
from eventstore.model import COMMIT_EVENTS_MAX, NewEvent
from eventstore.protocol.answers import AnswerDecoder
from eventstore.protocol.broker_requests import FindKey, Pull
from eventstore.protocol.frames import LENGTH, FrameReader, encode_frame
from eventstore.protocol.group_requests import Join, ShowGroup
from eventstore.protocol.limits import COMMITS_PER_FRAME_MAX
from eventstore.protocol.message_answers import Messages
from eventstore.protocol.request_codec import encode_append, encode_request, encode_send
from eventstore.protocol.request_declaration import Request
from eventstore.protocol.requests import Hello, Map, Ping, Read, ReadAll, Stats, Subscribe, Unsubscribe
from eventstore.server.net.connection import BOUND_MAX
from tests.collisions import colliding
from tests.server.raw import Failure, RawClient

SOURCE: Final = "HOSTILE_SOURCE"
HTTP: Final = "HOSTILE_HTTP"
_FROM: Final = os.environ.get(SOURCE, "127.0.0.2")
TOPIC: Final = "tagged"
QUIET: Final = "quiet"
QUIET_QUEUES: Final = 4
_WAITING_CONNECTIONS: Final = 190
_BATCH: Final = 512
_MANY: Final = 100
_UNKNOWN_CODE: Final = 250
_SMALL: Final = NewEvent("E", b"x")


_ready: list[Callable[[], None]] = [lambda: print("ready", flush=True)]
"""What the first connection calls."""


def _say_ready() -> None:
    if _ready:
        _ready.pop()()


class _Socket:
    """A connection that said hello; a thread discards what it receives. The first one says that what it needs is there."""

    def __init__(self, address: str, *, reads: bool = True, ready: bool = True) -> None:
        if ready:
            _say_ready()
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), source_address=(_FROM, 0))
        self.socket.sendall(encode_request(1, Hello(1, "hostile")))
        if reads:
            threading.Thread(target=self._discard, daemon=True).start()

    def _discard(self) -> None:
        while self.socket.recv(1 << 20):
            pass

    def repeat(self, frames: bytes) -> None:
        while True:
            self.socket.sendall(frames)


def _on_many(address: str, frames: bytes) -> None:
    """Repeats the frames on a hundred connections, each as fast as it takes them."""
    with selectors.DefaultSelector() as selector:
        for _ in range(_MANY):
            each = _Socket(address, reads=False).socket
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(frames))
        while True:
            for key, ready in selector.select():
                with suppress(BlockingIOError):
                    if ready & selectors.EVENT_READ:
                        os.read(key.fd, 1 << 20)
                    if ready & selectors.EVENT_WRITE:
                        rest = key.data[os.write(key.fd, key.data) :]
                        selector.modify(key.fileobj, key.events, rest or memoryview(frames))


def _requests(make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(number) for number in range(2, 2 + _BATCH))


def _pings(address: str) -> None:
    _Socket(address).repeat(_requests(lambda number: encode_request(number, Ping())))


def _many_pings(address: str) -> None:
    """Pings on a hundred connections."""
    _on_many(address, _requests(lambda number: encode_request(number, Ping())))


def _unread(address: str) -> None:
    """Figures on a hundred connections, none of which reads its answers."""
    clients = [_Socket(address, reads=False).socket for _ in range(_MANY)]
    for number in count(2):
        for client in clients:
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send(encode_request(number, Stats()))
        time.sleep(0.001)


def _ended_pulls(address: str) -> None:
    """Pulls that wait, each of which the next request ends."""
    pull = Pull(64, 4096, 60_000, wants=((TOPIC, 0, 0, "nobody"),))

    def pair(number: int) -> bytes:
        return encode_request(2 * number, pull) + encode_request(2 * number + 1, Unsubscribe(2 * number))

    _Socket(address).repeat(_requests(pair))


def _waiting_pulls(address: str) -> None:
    """As many pulls as may wait, all for the queues that the quiet clients send to; those that are answered are asked again."""
    offsets, decode = [0] * QUIET_QUEUES, AnswerDecoder().decode

    def pull(number: int) -> bytes:
        wants = tuple((QUIET, queue, offset, None) for queue, offset in enumerate(offsets))
        return encode_request(number, Pull(1, 4096, 60_000, wants=wants))

    with selectors.DefaultSelector() as selector:
        for _ in range(_WAITING_CONNECTIONS):
            each = _Socket(address, reads=False).socket
            each.sendall(b"".join(map(pull, range(2, 2 + BOUND_MAX))))
            selector.register(each, selectors.EVENT_READ, FrameReader())
        while True:
            for key, _ready in selector.select():
                answers = map(decode, key.data.feed(os.read(key.fd, 1 << 20)))
                answered = [(number, answer) for number, answer in answers if isinstance(answer, Messages)]
                for _, answer in answered:
                    offsets = [max(offset, page.next_offset) for offset, page in zip(offsets, answer.pages, strict=True)]
                os.write(key.fd, b"".join(pull(number) for number, _ in answered))


def _garbage(address: str) -> None:
    _Socket(address).repeat((LENGTH.pack(1) + b"\x00") * _BATCH)


def _unknown(address: str) -> None:
    _Socket(address).repeat(_requests(lambda number: encode_frame(number, _UNKNOWN_CODE, ())))


def _pulls(address: str) -> None:
    """Messages with a tag that no message has."""
    pull = Pull(64, 4096, wants=((TOPIC, 0, 0, "nobody"),))
    _Socket(address).repeat(_requests(lambda number: encode_request(number, pull)))


def _reads(address: str) -> None:
    """Pages of everything, of types that no event has."""
    _Socket(address).repeat(_requests(lambda number: encode_request(number, ReadAll(types=("nobody",)))))


def _many_commits(address: str) -> None:
    """Frames with as many commits as are allowed."""
    client = _Socket(address)
    for turn in count(2):
        name = uuid.uuid4().hex[:8]
        event = flat.encode(_SMALL)
        commits = [(f"h-{name}-{place}", 0, "c", None, event) for place in range(COMMITS_PER_FRAME_MAX)]
        client.socket.sendall(encode_append(turn, commits))


def _large_commits(address: str) -> None:
    """Commits with as many events as are allowed."""
    client, events = _Socket(address), flat.encode(_SMALL) * COMMIT_EVENTS_MAX
    for turn in count(2):
        client.socket.sendall(encode_append(turn, [(uuid.uuid4().hex, 0, "c", None, events)]))


def _subscriptions(address: str) -> None:
    """Subscriptions to new events that match nothing, on sixteen connections. Ready once each has its first answer."""
    clients = [_Socket(address, reads=False, ready=False).socket for _ in range(16)]
    for number in range(2, 2 + BOUND_MAX):
        for client in clients:
            client.sendall(encode_request(number, Subscribe(after=None, types=(f"nobody-{number}",))))
    for client in clients:
        answers, reader = 0, FrameReader()
        while answers <= BOUND_MAX:  # and that to the hello
            answers += len(reader.feed(client.recv(1 << 16)))
    _say_ready()
    _wait()


def _silent(address: str) -> None:
    """A thousand connections that say hello and nothing more."""
    kept = [_Socket(address, reads=False) for _ in range(1_000)]
    while kept:
        time.sleep(60)


def _tricklers(address: str) -> None:
    """A hundred readers of everything that take next to nothing of it."""
    clients = [_Socket(address, reads=False) for _ in range(100)]
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
    _Socket(address).repeat(encode_append(2, [("collided", es.ANY, each, None, event) for each in ids[:64]]))


def _colliding_keys(address: str) -> None:
    """Look-ups by a key that shares its CRC with those of many messages."""
    *keys, wanted = colliding(5_001)
    with es.blocking.connect(address) as store:
        for first in range(0, len(keys), 1_000):
            store.topic(TOPIC).send_many([es.NewMessage(b"{}", key=each) for each in keys[first : first + 1_000]])
    _Socket(address).repeat(_requests(lambda number: encode_request(number, FindKey(TOPIC, wanted))))


def _topics(address: str, count_: int, queues: int) -> list[tuple[str, None]]:
    names = [f"topic-{number}" for number in range(count_)]
    with es.blocking.connect(address) as store:
        for name in names:
            store.broker.create_topic(name, queues, if_missing=True)
    return [(name, None) for name in names]


def _offsets(address: str) -> None:
    """Joins of ever new groups that read as many queues as a member may."""
    wanted, client = tuple(_topics(address, 64, 256)), _Socket(address)
    for turn in count(2):
        client.socket.sendall(encode_request(turn, Join(f"group-{turn}", "member", topics=wanted)))


def _members(address: str) -> None:
    """Joins of hundreds of members that read hundreds of topics."""
    wanted, client = tuple(_topics(address, 300, 1)), _Socket(address)
    for turn in count(2):
        client.socket.sendall(encode_request(turn, Join("group", f"member-{turn % 326}", topics=wanted)))


def _listed_groups(address: str) -> None:
    """The progress of a group that reads as many queues as a member may."""
    wanted, client = tuple(_topics(address, 64, 256)), _Socket(address)
    client.socket.sendall(encode_request(2, Join("group", "member", topics=wanted)))
    client.repeat(_requests(lambda number: encode_request(number, ShowGroup("group"))))


def _listed_on_many(address: str) -> None:
    """The same, on a hundred connections."""
    wanted, client = tuple(_topics(address, 64, 256)), _Socket(address)
    client.socket.sendall(encode_request(2, Join("group", "member", topics=wanted)))
    _on_many(address, _requests(lambda number: encode_request(number, ShowGroup("group"))))


def _maps(address: str) -> None:
    _Socket(address).repeat(_requests(lambda number: encode_request(number, Map())))


def _visitors(address: str) -> None:
    """Connections that say hello, wait for the answer and go."""
    while True:
        visitor = _Socket(address, reads=False).socket
        visitor.recv(4096)
        visitor.close()


def _http() -> socket.socket:
    host, _, port = os.environ[HTTP].rpartition(":")
    return socket.create_connection((host, int(port)), source_address=(_FROM, 0))


def _scrapes(_: str) -> None:
    """Figures over HTTP, on sixteen connections at once."""

    def scrape() -> None:
        while True:
            with _http() as scraper, suppress(ConnectionError):
                scraper.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                while scraper.recv(1 << 20):
                    pass

    _say_ready()
    for _thread in range(16):
        threading.Thread(target=scrape, daemon=True).start()
    _wait()


def _slow_http(_: str) -> None:
    """As many requests over HTTP as may be under way, each a byte a second; those that are closed begin again."""
    _say_ready()
    clients = [_http() for _number in range(300)]
    while True:
        for place, client in enumerate(clients):
            try:
                client.sendall(b"G")
            except ConnectionError:
                client.close()
                clients[place] = _http()
        time.sleep(1)


def _wide_reads(address: str) -> None:
    """Reads of an aggregate in more files than may be open."""
    _Socket(address).repeat(_requests(lambda number: encode_request(number, Read(WIDE))))


def _large_commands(address: str) -> None:
    """Commands of 4 MiB behind one that never ends."""
    payload = json.dumps({"name": "stuck", "text": "x" * (4 * 1024 * 1024 - 1_000)}).encode()
    client = _Socket(address)
    for turn in count(2):
        client.socket.sendall(encode_send(turn, ("Hold", "stuck", f"{turn}", payload, None)))


def _unknown_history(address: str) -> None:
    """Commands to an aggregate whose 10 MiB of events the domain does not know."""
    with es.blocking.connect(address) as store:
        store.append_many([es.Commit("foreign", [es.NewEvent("Foreign", bytes(1 << 20))], number) for number in range(10)])
    payload = json.dumps({"name": "foreign", "text": ""}).encode()
    _Socket(address).repeat(_requests(lambda number: encode_send(number, ("Hold", "foreign", f"{number}", payload, None))))


def _busy(_: str) -> None:
    """A processor that computes, without a connection: what the machine takes, and not the server."""
    _say_ready()
    while True:
        pass


def _wait() -> None:
    while True:
        time.sleep(60)


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
    _Socket(address).repeat(_requests(lambda number: encode_request(number, wanted[number % len(wanted)])))


def _flood(flood: Flood, address: str) -> None:
    first = floods.prepare(flood, address)
    client = _Socket(address).socket
    client.sendall(first)
    floods.send(flood, client.sendall)


KINDS: Final[dict[str, Callable[[str], None]]] = {
    "a busy processor": _busy,
    "pings": _pings,
    "pings on many connections": _many_pings,
    "answers that nobody reads": _unread,
    "pulls that are ended at once": _ended_pulls,
    "pulls of one topic": _waiting_pulls,
    "garbage": _garbage,
    "unknown requests": _unknown,
    "pulls of a tag nobody has": _pulls,
    "reads of a type nobody has": _reads,
    "frames of many commits": _many_commits,
    "commits of many events": _large_commits,
    "idle subscriptions": _subscriptions,
    "silent connections": _silent,
    "readers that trickle": _tricklers,
    "command ids with one CRC": _colliding_commands,
    "keys with one CRC": _colliding_keys,
    "offsets of many groups": _offsets,
    "members of many topics": _members,
    "groups of many queues": _listed_groups,
    "groups on many connections": _listed_on_many,
    "maps": _maps,
    "connections that come and go": _visitors,
    "HTTP requests": _scrapes,
    "slow HTTP requests": _slow_http,
    "reads of many files": _wide_reads,
    "large commands that wait": _large_commands,
    "commands to unknown events": _unknown_history,
    "positions that do not exist": _positions,
    **{name: partial(_flood, flood) for name, flood in FLOODS.items()},
}


def begin(kind: str, address: str) -> None:
    os.nice(19)
    KINDS[kind](address)


class Forked:
    """A hostile client, from a process that has imported all that they need: most of a second less for each."""

    _fork: Final = multiprocessing.get_context("forkserver")
    _fork.set_forkserver_preload([__name__])

    def __init__(self, kind: str, address: str) -> None:
        ready, far = self._fork.Pipe(duplex=False)
        self._process = self._fork.Process(target=_begin_forked, args=(kind, address, far))
        self._process.start()
        far.close()
        with ready, suppress(EOFError):
            ready.recv()

    @property
    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _begin_forked(kind: str, address: str, ready: multiprocessing.connection.Connection) -> None:
    _ready[:] = [partial(ready.send, None)]
    begin(kind, address)


if __name__ == "__main__":
    begin(*sys.argv[1:])
