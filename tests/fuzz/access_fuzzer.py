"""Made-up grants, tokens and handshakes: nobody gets in, or may do, what was not granted, and a server goes on serving."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from eventstore.errors import EventStoreError, PermissionDenied
from eventstore.flat import encode
from eventstore.protocol import RequestDecoder, encode_error, encode_request
from eventstore.protocol.answers import AnswerDecoder, Ok
from eventstore.protocol.frames import FrameReader
from eventstore.protocol.reaction_requests import CheckParking
from eventstore.protocol.request_codec import BadRequest
from eventstore.protocol.request_declaration import DECLARATIONS, Request, code_of
from eventstore.protocol.requests import Hello
from eventstore.security.access_list import AccessList, Identity
from eventstore.security.permissions import ANYONE, Grants, Permission
from eventstore.security.roles import ROLES, parse_grants
from eventstore.security.tls_socket import TlsSocket
from eventstore.security.tokens import new_token
from tests.fuzz.request_maker import RequestMaker

_PREFIXES: Final = ("", "a-", "a-1", "$", "$parked{", "order", "orders", "retry:", "g-", "é", "{", "T", "Dep", "../")
_AT_ONCE: Final = 32
_NAMES: Final = (
    "aggregate_id",
    "aggregate_prefix",
    "prefix",
    "topic",
    "group",
    "reaction",
    "projection",
    "alarm",
    "type",
    "subject",
)


@dataclass(slots=True)
class AccessReport:
    """`inputs` by kind, and what broke a promise."""

    inputs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.inputs.values())


def fuzz_permissions(seed: int, count: int, report: AccessReport) -> None:
    """Checks requests against grants: more grants never permit less, and what is permitted is about granted names only."""
    chance, decode, maker = random.Random(f"permissions/{seed}"), RequestDecoder().decode, RequestMaker(seed)
    everything = parse_grants(["admin"])
    while report.inputs["permissions"] < count:
        kind, values = maker.request()
        try:
            _, request = decode(encode([7, code_of(kind), *values]))
        except BadRequest:
            report.outcomes["malformed"] += 1
            report.inputs["permissions"] += 1
            continue
        texts = [_grant(chance) for _ in range(chance.randrange(5))]
        some, more = parse_grants(texts), parse_grants([*texts, _grant(chance)])
        report.inputs["permissions"] += 1
        verdict = _may(some, request)
        report.outcomes["permitted" if verdict else "denied"] += 1
        if verdict and not _may(more, request):
            report.broken.append(f"more grants permit less: {texts} {request!r:.200}")
        if not _may(everything, request):
            report.broken.append(f"an admin may not: {request!r:.200}")
        if DECLARATIONS[kind].needs is not ANYONE:
            if _may(Grants({}), request) and not DECLARATIONS[kind].needs.alone:
                report.broken.append(f"nothing is granted, and yet: {request!r:.200}")
            if verdict and not DECLARATIONS[kind].needs.alone and not _is_covered(texts, request):
                report.broken.append(f"{texts} do not cover {request!r:.200}")


def _grant(chance: random.Random) -> str:
    return f"{chance.choice((*ROLES, *Permission))}:{chance.choice(_PREFIXES)}"


def _may(grants: Grants, request: Request) -> bool:
    try:
        grants.check_request(DECLARATIONS[type(request)].needs, request)
    except PermissionDenied:
        return False
    return True


def _is_covered(texts: list[str], request: Request) -> bool:
    """Whether some grant's prefix begins a name in the request, or a grant is about no names, or the request is about none."""
    prefixes = [text.partition(":")[2] for text in texts if text.partition(":")[0] not in ("stats", "cluster", "backup")]
    if len(prefixes) < len(texts) or any(text.partition(":")[0] in ROLES for text in texts):
        return True
    if isinstance(request, CheckParking):  # asks whether there is any aggregate of which it may park
        return any(text.partition(":")[0] == Permission.PARK for text in texts)
    names = [str(getattr(request, each)) for each in _NAMES if getattr(request, each, None)]
    names += [str(row[0]) for rows in ("wants", "topics", "aggregates") for row in getattr(request, rows, ())]
    names += map(str, getattr(request, "subjects", ()))
    inner = [name.partition(opening)[2] for name in names for opening in ("retry:", "dead:", "$parked{") if opening in name]
    return any(not prefix or any(name.startswith(prefix) for name in (*names, *inner)) for prefix in prefixes)


def fuzz_tokens(seed: int, count: int, report: AccessReport) -> None:
    """Checks that no text but the token is the token."""
    chance, now = random.Random(f"tokens/{seed}"), datetime.now(UTC)
    made = [new_token(now, None) for _ in range(8)]
    access = AccessList({f"i-{n}": Identity(f"i-{n}", tokens={key: stored}) for n, (_, key, stored) in enumerate(made)})
    while report.inputs["tokens"] < count:
        report.inputs["tokens"] += 1
        place = chance.randrange(len(made))
        token = made[place][0]
        text = _mutated(chance, token)
        found = access.identity(access.credential(text, None), now)
        if text == token and (found is None or found.name != f"i-{place}"):
            report.broken.append("a token is not known")
        if found is not None and text not in {each for each, _, _ in made}:
            report.broken.append(f"{text!r} was taken for a token")
        report.outcomes["known" if found is not None else "unknown"] += 1


def _mutated(chance: random.Random, token: str) -> str:
    text = list(token)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(text) or 1)
        match chance.randrange(5):
            case 0:
                text[place : place + 1] = chance.choice("_-aZ0é\0\U0001f600")
            case 1:
                del text[place:]
            case 2:
                text[place:place] = text[: chance.randrange(8)]
            case 3:
                text.reverse()
            case _:
                text[place : place + 1] = "".join(text[place : place + 1]).swapcase()
    return "".join(text)


def fuzz_handshakes(port: int, seed: int, count: int, report: AccessReport, context: ssl.SSLContext) -> None:
    """Connects with handshakes and hellos that are not quite right; each connection has to end, and none may be let in.

    Each comes from an address of its own, since one that was refused is answered later each time, and many wait at once.
    """
    chance = random.Random(f"handshakes/{seed}")
    welcome = _client_hello(context)
    makers: tuple[Callable[[], Knock], ...] = (
        lambda: Knock(_garbled(chance, welcome)),
        lambda: Knock(chance.randbytes(chance.randrange(1, 600))),
        lambda: Knock(b"\x16\x03\x01" + chance.randbytes(chance.randrange(1, 600))),
        lambda: Knock(_garbled(chance, encode_request(1, Hello(1, "fuzz", token="es_1_2")))),
        lambda: Knock(encode_error(0, EventStoreError("x" * chance.randrange(1_000)))),
        lambda: Knock(_garbled(chance, _hello(chance)), secured=True),
    )
    knocks = (chance.choice(makers)() for _ in range(count))
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for knock, ended in threads.map(lambda each: (each[1], _talk(port, each[1], each[0], context)), enumerate(knocks)):
            report.inputs["handshakes"] += 1
            report.outcomes[ended] += 1
            if ended in ("let in", "neither answered nor closed"):
                report.broken.append(f"a connection was {ended}: {knock!r:.300}")


@dataclass(frozen=True, slots=True)
class Knock:
    """What a connection sends: as it is, or over a whole handshake."""

    data: bytes
    secured: bool = False


def _hello(chance: random.Random) -> bytes:
    return encode_request(1, Hello(1, "\x1b[2J" * chance.randrange(9), token=_mutated(chance, "es_abc_def") or "x"))


def _talk(port: int, knock: Knock, number: int, context: ssl.SSLContext) -> str:
    """Sends the bytes and receives all there is; returns how it ended."""
    here = f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{2 + number % 250}"
    with socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(here, 0)) as plain:
        try:
            if knock.secured:
                return _say_hello(TlsSocket(plain, context, server_side=False, host="localhost"), knock.data)
            plain.sendall(knock.data)
            plain.shutdown(socket.SHUT_WR)
            received = b""
            while more := plain.recv(65_536):
                received += more
        except TimeoutError:
            return "neither answered nor closed"
        except OSError:
            return "reset"
    return "answered" if received else "closed"


def _say_hello(secured: TlsSocket, data: bytes) -> str:
    """Shakes hands, and then sends what is not quite a hello."""
    while not secured.start():
        secured.feed()
    secured.send(data)
    reader, decode = FrameReader(), AnswerDecoder().decode
    while True:
        try:
            received = secured.recv(65_536)
        except BlockingIOError:  # a record that is not data
            continue
        if answers := [decode(payload)[1] for payload in reader.feed(received)]:
            return "let in" if any(isinstance(each, Ok) for each in answers) else "refused"
        if not received:
            return "closed"


def _client_hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _garbled(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(found))
        match chance.randrange(3):
            case 0:
                found[place] ^= 1 << chance.randrange(8)
            case 1 if place > 0:
                del found[place:]
            case _:
                found[place:place] = chance.randbytes(4)
    return bytes(found)
